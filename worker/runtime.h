#pragma once
// Everything a worker computes with, put together in the order of a life: file -> card -> hyper-parameters -> plans -> weights -> scheduler
// -> executor. The worker process and `holdfast bench` build it the same way.
#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "kernels/ops.h"
#include "proto/model_card.pb.h"
#include "worker/backend.h"
#include "worker/cache_plan.h"
#include "worker/config.h"
#include "worker/constraints.h"
#include "worker/exec/executor.h"
#include "worker/link/keeper.h"
#include "worker/model/gguf_file.h"
#include "worker/model/hparams.h"
#include "worker/model/kv_plan.h"
#include "worker/model/weights.h"
#include "worker/sched/scheduler.h"
#include "worker/tp/collective.h"
#include "worker/tp/group.h"

namespace holdfast::worker {

// What the outside hears while a runtime is built. Callbacks run on the building thread.
struct RuntimeEvents {
  std::function<void(const proto::ModelCard&)> on_card;                   // before any weight is loaded
  std::function<bool(const model::LoadProgress&)> on_progress;            // false = give up
  Keeper* keeper = nullptr;                                               // gives weights of an earlier generation, takes ours; may be null
  tp::Group* group = nullptr;                                             // the other ranks; null when there are none. Outlives the runtime
};

class Runtime {
 public:
  // Status codes say who is at fault: kInvalidArgument with `FaultOf` = configuration or model (see below).
  static absl::StatusOr<std::unique_ptr<Runtime>> Build(const WorkerConfig& config, const RuntimeEvents& events, FindingSink* findings,
                                                        const MakeCuda& make_cuda = kernels::MakeCudaOps);

  kernels::Ops& ops() { return *ops_; }
  sched::Scheduler& scheduler() { return *scheduler_; }
  exec::Executor& executor() { return *executor_; }
  tp::Collective* ranks() { return ranks_.get(); }             // null when there is one
  Constraints& constraints() { return *constraints_; }
  const model::KvPlan& kv_plan() const { return kv_plan_; }
  const CachePlan& cache_plan() const { return cache_plan_; }
  const model::Hparams& hparams() const { return hparams_; }
  // Steps launched beyond the one that computes: what --overlap says; by itself 1 where a device computes while the host goes on and there is
  // one rank, else 0.
  uint32_t overlap_depth() const { return overlap_depth_; }
  uint64_t weight_bytes() const { return weights_->bytes(); }
  uint32_t load_ms() const { return load_ms_; }
  uint32_t weights_ms() const { return weights_ms_; }         // of load_ms
  bool mapped_weights() const { return mapped_weights_; }     // those of an earlier generation

  // A prefill and a decode of nothing of consequence, so that the first request pays for no first touch of weights, buffers and code.
  absl::Status WarmUp();

 private:
  Runtime() = default;
  // What weights and a page of each pool take: of all ranks together where they share this machine's memory, of the largest where each has a
  // device. A page of the plan is a page of every rank.
  struct GroupCost {
    uint64_t weight_bytes = 0;
    std::vector<uint64_t> page_bytes;      // [group]
  };
  // Lets the devices of the ranks talk to each other, where they can (--collectives).
  absl::Status JoinDevices(const WorkerConfig& config, tp::Group* group);
  absl::StatusOr<GroupCost> CostOfGroup(const WorkerConfig& config, const model::Hparams& whole, const model::TensorPlan& own) const;
  // The memory that weights and pools may use: one number, since all ranks must plan alike. As rank 0 sees the machine; of devices, the least.
  absl::Status AgreeOnMemory(uint64_t mapped_bytes, uint64_t* memory_bytes);
  // Maps the weights the keeper holds, if they are this model's; lets go of them otherwise.
  void MapKeptWeights(const model::TensorPlan& tensors, Keeper& keeper);
  void Record(const sched::SchedulerConfig& config, const WorkerConfig& worker, Keeper& keeper);

  std::unique_ptr<kernels::Ops> ops_;
  std::unique_ptr<model::GgufFile> file_;
  model::Hparams hparams_;                   // of this rank's part
  std::unique_ptr<tp::Collective> ranks_;    // null when there is one
  model::KvPlan kv_plan_;
  CachePlan cache_plan_;
  std::shared_ptr<const model::WeightStore> weights_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::unique_ptr<Constraints> constraints_;
  std::unique_ptr<exec::Executor> executor_;
  uint32_t overlap_depth_ = 0;
  uint32_t load_ms_ = 0, weights_ms_ = 0;
  bool mapped_weights_ = false;
};

// The exit code a failed Build means: which payload it carries decides between 64 (configuration), 65 (model), 69 (environment).
int ExitCodeOf(const absl::Status& status);

}  // namespace holdfast::worker

#include "worker/runtime.h"

#include <fmt/format.h>

#include "proto/base/clock.h"
#include "proto/base/exit_code.h"
#include "proto/base/fault.h"
#include "proto/base/log.h"
#include "proto/base/status_wire.h"
#include "worker/model/card.h"
#include "worker/model/memory.h"
#include "worker/model/tensor_plan.h"
#include "worker/model/token_texts.h"
#include "worker/replay/recording.h"

namespace holdfast::worker {
namespace {

constexpr char kExitPayload[] = "holdfast.exit";

// Says which exit code the status means, unless an inner call already did.
absl::Status Blame(absl::Status status, ExitCode code) {
  if (!status.ok() && !status.GetPayload(kExitPayload)) {
    status.SetPayload(kExitPayload, absl::Cord(std::to_string(static_cast<int>(code))));
  }
  return status;
}

// A file that is gone or unreadable is the environment's fault only when it may come back; the operator named it, so it is the model's.
ExitCode ModelFault(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? ExitCode::kEnvironment : ExitCode::kModel;
}

#define HF_BLAME_RETURN(lhs, expr, fault)                       \
  auto HF_CONCAT(blamed_, __LINE__) = (expr);                   \
  if (!HF_CONCAT(blamed_, __LINE__).ok()) {                     \
    const absl::Status& why = HF_CONCAT(blamed_, __LINE__).status(); \
    return Blame(why, fault);                                   \
  }                                                             \
  lhs = *std::move(HF_CONCAT(blamed_, __LINE__))

}  // namespace

int ExitCodeOf(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kExitPayload)) return std::atoi(std::string(*payload).c_str());
  return static_cast<int>(ExitCode::kConfig);
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Build(const WorkerConfig& config, const RuntimeEvents& events, FindingSink* findings) {
  const Instant begin = Clock::Real().Now();
  std::unique_ptr<Runtime> r(new Runtime());
  if (config.backend == "reference") {
    r->ops_ = kernels::MakeReferenceOps();
  } else {
    kernels::CpuOptions options;
    options.threads = config.threads;
    options.isa = config.cpu_isa;
    r->ops_ = kernels::MakeCpuOps(options);
    if (r->ops_ == nullptr) {
      return Blame(absl::InvalidArgumentError(fmt::format("--cpu-isa {} is not available on this machine; --cpu-isa auto works", config.cpu_isa)),
                   ExitCode::kConfig);
    }
  }
  LogInfo("backend: {}", r->ops_->Describe());

  HF_BLAME_RETURN(r->file_, model::GgufFile::Open(config.model), ModelFault(why));
  HF_BLAME_RETURN(const proto::ModelCard card, model::MakeCard(*r->file_), ModelFault(why));
  HF_BLAME_RETURN(r->hparams_, model::ReadHparams(*r->file_), ModelFault(why));
  HF_BLAME_RETURN(const model::TensorPlan tensors, model::TensorPlan::Make(*r->file_, r->hparams_), ModelFault(why));
  if (card.vocab_size() != static_cast<uint32_t>(r->hparams_.vocab)) {
    return Blame(absl::InvalidArgumentError(fmt::format("{}: the tokenizer has {} tokens, the output matrix {} rows", config.model,
                                                        card.vocab_size(), r->hparams_.vocab)),
                 ExitCode::kModel);
  }
  HF_BLAME_RETURN(const kernels::KvDType dtype, model::KvDTypeFromFlag(config.kv_dtype), ExitCode::kConfig);
  HF_BLAME_RETURN(r->kv_plan_, model::MakeKvPlan(r->hparams_, *r->ops_, dtype, static_cast<int32_t>(config.page_size)), ExitCode::kConfig);

  // Before the pools are sized: mapped weights are in memory already.
  if (events.keeper != nullptr) r->MapKeptWeights(tensors, *events.keeper);

  CachePlanInput input;
  for (const auto& g : r->kv_plan_.groups) input.groups.push_back({g.window, static_cast<uint64_t>(g.page_bytes)});
  input.page_size = config.page_size;
  input.max_running = config.max_running;
  input.prefill_chunk = config.prefill_chunk;
  input.context_length = r->hparams_.context_length;
  input.memory_bytes = model::AvailableMemory().bytes;
  input.weight_bytes = model::WeightStore::BytesNeeded(tensors, *r->ops_);
  if (r->weights_ != nullptr) input.memory_bytes += input.weight_bytes;  // in use by the weights themselves
  input.memory_ratio = config.memory_ratio;
  input.max_seq_len = config.max_seq_len;
  input.num_tokens = config.num_tokens;
  input.kv_reserve_tokens = config.kv_reserve_tokens;
  input.swa_ratio = config.swa_ratio;
  HF_BLAME_RETURN(r->cache_plan_, PlanCache(input), absl::IsResourceExhausted(why) ? ExitCode::kEnvironment : ExitCode::kConfig);
  for (const std::string& note : r->cache_plan_.notes) LogInfo("{}", note);

  // The ledger is made before the weights are loaded: an impossible flag is refused in milliseconds, not after a long load.
  sched::SchedulerConfig sc;
  sc.cache = r->cache_plan_.shape;
  sc.max_running = config.max_running;
  sc.prefill_chunk = config.prefill_chunk;
  sc.max_seq_len = r->cache_plan_.max_seq_len;
  // The supervisor's admission lets running + queue in, and all of them may arrive before the next plan moves one to running.
  sc.max_waiting = config.max_queue + config.max_running;
  sc.overlap_depth = 0;
  sc.prefix_cache = config.prefix_cache;
  sc.audit_period = config.audit_period;
  sc.reserve_tokens = config.reserve_output_tokens;
  HF_BLAME_RETURN(r->scheduler_, sched::Scheduler::Create(sc, findings), ExitCode::kConfig);
  if (events.keeper != nullptr) r->Record(sc, config, *events.keeper);

  if (events.on_card) events.on_card(card);
  r->constraints_ = std::make_unique<Constraints>(model::TokenTexts(card));

  if (FaultPoint("worker.load")) return Blame(absl::InternalError("fault point worker.load"), ExitCode::kModel);
  if (r->weights_ == nullptr) {
    const Instant begin_weights = Clock::Real().Now();
    model::WeightOptions weight_options;
    weight_options.threads = config.threads;
    weight_options.check_values = config.check_tensors;
    weight_options.progress = events.on_progress;
    HF_BLAME_RETURN(r->weights_, model::WeightStore::Create(*r->file_, tensors, *r->ops_, weight_options), ModelFault(why));
    r->weights_ms_ = static_cast<uint32_t>(ToMillis(Clock::Real().Now() - begin_weights));
    LogInfo("weights: loaded {} bytes in {} ms", r->weights_->bytes(), r->weights_ms_);
    if (events.keeper != nullptr && !events.keeper->KeepWeights(r->weights_->fd())) LogWarn("nobody keeps the weights: a restart will load them again");
  } else if (events.on_progress && !events.on_progress({"mapped", r->weights_->bytes(), r->weights_->bytes()})) {
    return absl::CancelledError("loading was given up");
  }
  HF_BLAME_RETURN(std::unique_ptr<model::Model> net, model::Model::Create(r->hparams_, r->weights_), ModelFault(why));

  exec::ExecutorOptions exec_options;
  exec_options.max_step_tokens = r->scheduler_->effective_chunk() + config.max_running;
  HF_BLAME_RETURN(r->executor_,
                  exec::Executor::Create(r->ops_.get(), std::move(net), r->kv_plan_, r->cache_plan_.shape, exec::KvStorageOptions{}, exec_options),
                  absl::IsResourceExhausted(why) ? ExitCode::kEnvironment : ExitCode::kConfig);
  r->executor_->SetConstraints(r->constraints_.get());
  HF_RETURN_IF_ERROR(r->WarmUp());
  r->load_ms_ = static_cast<uint32_t>(ToMillis(Clock::Real().Now() - begin));
  return r;
}

void Runtime::MapKeptWeights(const model::TensorPlan& tensors, Keeper& keeper) {
  UniqueFd kept = keeper.TakeWeights();
  if (!kept) return;
  const Instant begin = Clock::Real().Now();
  auto attached = FaultPoint("worker.map") ? absl::StatusOr<std::shared_ptr<const model::WeightStore>>(absl::InternalError("fault point worker.map"))
                                           : model::WeightStore::Attach(std::move(kept), *file_, tensors, *ops_);
  if (attached.ok()) {
    weights_ = *std::move(attached);
    mapped_weights_ = true;
    weights_ms_ = static_cast<uint32_t>(ToMillis(Clock::Real().Now() - begin));
    LogInfo("weights: mapped {} bytes of an earlier generation in {} ms", weights_->bytes(), weights_ms_);
    return;
  }
  // They would lie in memory beside the ones now loaded.
  kept.Reset();
  const bool dropped = keeper.DropWeights(std::chrono::seconds(2));
  LogInfo("weights: loading, since {}{}", std::string(attached.status().message()), dropped ? "" : "; their keeper does not answer and may hold them");
}

void Runtime::Record(const sched::SchedulerConfig& config, const WorkerConfig& worker, Keeper& keeper) {
  auto recording = replay::Recording::Create(config, worker.generation, worker.rank);
  if (!recording.ok() || !keeper.KeepRecording((*recording)->fd())) {
    LogWarn("no recording of this generation: {}", recording.ok() ? "nobody keeps it" : std::string(recording.status().message()));
    return;
  }
  scheduler_ = replay::RecordScheduler(std::move(scheduler_), *std::move(recording));
}

absl::Status Runtime::WarmUp() {
  // A plan of its own beside the scheduler: one token in page 0 of every group. Page 0 is free now, and whoever takes it writes it first.
  const std::vector<TokenId> tokens{0};
  std::vector<int32_t> table{0};
  sched::StepPlan plan;
  sched::StepEntry entry;
  entry.request = RequestId(0);
  entry.tokens = tokens;
  entry.history = tokens;
  entry.prompt_tokens = 1;
  entry.sample = true;
  entry.tables.assign(kv_plan_.groups.size(), table.data());
  plan.entries.push_back(std::move(entry));
  plan.total_tokens = 1;
  exec::SamplingTable sampling;
  sampling.Add(RequestId(0), exec::SamplingParams{});
  const auto ran = executor_->Run(plan, sampling);
  if (!ran.ok()) return Blame(ran.status(), ExitCode::kIntegrity);
  if ((*ran)->result.sampled.empty() || (*ran)->result.sampled[0].failed) {
    return Blame(absl::InvalidArgumentError("the model's first logits are not finite: the weights are damaged or of another architecture"),
                 ExitCode::kModel);
  }
  return absl::OkStatus();
}

}  // namespace holdfast::worker

#include "worker/runtime.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cpu/isa.h"
#include "proto/base/check.h"
#include "proto/base/clock.h"
#include "proto/base/exit_code.h"
#include "proto/base/fault.h"
#include "proto/base/log.h"
#include "proto/base/status_wire.h"
#include "worker/backend.h"
#include "worker/model/activation_bytes.h"
#include "worker/model/card.h"
#include "worker/model/memory.h"
#include "worker/model/tensor_plan.h"
#include "worker/model/token_texts.h"
#include "worker/replay/recording.h"
#include "worker/tp/collective_shm.h"
#include "worker/tp/device_group.h"

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

// What a collective says: the peers' fault, not this rank's.
absl::Status PeerFault(absl::Status status) { return Blame(std::move(status), ExitCode::kPeerLost); }

// A file that is gone or unreadable is the environment's fault only when it may come back; the operator named it, so it is the model's.
ExitCode ModelFault(const absl::Status& status) {
  if (absl::IsAborted(status)) return ExitCode::kDevice;  // kernels/ops.h: a device that failed while it took the weights
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

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Build(const WorkerConfig& config, const RuntimeEvents& events, FindingSink* findings,
                                                         const MakeCuda& make_cuda) {
  const Instant begin = Clock::Real().Now();
  Instant stage_begin = begin;
  std::string stages;  // where the time of a start goes, in one line of the log
  const auto stage = [&](std::string_view name) {
    const Instant now = Clock::Real().Now();
    fmt::format_to(std::back_inserter(stages), " {} {}", name, ToMillis(now - stage_begin));
    stage_begin = now;
  };
  std::unique_ptr<Runtime> r(new Runtime());
  const int threads = config.threads > 0 || config.tp == 1 ? config.threads : std::max(1, kernels::UsableCores() / static_cast<int>(config.tp));
  ChosenBackend backend = ChooseBackend(config, threads, make_cuda);
  if (backend.ops == nullptr) {
    const absl::Status why = backend.code == ExitCode::kConfig ? absl::InvalidArgumentError(backend.why) : absl::UnavailableError(backend.why);
    return Blame(why, backend.code);
  }
  r->ops_ = std::move(backend.ops);
  backend.passed_over ? LogWarn("backend: {} ({})", r->ops_->Describe(), backend.why) : LogInfo("backend: {} ({})", r->ops_->Describe(), backend.why);
  stage("backend");

  HF_BLAME_RETURN(r->file_, model::GgufFile::Open(config.model), ModelFault(why));
  stage("file");
  HF_BLAME_RETURN(const proto::ModelCard card, model::MakeCard(*r->file_), ModelFault(why));
  stage("card");
  HF_BLAME_RETURN(const model::Hparams whole, model::ReadHparams(*r->file_), ModelFault(why));
  HF_BLAME_RETURN(const model::Shard shard, model::MakeShard(*r->file_, whole, config.rank, config.tp), ExitCode::kConfig);
  HF_BLAME_RETURN(const model::TensorPlan tensors, model::TensorPlan::Make(*r->file_, whole, shard), ModelFault(why));
  r->hparams_ = model::HparamsOf(shard, whole);
  if (card.vocab_size() != static_cast<uint32_t>(r->hparams_.vocab)) {
    return Blame(absl::InvalidArgumentError(fmt::format("{}: the tokenizer has {} tokens, the output matrix {} rows", config.model,
                                                        card.vocab_size(), r->hparams_.vocab)),
                 ExitCode::kModel);
  }
  HF_BLAME_RETURN(const kernels::KvDType dtype, model::KvDTypeFromFlag(config.kv_dtype), ExitCode::kConfig);
  HF_BLAME_RETURN(r->kv_plan_, model::MakeKvPlan(r->hparams_, *r->ops_, dtype, static_cast<int32_t>(config.page_size)), ExitCode::kConfig);
  HF_BLAME_RETURN(const GroupCost cost, r->CostOfGroup(config, whole, tensors), ExitCode::kConfig);

  stage("plan");
  if (events.group != nullptr && config.tp > 1) {
    HF_RETURN_IF_ERROR(PeerFault(events.group->Meet()));
    r->ranks_ = std::make_unique<tp::ShmCollective>(events.group);
    HF_RETURN_IF_ERROR(r->JoinDevices(config, events.group));
    stage("ranks");
  }
  // Before the pools are sized: mapped weights are in memory already.
  if (events.keeper != nullptr) r->MapKeptWeights(tensors, *events.keeper);

  if (r->weights_ != nullptr) stage("map");

  CachePlanInput input;
  for (size_t g = 0; g < r->kv_plan_.groups.size(); ++g) input.groups.push_back({r->kv_plan_.groups[g].window, cost.page_bytes[g]});
  input.page_size = config.page_size;
  input.max_running = config.max_running;
  input.prefill_chunk = config.prefill_chunk;
  r->overlap_depth_ = config.overlap.value_or(!r->ops_->HostMemory() && config.tp == 1 ? 1 : 0);
  input.overlap_depth = r->overlap_depth_;
  input.context_length = r->hparams_.context_length;
  input.weight_bytes = cost.weight_bytes;
  // Mapped weights are in use by the weights themselves.
  HF_RETURN_IF_ERROR(PeerFault(r->AgreeOnMemory(r->weights_ != nullptr ? r->weights_->bytes() : 0, &input.memory_bytes)));
  input.memory_ratio = config.memory_ratio;
  exec::ExecutorOptions exec_options;
  // On the host the ratio's rest is room enough for a step, and memory that is only reserved costs nothing until it is touched.
  if (!r->ops_->HostMemory()) {
    // A decode step's logits in one product, and in its graph.
    constexpr uint32_t kMostLogitRows = 256;
    exec_options.max_logit_rows = std::max(exec_options.max_logit_rows, static_cast<uint32_t>(r->ops_->PaddedRows(std::min(config.max_running, kMostLogitRows))));
    input.memory_name = config.tp > 1 ? "free on the fullest device" : "free on the device";
    const uint64_t longest = std::min(r->hparams_.context_length, config.max_seq_len.value_or(UINT32_MAX));
    // Requests that share a prefix read the same pages; more than four times what a pool of usual size holds is left to the ratio's rest.
    const uint64_t tokens = std::min(longest * config.max_running, std::max<uint64_t>(longest, 4 * uint64_t{config.num_tokens.value_or(1u << 18)}));
    input.activation_bytes = model::ActivationBytes(r->hparams_, uint64_t{config.prefill_chunk} + config.max_running, exec_options.max_logit_rows,
                                                    config.max_running, tokens);
  }
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
  sc.overlap_depth = r->overlap_depth_;
  sc.prefix_cache = config.prefix_cache;
  sc.audit_period = config.audit_period;
  sc.reserve_tokens = config.reserve_output_tokens;
  HF_BLAME_RETURN(r->scheduler_, sched::Scheduler::Create(sc, findings), ExitCode::kConfig);
  if (events.keeper != nullptr) r->Record(sc, config, *events.keeper);

  stage("scheduler");
  if (events.on_card) events.on_card(card);
  r->constraints_ = std::make_unique<Constraints>(model::TokenTexts(card));
  stage("constraints");

  if (FaultPoint("worker.load")) return Blame(absl::InternalError("fault point worker.load"), ExitCode::kModel);
  if (r->weights_ == nullptr) {
    const Instant begin_weights = Clock::Real().Now();
    model::WeightOptions weight_options;
    weight_options.threads = threads;
    weight_options.check_values = config.check_tensors;
    weight_options.progress = events.on_progress;
    HF_BLAME_RETURN(r->weights_, model::WeightStore::Create(*r->file_, tensors, *r->ops_, weight_options), ModelFault(why));
    r->weights_ms_ = static_cast<uint32_t>(ToMillis(Clock::Real().Now() - begin_weights));
    LogInfo("weights: loaded {} bytes in {} ms", r->weights_->bytes(), r->weights_ms_);
    if (events.keeper != nullptr && !events.keeper->KeepWeights(r->weights_->fd())) LogWarn("nobody keeps the weights: a restart will load them again");
  } else if (events.on_progress && !events.on_progress({"mapped", r->weights_->bytes(), r->weights_->bytes()})) {
    return absl::CancelledError("loading was given up");
  }
  stage("weights");
  HF_BLAME_RETURN(std::unique_ptr<model::Model> net, model::Model::Create(r->hparams_, r->weights_, r->ranks_.get()), ModelFault(why));

  exec_options.max_step_tokens = r->scheduler_->effective_chunk() + config.max_running;
  exec_options.ranks = r->ranks_.get();
  HF_BLAME_RETURN(r->executor_,
                  exec::Executor::Create(r->ops_.get(), std::move(net), r->kv_plan_, r->cache_plan_.shape, exec::KvStorageOptions{}, exec_options),
                  absl::IsResourceExhausted(why) ? ExitCode::kEnvironment : absl::IsAborted(why) ? ExitCode::kDevice : ExitCode::kConfig);
  r->executor_->SetConstraints(r->constraints_.get());
  // Ranks load at their own pace: the slowest sets the time, and the supervisor's deadline of loading bounds it.
  if (r->ranks_ != nullptr) HF_RETURN_IF_ERROR(PeerFault(events.group->Meet()));
  // Weights are there; from here on the supervisor calls it warming.
  if (events.on_progress && !events.on_progress({"warming", r->weights_->bytes(), r->weights_->bytes()})) {
    return absl::CancelledError("loading was given up");
  }
  stage("executor");
  if (FaultPoint("worker.warm")) return Blame(absl::InternalError("fault point worker.warm"), ExitCode::kDevice);
  HF_RETURN_IF_ERROR(r->WarmUp());
  stage("warm-up");
  LogInfo("built in {} ms:{}", ToMillis(Clock::Real().Now() - begin), stages);
  r->load_ms_ = static_cast<uint32_t>(ToMillis(Clock::Real().Now() - begin));
  return r;
}

absl::Status Runtime::JoinDevices(const WorkerConfig& config, tp::Group* group) {
  tp::JoinOptions options;
  HF_CHECK(tp::ParseCollectives(config.collectives, &options.wanted));
  const auto joined = tp::JoinDevices(ops_.get(), ranks_.get(), group, options);
  if (joined.ok()) {
    LogInfo("collectives: {}", *joined);
    return absl::OkStatus();
  }
  const absl::Status& why = joined.status();
  if (absl::IsInvalidArgument(why)) return Blame(why, ExitCode::kConfig);
  if (absl::IsFailedPrecondition(why) || absl::IsResourceExhausted(why)) return Blame(why, ExitCode::kEnvironment);
  return absl::IsAborted(why) ? Blame(why, ExitCode::kDevice) : PeerFault(why);
}

absl::StatusOr<Runtime::GroupCost> Runtime::CostOfGroup(const WorkerConfig& config, const model::Hparams& whole, const model::TensorPlan& own) const {
  GroupCost cost;
  cost.page_bytes.resize(kv_plan_.groups.size());
  // Ranks that share the host's memory need what all of them take; ranks with a device each, what the largest takes.
  const bool shared = ops_->HostMemory();
  const auto put = [&](uint64_t* to, uint64_t bytes) { *to = shared ? *to + bytes : std::max(*to, bytes); };
  const auto add = [&](const model::TensorPlan& tensors, const model::KvPlan& kv) {
    put(&cost.weight_bytes, model::WeightStore::BytesNeeded(tensors, *ops_));
    for (size_t g = 0; g < kv.groups.size(); ++g) put(&cost.page_bytes[g], static_cast<uint64_t>(kv.groups[g].page_bytes));
  };
  for (uint32_t rank = 0; rank < config.tp; ++rank) {
    if (rank == config.rank) {
      add(own, kv_plan_);
      continue;
    }
    HF_ASSIGN_OR_RETURN(const model::Shard shard, model::MakeShard(*file_, whole, rank, config.tp));
    HF_ASSIGN_OR_RETURN(const model::TensorPlan tensors, model::TensorPlan::Make(*file_, whole, shard));
    HF_ASSIGN_OR_RETURN(const model::KvPlan kv, model::MakeKvPlan(model::HparamsOf(shard, whole), *ops_, kv_plan_.dtype, kv_plan_.page_size));
    add(tensors, kv);
  }
  return cost;
}

absl::Status Runtime::AgreeOnMemory(uint64_t mapped_bytes, uint64_t* memory_bytes) {
  const bool shared = ops_->HostMemory();
  *memory_bytes = shared ? model::AvailableMemory().bytes : static_cast<uint64_t>(ops_->FreeMemory());
  std::vector<uint64_t> said{*memory_bytes}, mapped{mapped_bytes};
  if (ranks_ != nullptr) {
    HF_RETURN_IF_ERROR(ranks_->AllGather(*memory_bytes, &said));
    HF_RETURN_IF_ERROR(ranks_->AllGather(mapped_bytes, &mapped));
  }
  if (!shared) {  // a device each: the fullest sets what all plan with
    *memory_bytes = UINT64_MAX;
    for (size_t r = 0; r < said.size(); ++r) *memory_bytes = std::min(*memory_bytes, said[r] + mapped[r]);
    return absl::OkStatus();
  }
  *memory_bytes = said[0];
  for (const uint64_t m : mapped) *memory_bytes += m;
  return absl::OkStatus();
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
  // Plans of its own beside the scheduler: a prompt in the first pages of every group, then one token more. The pages are free now, and
  // whoever takes them writes them first.
  constexpr uint32_t kMost = 17;  // enough rows for the kernels that take a prompt's many rows at once, and one decode
  const kv::CacheShape& shape = cache_plan_.shape;
  uint32_t total = std::min({kMost, scheduler_->effective_chunk() + 1, cache_plan_.max_seq_len});
  for (const kv::GroupShape& group : shape.groups) total = std::min(total, group.pages * shape.page_size);
  const uint32_t prompt = std::max(total, 2u) - 1;
  std::vector<int32_t> table((prompt + shape.page_size) / shape.page_size);
  std::iota(table.begin(), table.end(), 0);
  const std::vector<TokenId> tokens(prompt + 1, 0);
  exec::SamplingTable sampling;
  sampling.Add(RequestId(0), exec::SamplingParams{});
  for (uint32_t from = 0, to = prompt; from < total; from = to, to = total) {
    sched::StepPlan plan;
    sched::StepEntry entry;
    entry.request = RequestId(0);
    entry.start = from;
    entry.tokens = std::span(tokens).subspan(from, to - from);
    entry.history = std::span(tokens).first(to);
    entry.prompt_tokens = prompt;
    entry.sample = true;
    entry.tables.assign(kv_plan_.groups.size(), table.data());
    plan.entries.push_back(std::move(entry));
    plan.total_tokens = to - from;
    const auto ran = executor_->Run(plan, sampling);
    if (tp::IsPeerFault(ran.status()) || absl::IsCancelled(ran.status())) return PeerFault(ran.status());
    if (!ran.ok()) return Blame(ran.status(), ops_->Health().ok() ? ExitCode::kIntegrity : ExitCode::kDevice);
    if ((*ran)->result.sampled.empty() || (*ran)->result.sampled[0].failed) {
      return Blame(absl::InvalidArgumentError("the model's first logits are not finite: the weights are damaged or of another architecture"),
                   ExitCode::kModel);
    }
  }
  return absl::OkStatus();
}

}  // namespace holdfast::worker

#include "worker/sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "worker/kv/drill.h"
#include "worker/sched/scheduler_impl.h"

namespace holdfast::sched {
namespace {

kv::CapacityQuestion QuestionOf(const SchedulerConfig& config) {
  kv::CapacityQuestion q;
  q.page_size = config.cache.page_size;
  for (const kv::GroupShape& g : config.cache.groups) q.windows.push_back(g.window);
  q.max_running = config.max_running;
  q.chunk = config.prefill_chunk;
  q.overlap_depth = config.overlap_depth;
  q.max_seq_len = config.max_seq_len;
  return q;
}

absl::Status CheckConfig(const SchedulerConfig& c) {
  const auto bad = [](std::string message) { return absl::InvalidArgumentError(message); };
  if (c.cache.page_size == 0 || (c.cache.page_size & (c.cache.page_size - 1)) != 0 || c.cache.page_size > 1024) {
    return bad(fmt::format("page size {} is not a power of two from 1 to 1024; 16 works", c.cache.page_size));
  }
  if (c.cache.groups.empty() || c.cache.groups.size() > kv::kMaxGroups) {
    return bad(fmt::format("{} page groups; a model has 1 to {}", c.cache.groups.size(), kv::kMaxGroups));
  }
  if (c.max_running == 0 || c.max_running > 65536) return bad(fmt::format("max-running-requests {} is not from 1 to 65536", c.max_running));
  if (c.prefill_chunk == 0 || c.prefill_chunk > (1u << 24)) {
    return bad(fmt::format("a prefill chunk of {} tokens is not from 1 to {}; 512 works", c.prefill_chunk, 1u << 24));
  }
  if (c.max_seq_len < 2 || c.max_seq_len > (1u << 30)) {
    return bad(fmt::format("max-seq-len {} leaves no room for a prompt token and a generated one, or is beyond {}", c.max_seq_len, 1u << 30));
  }
  if (c.overlap_depth > 8) return bad(fmt::format("overlap depth {} is beyond 8", c.overlap_depth));
  for (size_t g = 0; g < c.cache.groups.size(); ++g) {
    const kv::GroupShape& group = c.cache.groups[g];
    if (group.window == 0 && g > 0) return bad("the full-attention group must be the first and only one of its kind");
    if (group.window > (1u << 30)) return bad(fmt::format("window {} is beyond {}", group.window, 1u << 30));
    if (std::max(group.pages, group.reserve_pages) > kv::kMaxPages) {
      return bad(fmt::format("pool {} has {} pages; at most {} can be named: use a larger page size", kv::PoolName(group.window),
                             std::max(group.pages, group.reserve_pages), kv::kMaxPages));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(const SchedulerConfig& config, FindingSink* findings) {
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  const kv::CapacityQuestion question = QuestionOf(config);
  std::vector<uint32_t> usable;
  for (const kv::GroupShape& g : config.cache.groups) usable.push_back(g.pages);
  const kv::CapacityAnswer answer = kv::Evaluate(question, usable);
  if (!answer.ok) return absl::InvalidArgumentError(answer.message);
  return std::make_unique<SchedulerImpl>(config, question, findings);
}

SchedulerImpl::SchedulerImpl(const SchedulerConfig& config, const kv::CapacityQuestion& question, FindingSink* findings)
    : config_(config),
      question_(question),
      findings_(findings),
      page_size_(config.cache.page_size),
      ledger_(config.cache, config.max_running),
      usable_(config.cache.groups.size()),
      slots_(config.max_running, nullptr),
      launches_(config.overlap_depth + 1),
      steps_to_audit_(config.audit_period) {
  running_.reserve(config.max_running);
  RefreshLimits();
}

SchedulerImpl::~SchedulerImpl() {
  for (Sequence* s : running_) ledger_.Forget(&s->row);  // pages end with the ledger
}

// ---- commands -------------------------------------------------------------------------------------------------------------------

Sequence* SchedulerImpl::NewSequence() {
  if (free_.empty()) {
    pool_.push_back(std::make_unique<Sequence>(ledger_.groups()));
    return pool_.back().get();
  }
  Sequence* s = free_.back();
  free_.pop_back();
  return s;
}

void SchedulerImpl::Recycle(Sequence* s) {
  by_request_.erase(s->request.v);
  s->state = SequenceState::kFree;
  s->epoch++;
  // Long histories are not kept: a recycled object starts small. Steps in flight may still name these tokens.
  if (outstanding_ > 0) launches_[(oldest_ + outstanding_ - 1) % launches_.size()].kept.push_back(std::move(s->tokens));
  s->tokens = {};
  s->chain = {};
  s->anchors.clear();
  free_.push_back(s);
}

RequestEvent& SchedulerImpl::Emit(const Sequence& s) {
  events_.emplace_back();
  events_.back().request = s.request;
  return events_.back();
}

void SchedulerImpl::End(Sequence* s, EndReason reason, std::string message, uint32_t limit) {
  RequestEvent& event = Emit(*s);
  event.end = reason;
  event.message = std::move(message);
  event.limit = limit;
  s->state = SequenceState::kEnded;
  Fold(s->request.v ^ static_cast<uint64_t>(reason) << 60);
}

// Pages of the full pool a request can count on: those of the target while the pool shrinks.
uint32_t SchedulerImpl::FullUsable() const {
  const uint32_t usable = ledger_.Usable(0);
  if (targets_.empty() || !targets_[0].shrink) return usable;
  return std::min(usable, targets_[0].limit - std::min(targets_[0].limit, ledger_.arena(0).quarantined_below_limit()));
}

uint32_t SchedulerImpl::max_request_tokens() const {
  if (!ledger_.has_full()) return config_.max_seq_len;
  const uint64_t tokens = static_cast<uint64_t>(FullUsable()) * page_size_;
  return static_cast<uint32_t>(std::min<uint64_t>(tokens, config_.max_seq_len));
}

uint32_t SchedulerImpl::ReservePages(const Sequence& s) const {
  uint32_t tokens = s.final_tokens;
  if (config_.reserve_tokens > 0) {
    tokens = static_cast<uint32_t>(std::min<uint64_t>(tokens, s.tokens.size() + static_cast<uint64_t>(config_.reserve_tokens)));
  }
  return Pages(tokens);
}

void SchedulerImpl::Submit(SubmitCommand command) {
  Sequence* s = NewSequence();
  s->request = command.request;
  s->order = next_order_++;
  s->tokens = std::move(command.tokens);
  const uint32_t count = static_cast<uint32_t>(s->tokens.size());
  s->prompt_tokens = command.prompt_tokens == 0 ? count : std::min(command.prompt_tokens, count);
  s->final_tokens = static_cast<uint32_t>(
      std::min<uint64_t>(static_cast<uint64_t>(s->prompt_tokens) + command.max_tokens, config_.max_seq_len));
  s->salt = std::move(command.cache_salt);
  s->salt_hash = kv::SaltHash(s->salt);
  s->use_cache = config_.prefix_cache && !command.no_cache;
  s->prompt_logprobs = command.prompt_logprobs;
  s->run_ahead = command.run_ahead;
  s->anchors = std::move(command.anchors);
  s->anchors.push_back(s->prompt_tokens);
  std::sort(s->anchors.begin(), s->anchors.end());
  s->next_anchor = 0;
  s->target = s->inflight = s->pending = s->reserved = s->hit_blocks = s->passed = 0;
  s->admitted_once = s->leave_running = s->deferred = false;
  s->writer_order = 0;
  Fold(s->request.v ^ static_cast<uint64_t>(count) << 40);

  const uint32_t limit = max_request_tokens();
  const bool known = !by_request_.emplace(s->request.v, s).second;
  if (known) {
    // The log numbers requests once; a second one of the same number is not the request we know.
    Report(Severity::kSuspect, "duplicate_request", fmt::format("request {} was submitted twice", s->request.v));
    s->state = SequenceState::kFree;
    s->epoch++;
    free_.push_back(s);
    return;
  }
  if (count == 0) {
    End(s, EndReason::kFailed, "the request has no tokens");
  } else if (count > config_.max_seq_len || s->prompt_tokens >= config_.max_seq_len) {
    End(s, EndReason::kNeverFits,
        fmt::format("the prompt has {} tokens; prompt and answer together can have at most {}", count, limit), limit);
  } else if (ledger_.has_full() && Pages(s->final_tokens) > FullUsable()) {
    End(s, EndReason::kNeverFits,
        fmt::format("prompt ({} tokens) and max_tokens ({}) take {} pages of {} tokens; the pool has {}: at most {} tokens fit", s->prompt_tokens,
                    command.max_tokens, Pages(s->final_tokens), page_size_, FullUsable(), limit),
        limit);
  } else if (count >= s->final_tokens && count > s->prompt_tokens) {
    End(s, EndReason::kLength);  // resumed after its last token
  } else if (waiting_.size() >= config_.max_waiting) {
    End(s, EndReason::kFailed, fmt::format("{} requests wait already; the queue holds {}", waiting_.size(), config_.max_waiting));
  } else {
    Enqueue(s);
    return;
  }
  Recycle(s);
}

void SchedulerImpl::Cancel(RequestId request) {
  const auto it = by_request_.find(request.v);
  if (it == by_request_.end()) return;
  Sequence* s = it->second;
  if (s->state == SequenceState::kWaiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), s));
    End(s, EndReason::kCancelled);
    Recycle(s);
  } else if (s->running()) {
    End(s, EndReason::kCancelled);
    if (HF_DRILL(kReleaseInFlight)) s->inflight = 0;
    if (s->inflight == 0) ReleaseRow(s);
    if (resize_.phase == ResizeState::Phase::kRunning && outstanding_ == 0) PumpResize();
  }
}

std::vector<RequestEvent>& SchedulerImpl::TakeEvents() {
  taken_.clear();
  std::swap(taken_, events_);
  return taken_;
}

std::vector<PageMove> SchedulerImpl::TakePageMoves() { return std::exchange(moves_, {}); }

// ---- views ----------------------------------------------------------------------------------------------------------------------

void SchedulerImpl::RefreshLimits() {
  for (size_t g = 0; g < usable_.size(); ++g) usable_[g] = ledger_.Usable(g);
  limits_ = kv::EvaluateStep(question_, usable_);
}

std::vector<kv::PoolView> SchedulerImpl::Pools() const {
  const kv::CapacityAnswer answer = kv::Evaluate(question_, usable_);
  std::vector<kv::PoolView> pools;
  for (size_t g = 0; g < ledger_.groups(); ++g) {
    const kv::Arena& arena = ledger_.arena(g);
    kv::PoolView view;
    view.window = ledger_.window(g);
    view.name = kv::PoolName(view.window);
    view.unbacked = arena.count(kv::PageKind::kUnbacked);
    view.capacity = arena.size() - view.unbacked;
    view.free = arena.count(kv::PageKind::kFree);
    view.held = arena.row_held();
    view.evictable = arena.evictable();
    view.retiring = arena.count(kv::PageKind::kRetiring);
    view.quarantined = arena.count(kv::PageKind::kQuarantined);
    view.reserved = view.window == 0 ? static_cast<uint32_t>(reserved_) : 0;
    view.floor = answer.groups[g].floor;
    view.recommended = answer.groups[g].recommended;
    view.evictions = ledger_.counters().evictions[g];
    pools.push_back(std::move(view));
  }
  return pools;
}

}  // namespace holdfast::sched

// Forming a step: running decodes first (their pages are guaranteed), then prefill chunks in the order of admission, then new requests.
#include <fmt/format.h>

#include <algorithm>

#include "worker/kv/drill.h"
#include "worker/sched/scheduler_impl.h"

namespace holdfast::sched {
namespace {

constexpr uint32_t kLeastShare = 4;  // a chunk is not cut below this part of the step's limit
constexpr TokenId kAwaited = 0;      // stands where a token is not known yet

}  // namespace

void SchedulerImpl::AddEntry(Launch* launch, Sequence* s, uint32_t tokens) {
  StepPlan& plan = launch->plan;
  if (launch->spare.empty()) {
    plan.entries.emplace_back();
  } else {
    plan.entries.push_back(std::move(launch->spare.back()));
    launch->spare.pop_back();
  }
  StepEntry& e = plan.entries.back();
  e.request = s->request;
  e.slot = s->slot;
  e.start = s->row.launched;
  const std::span<const TokenId> known(s->tokens);
  e.awaits = e.start >= known.size();
  e.tokens = e.awaits ? std::span(&kAwaited, 1) : known.subspan(e.start, tokens);
  e.history = e.awaits ? known : known.first(e.start + tokens);
  e.prompt_tokens = s->prompt_tokens;
  const size_t drawn = known.size() + s->pending;
  e.sample = e.start + tokens == drawn && drawn < s->final_tokens;
  e.prompt_logprobs = s->prompt_logprobs && e.start < s->prompt_tokens;
  e.tables.resize(ledger_.groups());
  for (size_t g = 0; g < ledger_.groups(); ++g) e.tables[g] = s->row.mirror(g);
  if (e.start < s->prompt_tokens) counters_.computed_prompt_tokens += std::min(e.start + tokens, s->prompt_tokens) - e.start;
  s->row.launched += tokens;
  s->inflight++;
  if (e.sample) {
    s->pending++;
    s->sampled_in = next_step_;
  }
  if (s->row.launched == s->target) s->state = SequenceState::kDecode;
  plan.total_tokens += tokens;
  launch->members.push_back({s, s->epoch, e.start, tokens, e.sample});
  Fold(s->request.v << 32 ^ static_cast<uint64_t>(e.start) << 12 ^ tokens ^ static_cast<uint64_t>(e.awaits) << 63);
}

// Pages for `tokens` more positions.
bool SchedulerImpl::Grow(Sequence* s, uint32_t tokens) {
  const uint32_t before = s->row.blocks();
  const bool ok = ledger_.ExtendTo(&s->row, Pages(s->row.launched + tokens));
  if (ledger_.has_full()) {
    const uint32_t used = std::min(s->reserved, s->row.blocks() - before);
    s->reserved -= used;
    reserved_ -= used;
  }
  if (ok) return true;
  // The capacity proofs (../kv/README.md) exclude this; the request waits instead of the process dying.
  Report(Severity::kSuspect, "exhausted", fmt::format("request {} found no page for {} tokens at {}", s->request.v, tokens, s->row.launched));
  steps_to_audit_ = 1;
  audit_soon_ = true;
  Preempt(s);
  return false;
}

// Pages for a chunk of at most `tokens` positions; returns how many it got, 0 when there was no page. A chunk stops where it would cost a
// window that is worth keeping, but never below its least share.
uint32_t SchedulerImpl::GrowChunk(Sequence* s, uint32_t tokens) {
  uint32_t got = std::min(tokens, std::max(1u, limits_.chunk / kLeastShare));
  if (!Grow(s, got)) return 0;
  while (got < tokens) {
    got = std::min(tokens, s->row.blocks() * page_size_ - s->row.launched);
    if (got == tokens || ledger_.NextBlockIsDear()) break;
    if (!Grow(s, got + 1)) return 0;
  }
  return got;
}

int64_t SchedulerImpl::FullHeadroom() const {
  if (!ledger_.has_full()) return INT64_MAX;
  uint32_t limit = ledger_.arena(0).limit();
  if (!targets_.empty()) limit = std::min(limit, targets_[0].limit);
  return ledger_.Available(0, limit) - static_cast<int64_t>(reserved_);
}

// With a capped reservation a request can outrun what admission promised. It takes unpromised pages; when there are none the youngest
// gives way. The oldest never does, so somebody always gets on.
void SchedulerImpl::SecureOverruns() {
  if (config_.reserve_tokens == 0 || !ledger_.has_full()) return;
  for (;;) {
    int64_t overruns = 0;
    Sequence* youngest = nullptr;
    Sequence* oldest = nullptr;
    for (Sequence* s : running_) {
      if (!s->running()) continue;
      if (s->leave_running) return;  // its pages come back when its step settles
      if (s->state == SequenceState::kDecode && s->reserved == 0 && s->row.launched < s->tokens.size() && Pages(s->row.launched + 1) > s->row.blocks()) ++overruns;
      if (youngest == nullptr || s->order > youngest->order) youngest = s;
      if (oldest == nullptr || s->order < oldest->order) oldest = s;
    }
    if (overruns == 0 || overruns <= FullHeadroom()) return;
    if (youngest == oldest) return;  // alone: everything else is evictable, and Submit checked that it fits
    Preempt(youngest);
  }
}

// Its next token is being drawn by the step launched last, it cannot have ended by length, and its page is one that admission promised:
// nobody gives way for a token that may never be.
bool SchedulerImpl::CanRunAhead(const Sequence& s) const {
  if (!s.run_ahead || s.pending == 0 || s.sampled_in.Next() != next_step_) return false;
  if (s.tokens.size() + s.pending >= s.final_tokens && !HF_DRILL(kAheadOfEnd)) return false;
  return s.reserved > 0 || !ledger_.has_full() || Pages(s.row.launched + 1) <= s.row.blocks();
}

// Whose token is in flight and cannot be run ahead of would be passed over by a step launched now, and wait for two.
bool SchedulerImpl::SomebodyWaits() const {
  for (const Sequence* s : running_) {
    if (s->state != SequenceState::kDecode || s->leave_running || s->pending == 0) continue;
    if (s->tokens.size() + s->pending < s->final_tokens && !CanRunAhead(*s)) return true;
  }
  return false;
}

void SchedulerImpl::PlanDecodes(Launch* launch, uint32_t* budget) {
  for (size_t i = 0; i < running_.size() && *budget > 0;) {
    Sequence* s = running_[i];
    const bool known = s->row.launched < s->tokens.size();
    const bool ready = s->state == SequenceState::kDecode && !s->leave_running && (known || CanRunAhead(*s));
    bool stays = true;
    if (ready) {
      const bool overrun = s->reserved == 0 && Pages(s->row.launched + 1) > s->row.blocks();
      if (!overrun || FullHeadroom() > 0) {
        if (Grow(s, 1)) {
          AddEntry(launch, s, 1);
          --*budget;
        } else {
          stays = i < running_.size() && running_[i] == s;
        }
      }
    }
    i += stays;
  }
}

void SchedulerImpl::PlanPrefills(Launch* launch, uint32_t* budget) {
  for (size_t i = 0; i < running_.size() && *budget > 0;) {
    Sequence* s = running_[i];
    bool stays = true;
    if (s->state == SequenceState::kPrefill && !s->leave_running) {
      const uint32_t wanted = std::min(*budget, s->target - s->row.launched);
      const uint32_t n = GrowChunk(s, wanted);
      if (n > 0) {
        AddEntry(launch, s, n);
        *budget = n < wanted ? 0 : *budget - n;
      } else {
        stays = i < running_.size() && running_[i] == s;
      }
    }
    i += stays;
  }
}

const StepPlan* SchedulerImpl::Plan() {
  if (outstanding_ > config_.overlap_depth) return nullptr;
  // While a pool shrinks, limits and pages move between steps.
  if (outstanding_ > 0 && (resize_.phase == ResizeState::Phase::kRunning || SomebodyWaits())) return nullptr;
  // Twice at most: containment may take every entry out of the step just formed.
  contained_now_ = false;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (const StepPlan* plan = FormStep()) return plan;
    if (!contained_now_ || outstanding_ > 0) break;
    contained_now_ = false;
  }
  AuditWhenIdle();
  return nullptr;
}

const StepPlan* SchedulerImpl::FormStep() {
  RefreshLimits();
  Launch& launch = launches_[(oldest_ + outstanding_) % launches_.size()];
  StepPlan& plan = launch.plan;
  while (!plan.entries.empty()) {
    launch.spare.push_back(std::move(plan.entries.back()));
    plan.entries.pop_back();
  }
  launch.members.clear();
  plan.total_tokens = 0;

  uint32_t budget = limits_.chunk;
  if (limits_.tokens_in_flight != UINT32_MAX) {
    const uint64_t left = limits_.tokens_in_flight - std::min<uint64_t>(limits_.tokens_in_flight, inflight_tokens_);
    budget = static_cast<uint32_t>(std::min<uint64_t>(budget, left));
  }
  // Quarantine may have taken what all running requests together need.
  while (running_.size() > limits_.running && limits_.running > 0) {
    Sequence* youngest = nullptr;
    for (Sequence* s : running_) {
      if (s->running() && !s->leave_running && (youngest == nullptr || s->order > youngest->order)) youngest = s;
    }
    if (youngest == nullptr) break;
    Preempt(youngest);
    if (youngest->state != SequenceState::kWaiting) break;
  }
  SecureOverruns();
  PlanDecodes(&launch, &budget);
  PlanPrefills(&launch, &budget);
  if (resize_.phase != ResizeState::Phase::kRunning || FullHeadroom() > 0) AdmitWaiting(&launch, &budget);

  CheckStep(false);
  DropRestarted(&launch);
  if (plan.entries.empty()) {
    if (outstanding_ == 0 && !contained_now_) FailStuck();
    return nullptr;
  }
  plan.step = next_step_;
  next_step_ = next_step_.Next();
  inflight_tokens_ += plan.total_tokens;
  ++outstanding_;
  plan.digest = digest();
  return &plan;
}

// Requests that containment restarted while the step was formed are not launched.
void SchedulerImpl::DropRestarted(Launch* launch) {
  size_t kept = 0;
  for (size_t i = 0; i < launch->members.size(); ++i) {
    if (launch->members[i].epoch != launch->members[i].sequence->epoch) {
      launch->plan.total_tokens -= launch->members[i].tokens;
      continue;
    }
    if (kept != i) {
      launch->members[kept] = launch->members[i];
      std::swap(launch->plan.entries[kept], launch->plan.entries[i]);
    }
    ++kept;
  }
  launch->members.resize(kept);
  while (launch->plan.entries.size() > kept) {
    launch->spare.push_back(std::move(launch->plan.entries.back()));
    launch->plan.entries.pop_back();
  }
}

// Nothing waits for ever: when nothing is in flight, nothing could be launched and nobody could start, the oldest fails with its numbers.
// The proofs exclude it unless pages were lost after it was accepted.
void SchedulerImpl::FailStuck() {
  if (resize_.phase == ResizeState::Phase::kRunning && running_.empty()) return;
  const bool started = !running_.empty();
  if (!started && waiting_.empty()) return;
  Sequence* s = started ? running_.front() : waiting_.front();
  const std::string numbers =
      fmt::format("request {} of {} tokens holds {} pages and is promised {}, it can come to {}; {} of {} pages can be had, {} requests may run",
                  s->request.v, s->tokens.size(), s->row.blocks(), s->reserved, Pages(s->final_tokens), ledger_.has_full() ? FullHeadroom() : 0,
                  ledger_.arena(0).limit(), limits_.running);
  Report(Severity::kSuspect, "stuck", numbers);
  End(s, EndReason::kFailed, "the request could not go on: " + numbers);
  if (started) {
    ReleaseRow(s);
  } else {
    waiting_.erase(waiting_.begin());
    Recycle(s);
  }
}

}  // namespace holdfast::sched

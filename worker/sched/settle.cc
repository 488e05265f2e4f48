// Outcomes: the oldest step settles, tokens are appended, full blocks enter the index, windows slide, pages come back.
#include <fmt/format.h>

#include <algorithm>

#include "worker/kv/drill.h"
#include "worker/sched/scheduler_impl.h"

namespace holdfast::sched {

void SchedulerImpl::ExtendChain(Sequence* s) {
  const size_t blocks = s->tokens.size() / page_size_;
  s->chain.reserve(blocks);
  while (s->chain.size() < blocks) {
    const uint64_t previous = s->chain.empty() ? s->salt_hash : s->chain.back();
    s->chain.push_back(kv::ChainHash(previous, &s->tokens[s->chain.size() * page_size_], page_size_));
  }
}

void SchedulerImpl::CommitRow(Sequence* s) {
  ledger_.Commit(&s->row, {.tokens = s->tokens, .chain = s->chain, .anchors = s->anchors, .next_anchor = &s->next_anchor});
}

void SchedulerImpl::LeaveRunning(Sequence* s) {
  running_.erase(std::find(running_.begin(), running_.end(), s));
  slots_[s->slot.v] = nullptr;
  reserved_ -= s->reserved;
  s->reserved = 0;
  s->leave_running = false;
}

// Ended, and no launched step includes it.
void SchedulerImpl::ReleaseRow(Sequence* s) {
  HF_CHECKF(s->inflight == 0, "request {} has {} steps in flight", s->request.v, s->inflight);
  ledger_.Release(&s->row);
  LeaveRunning(s);
  if (s->state == SequenceState::kEnded) {
    Recycle(s);
  } else {
    Enqueue(s);
  }
}

// Back to the queue with all its tokens; what it computed stays in the index as long as nobody needs the pages.
void SchedulerImpl::Preempt(Sequence* s) {
  if (s->leave_running) return;
  counters_.preemptions++;
  Fold(s->request.v ^ kFoldPreempt);
  if (s->inflight > 0) {
    s->leave_running = true;
  } else {
    ReleaseRow(s);
  }
}

void SchedulerImpl::SettleMember(const Launch::Member& member, const SampledToken* sampled) {
  Sequence* s = member.sequence;
  if (s->epoch != member.epoch) return;  // it was restarted meanwhile; this step was computed on what is no longer trusted
  s->inflight--;
  s->pending -= member.sample;
  s->row.settled = member.start + member.tokens;
  if (sampled != nullptr && sampled->failed) {
    // What it computed may be what made the logits infinite: its own blocks leave the index, this step's and later ones never enter. Also of
    // a request that ended while this step ran.
    ledger_.UnindexRow(&s->row, s->hit_blocks);
    if (s->running()) {
      End(s, EndReason::kFailed, sampled->why.empty() ? fmt::format("the logits of token {} were not finite", s->tokens.size()) : sampled->why);
    }
  } else {
    CommitRow(s);
    // Ended rows slide too while a later step of theirs is in flight: the window proof counts them (ADR 0013).
    if (!HF_DRILL(kCadenceSlide) || next_step_.v % 32 == 0) ledger_.Slide(&s->row);
    if (s->running()) {
      if (sampled != nullptr) {
        s->tokens.push_back(sampled->token);
        if (s->use_cache) ExtendChain(s);
        counters_.generated_tokens++;
        Fold(s->request.v ^ static_cast<uint64_t>(sampled->token) << 32);
        if (HF_DRILL(kCommitAwaited)) {
          const uint32_t settled = std::exchange(s->row.settled, s->row.launched);
          CommitRow(s);
          s->row.settled = settled;
        }
        const bool full = s->tokens.size() >= s->final_tokens;
        if (sampled->is_stop || full) {
          ledger_.MarkEnd(&s->row);
          End(s, sampled->is_stop ? EndReason::kStop : EndReason::kLength);
        } else {
          Emit(*s);
        }
        events_.back().has_token = true;
        events_.back().token = sampled->token;
        if (HF_DRILL(kReleaseAtStop) && !s->running()) s->inflight = 0;
      } else if (s->row.settled == s->tokens.size() && s->tokens.size() >= s->final_tokens) {
        ledger_.MarkEnd(&s->row);
        End(s, EndReason::kLength);  // asked for no token
      }
    } else if (HF_DRILL(kUnknownToken) && sampled != nullptr && s->inflight > 0) {
      s->tokens.push_back(0);
      if (s->use_cache) ExtendChain(s);
    }
  }
  if (s->inflight == 0 && (s->state == SequenceState::kEnded || s->leave_running)) ReleaseRow(s);
}

void SchedulerImpl::Apply(const StepResult& result) {
  if (outstanding_ == 0) {
    Report(Severity::kStructural, "settle_order", fmt::format("step {} settled, none is outstanding", result.step.v));
    return;
  }
#ifdef HOLDFAST_DRILLS
  for (uint32_t i = 1; HF_DRILL(kSettleOutOfOrder) && i < outstanding_; ++i) {
    Launch& other = launches_[(oldest_ + i) % launches_.size()];
    if (other.plan.step == result.step) std::swap(launches_[oldest_], other);
  }
#endif
  Launch& launch = launches_[oldest_];
  size_t expected = 0;
  for (const StepEntry& e : launch.plan.entries) expected += e.sample;
  if (launch.plan.step != result.step || expected != result.sampled.size()) {
    Report(Severity::kStructural, "settle_order",
           fmt::format("step {} with {} samples settled, step {} with {} is the oldest", result.step.v, result.sampled.size(), launch.plan.step.v, expected));
    return;
  }
  size_t next = 0;
  for (size_t i = 0; i < launch.members.size(); ++i) {
    const StepEntry& e = launch.plan.entries[i];
    const SampledToken* sampled = e.sample ? &result.sampled[next++] : nullptr;
    if (sampled != nullptr && sampled->request != e.request) {
      Report(Severity::kStructural, "settle_order", fmt::format("sample {} is of request {}, the entry of {}", next - 1, sampled->request.v, e.request.v));
      sampled = nullptr;
    }
    SettleMember(launch.members[i], sampled);
  }
  inflight_tokens_ -= launch.plan.total_tokens;
  launch.kept.clear();
  oldest_ = (oldest_ + 1) % static_cast<uint32_t>(launches_.size());
  --outstanding_;
  CheckStep(true);
  counters_.heals = ledger_.counters().heals;
  counters_.dedups = ledger_.counters().dedups;
  if (resize_.phase == ResizeState::Phase::kRunning && outstanding_ == 0) PumpResize();
}

}  // namespace holdfast::sched

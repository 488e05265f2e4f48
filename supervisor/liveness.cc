#include "supervisor/liveness.h"

#include <algorithm>

namespace holdfast::supervisor {

void Liveness::Reset(Instant now, uint32_t ranks) {
  ranks_.assign(ranks, State{now, now, 0, false, Duration::zero(), 0, 0, now});
  pending_ = false;
  pending_since_ = now;
}

void Liveness::OnHeartbeat(Instant now, Rank rank, uint64_t step, bool outstanding, Duration since_change, Duration mean_step) {
  State& s = ranks_[rank.v];
  s.heard = now;
  // A report cannot be from the future, and a rank cannot take back a movement it reported.
  const Instant moved = now - std::max(since_change, Duration::zero());
  s.moved = std::max(s.moved, moved);
  s.step = std::max(s.step, step);
  s.outstanding = outstanding;
  if (rank.v == 0) {  // only rank 0 reports its steps
    const bool was_behind = Behind(s);
    s.claimed = outstanding && step > 0 ? step - 1 : step;
    if (Behind(s) && !was_behind) s.behind_since = now;
  }
  if (mean_step > Duration::zero()) s.mean = mean_step;
}

void Liveness::OnStep(Instant now, Rank rank, uint64_t step, Duration step_time) {
  State& s = ranks_[rank.v];
  s.heard = now;
  if (step > s.reported) {
    s.reported = step;
    s.step = std::max(s.step, step);
    s.moved = now;
    s.behind_since = now;
  }
  s.outstanding = false;
  s.mean = s.mean == Duration::zero() ? step_time : s.mean + (step_time - s.mean) / 16;
}

void Liveness::SetPending(Instant now, bool pending) {
  if (pending && !pending_) pending_since_ = now;
  pending_ = pending;
}

void Liveness::Shift(Duration d) {
  for (State& s : ranks_) {
    s.heard += d;
    s.moved += d;
    s.behind_since += d;
  }
  pending_since_ += d;
}

Duration Liveness::Bound(const State& s) const {
  const auto scaled = Duration(static_cast<Duration::rep>(static_cast<double>(s.mean.count()) * options_.hang_factor));
  return std::max(options_.hang_floor, scaled);
}

std::optional<LivenessVerdict> Liveness::Check(Instant now) const {
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    const State& s = ranks_[r];
    if (now - s.heard > options_.silence) {
      return LivenessVerdict{LivenessVerdict::Kind::kSilent, Rank(r), now - s.heard, options_.silence, s.step};
    }
    if (Behind(s) && now - s.behind_since > Bound(s)) {
      return LivenessVerdict{LivenessVerdict::Kind::kUnreported, Rank(r), now - s.behind_since, Bound(s), s.claimed};
    }
    if (!s.outstanding && !pending_) continue;
    const Duration age = now - WaitsSince(s);
    if (age > Bound(s)) {
      const auto kind = s.outstanding ? LivenessVerdict::Kind::kHang : LivenessVerdict::Kind::kStalled;
      return LivenessVerdict{kind, Rank(r), age, Bound(s), s.step};
    }
  }
  return std::nullopt;
}

Instant Liveness::NextDeadline() const {
  Instant at = Instant::max();
  constexpr Duration kTick = std::chrono::nanoseconds(1);  // Check wants strictly older
  for (const State& s : ranks_) {
    at = std::min(at, s.heard + options_.silence + kTick);
    if (Behind(s)) at = std::min(at, s.behind_since + Bound(s) + kTick);
    if (s.outstanding || pending_) at = std::min(at, WaitsSince(s) + Bound(s) + kTick);
  }
  return at;
}

}  // namespace holdfast::supervisor

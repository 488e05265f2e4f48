#include "supervisor/liveness.h"

#include <algorithm>

namespace holdfast::supervisor {

void Liveness::Reset(Instant now, uint32_t ranks) {
  ranks_.assign(ranks, State{now, now, 0, false, Duration::zero()});
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
  if (mean_step > Duration::zero()) s.mean = mean_step;
}

void Liveness::OnStep(Instant now, Rank rank, uint64_t step, Duration step_time) {
  State& s = ranks_[rank.v];
  s.heard = now;
  if (step > s.step) {
    s.step = step;
    s.moved = now;
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
    if (s.outstanding || pending_) at = std::min(at, WaitsSince(s) + Bound(s) + kTick);
  }
  return at;
}

}  // namespace holdfast::supervisor

#include "supervisor/restart_policy.h"

#include <algorithm>

#include "proto/base/random.h"

namespace holdfast::supervisor {

bool CanRestart(LossCause cause) {
  return cause != LossCause::kConfig && cause != LossCause::kModel && cause != LossCause::kSpawn;
}

bool IsUncounted(LossCause cause) { return cause == LossCause::kDeviceBusy || cause == LossCause::kOperator; }

void RestartPolicy::OnServing(Instant now) {
  serving_ = ever_served_ = true;
  serving_since_ = now;
}

RestartDecision RestartPolicy::OnLoss(Instant now, LossCause cause) {
  const Duration served = serving_ ? now - serving_since_ : Duration::zero();
  const bool was_stable = serving_ && served >= options_.stable_after;
  serving_ = false;
  if (was_stable) {
    streak_ = 0;
    quarantines_ = 0;
    half_open_ = false;
    if (served >= options_.safe_window) safe_ = false;
  }
  const bool hopeless = cause == LossCause::kEnvironment && options_.environment_is_permanent_at_first && !ever_served_;
  if (!CanRestart(cause) || hopeless) return {Verdict::kPermanent, Duration::zero(), safe_, false};
  if (cause == LossCause::kOperator) return {Verdict::kRestart, Duration::zero(), safe_, false};
  if (cause == LossCause::kDeviceBusy) return {Verdict::kRestart, Jittered(options_.busy_delay), safe_, false};

  counted_.push_back(now);
  while (counted_.front() + options_.window <= now) counted_.pop_front();
  if (cause == LossCause::kIntegrity) {
    integrity_.push_back(now);
    while (integrity_.front() + options_.safe_window <= now) integrity_.pop_front();
    if (integrity_.size() >= options_.safe_after) safe_ = true;
  }
  if (half_open_ || counted_.size() > options_.intensity) {
    // The breaker opens (again): its own memory is the quarantine count, so the window starts empty for the trial.
    Duration hold = options_.quarantine;
    for (uint32_t i = 0; i < quarantines_ && hold < options_.max_quarantine; ++i) hold *= 2;
    ++quarantines_;
    half_open_ = true;
    counted_.clear();
    return {Verdict::kQuarantine, Jittered(std::min(hold, options_.max_quarantine)), safe_, true};
  }
  Duration delay = options_.first_delay;
  if (streak_ > 0) {
    delay = options_.second_delay;
    for (uint32_t i = 1; i < streak_ && delay < options_.max_delay; ++i) delay *= 2;
  }
  ++streak_;
  return {Verdict::kRestart, Jittered(std::min(delay, options_.max_delay)), safe_, true};
}

void RestartPolicy::Reset() {
  counted_.clear();
  integrity_.clear();
  streak_ = 0;
  quarantines_ = 0;
  half_open_ = false;
  safe_ = false;
}

void RestartPolicy::Shift(Duration d) {
  for (Instant& t : counted_) t += d;
  for (Instant& t : integrity_) t += d;
  if (serving_) serving_since_ += d;
}

Duration RestartPolicy::Jittered(Duration d) {
  random_ = Mix64(random_);
  const double unit = static_cast<double>(random_ >> 11) * 0x1.0p-53;
  const double factor = 1.0 - options_.jitter + 2.0 * options_.jitter * unit;
  return Duration(static_cast<Duration::rep>(static_cast<double>(d.count()) * factor));
}

}  // namespace holdfast::supervisor

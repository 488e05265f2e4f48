#pragma once
// When the next generation may start. PURE: time and randomness are arguments.
//
// Every loss that counts doubles the delay (jittered, capped); serving for `stable_after` resets it. More than `intensity` counted
// losses within `window` open the breaker: the group is quarantined, then one generation is tried (half-open). If that trial is lost
// before it was stable, the quarantine doubles; if it becomes stable, the breaker closes. `safe_after` integrity losses within
// `safe_window` ask for the safe profile (no overlap, no prefix cache, audit of every step) until a generation has been stable
// for `safe_window`.
//
// Not thread-safe; owned by the group machine.
#include <cstdint>
#include <deque>

#include "proto/base/clock.h"
#include "supervisor/loss.h"

namespace holdfast::supervisor {

struct RestartOptions {
  Duration first_delay = std::chrono::milliseconds(20);  // before the first restart: a lone crash costs next to nothing
  Duration second_delay = std::chrono::milliseconds(250);  // before the second; doubles from there
  Duration max_delay = std::chrono::seconds(30);
  double jitter = 0.25;                                  // the delay is multiplied by a factor in [1 - jitter, 1 + jitter]
  Duration busy_delay = std::chrono::seconds(2);         // device busy: not counted
  Duration stable_after = std::chrono::seconds(30);
  uint32_t intensity = 10;                               // counted losses allowed in `window`
  Duration window = std::chrono::minutes(5);
  Duration quarantine = std::chrono::seconds(60);
  Duration max_quarantine = std::chrono::minutes(15);
  uint32_t safe_after = 2;
  Duration safe_window = std::chrono::minutes(10);
  // A lack in the environment (exit 69: no memory) is permanent as long as no generation has ever served: whoever started us should hear of it.
  bool environment_is_permanent_at_first = false;
};

enum class Verdict : uint8_t { kRestart, kQuarantine, kPermanent };

struct RestartDecision {
  Verdict verdict = Verdict::kRestart;
  Duration delay{};     // until the next launch; 0 with kPermanent
  bool safe = false;    // profile of the next launch
  bool counted = true;
};

// False for the causes a restart cannot mend.
bool CanRestart(LossCause cause);
// True when the loss says nothing against the software: not counted.
bool IsUncounted(LossCause cause);

class RestartPolicy {
 public:
  RestartPolicy(RestartOptions options, uint64_t seed) : options_(options), random_(seed) {}

  // The group began to serve.
  void OnServing(Instant now);
  // The group was lost or stopped.
  RestartDecision OnLoss(Instant now, LossCause cause);
  // The operator asked for a fresh start: the breaker closes, the counts are forgotten.
  void Reset();
  // The supervisor itself stood still for `d`: its past moves with it.
  void Shift(Duration d);

  bool half_open() const { return half_open_; }
  bool safe() const { return safe_; }
  uint32_t losses_in_window() const { return static_cast<uint32_t>(counted_.size()); }

 private:
  Duration Jittered(Duration d);

  RestartOptions options_;
  uint64_t random_;
  std::deque<Instant> counted_;
  std::deque<Instant> integrity_;
  uint32_t streak_ = 0;         // counted losses since the last stable generation
  uint32_t quarantines_ = 0;    // in a row
  bool half_open_ = false;
  bool safe_ = false;
  bool serving_ = false;
  bool ever_served_ = false;
  Instant serving_since_{};
};

}  // namespace holdfast::supervisor

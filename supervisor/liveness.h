#pragma once
// Is the group getting anywhere? Judged by the progress of each rank's step thread, never by the mere arrival of messages. PURE.
//
// Four ways to be dead while the process lives:
//  kHang    a step is outstanding and the step thread has not moved for longer than max(hang_floor, hang_factor x mean step);
//  kStalled requests are in flight, no step is outstanding, and nothing has moved for as long;
//  kUnreported  rank 0 says it has ended steps whose reports do not come, for as long: tokens are lost on the way;
//  kSilent  no message at all for `silence`: the process is stopped, or its link thread is gone.
// Heartbeats carry the step thread's own account of when it last moved, so a live link thread cannot vouch for a stuck step.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/ids.h"

namespace holdfast::supervisor {

struct LivenessOptions {
  Duration hang_floor = std::chrono::seconds(30);
  double hang_factor = 20;
  Duration silence = std::chrono::seconds(10);
};

struct LivenessVerdict {
  enum class Kind : uint8_t { kHang, kStalled, kUnreported, kSilent } kind;
  Rank rank;
  Duration age{};    // since it last moved (kHang, kStalled) or was heard (kSilent)
  Duration bound{};
  uint64_t step = 0;
};

class Liveness {
 public:
  explicit Liveness(LivenessOptions options) : options_(options) {}

  // A generation with `ranks` ranks starts to serve.
  void Reset(Instant now, uint32_t ranks);
  // since_change: how long before `now` the step thread last moved, by its own account.
  void OnHeartbeat(Instant now, Rank rank, uint64_t step, bool outstanding, Duration since_change, Duration mean_step);
  void OnStep(Instant now, Rank rank, uint64_t step, Duration step_time);
  // Whether any request is in flight.
  void SetPending(Instant now, bool pending);
  // The observer stood still for `d`: everything it remembers moves with it.
  void Shift(Duration d);

  std::optional<LivenessVerdict> Check(Instant now) const;
  // The earliest moment at which Check may say something new.
  Instant NextDeadline() const;

  Duration MeanStep(Rank rank) const { return ranks_[rank.v].mean; }

 private:
  struct State {
    Instant heard{};
    Instant moved{};
    uint64_t step = 0;
    bool outstanding = false;
    Duration mean{};
    uint64_t reported = 0;      // the last step whose report came
    uint64_t claimed = 0;       // the last step its heartbeat says has ended
    Instant behind_since{};     // when claimed got ahead of reported, or the last report since
  };
  static bool Behind(const State& s) { return s.claimed > s.reported; }
  Duration Bound(const State& s) const;
  Instant WaitsSince(const State& s) const { return pending_ && !s.outstanding ? std::max(s.moved, pending_since_) : s.moved; }

  LivenessOptions options_;
  std::vector<State> ranks_;
  bool pending_ = false;
  Instant pending_since_{};
};

}  // namespace holdfast::supervisor

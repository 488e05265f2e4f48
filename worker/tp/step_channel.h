#pragma once
// How rank 0 leads: it publishes each round of its loop, and the other ranks repeat it.
//
// A round is: commands of the log up to consume_upto, page moves, one Plan(), and, when that gave a step, launching it; then, when more than
// overlap_depth steps are in flight or nothing was planned while one is, finishing and applying the oldest. Rank 0
// publishes it after Plan() and before it computes; a follower makes the same calls of its own scheduler and compares digests before it
// computes. So ranks that do not agree part before the first collective of a step, not with a corrupt cache an hour later. The scheduler
// knows no time, so a round carries none.
//
// A resize begins a round, and the round before it only asks: each rank sees its own memory, and all must decide alike.
//
// Threads: the loop thread.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>

#include "worker/tp/group.h"

namespace holdfast::tp {

struct Round {
  uint64_t generation = 0;
  uint64_t step = 0;            // 0: nothing to compute
  uint64_t consume_upto = 0;    // the last command of the log that it follows
  uint64_t digest = 0;          // of the scheduler, after Plan()
  bool vote = false;            // nothing is taken yet: every rank says whether it could carry out command consume_upto, a resize

  friend bool operator==(const Round&, const Round&) = default;
};

class StepChannel final {
 public:
  explicit StepChannel(Group* group) : group_(group) {}

  // Rank 0. Waits only when a rank is kRoundRing rounds behind.
  absl::Status Publish(const Round& round);
  // The others: the next round. False when there is none within at_most.
  absl::StatusOr<bool> Next(Duration at_most, Round* round);

 private:
  Group* const group_;
  uint32_t rounds_ = 0;         // published or taken
};

}  // namespace holdfast::tp

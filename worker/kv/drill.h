#pragma once
// Drills: historical and likely bugs, kept behind a switch that exists only in the drill build (tests/drills). HF_DRILL(x) is the constant
// false in what ships.
#include <cstdint>

namespace holdfast::kv {

enum class Drill : uint8_t {
  kNone = 0,
  kFreeTokenCommit,        // commit drops the duplicate page of a locked tombstone and leaves the row naming it (the report's bug)
  kDisplacingRevive,       // commit replaces the node's page by the row's and frees the node's under its readers
  kReleaseInFlight,        // cancel releases at once although a launched step still uses the pages
  kSlideOnLaunched,        // windows slide on the launched instead of the settled position
  kNoReservation,          // admission ignores what running requests may still take
  kFloorWithoutWindows,    // the window floor leaves out the windows of the running requests
  kCadenceSlide,           // windows slide only at every 32nd step
  kDedupKeepsTally,        // de-duplication drops the row's page without telling the row's fingerprint
  kHealMoves,              // healing hands the row's window page over instead of sharing it
  kMatchShortWindow,       // a boundary counts as valid with one block less than the window
  kTieByAddress,           // victims depend on something that differs between ranks
  kNoGenerationCheck,      // handles of an earlier life of a page are accepted
  kQuarantineReturns,      // a quarantined page goes back to the free list
  kSettleOutOfOrder,       // the newest outstanding step is settled first
  kReleaseAtStop,          // a row is released at its stop although a step launched ahead of it is in flight
  kCommitAwaited,          // a block is committed when its last token is known, with the step that computes it in flight
  kAheadOfEnd,             // a decode is launched ahead of a token that is the last by length
  kUnknownToken,           // a request that ended takes a token that it was never told for 0
};

#ifdef HOLDFAST_DRILLS
namespace drill {
extern Drill active;
extern uint64_t rank_skew;  // what kTieByAddress mixes in; differs between simulated ranks
}  // namespace drill
#define HF_DRILL(name) (::holdfast::kv::drill::active == ::holdfast::kv::Drill::name)
#else
#define HF_DRILL(name) false
#endif

}  // namespace holdfast::kv

#pragma once
// A rank's place in its group: the shared memory of the generation (proto/base/group_memory.h), who else is there, and waiting for them.
//
// Layout: a control block in the first kGroupControlBytes (a line for each rank, the ring of rounds), then kRankAreaBytes for each rank, in
// two halves that it alone writes. Words that somebody waits for are futexes; a waiter spins for some microseconds, then sleeps in short
// slices, between which it looks whether its peers live, whether its owner was told to stop, and what time it is. So a peer's death is
// seen within a slice, and a wait never outlasts its time.
//
// Threads: one.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/group_memory.h"
#include "proto/base/unique_fd.h"

namespace holdfast::tp {

inline constexpr uint32_t kRoundRing = 64;
inline constexpr Duration kLongestSlice = std::chrono::milliseconds(50);

// A round as it lies in the ring (step_channel.h).
struct RoundRecord {
  uint64_t number, generation, step, consume_upto, digest;
  bool vote;
};

struct GroupOptions {
  uint32_t rank = 0;
  uint32_t size = 1;
  Duration timeout = std::chrono::seconds(120);        // of one wait inside a step
  Duration spin = std::chrono::microseconds(20);       // before sleeping
  Duration slice = std::chrono::milliseconds(2);       // to the first look at the peers; doubles to kLongestSlice
  int pid = 0;                                         // said to the peers; 0 = this process (tests name another)
};

class Group final {
 public:
  // Maps the memory and takes the rank's place in it. kInvalidArgument when the descriptor is no group memory of that many ranks, or the
  // place is taken. Takes the descriptor.
  static absl::StatusOr<std::unique_ptr<Group>> Join(UniqueFd memory, const GroupOptions& options);
  // Tells the peers that this rank has left.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // `stopped` is asked between the slices of every wait: true ends it with kCancelled.
  void OnWait(std::function<bool()> stopped) { stopped_ = std::move(stopped); }
  // One such look, for who waits by other means since `began`: not ok when it should not wait any more.
  absl::Status StillWorthWaiting(Instant began) { return Look(began, options_.timeout); }

  uint32_t rank() const { return options_.rank; }
  uint32_t size() const { return options_.size; }
  // Waits until every rank has come here as often as this one, the first time also for it to join. As long as it takes: ranks load at their
  // own pace, and the supervisor has a deadline for them.
  absl::Status Meet();

  // A word of the shared memory that ranks wait for. Counts up; compared as a distance, so it may wrap.
  struct alignas(64) Word {
    std::atomic<uint32_t> value;
    std::atomic<uint32_t> sleepers;
  };
  void Advance(Word& word, uint32_t value);
  // Until word.value has reached `target` (kOk), or a reason not to wait any more. at_most zero = no bound.
  absl::Status Await(Word& word, uint32_t target, Duration at_most);
  absl::Status Await(Word& word, uint32_t target) { return Await(word, target, options_.timeout); }

  // ---- what lies in the memory
  Word& published(uint32_t rank);                      // collective operations the rank has written its part of
  Word& rounds_taken(uint32_t rank);
  Word& rounds_published();
  RoundRecord& round(uint32_t index);                  // < kRoundRing
  std::span<std::byte> half(uint32_t rank, uint32_t which);

 private:
  struct Control;
  Group(const GroupOptions& options, std::byte* base) : options_(options), base_(base), peers_(options.size) {}
  Control& control() const;
  absl::Status Look(Instant begin, Duration at_most);
  absl::Status CheckPeer(uint32_t rank);

  GroupOptions options_;
  std::byte* base_;
  std::vector<UniqueFd> peers_;                        // [rank] pidfd, once it has joined
  uint32_t meetings_ = 0;
  std::function<bool()> stopped_;
};

}  // namespace holdfast::tp

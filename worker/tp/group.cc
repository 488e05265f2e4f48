#include "worker/tp/group.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>

#include "proto/base/check.h"
#include "proto/base/status_wire.h"

namespace holdfast::tp {
namespace {

constexpr uint64_t kMagic = 0x31306b6e61726648ull;  // "Hfrank01"
enum Place : uint32_t { kAbsent = 0, kJoined = 1, kLeft = 2 };

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4, "a futex is a plain 32-bit word");

bool Reached(uint32_t value, uint32_t target) { return static_cast<int32_t>(value - target) >= 0; }

// Not FUTEX_PRIVATE: the waiters are other processes.
void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, Duration at_most) {
  const timespec ts{static_cast<time_t>(at_most.count() / 1000000000), static_cast<long>(at_most.count() % 1000000000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &ts, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) { ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace

struct Group::Control {
  struct alignas(64) Line {
    Word place;                        // Place
    Word met;
    Word published;
    Word taken;
    std::atomic<int32_t> pid;
  };
  uint64_t magic;                      // written by every rank, the same value
  Word rounds;
  Line lines[kMaxRanks];
  RoundRecord ring[kRoundRing];
};

absl::StatusOr<std::unique_ptr<Group>> Group::Join(UniqueFd memory, const GroupOptions& options) {
  static_assert(sizeof(Control) <= kGroupControlBytes);
  HF_CHECK(options.size >= 1 && options.size <= kMaxRanks && options.rank < options.size);
  struct stat st;
  if (!memory || ::fstat(memory.get(), &st) != 0) return absl::InvalidArgumentError("no memory of the group: its descriptor is not open");
  const uint64_t bytes = GroupMemoryBytes(options.size);
  if (static_cast<uint64_t>(st.st_size) != bytes) {
    return absl::InvalidArgumentError(fmt::format("the group's memory has {} bytes; {} ranks need {}", st.st_size, options.size, bytes));
  }
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (p == MAP_FAILED) return absl::ResourceExhaustedError(fmt::format("cannot map the group's memory: {}", ::strerror(errno)));
  std::unique_ptr<Group> group(new Group(options, static_cast<std::byte*>(p)));
  Control::Line& line = group->control().lines[options.rank];
  uint32_t absent = kAbsent;
  line.pid.store(options.pid != 0 ? options.pid : ::getpid());
  if (!line.place.value.compare_exchange_strong(absent, kJoined)) {
    group->options_.rank = kMaxRanks;  // not ours to leave
    return absl::InvalidArgumentError(fmt::format("rank {} has been in this group before", options.rank));
  }
  group->control().magic = kMagic;
  FutexWake(line.place.value);
  return group;
}

Group::~Group() {
  if (options_.rank < kMaxRanks) {
    Control::Line& line = control().lines[options_.rank];
    Advance(line.place, kLeft);
    // Wake those who wait for something this rank would have said: they look, and see that it has left.
    FutexWake(line.met.value);
    FutexWake(line.published.value);
    FutexWake(line.taken.value);
    if (options_.rank == 0) FutexWake(control().rounds.value);
  }
  ::munmap(base_, GroupMemoryBytes(options_.size));
}

Group::Control& Group::control() const { return *std::launder(reinterpret_cast<Control*>(base_)); }
Group::Word& Group::published(uint32_t rank) { return control().lines[rank].published; }
Group::Word& Group::rounds_taken(uint32_t rank) { return control().lines[rank].taken; }
Group::Word& Group::rounds_published() { return control().rounds; }
RoundRecord& Group::round(uint32_t index) { return control().ring[index % kRoundRing]; }

std::span<std::byte> Group::half(uint32_t rank, uint32_t which) {
  constexpr uint64_t kHalf = kRankAreaBytes / 2;
  return {base_ + kGroupControlBytes + rank * kRankAreaBytes + which * kHalf, kHalf};
}

absl::Status Group::Meet() {
  Advance(control().lines[options_.rank].met, ++meetings_);
  for (uint32_t r = 0; r < options_.size; ++r) {
    if (r != options_.rank) HF_RETURN_IF_ERROR(Await(control().lines[r].met, meetings_, Duration::zero()));
  }
  return absl::OkStatus();
}

void Group::Advance(Word& word, uint32_t value) {
  // Sequentially consistent on both sides: either the waiter sees the value before it sleeps, or we see that it is about to.
  word.value.store(value);
  if (word.sleepers.load() > 0) FutexWake(word.value);
}

absl::Status Group::Await(Word& word, uint32_t target, Duration at_most) {
  if (Reached(word.value.load(std::memory_order_acquire), target)) return absl::OkStatus();
  const Instant begin = Clock::Real().Now();
  for (Instant now = begin; now - begin < options_.spin; now = Clock::Real().Now()) {
    for (int i = 0; i < 16; ++i) {
      if (Reached(word.value.load(std::memory_order_acquire), target)) return absl::OkStatus();
      __builtin_ia32_pause();
    }
  }
  Duration slice = options_.slice;
  word.sleepers.fetch_add(1);
  absl::Status status;
  for (;;) {
    const uint32_t seen = word.value.load();
    if (Reached(seen, target)) break;
    status = Look(begin, at_most);
    if (!status.ok()) {
      // What we waited for may have come before its sender went.
      if (Reached(word.value.load(), target)) status = absl::OkStatus();
      break;
    }
    FutexWait(word.value, seen, slice);
    slice = std::min(2 * slice, kLongestSlice);
  }
  word.sleepers.fetch_sub(1);
  return status;
}

absl::Status Group::Look(Instant begin, Duration at_most) {
  for (uint32_t r = 0; r < options_.size; ++r) {
    if (r != options_.rank) HF_RETURN_IF_ERROR(CheckPeer(r));
  }
  if (stopped_ && stopped_()) return absl::CancelledError("told to stop while waiting for another rank");
  if (at_most != Duration::zero() && Clock::Real().Now() - begin >= at_most) {
    return absl::DeadlineExceededError(fmt::format("another rank did not come within {} ms", ToMillis(at_most)));
  }
  return absl::OkStatus();
}

absl::Status Group::CheckPeer(uint32_t rank) {
  Control::Line& line = control().lines[rank];
  const uint32_t place = line.place.value.load(std::memory_order_acquire);
  if (place == kAbsent) return absl::OkStatus();
  if (place == kLeft) return absl::UnavailableError(fmt::format("rank {} has left the group", rank));
  const int pid = line.pid.load();
  if (pid == ::getpid()) return absl::OkStatus();  // ranks of one process: a test
  if (!peers_[rank]) {
    peers_[rank].Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!peers_[rank]) {
      if (errno == ESRCH) return absl::UnavailableError(fmt::format("rank {} (process {}) is dead", rank, pid));
      return absl::OkStatus();  // no descriptor to be had: the supervisor and the time-out still watch
    }
  }
  pollfd dead{peers_[rank].get(), POLLIN, 0};
  if (::poll(&dead, 1, 0) > 0) return absl::UnavailableError(fmt::format("rank {} (process {}) is dead", rank, pid));
  return absl::OkStatus();
}

}  // namespace holdfast::tp

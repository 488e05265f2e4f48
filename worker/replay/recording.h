#pragma once
// Writes a recording (format.h) into a memory file that others can hold: whoever has the descriptor can read what the worker did up to its
// last instant, whatever ended it. Appending allocates nothing and never fails; a full recording says so and stops.
//
// Threads: one writer. Readers of the descriptor see whole entries below `used`.
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "proto/base/unique_fd.h"
#include "worker/sched/scheduler.h"

namespace holdfast::replay {

// About 250 000 steps of eight sequences. Memory is taken as it is written.
inline constexpr uint64_t kDefaultCapacity = uint64_t{32} << 20;

class Recording final {
 public:
  // kResourceExhausted when the system gives no memory file; kInvalidArgument when the capacity holds no header.
  static absl::StatusOr<std::unique_ptr<Recording>> Create(const sched::SchedulerConfig& config, uint64_t generation, uint32_t rank,
                                                           uint64_t capacity = kDefaultCapacity);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  int fd() const { return fd_.get(); }  // cannot be resized; to hand over, dup it
  uint64_t used() const { return used_; }
  bool full() const { return full_; }

  void Submit(const sched::SubmitCommand& command);
  void Cancel(RequestId request);
  void Resize(const sched::ResizeCommand& command);
  void Plan(const sched::StepPlan* plan, uint64_t digest);  // null: nothing to do
  void Apply(const sched::StepResult& result);
  void Digest(uint64_t digest);
  void Audit();
  void SuspectPage(uint8_t group, uint32_t page);

 private:
  class Entry;
  Recording() = default;
  void Append(const Entry& entry);
  void Publish();

  UniqueFd fd_;
  std::byte* base_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t used_ = 0;
  uint64_t chain_ = 0;
  bool full_ = false;
  // The last entry, when it is kIdle: it is written again instead of repeated.
  uint64_t idle_at_ = 0, idle_chain_ = 0, idle_digest_ = 0;
  uint32_t idle_times_ = 0;
};

// A scheduler that records what it is told and passes it on.
std::unique_ptr<sched::Scheduler> RecordScheduler(std::unique_ptr<sched::Scheduler> inner, std::unique_ptr<Recording> recording);

}  // namespace holdfast::replay

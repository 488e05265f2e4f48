#pragma once
// The last N steps in a fixed ring, for the incident bundle: what ran, for whom, how long. Writing it out uses only write(2) and stack
// memory, so the crash hook may call it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/ids.h"

namespace holdfast::exec {

struct StepRecord {
  static constexpr int kRequests = 8;
  uint64_t step = 0;
  uint64_t digest = 0;
  uint64_t started_us = 0;           // CLOCK_MONOTONIC
  uint32_t step_us = 0;              // 0: the step did not end
  uint32_t entries = 0;
  uint32_t prefill_tokens = 0;
  uint32_t decode_tokens = 0;
  uint32_t failed = 0;
  struct Share {
    uint64_t request = 0;
    uint32_t start = 0;
    uint32_t rows = 0;
    uint32_t token = 0;              // sampled; UINT32_MAX = none
  } shares[kRequests];               // the first entries of the step
};

class FlightRecorder {
 public:
  explicit FlightRecorder(size_t records);

  // Begins the record of the next step, overwriting the oldest. The reference stays valid until it is overwritten.
  StepRecord& Begin();
  size_t size() const { return count_ < ring_.size() ? count_ : ring_.size(); }
  const StepRecord& At(size_t i) const;            // i = 0 is the oldest

  // One JSON object a line, oldest first. False when a write failed. Async-signal-safe.
  bool WriteTo(int fd) const;
  bool WriteFile(const std::string& path) const;   // created 0600, truncated

 private:
  std::vector<StepRecord> ring_;
  size_t count_ = 0;                               // steps begun in all
};

}  // namespace holdfast::exec

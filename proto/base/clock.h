#pragma once
// Time as a seam. PURE units never see it; shells take a Clock so that tests can move it.
#include <chrono>
#include <cstdint>

namespace holdfast {

using Duration = std::chrono::nanoseconds;
using Instant = std::chrono::time_point<std::chrono::steady_clock, Duration>;  // CLOCK_MONOTONIC

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
  virtual int64_t UnixMillis() const = 0;

  static const Clock& Real();
};

inline int64_t ToMillis(Duration d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); }

// For tests: starts at 1 h and moves only when told.
class ManualClock final : public Clock {
 public:
  Instant Now() const override { return now_; }
  int64_t UnixMillis() const override { return 1'700'000'000'000 + ToMillis(now_.time_since_epoch()); }
  void Advance(Duration d) { now_ += d; }

 private:
  Instant now_{std::chrono::hours(1)};
};

}  // namespace holdfast

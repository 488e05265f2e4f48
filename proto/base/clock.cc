#include "proto/base/clock.h"

namespace holdfast {
namespace {
class RealClock final : public Clock {
 public:
  Instant Now() const override { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }
  int64_t UnixMillis() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
};
}  // namespace

const Clock& Clock::Real() {
  static const RealClock clock;
  return clock;
}

}  // namespace holdfast

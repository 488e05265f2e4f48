#pragma once
// The frontend's loop thread, as the rest of the frontend sees it: it owns all state, everything else posts into it. Asio is behind it.
#include <functional>
#include <memory>

#include "proto/base/clock.h"

namespace boost::asio {
class io_context;
}

namespace holdfast::api {

// A pending call. Destroying it cancels the call (loop thread only).
class Timer {
 public:
  virtual ~Timer() = default;
};

class Loop {
 public:
  virtual ~Loop() = default;
  // Any thread. Calls run in the order they were posted; a call posted after the loop stopped never runs.
  virtual void Post(std::function<void()> call) = 0;
  // Loop thread.
  [[nodiscard]] virtual std::unique_ptr<Timer> After(Duration delay, std::function<void()> call) = 0;
  virtual Instant Now() const = 0;
  virtual int64_t UnixMillis() const = 0;
};

// The io_context belongs to the caller, who runs it on one thread, and outlives the loop.
std::unique_ptr<Loop> MakeLoop(boost::asio::io_context& context);

}  // namespace holdfast::api

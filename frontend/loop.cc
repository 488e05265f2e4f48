#include "frontend/loop.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace holdfast::api {
namespace {

class AsioTimer final : public Timer {
 public:
  AsioTimer(boost::asio::io_context& context, Duration delay, std::function<void()> call)
      : timer_(context), call_(std::make_shared<std::function<void()>>(std::move(call))) {
    timer_.expires_after(delay);
    // The handler may already be queued when the timer is destroyed: the weak pointer is what cancels it.
    timer_.async_wait([weak = std::weak_ptr(call_)](const boost::system::error_code& error) {
      const auto alive = weak.lock();
      if (!alive || error) return;
      const std::function<void()> run = std::move(*alive);  // the call may destroy its own timer
      run();
    });
  }

 private:
  boost::asio::steady_timer timer_;
  std::shared_ptr<std::function<void()>> call_;
};

class AsioLoop final : public Loop {
 public:
  explicit AsioLoop(boost::asio::io_context& context) : context_(context) {}
  void Post(std::function<void()> call) override { boost::asio::post(context_, std::move(call)); }
  std::unique_ptr<Timer> After(Duration delay, std::function<void()> call) override {
    return std::make_unique<AsioTimer>(context_, delay, std::move(call));
  }
  Instant Now() const override { return Clock::Real().Now(); }
  int64_t UnixMillis() const override { return Clock::Real().UnixMillis(); }

 private:
  boost::asio::io_context& context_;
};

}  // namespace

std::unique_ptr<Loop> MakeLoop(boost::asio::io_context& context) { return std::make_unique<AsioLoop>(context); }

}  // namespace holdfast::api

#pragma once
// Counts the calls that gRPC may still call back for, so that a client's destructor can wait for the last of them.
#include <condition_variable>
#include <mutex>

namespace holdfast::api {

class LiveCount final {
 public:
  void Add() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void Remove() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) zero_.notify_all();
  }
  void WaitForZero() {
    std::unique_lock lock(mutex_);
    zero_.wait(lock, [&] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int count_ = 0;
};

}  // namespace holdfast::api

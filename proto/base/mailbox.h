#pragma once
// The only way into a loop thread from outside: foreign threads Post values, the loop takes them all at once. An eventfd wakes a loop
// that waits in poll/Asio; Wait() serves a loop that has nothing else to wait for. Unbounded by itself: producers are bounded by
// protocol (one message a step, admission before requests).
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/unique_fd.h"

namespace holdfast {

// A non-blocking, close-on-exec eventfd.
class WakeFd {
 public:
  WakeFd();
  int fd() const { return fd_.get(); }
  void Notify();  // any thread, async-signal-safe
  void Drain();   // loop thread

 private:
  UniqueFd fd_;
};

template <class T>
class Mailbox {
 public:
  // Any thread. After Close() the value is dropped and false is returned.
  bool Post(T value) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      items_.push_back(std::move(value));
    }
    ready_.notify_one();
    wake_.Notify();
    return true;
  }

  // Loop thread: everything posted so far, in order.
  std::vector<T> TakeAll() {
    wake_.Drain();
    std::vector<T> out;
    std::lock_guard lock(mutex_);
    out.swap(items_);
    return out;
  }

  // Loop thread: returns when something is there, the box was closed, or the time is up.
  void Wait(Duration at_most) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, at_most, [&] { return closed_ || !items_.empty(); });
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
    wake_.Notify();
  }

  int wake_fd() const { return wake_.fd(); }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> items_;
  bool closed_ = false;
  WakeFd wake_;
};

}  // namespace holdfast

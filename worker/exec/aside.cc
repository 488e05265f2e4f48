#include "worker/exec/aside.h"

#include <system_error>
#include <utility>

#include "proto/base/check.h"

namespace holdfast::exec {

Aside::~Aside() {
  if (!thread_.joinable()) return;
  Wait();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Aside::Start(std::function<void()> job) {
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Main(); });
    } catch (const std::system_error&) {  // no thread to be had
      return job();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    HF_CHECK(job_ == nullptr);
    job_ = std::move(job);
  }
  changed_.notify_all();
}

void Aside::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return job_ == nullptr; });
}

void Aside::Main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || job_ != nullptr; });
    if (stop_) return;
    lock.unlock();
    job_();
    lock.lock();
    job_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace holdfast::exec

#include "frontend/text_pool.h"

#include <utility>

namespace holdfast::api {

TextPool::TextPool(size_t threads, size_t max_queued) : max_queued_(max_queued) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

TextPool::~TextPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool TextPool::Run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || queue_.size() >= max_queued_) return false;
    queue_.push_back(std::move(work));
  }
  ready_.notify_one();
  return true;
}

void TextPool::Work() {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace holdfast::api

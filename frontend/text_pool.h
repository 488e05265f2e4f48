#pragma once
// A few threads for work on text that may take long (rendering a template, tokenising a megabyte), so that the loop never waits for it.
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace holdfast::api {

class TextPool final {
 public:
  TextPool(size_t threads, size_t max_queued);
  ~TextPool();  // finishes what has begun, drops the rest
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // Any thread. False when max_queued calls wait already: the caller says "overloaded".
  bool Run(std::function<void()> work);

 private:
  void Work();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace holdfast::api

#pragma once
// A thread beside the step's, for work whose result the step needs only at its end: a job is started, the step computes, and waits for it.
// Not thread-safe itself: one caller. What the job touches belongs to it from Start to Wait.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace holdfast::exec {

class Aside final {
 public:
  Aside() = default;
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  // Runs `job` beside the caller. The thread is made at the first call; where the system gives none, the job runs here and now.
  void Start(std::function<void()> job);
  // Returns when the job is done; at once when there is none.
  void Wait();

 private:
  void Main();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;   // empty: none, or done
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace holdfast::exec

#pragma once
// The CPU backend's threads. One caller thread hands out a function and takes part in it; Run returns when every thread is done.
//
// A waiting thread spins for about 15 us (the gap between the phases of a layer), then yields, then parks on a futex, so that an idle
// server costs nothing and a crowded machine is not fought over.
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace holdfast::kernels {

class ThreadPool final {
 public:
  explicit ThreadPool(int threads);  // >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // f(thread), thread in [0, threads()), once on each thread. Not reentrant.
  template <class F>
  void Run(F&& f) {
    if (workers_.empty()) return f(0);
    RunOn([](void* context, int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(thread); }, &f);
  }

 private:
  using Function = void (*)(void* context, int thread);
  void RunOn(Function function, void* context);
  void Work(int thread);

  std::vector<std::thread> workers_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> epoch_{0};    // counts Run calls; workers wait for it to move
  alignas(64) std::atomic<uint32_t> pending_{0};  // workers not yet done with this epoch
  alignas(64) std::atomic<uint32_t> parked_{0};   // threads asleep on a futex, or about to be
};

}  // namespace holdfast::kernels

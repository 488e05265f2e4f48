#pragma once
// The CPU backend's threads. One caller thread hands out a function in as many parts as there are threads and takes part in it; Run returns
// when every part is done.
//
// Thread t computes part t, always the same share of a matrix, so that it stays in its cache. A part whose thread does not come (the
// machine has other work for that core) is computed by the caller. Waiting is adaptive: on a machine of our own a thread spins for up to
// 200 us, which covers the gaps within a step; a thread that sees that it was taken off its core says so, and for a while all of them spin
// for a few microseconds only and then sleep on a futex: on a crowded machine spinning takes the core from the very partner that is waited for.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace holdfast::kernels {

class ThreadPool final {
 public:
  explicit ThreadPool(int threads);  // >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // f(part), part in [0, threads()), each exactly once; at most threads() at a time, and one thread may compute several parts one after
  // the other, so parts must not wait for each other. Not reentrant.
  template <class F>
  void Run(F&& f) {
    if (workers_.empty()) return f(0);
    RunOn([](void* context, int part) { (*static_cast<std::remove_reference_t<F>*>(context))(part); }, &f);
  }

 private:
  using Function = void (*)(void* context, int part);
  struct alignas(64) Claim {
    std::atomic<uint32_t> epoch{0};  // the last epoch in which somebody took this part
  };

  void RunOn(Function function, void* context);
  void Work(int thread);
  // True for the one thread that computes the part in this epoch.
  bool Take(int part, uint32_t epoch);
  // Returns once word != value (acquire).
  void AwaitChange(std::atomic<uint32_t>& word, uint32_t value);

  std::vector<std::thread> workers_;
  std::unique_ptr<Claim[]> claims_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> epoch_{0};    // counts Run calls; workers wait for it to move
  alignas(64) std::atomic<uint32_t> pending_{0};  // parts not yet done in this epoch
  alignas(64) std::atomic<uint32_t> parked_{0};   // threads asleep on a futex, or about to be
  alignas(64) std::atomic<uint32_t> crowded_{0};  // Run calls for which waits stay short
};

}  // namespace holdfast::kernels

#include "kernels/cpu/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <string>

#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

constexpr auto kSpin = std::chrono::microseconds(15);
constexpr auto kYield = std::chrono::microseconds(200);

inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void FutexWait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Returns once word != value (acquire).
void AwaitChange(std::atomic<uint32_t>& word, uint32_t value, std::atomic<uint32_t>& parked) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0;; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    Relax();
    if (i % 64 == 63 && std::chrono::steady_clock::now() - begin > kSpin) break;
  }
  while (std::chrono::steady_clock::now() - begin < kYield) {
    sched_yield();
    if (word.load(std::memory_order_acquire) != value) return;
  }
  // Announce, look again, sleep: the waker changes the word first and reads the count second, so one of the two sees the other.
  parked.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == value) FutexWait(word, value);
  parked.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  HF_CHECKF(threads >= 1, "{} threads", threads);
  for (int t = 1; t < threads; ++t) {
    workers_.emplace_back([this, t] { Work(t); });
    pthread_setname_np(workers_.back().native_handle(), ("hf-cpu-" + std::to_string(t)).c_str());
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(epoch_);
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::RunOn(Function function, void* context) {
  function_ = function;
  context_ = context;
  pending_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) FutexWake(epoch_);
  function(context, 0);
  for (uint32_t left; (left = pending_.load(std::memory_order_acquire)) > 0;) AwaitChange(pending_, left, parked_);
}

void ThreadPool::Work(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    AwaitChange(epoch_, seen, parked_);
    if (stop_) return;
    function_(context_, thread);
    if (pending_.fetch_sub(1, std::memory_order_seq_cst) == 1 && parked_.load(std::memory_order_seq_cst) > 0) FutexWake(pending_);
  }
}

}  // namespace holdfast::kernels

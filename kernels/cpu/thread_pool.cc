#include "kernels/cpu/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <string>

#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

using std::chrono::microseconds;

constexpr auto kSpin = microseconds(200);
constexpr auto kCrowdedSpin = microseconds(5);
// Between two looks at the clock, a few microseconds apart: somebody else had the core.
constexpr auto kTakenOff = microseconds(100);
constexpr uint32_t kCrowdedRuns = 2000;
// What a thread on its core needs to notice new work, with room.
constexpr auto kComes = microseconds(5);

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

}  // namespace

ThreadPool::ThreadPool(int threads) {
  HF_CHECKF(threads >= 1, "{} threads", threads);
  claims_ = std::make_unique<Claim[]>(static_cast<size_t>(threads));
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

bool ThreadPool::Take(int part, uint32_t epoch) {
  // A thread that comes late, with the number of a Run that is over, finds its part taken: that Run did not end before every part was.
  uint32_t before = epoch - 1;
  return claims_[static_cast<size_t>(part)].epoch.compare_exchange_strong(before, epoch, std::memory_order_acq_rel, std::memory_order_relaxed);
}

void ThreadPool::AwaitChange(std::atomic<uint32_t>& word, uint32_t value) {
  const auto begin = std::chrono::steady_clock::now();
  const auto limit = crowded_.load(std::memory_order_relaxed) > 0 ? kCrowdedSpin : kSpin;
  auto last = begin;
  for (int i = 0;; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    Relax();
    if (i % 64 != 63) continue;
    const auto now = std::chrono::steady_clock::now();
    if (now - last > kTakenOff) {
      crowded_.store(kCrowdedRuns, std::memory_order_relaxed);
      break;
    }
    last = now;
    if (now - begin > limit) break;
  }
  // Announce, look again, sleep: the waker changes the word first and reads the count second, so one of the two sees the other.
  parked_.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == value) FutexWait(word, value);
  parked_.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::RunOn(Function function, void* context) {
  function_ = function;
  context_ = context;
  const int parts = threads();
  if (const uint32_t left = crowded_.load(std::memory_order_relaxed); left > 0) crowded_.store(left - 1, std::memory_order_relaxed);
  pending_.store(static_cast<uint32_t>(parts), std::memory_order_relaxed);
  const uint32_t epoch = epoch_.fetch_add(1, std::memory_order_seq_cst) + 1;
  if (parked_.load(std::memory_order_seq_cst) > 0) FutexWake(epoch_);
  uint32_t done = 0;
  if (Take(0, epoch)) {
    function(context, 0);
    ++done;
  }
  // The others are on their way, or have no core.
  const auto own_end = std::chrono::steady_clock::now();
  for (int part = 1; part < parts; ++part) {
    Claim& claim = claims_[static_cast<size_t>(part)];
    while (claim.epoch.load(std::memory_order_relaxed) != epoch && std::chrono::steady_clock::now() - own_end < kComes) Relax();
    if (!Take(part, epoch)) continue;
    function(context, part);
    ++done;
  }
  pending_.fetch_sub(done, std::memory_order_acq_rel);
  for (uint32_t left; (left = pending_.load(std::memory_order_acquire)) > 0;) AwaitChange(pending_, left);
}

void ThreadPool::Work(int thread) {
  for (uint32_t seen = 0;;) {
    AwaitChange(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_) return;
    if (!Take(thread, seen)) continue;
    function_(context_, thread);
    if (pending_.fetch_sub(1, std::memory_order_seq_cst) == 1 && parked_.load(std::memory_order_seq_cst) > 0) FutexWake(pending_);
  }
}

}  // namespace holdfast::kernels

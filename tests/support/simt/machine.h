#pragma once
// The machine's inside: threads of a block as fibers, what they wait for, what they touched. engine.h is what others see.
#include <fmt/format.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <boost/context/detail/fcontext.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/simt/engine.h"
#include "tests/support/simt/races.h"

namespace simt {

namespace ctx = boost::context::detail;

constexpr unsigned kMostThreads = 1024;
constexpr size_t kMostShared = 227 << 10;  // what a block of compute capability 9.0 can have
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kPage = 4096;

struct Random {  // xorshift64*
  uint64_t s;
  uint32_t Below(uint32_t n) {
    s ^= s >> 12;
    s ^= s << 25;
    s ^= s >> 27;
    return static_cast<uint32_t>((((s * 0x2545F4914F6CDD1Dull) >> 32) * n) >> 32);
  }
};

struct Fiber;

struct AsyncPiece {
  void* to;
  const void* from;
  size_t bytes;
  uint32_t group;
};

struct Thread {
  uint3 index;
  uint32_t linear;
  uint32_t warp, lane;
  Fiber* fiber;
  enum class State : uint8_t { kUnstarted, kReady, kBarrier, kWarp, kReturned } state;
  Where where;
  uint32_t mask;
  std::vector<AsyncPiece> copies;   // under way
  uint32_t groups;                  // committed so far
};

struct Fiber {
  ctx::fcontext_t context = nullptr;
  Thread* next = nullptr;      // what it starts with when it is switched to while idle
  std::byte* stack = nullptr;  // lowest address that may be used
  size_t stack_bytes = 0;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
#endif
};

struct PendingOp {
  uint32_t mask = 0, arrived = 0;
  WarpOp op = WarpOp::kSync;
  Where where;
};

struct WarpState {
  uint32_t present = 0, returned = 0;
  PendingOp pending[32];       // by the lowest lane of the mask
  uint64_t in[32], out[32];
  uint32_t argument[32], width[32];
  uint32_t knows[32][32] = {};  // [lane][of lane]
};

struct CollectiveCall {        // on the lane's stack, while it waits
  void* operands;
  void (*f)(void* const operands[32]);
};

std::string At(const Where& w);          // file:line

class Engine {
 public:
  static Engine& OfThisThread();
  static Engine*& Running() { return running_engine_; }
  ~Engine() {
    if (stacks_ != nullptr) munmap(stacks_, stride_ * kMostThreads);
    free(shared_);
  }

  void Run(const LaunchSpec& spec);
  uint64_t DoWarp(WarpOp op, uint32_t mask, uint64_t value, uint32_t argument, uint32_t width, const Where& where);
  int DoBarrier(BlockOp op, int predicate, const Where& where);
  void Shared(const void* at, size_t bytes, bool write, bool atomic = false);
  void AsyncCopy(void* to, const void* from, size_t bytes);
  void AsyncCommit() { ++thread_->groups; }
  void AsyncWait(int groups);
  [[noreturn]] void GiveUp(const std::string& what);
  void OnSignal(const siginfo_t* info, bool write);
  std::byte* shared() { return shared_; }
  const Thread& thread() const { return *thread_; }

  sigjmp_buf escape;

 private:
  Engine();
  void RunBlock(uint64_t block);
  void StartThread(Thread* t);
  void Loop();
  static void Entry(ctx::transfer_t from);
  void SwitchTo(Fiber* to);
  Thread* Pick();
  void Yield();       // the running thread waits (its state says for what) or is ready again
  void MakeReady(Thread* t) {
    t->state = Thread::State::kReady;
    ready_[ready_count_++] = t;
  }
  Fiber* IdleFiber();
  void Complete(WarpState& w, PendingOp& p);
  std::string Whereabouts() const;
  std::string Stuck() const;
  std::string Name(const Thread& t) const {
    return fmt::format("thread ({},{},{})", t.index.x, t.index.y, t.index.z);
  }
  Thread& Lane(uint32_t warp, uint32_t lane) { return threads_[warp * 32 + lane]; }

  const LaunchSpec* spec_ = nullptr;
  uint64_t launches_ = 0;
  Random random_{1};
  Place place_{};
  unsigned count_ = 0, alive_ = 0;
  std::vector<Thread> threads_ = std::vector<Thread>(kMostThreads);
  std::vector<WarpState> warps_ = std::vector<WarpState>(kMostThreads / 32);
  Thread* ready_[kMostThreads];
  uint16_t unstarted_[kMostThreads];
  unsigned ready_count_ = 0, unstarted_count_ = 0, permuted_ = 0;
  Thread* thread_ = nullptr;

  unsigned at_barrier_ = 0, barrier_sum_ = 0;
  BlockOp barrier_op_ = BlockOp::kSync;
  Where barrier_where_;
  int barrier_result_ = 0;

  Fiber main_;
  std::vector<Fiber> fibers_;
  std::vector<Fiber*> idle_;
  size_t made_ = 0;            // fibers that ran since the last give-up
  Fiber* running_ = nullptr;
  std::byte* stacks_ = nullptr;
  size_t stride_ = 0;

  std::byte* shared_ = nullptr;
  Races races_;
  static constinit thread_local Engine* running_engine_;
};

// SIGSEGV is ours while it lives; Catch2 has handlers of its own between.
class Handlers {
 public:
  Handlers();
  ~Handlers();
  Handlers(const Handlers&) = delete;
  Handlers& operator=(const Handlers&) = delete;

 private:
  struct sigaction old_ {};
  stack_t old_stack_{};
};

}  // namespace simt

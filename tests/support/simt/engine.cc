#include "tests/support/simt/engine.h"

#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "proto/base/check.h"
#include "tests/support/simt/memory.h"
#include "tests/support/simt/races.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {
namespace {

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

struct Catcher {
  std::mutex mutex;
  int depth = 0;
  std::vector<std::string> reports;
};
Catcher& TheCatcher() {
  static Catcher* c = new Catcher;
  return *c;
}

Options g_options;
std::atomic<bool> g_faulted{false};

void Publish(const std::string& text) {
  Catcher& c = TheCatcher();
  std::lock_guard lock(c.mutex);
  g_faulted = true;
  if (c.depth > 0) {
    c.reports.push_back(text);
    return;
  }
  fmt::print(stderr, "simt: {}\n", text);
  fflush(stderr);
  abort();
}

std::string At(const Where& w) {
  std::string_view file = w.file_name();
  if (const size_t cut = file.rfind('/'); cut != file.npos) file.remove_prefix(cut + 1);
  return fmt::format("{}:{}", file, w.line());
}

class Engine {
 public:
  static Engine& OfThisThread() {
    static thread_local std::unique_ptr<Engine> engine;
    if (engine == nullptr) engine.reset(new Engine);
    return *engine;
  }
  static Engine*& Running() {
    static thread_local Engine* running = nullptr;
    return running;
  }
  ~Engine() {
    if (stacks_ != nullptr) munmap(stacks_, stride_ * kMostThreads);
    free(shared_);
  }

  void Run(const LaunchSpec& spec);
  uint64_t DoWarp(WarpOp op, uint32_t mask, uint64_t value, uint32_t argument, uint32_t width, const Where& where);
  int DoBarrier(BlockOp op, int predicate, const Where& where);
  void Shared(const void* at, size_t bytes, bool write);
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
};

Engine::Engine() {
  shared_ = static_cast<std::byte*>(std::aligned_alloc(kPage, (kMostShared + kPage - 1) / kPage * kPage));
  HF_CHECK(shared_ != nullptr);
  // A guard page under each stack; the odd number of pages keeps hot lines of different stacks in different sets of the caches.
  stride_ = kStackBytes + kPage;
  void* p = mmap(nullptr, stride_ * kMostThreads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  HF_CHECK(p != MAP_FAILED);
  stacks_ = static_cast<std::byte*>(p);
  fibers_.resize(kMostThreads);
  idle_.reserve(kMostThreads);
}

Fiber* Engine::IdleFiber() {
  if (!idle_.empty()) {
    Fiber* f = idle_.back();
    idle_.pop_back();
    return f;
  }
  HF_CHECK(made_ < fibers_.size());
  const size_t i = made_++;
  Fiber& f = fibers_[i];
  std::byte* low = stacks_ + i * stride_;
  if (f.stack == nullptr) mprotect(low, kPage, PROT_NONE);
  f.stack = low + kPage;
  f.stack_bytes = kStackBytes - (i * 7 % 64) * 64;
  f.context = ctx::make_fcontext(f.stack + f.stack_bytes, f.stack_bytes, &Engine::Entry);
  return &f;
}

void Engine::Entry(ctx::transfer_t from) {
  static_cast<Fiber*>(from.data)->context = from.fctx;
#if defined(__SANITIZE_ADDRESS__)
  Fiber* self = Running()->running_;
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &size);
  Fiber* came = static_cast<Fiber*>(from.data);
  if (came->stack == nullptr) {
    came->stack = static_cast<std::byte*>(const_cast<void*>(bottom));
    came->stack_bytes = size;
  }
#endif
  Running()->Loop();
}

void Engine::SwitchTo(Fiber* to) {
  Fiber* from = running_;
  running_ = to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
  const ctx::transfer_t back = ctx::jump_fcontext(to->context, from);
  static_cast<Fiber*>(back.data)->context = back.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

Thread* Engine::Pick() {
  const unsigned n = ready_count_ + unstarted_count_;
  if (n == 0) return nullptr;
  const unsigned i = random_.Below(n);
  if (i < ready_count_) {
    Thread* t = ready_[i];
    ready_[i] = ready_[--ready_count_];
    return t;
  }
  const unsigned at = i - ready_count_;
  const uint16_t id = unstarted_[at];
  unstarted_[at] = unstarted_[--unstarted_count_];
  unstarted_[unstarted_count_] = id;  // the array stays a permutation for the next block
  return &threads_[id];
}

void Engine::Loop() {
  for (;;) {
    Fiber* self = running_;
    Thread* t = self->next;
    for (;;) {
      t->fiber = self;
      thread_ = t;
      place_.thread = t->index;
      spec_->body();
      t = thread_;
      if (!t->copies.empty()) GiveUp(fmt::format("it returns while {} of its asynchronous copies are under way", t->copies.size()));
      t->state = Thread::State::kReturned;
      --alive_;
      WarpState& w = warps_[t->warp];
      w.returned |= uint32_t{1} << t->lane;
      if (at_barrier_ > 0) {
        GiveUp(fmt::format("it returns while {} threads wait at the barrier of {}, which it never reaches", at_barrier_, At(barrier_where_)));
      }
      Thread* next = Pick();
      if (next != nullptr && next->state == Thread::State::kUnstarted) {
        t = next;
        continue;
      }
      if (next == nullptr && alive_ > 0) GiveUp(Stuck());
      idle_.push_back(self);
      if (next == nullptr) {
        SwitchTo(&main_);
      } else {
        thread_ = next;
        place_.thread = next->index;
        SwitchTo(next->fiber);
      }
      break;
    }
  }
}

void Engine::Yield() {
  Thread* self = thread_;
  Thread* next = Pick();
  if (next == nullptr) GiveUp(Stuck());
  if (next != self) {
    if (next->state == Thread::State::kUnstarted) {
      Fiber* f = IdleFiber();
      f->next = next;
      SwitchTo(f);
    } else {
      thread_ = next;
      place_.thread = next->index;
      SwitchTo(next->fiber);
    }
  }
  thread_ = self;
  place_.thread = self->index;
}

std::string Engine::Whereabouts() const {
  std::string text = NameOfFunction(spec_->kernel);
  fmt::format_to(std::back_inserter(text), ", block ({},{},{}) of ({},{},{})", place_.block.x, place_.block.y, place_.block.z, spec_->grid.x, spec_->grid.y,
                 spec_->grid.z);
  if (thread_ != nullptr) fmt::format_to(std::back_inserter(text), ", {} of {}", Name(*thread_), count_);
  return text;
}

// Who waits for what, when nobody can go on.
std::string Engine::Stuck() const {
  std::string text = "nobody can go on:";
  if (at_barrier_ > 0) fmt::format_to(std::back_inserter(text), " {} threads wait at the barrier of {};", at_barrier_, At(barrier_where_));
  int listed = 0;
  for (unsigned w = 0; w < (count_ + 31) / 32; ++w) {
    for (const PendingOp& p : warps_[w].pending) {
      if (p.arrived == 0) continue;
      if (++listed > 4) return text + " ...";
      fmt::format_to(std::back_inserter(text), " lanes {:#x} of warp {} wait at {} for the lanes {:#x} of the mask {:#x};", p.arrived, w, At(p.where),
                     p.mask & ~p.arrived, p.mask);
    }
  }
  text.pop_back();
  return text;
}

void Engine::GiveUp(const std::string& what) {
  Publish(fmt::format("{}: {}", Whereabouts(), what));
  siglongjmp(escape, 1);
}

void Engine::OnSignal(const siginfo_t* info, bool write) {
  const std::byte* at = static_cast<const std::byte*>(info->si_addr);
  if (at >= stacks_ && at < stacks_ + stride_ * kMostThreads) GiveUp("its stack overflows (64 KiB)");
  GiveUp(fmt::format("it {} {}", write ? "writes" : "reads", DescribeAddress(at)));
}

void Engine::RunBlock(uint64_t block) {
  const dim3& g = spec_->grid;
  place_.block = {static_cast<unsigned>(block % g.x), static_cast<unsigned>(block / g.x % g.y), static_cast<unsigned>(block / g.x / g.y)};
  if (spec_->shared_bytes > 0) memset(shared_, 0xff, spec_->shared_bytes);
  races_.NewEpoch();
  for (unsigned w = 0; w < (count_ + 31) / 32; ++w) warps_[w].returned = 0;
  for (unsigned i = 0; i < count_; ++i) {
    threads_[i].state = Thread::State::kUnstarted;
    threads_[i].copies.clear();
    threads_[i].groups = 0;
  }
  unstarted_count_ = alive_ = count_;
  ready_count_ = at_barrier_ = barrier_sum_ = 0;
  Fiber* f = IdleFiber();
  f->next = Pick();
  running_ = &main_;
  SwitchTo(f);
}

void Engine::Run(const LaunchSpec& spec) {
  spec_ = &spec;
  const unsigned count = spec.block.x * spec.block.y * spec.block.z;
  place_.block_dim = spec.block;
  place_.grid_dim = spec.grid;
  thread_ = nullptr;
  random_.s = ((g_options.seed + 0x1000003 * ++launches_) * 0x9E3779B97F4A7C15ull) | 1;
  if (count != permuted_) {
    for (unsigned i = 0; i < count; ++i) unstarted_[i] = static_cast<uint16_t>(i);
    permuted_ = count;
  }
  count_ = count;
  for (unsigned i = 0; i < count; ++i) {
    Thread& t = threads_[i];
    t.linear = i;
    t.warp = i / 32;
    t.lane = i % 32;
    t.index = {i % spec.block.x, i / spec.block.x % spec.block.y, i / spec.block.x / spec.block.y};
  }
  for (unsigned w = 0; w < (count + 31) / 32; ++w) {
    warps_[w].present = count - w * 32 >= 32 ? ~uint32_t{0} : (uint32_t{1} << (count - w * 32)) - 1;
    for (PendingOp& p : warps_[w].pending) p.arrived = 0;
  }
  races_.Grow(spec.shared_bytes);
  g_place = &place_;
  Engine* outer = std::exchange(Running(), this);
  if (sigsetjmp(escape, 0) == 0) {
    // Blocks in an order that visits each once: a stride that has no divisor in common with their number.
    const uint64_t blocks = uint64_t{spec.grid.x} * spec.grid.y * spec.grid.z;
    uint64_t step = 1 + random_.Below(static_cast<uint32_t>(std::min<uint64_t>(blocks, 1u << 20)));
    while (std::gcd(step, blocks) != 1) ++step;
    uint64_t at = random_.Below(static_cast<uint32_t>(std::min<uint64_t>(blocks, UINT32_MAX)));
    for (uint64_t i = 0; i < blocks; ++i, at = (at + step) % blocks) RunBlock(at);
  } else {
    // The fibers of the launch are left where they were: their frames own nothing.
    idle_.clear();
    made_ = 0;
  }
  thread_ = nullptr;
  Running() = outer;
  g_place = nullptr;
}

void Engine::Complete(WarpState& w, PendingOp& p) {
  const uint32_t mask = p.mask;
  const auto each = [&](auto&& f) {
    for (uint32_t m = mask; m != 0; m &= m - 1) f(static_cast<uint32_t>(std::countr_zero(m)));
  };
  const auto reduce = [&](auto&& f) {
    uint64_t acc = w.in[std::countr_zero(mask)];
    for (uint32_t m = mask & (mask - 1); m != 0; m &= m - 1) acc = f(acc, w.in[std::countr_zero(m)]);
    each([&](uint32_t lane) { w.out[lane] = acc; });
  };
  const auto as_signed = [](uint64_t v) { return static_cast<int32_t>(v); };
  switch (p.op) {
    case WarpOp::kSync: {
      uint32_t joined[32] = {};
      each([&](uint32_t lane) {
        ++w.knows[lane][lane];  // what the lane did until now
        for (int i = 0; i < 32; ++i) joined[i] = std::max(joined[i], w.knows[lane][i]);
      });
      each([&](uint32_t lane) { memcpy(w.knows[lane], joined, sizeof(joined)); });
      break;
    }
    case WarpOp::kShfl:
    case WarpOp::kShflUp:
    case WarpOp::kShflDown:
    case WarpOp::kShflXor:
      each([&](uint32_t lane) {
        const int width = static_cast<int>(w.width[lane]), self = static_cast<int>(lane), first = self / width * width, a = static_cast<int>(w.argument[lane]);
        int from = self;
        if (p.op == WarpOp::kShfl) from = first + (a & (width - 1));
        if (p.op == WarpOp::kShflUp && self - a >= first) from = self - a;
        if (p.op == WarpOp::kShflDown && self + a < first + width) from = self + a;
        // A partner in a later segment keeps the own value, one in an earlier may be read: as the instruction does.
        if (p.op == WarpOp::kShflXor && (self ^ a) < first + width) from = self ^ a;
        if ((mask >> from & 1) == 0) {
          thread_ = &threads_[static_cast<size_t>(&w - warps_.data()) * 32 + lane];
          GiveUp(fmt::format("its shuffle at {} reads lane {}, which is not in the mask {:#x}", At(p.where), from, mask));
        }
        w.out[lane] = w.in[from];
      });
      break;
    case WarpOp::kBallot:
    case WarpOp::kAll:
    case WarpOp::kAny: {
      uint32_t votes = 0;
      each([&](uint32_t lane) { votes |= uint32_t{w.in[lane] != 0} << lane; });
      const uint64_t r = p.op == WarpOp::kBallot ? votes : p.op == WarpOp::kAll ? votes == mask : votes != 0;
      each([&](uint32_t lane) { w.out[lane] = r; });
      break;
    }
    case WarpOp::kMatchAny:
      each([&](uint32_t lane) {
        uint32_t same = 0;
        each([&](uint32_t other) { same |= uint32_t{w.in[other] == w.in[lane]} << other; });
        w.out[lane] = same;
      });
      break;
    case WarpOp::kAdd: reduce([](uint64_t a, uint64_t b) { return static_cast<uint64_t>(static_cast<uint32_t>(a + b)); }); break;
    case WarpOp::kMin: reduce([](uint64_t a, uint64_t b) { return std::min(a, b); }); break;
    case WarpOp::kMax: reduce([](uint64_t a, uint64_t b) { return std::max(a, b); }); break;
    case WarpOp::kMinSigned: reduce([&](uint64_t a, uint64_t b) { return as_signed(a) < as_signed(b) ? a : b; }); break;
    case WarpOp::kMaxSigned: reduce([&](uint64_t a, uint64_t b) { return as_signed(a) > as_signed(b) ? a : b; }); break;
    case WarpOp::kAnd: reduce([](uint64_t a, uint64_t b) { return a & b; }); break;
    case WarpOp::kOr: reduce([](uint64_t a, uint64_t b) { return a | b; }); break;
    case WarpOp::kXor: reduce([](uint64_t a, uint64_t b) { return a ^ b; }); break;
    case WarpOp::kCollective: {
      void* operands[32];
      for (int i = 0; i < 32; ++i) operands[i] = reinterpret_cast<CollectiveCall*>(w.in[i])->operands;
      reinterpret_cast<CollectiveCall*>(w.in[0])->f(operands);
      break;
    }
  }
}

uint64_t Engine::DoWarp(WarpOp op, uint32_t mask, uint64_t value, uint32_t argument, uint32_t width, const Where& where) {
  Thread* t = thread_;
  WarpState& w = warps_[t->warp];
  if ((mask >> t->lane & 1) == 0) GiveUp(fmt::format("lane {} is not in the mask {:#x} of its own operation at {}", t->lane, mask, At(where)));
  if ((mask & ~w.present) != 0) GiveUp(fmt::format("the mask {:#x} at {} names lanes that this block's last warp does not have", mask, At(where)));
  if ((mask & w.returned) != 0) GiveUp(fmt::format("the mask {:#x} at {} names the lanes {:#x}, which returned", mask, At(where), mask & w.returned));
  if (width == 0 || width > 32 || !std::has_single_bit(width)) GiveUp(fmt::format("a shuffle of width {} at {}", width, At(where)));
  PendingOp& p = w.pending[std::countr_zero(mask)];
  if (p.arrived == 0) {
    p.mask = mask;
    p.op = op;
    p.where = where;
  } else if (p.mask != mask || p.op != op || p.where.line() != where.line()) {
    GiveUp(fmt::format("it comes to {} with the mask {:#x}, while lanes {:#x} of its warp wait at {} with the mask {:#x}", At(where), mask, p.arrived,
                       At(p.where), p.mask));
  }
  w.in[t->lane] = value;
  w.argument[t->lane] = argument;
  w.width[t->lane] = width;
  p.arrived |= uint32_t{1} << t->lane;
  if (p.arrived == mask) {
    Complete(w, p);
    p.arrived = 0;
    for (uint32_t m = mask; m != 0; m &= m - 1) MakeReady(&Lane(t->warp, static_cast<uint32_t>(std::countr_zero(m))));
  } else {
    t->state = Thread::State::kWarp;
  }
  Yield();
  return w.out[t->lane];
}

int Engine::DoBarrier(BlockOp op, int predicate, const Where& where) {
  Thread* t = thread_;
  if (alive_ < count_) GiveUp(fmt::format("it waits at the barrier of {}, which {} threads that returned never reach", At(where), count_ - alive_));
  if (at_barrier_ == 0) {
    barrier_op_ = op;
    barrier_where_ = where;
    barrier_sum_ = 0;
  } else if (barrier_op_ != op || barrier_where_.line() != where.line() || barrier_where_.file_name() != where.file_name()) {
    GiveUp(fmt::format("it comes to the barrier of {}, while {} threads of its block wait at the one of {}", At(where), at_barrier_, At(barrier_where_)));
  }
  barrier_sum_ += predicate != 0;
  t->state = Thread::State::kBarrier;
  if (++at_barrier_ == count_) {
    barrier_result_ = op == BlockOp::kCount ? static_cast<int>(barrier_sum_) : op == BlockOp::kAnd ? barrier_sum_ == count_ : barrier_sum_ > 0;
    at_barrier_ = 0;
    races_.NewEpoch();
    for (unsigned i = 0; i < count_; ++i) MakeReady(&threads_[i]);
  }
  Yield();
  return barrier_result_;
}

void Engine::Shared(const void* at, size_t bytes, bool write) {
  const ptrdiff_t offset = static_cast<const std::byte*>(at) - shared_;
  const Thread& t = *thread_;
  if (offset < 0 || static_cast<size_t>(offset) + bytes > spec_->shared_bytes) {
    GiveUp(fmt::format("it {} {} bytes at {} of shared memory, of which the launch gave {}", write ? "writes" : "reads", bytes, offset, spec_->shared_bytes));
  }
  if (static_cast<size_t>(offset) % bytes != 0 && std::has_single_bit(bytes)) {
    GiveUp(fmt::format("it {} {} bytes at {} of shared memory, which is not aligned", write ? "writes" : "reads", bytes, offset));
  }
  const WarpState& w = warps_[t.warp];
  const Toucher who{t.linear, t.warp, t.lane, w.knows[t.lane][t.lane] + 1, w.knows[t.lane]};
  const Races::Clash c = races_.Touch(static_cast<size_t>(offset), bytes, write, who);
  if (!c.found) return;
  const std::string other = c.many ? "threads of several warps" : Name(threads_[c.other_warp * 32 + c.other_lane]);
  GiveUp(fmt::format("a race: it {} {} bytes at {} of shared memory that {} {} with no barrier between", write ? "writes" : "reads", bytes, offset, other,
                     c.other_wrote ? "wrote" : "read"));
}

void Engine::AsyncCopy(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0) GiveUp(fmt::format("it copies {} bytes asynchronously from an address that is not aligned", bytes));
  Shared(to, bytes, true);
  memset(to, 0xff, bytes);
  static_cast<void>(*static_cast<const volatile std::byte*>(from));  // an address nobody may read faults here
  thread_->copies.push_back({to, from, bytes, thread_->groups});
}

void Engine::AsyncWait(int groups) {
  std::vector<AsyncPiece>& copies = thread_->copies;
  size_t kept = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (static_cast<int64_t>(copies[i].group) >= int64_t{thread_->groups} - groups) {
      copies[kept++] = copies[i];
      continue;
    }
    Shared(copies[i].to, copies[i].bytes, true);
    memcpy(copies[i].to, copies[i].from, copies[i].bytes);
  }
  copies.resize(kept);
}

// ---- faults of the processor -------------------------------------------------------------------------------------------------------

thread_local sigjmp_buf* g_host_escape = nullptr;

void Handler(int number, siginfo_t* info, void* context) {
  bool write = false;
#if defined(__x86_64__)
  write = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  static_cast<void>(context);
#endif
  const bool ours = number == SIGSEGV;
  if (ours && Engine::Running() != nullptr) Engine::Running()->OnSignal(info, write);
  if (ours && g_host_escape != nullptr && IsDevice(info->si_addr)) siglongjmp(*g_host_escape, 1);
  signal(number, SIG_DFL);  // and again, without us
}

// Ours while it lives; Catch2 has handlers of its own between.
class Handlers {
 public:
  Handlers() {
    static thread_local std::unique_ptr<std::byte[]> stack(new std::byte[64 << 10]);
    stack_t mine{};
    mine.ss_sp = stack.get();
    mine.ss_size = 64 << 10;
    sigaltstack(&mine, &old_stack_);
    struct sigaction action {};
    action.sa_sigaction = Handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_);
  }
  ~Handlers() {
    sigaction(SIGSEGV, &old_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }
  Handlers(const Handlers&) = delete;
  Handlers& operator=(const Handlers&) = delete;

 private:
  struct sigaction old_ {};
  stack_t old_stack_{};
};

}  // namespace

constinit thread_local Place* g_place = nullptr;

void Configure(const Options& options) {
  g_options = options;
  options.protect ? CloseDevice() : OpenDevice();
}
const Options& Configuration() { return g_options; }

CatchReports::CatchReports() {
  std::lock_guard lock(TheCatcher().mutex);
  ++TheCatcher().depth;
}
CatchReports::~CatchReports() {
  Take();
  std::lock_guard lock(TheCatcher().mutex);
  --TheCatcher().depth;
}
std::vector<std::string> CatchReports::Take() {
  std::lock_guard lock(TheCatcher().mutex);
  g_faulted = false;
  return std::exchange(TheCatcher().reports, {});
}
bool Faulted() { return g_faulted; }
void ClearFault() { g_faulted = false; }

bool GuardedCopy(void* dst, const void* src, size_t bytes) {
  OpenDevice();
  const bool faulted = HostFaults([&] { memmove(dst, src, bytes); });
  if (g_options.protect) CloseDevice();
  if (!faulted) return true;
  const auto say = [&](const void* p) {
    const std::byte* last = static_cast<const std::byte*>(p) + bytes - 1;
    return IsDevice(p) ? fmt::format("device memory: {}, up to {}", DescribeAddress(p), DescribeAddress(last)) : std::string("host memory");
  };
  Publish(fmt::format("a copy of {} bytes from {} to {}", bytes, say(src), say(dst)));
  return false;
}

void CheckMemory(const std::string& when) {
  OpenDevice();
  const std::string bad = CheckCanaries();
  if (g_options.protect) CloseDevice();
  if (!bad.empty()) Publish(fmt::format("{}: {}", when, bad));
}

bool HostFaults(const std::function<void()>& f) {
  Handlers handlers;
  sigjmp_buf escape;
  g_host_escape = &escape;
  const bool faulted = sigsetjmp(escape, 0) != 0;
  if (!faulted) f();
  g_host_escape = nullptr;
  return faulted;
}

uint64_t Warp(WarpOp op, uint32_t mask, uint64_t value, uint32_t argument, uint32_t width, const Where& where) {
  return Engine::Running()->DoWarp(op, mask, value, argument, width, where);
}
void Collective(void* operands, void (*f)(void* const operands[32]), const Where& where) {
  CollectiveCall call{operands, f};
  Engine::Running()->DoWarp(WarpOp::kCollective, ~uint32_t{0}, reinterpret_cast<uint64_t>(&call), 0, 32, where);
}
void AsyncCopy(void* shared, const void* global, size_t bytes) { Engine::Running()->AsyncCopy(shared, global, bytes); }
void AsyncCommit() { Engine::Running()->AsyncCommit(); }
void AsyncWait(int groups) { Engine::Running()->AsyncWait(groups); }
int Barrier(BlockOp op, int predicate, const Where& where) { return Engine::Running()->DoBarrier(op, predicate, where); }
void Fault(const std::string& what) { Engine::Running()->GiveUp(what); }
unsigned LaneId() { return Engine::Running()->thread().lane; }
std::byte* SharedBase() { return Engine::Running()->shared(); }
void SharedRead(const void* at, size_t bytes) { Engine::Running()->Shared(at, bytes, false); }
void SharedWrite(const void* at, size_t bytes) { Engine::Running()->Shared(at, bytes, true); }

void RunLaunch(const LaunchSpec& spec) {
  static std::mutex* one = new std::mutex;
  std::lock_guard lock(*one);
  if (Faulted()) return;
  const uint64_t threads = uint64_t{spec.block.x} * spec.block.y * spec.block.z;
  if (threads == 0 || threads > kMostThreads || spec.block.z > 64 || spec.grid.x == 0 || spec.grid.x > INT32_MAX || spec.grid.y == 0 ||
      spec.grid.y > 65535 || spec.grid.z == 0 || spec.grid.z > 65535 || spec.shared_bytes > kMostShared) {
    Publish(fmt::format("{}: no device takes a grid of ({},{},{}) blocks of ({},{},{}) threads with {} bytes of shared memory", NameOfFunction(spec.kernel),
                        spec.grid.x, spec.grid.y, spec.grid.z, spec.block.x, spec.block.y, spec.block.z, spec.shared_bytes));
    return;
  }
  Handlers handlers;
  OpenDevice();
  Engine::OfThisThread().Run(spec);
  if (g_options.protect) CloseDevice();
}

// Out of the symbol table of the running file: kernels are often in no dynamic table.
std::string NameOfFunction(const void* address) {
  struct Object {
    uintptr_t base = 0;
  } object;
  dl_iterate_phdr([](dl_phdr_info* info, size_t, void* data) {
    static_cast<Object*>(data)->base = info->dlpi_addr;
    return 1;  // the first is the program
  }, &object);
  const uintptr_t want = reinterpret_cast<uintptr_t>(address) - object.base;
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Elf64_Ehdr header;
  std::string name = fmt::format("kernel at {}", address);
  if (bytes.size() < sizeof(header)) return name;
  memcpy(&header, bytes.data(), sizeof(header));
  const auto section = [&](unsigned i) {
    Elf64_Shdr s{};
    memcpy(&s, bytes.data() + header.e_shoff + i * sizeof(s), sizeof(s));
    return s;
  };
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = section(i);
    if (s.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr strings = section(s.sh_link);
    for (uint64_t at = 0; at < s.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      memcpy(&symbol, bytes.data() + s.sh_offset + at, sizeof(symbol));
      if (symbol.st_value != want || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
      const char* mangled = bytes.data() + strings.sh_offset + symbol.st_name;
      int status = 0;
      char* plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
      name = status == 0 ? plain : mangled;
      free(plain);
      // "void ns::(anonymous namespace)::Kernel<int>(args)" -> "Kernel<int>"
      int depth = 0;
      size_t end = name.size();
      for (size_t c = 0; c < name.size(); ++c) {
        depth += name[c] == '<';
        depth -= name[c] == '>';
        if (name[c] == '(' && depth == 0 && !name.substr(c).starts_with("(anonymous namespace)")) {
          end = c;
          break;
        }
      }
      name.resize(end);
      depth = 0;
      for (size_t c = name.size(); c-- > 0;) {
        depth += name[c] == '>';
        depth -= name[c] == '<';
        if (depth == 0 && (name[c] == ':' || name[c] == ' ')) {
          name.erase(0, c + 1);
          break;
        }
      }
      return name;
    }
  }
  return name;
}

}  // namespace simt

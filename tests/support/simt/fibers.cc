// The life of a launch: blocks one after another, threads as fibers that change places where they wait.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "proto/base/check.h"
#include "tests/support/simt/machine.h"
#include "tests/support/simt/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {

constinit thread_local Engine* Engine::running_engine_ = nullptr;

Engine& Engine::OfThisThread() {
  static thread_local std::unique_ptr<Engine> engine;
  if (engine == nullptr) engine.reset(new Engine);
  return *engine;
}

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
  random_.s = ((Configuration().seed + 0x1000003 * ++launches_) * 0x9E3779B97F4A7C15ull) | 1;
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

}  // namespace simt

// What threads of a block do together: warp operations, barriers, shared memory and copies into it.
#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/support/simt/machine.h"

namespace simt {

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

void Engine::Shared(const void* at, size_t bytes, bool write, bool atomic) {
  const ptrdiff_t offset = static_cast<const std::byte*>(at) - shared_;
  const Thread& t = *thread_;
  if (offset < 0 || static_cast<size_t>(offset) + bytes > spec_->shared_bytes) {
    GiveUp(fmt::format("it {} {} bytes at {} of shared memory, of which the launch gave {}", write ? "writes" : "reads", bytes, offset, spec_->shared_bytes));
  }
  if (static_cast<size_t>(offset) % bytes != 0 && std::has_single_bit(bytes)) {
    GiveUp(fmt::format("it {} {} bytes at {} of shared memory, which is not aligned", write ? "writes" : "reads", bytes, offset));
  }
  const WarpState& w = warps_[t.warp];
  Toucher who{t.linear, t.warp, t.lane, w.knows[t.lane][t.lane] + 1, w.knows[t.lane]};
  if (atomic) who.warp = Races::kAtomic, who.lane = 0;
  const Races::Clash c = races_.Touch(static_cast<size_t>(offset), bytes, write, who);
  if (!c.found) return;
  const std::string other = c.many                           ? "threads of several warps"
                            : c.other_warp == Races::kAtomic ? "an atomic operation"
                                                             : Name(threads_[c.other_warp * 32 + c.other_lane]);
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
void SharedAtomic(const void* at, size_t bytes) { Engine::Running()->Shared(at, bytes, true, true); }

}  // namespace simt

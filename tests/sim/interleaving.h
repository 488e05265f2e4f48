#pragma once
// T6: the least interleaving that broke an engine of this kind, with both endings. Also run by the drills.
#include <algorithm>
#include <string>

#include "tests/sim/driver.h"

namespace holdfast::sim {

struct Interleaving {
  uint32_t window = 8, shared = 40, page_size = 1;
  bool reader_ends_first = false;  // ending 6b instead of 6a
};

// Empty when nothing went wrong; else what, and at which step.
inline std::string RunInterleaving(const Interleaving& i, uint64_t* steps) {
  sched::SchedulerConfig c;
  c.cache.page_size = i.page_size;
  c.cache.groups = {{0, 40 * i.shared / i.page_size, 0}, {i.window, 20 * (i.window + i.shared) / i.page_size, 0}};
  c.max_running = 4;
  c.prefill_chunk = std::max(256u, i.shared * 2);
  c.max_seq_len = i.shared * 4;
  c.audit_period = 1;
  Driver d(c);
  const std::vector<TokenId> system = Text(1, i.shared);
  const uint32_t own = 12 * i.page_size;
  const auto wrong = [&](const char* where) {
    *steps = d.steps;
    const std::string what = d.Wrong();
    return what.empty() ? std::string() : fmt::format("{}, step {}: {}", where, d.steps, what);
  };
  // 1 A is computed and committed. 2 C hits the shared prefix and goes on decoding.
  const RequestId a = d.Submit(system + Text(2, own), 4);
  d.Step();
  const RequestId reader = d.Submit(system + Text(3, own), 1000);
  d.Step();
  if (d.cached[reader.v] / i.page_size != i.shared / i.page_size) return "C did not hit the shared prefix";
  // 3 A finishes; the window pages of the shared prefix go (pressure: everything only the index holds).
  d.stop.insert(a.v);
  d.Step();
  if (!d.ended.count(a.v)) return "A did not finish";
  while (sched::TestPeer::ledger(*d.s).EvictOne(1)) {
  }
  if (std::string w = wrong("A finished"); !w.empty()) return w;
  // 4 B shares the prefix, whose window is gone: nothing is usable, all is computed again. 5 B commits onto the tombstoned, locked path.
  const RequestId b = d.Submit(system + Text(4, 4 * i.page_size), 1000);
  d.Step();
  if (d.cached[b.v] != 0) return fmt::format("B hit {} tokens without their window", d.cached[b.v]);
  if (std::string w = wrong("B committed"); !w.empty()) return w;
  for (int n = 0; n < 5; ++n) d.Step();
  if (std::string w = wrong("B decodes"); !w.empty()) return w;
  // 6 Both endings; other requests take every page that is free in between.
  const RequestId first = i.reader_ends_first ? reader : b, second = i.reader_ends_first ? b : reader;
  d.stop.insert(first.v);
  d.Step();
  for (int n = 0; n < 3; ++n) {
    d.Submit(Text(100 + n, i.shared), 3);
    for (int k = 0; k < 4; ++k) d.Step();
  }
  if (std::string w = wrong("the first ended"); !w.empty()) return w;
  d.stop.insert(second.v);
  for (int n = 0; n < 3; ++n) d.Submit(system + Text(200 + n, own), 3);
  d.Run();
  if (std::string w = wrong("the second ended"); !w.empty()) return w;
  if (d.s->running() + d.s->waiting() != 0) return "requests are left";
  const auto pools = d.s->Pools();
  for (const kv::PoolView& p : pools) {
    if (p.held != 0 || p.free + p.evictable != p.capacity) return fmt::format("{}: free {} + cached {} != {}", p.name, p.free, p.evictable, p.capacity);
  }
  return {};
}

}  // namespace holdfast::sim

// Drawing, shrinking and printing command sequences.
#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/commands.h"
#include "worker/kv/capacity.h"

namespace holdfast::sim {
namespace {

const char* const kNames[] = {"submit", "step", "settle", "cancel", "evict", "suspect", "resize", "resize-cancel", "reset-index"};

}  // namespace

CommandConfig DrawConfig(uint64_t seed) {
  Rng rng(seed * 2 + 1);
  CommandConfig out;
  sched::SchedulerConfig& c = out.scheduler;
  const uint32_t sizes[] = {1, 1, 2, 4, 16, 32};
  c.cache.page_size = sizes[rng.Below(6)];
  const uint32_t ps = c.cache.page_size;
  c.max_running = rng.Between(1, 4);
  c.prefill_chunk = rng.Between(1, 3 * ps + 8);
  c.overlap_depth = rng.Below(3);
  c.audit_period = rng.Percent(50) ? 1 : 7;
  c.max_waiting = 64;
  c.reserve_tokens = rng.Percent(35) ? rng.Between(1, ps + 2) : 0;
  c.max_seq_len = 9 * ps + 60;
  std::vector<uint32_t> windows;
  switch (rng.Below(6)) {
    case 0: windows = {0}; break;
    case 1: windows = {rng.Between(1, 3 * ps + 6)}; break;
    case 2: windows = {0, rng.Between(1, 3 * ps + 6), rng.Between(2, 20)}; break;
    default: windows = {0, rng.Between(1, 3 * ps + 6)}; break;
  }
  kv::CapacityQuestion q{ps, windows, c.max_running, c.prefill_chunk, c.overlap_depth, c.max_seq_len};
  const kv::CapacityAnswer a = kv::Evaluate(q, std::vector<uint32_t>(windows.size(), 1u << 20));
  for (size_t g = 0; g < windows.size(); ++g) {
    kv::GroupShape shape;
    shape.window = windows[g];
    shape.pages = a.groups[g].floor + (rng.Percent(50) ? 0 : rng.Below(12));
    // The largest request drawn is 9*ps + 30 tokens long; sometimes it does not fit.
    if (windows[g] == 0) shape.pages = std::max(shape.pages, 8 + 40 / ps + rng.Below(20));
    shape.pages = std::max(shape.pages, 1u);
    shape.reserve_pages = shape.pages + (rng.Percent(50) ? rng.Below(30) : 0);
    c.cache.groups.push_back(shape);
  }
  return out;
}

std::vector<Command> DrawCommands(uint64_t seed, size_t count) {
  Rng rng(seed * 2);
  std::vector<Command> out;
  while (out.size() < count) {
    Command c;
    const uint32_t roll = rng.Below(1000);
    if (roll < 140) c.kind = Command::kSubmit;
    else if (roll < 540) c.kind = Command::kStep;
    else if (roll < 900) c.kind = Command::kSettle;
    else if (roll < 925) c.kind = Command::kCancel;
    else if (roll < 970) c.kind = Command::kEvict;
    else if (roll < 978) c.kind = Command::kSuspect;
    else if (roll < 990) c.kind = Command::kResize;
    else if (roll < 995) c.kind = Command::kResizeCancel;
    else c.kind = Command::kResetIndex;
    c.a = static_cast<uint32_t>(rng.Next());
    c.b = static_cast<uint32_t>(rng.Next());
    if (c.kind == Command::kSettle) {
      c.a = rng.Percent(25) ? c.a & c.b : 0;
      c.b = rng.Percent(2) ? c.b : 0;
    }
    if (c.kind == Command::kEvict) c.b = c.b % 4 + 1;
    out.push_back(c);
  }
  return out;
}

std::vector<Command> Shrink(const CommandConfig& config, std::vector<Command> commands) {
  const CommandOutcome first = RunCommands(config, commands);
  if (first.error.empty()) return commands;
  commands.resize(std::min(commands.size(), first.at + 1));
  for (size_t chunk = std::max<size_t>(1, commands.size() / 2); chunk > 0; chunk /= 2) {
    bool again = true;
    while (again) {
      again = false;
      for (size_t i = 0; i < commands.size();) {
        std::vector<Command> fewer = commands;
        fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i), fewer.begin() + static_cast<ptrdiff_t>(std::min(fewer.size(), i + chunk)));
        if (!RunCommands(config, fewer).error.empty()) {
          commands = std::move(fewer);
          again = chunk == 1;
        } else {
          i += chunk;
        }
      }
    }
  }
  return commands;
}

std::string Print(const CommandConfig& config, const std::vector<Command>& commands) {
  const sched::SchedulerConfig& c = config.scheduler;
  std::string out = fmt::format("ps {} N {} B {} D {} reserve {} groups", c.cache.page_size, c.max_running, c.prefill_chunk, c.overlap_depth, c.reserve_tokens);
  for (const kv::GroupShape& g : c.cache.groups) out += fmt::format(" (window {} pages {} of {})", g.window, g.pages, g.reserve_pages);
  out += "\n";
  for (const Command& x : commands) out += fmt::format("  {} {} {}\n", kNames[x.kind], x.a, x.b);
  return out;
}

}  // namespace holdfast::sim

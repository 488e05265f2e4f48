#pragma once
// T2: random command sequences against the scheduler, every command followed by a full audit, every step by the content oracle, every
// answer compared with a recomputation from its own tokens alone. A failing sequence is shrunk by deleting commands.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/traffic.h"

namespace holdfast::sim {

struct Command {
  enum Kind : uint8_t { kSubmit, kStep, kSettle, kCancel, kEvict, kSuspect, kResize, kResizeCancel, kResetIndex, kKinds };
  Kind kind = kStep;
  uint32_t a = 0, b = 0, c = 0;
};

struct CommandOutcome {
  std::string error;          // empty: nothing wrong
  size_t at = 0;              // the command that showed it (or how many there were)
  uint64_t steps = 0;
  uint64_t awaited = 0;       // decodes launched before their token was known
  uint64_t digest = 0;
  sched::SchedulerCounters counters;
};

struct CommandConfig {
  sched::SchedulerConfig scheduler;
  uint32_t ranks = 1;         // this many schedulers get the same log; their digests must agree at every step
  bool newest_first = false;  // settles the newest outstanding step first (a drill)
  std::string* transcript = nullptr;  // if set, the log in the form of transcript.h is appended
};

// A scheduler configuration drawn from the seed: groups, page size, overlap, pools at the very floor.
CommandConfig DrawConfig(uint64_t seed);
std::vector<Command> DrawCommands(uint64_t seed, size_t count);
CommandOutcome RunCommands(const CommandConfig& config, const std::vector<Command>& commands);
// The fewest commands (by deletion) that still fail.
std::vector<Command> Shrink(const CommandConfig& config, std::vector<Command> commands);
std::string Print(const CommandConfig& config, const std::vector<Command>& commands);

}  // namespace holdfast::sim

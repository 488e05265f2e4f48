#pragma once
// The field report's load on the scheduler: conversations of several turns that share a system prompt, tools called and results fed back,
// answers echoed back (sometimes rewritten), cancels. Every step is checked by FakeEngine's content oracle.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/fake_engine.h"

namespace holdfast::sim {

struct TrafficConfig {
  uint64_t seed = 0;
  uint32_t conversations = 4;
  uint32_t requests = 275;
  uint32_t turns = 4;
  uint32_t system_tokens = 7700;
  uint32_t max_tokens = 160;
  uint32_t cancel_per_mille = 2;
  uint32_t rewrite_percent = 50;
  uint32_t resize_every = 0;            // steps; 0 = never
  uint32_t run_ahead_percent = 0;       // of the requests
  uint32_t scale = 1;                   // divides the length of users' and tools' texts
  // As tests/bench/soak.sh sends it: no tools, four of five answers run to max_tokens, and the echo of an answer is other tokens, half as
  // many again, from near its beginning on: what a random model says is not how its text is cut into tokens.
  bool soak = false;
  bool check_content = true;            // FakeEngine looks at every position that is read
  sched::SchedulerConfig scheduler;
};

struct TrafficResult {
  bool ok = false;
  std::string error;                    // what went wrong, with the step
  uint64_t steps = 0;
  uint32_t finished = 0, cancelled = 0, failed = 0, tool_calls = 0, resizes = 0, refused_resizes = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0;
  uint64_t awaited = 0;                 // decodes launched before their token was known
  uint64_t outputs_hash = 0;            // of every finished answer
  sched::SchedulerCounters counters;
  std::string findings;
  double hit_rate() const { return prompt_tokens == 0 ? 0 : static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens); }
};

// Small deterministic generator of the tests.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(Mix64(seed)) {}
  uint64_t Next() { return Mix64(state_++); }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(Next() % n); }
  uint32_t Between(uint32_t low, uint32_t high) { return low + Below(high - low + 1); }
  bool Percent(uint32_t p) { return Below(100) < p; }

 private:
  uint64_t state_;
};

TrafficResult RunTraffic(const TrafficConfig& config);

}  // namespace holdfast::sim

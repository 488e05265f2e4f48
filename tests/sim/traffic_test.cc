// T7, T9: the report's load on scheduler and ledger, content checked at every step.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "tests/sim/traffic.h"

using namespace holdfast;

namespace {

// The report's machine: 131155 pages of one token in the full pool, 4 running, chunk 8192, window 1024.
sim::TrafficConfig Report(double ratio, uint32_t page_size, uint32_t overlap) {
  sim::TrafficConfig c;
  const uint32_t pages = 131155;
  c.scheduler.cache.page_size = page_size;
  c.scheduler.cache.groups = {{0, pages / page_size, 0}, {1024, static_cast<uint32_t>(pages * ratio) / page_size, 0}};
  c.scheduler.max_running = 4;
  c.scheduler.prefill_chunk = 8192;
  c.scheduler.max_seq_len = 131072;
  c.scheduler.overlap_depth = overlap;
  c.scheduler.audit_period = 64;
  return c;
}

uint64_t Check(const sim::TrafficConfig& c, const char* name, double least_hit_rate) {
  const sim::TrafficResult r = sim::RunTraffic(c);
  fmt::print("{}: seed {} steps {} finished {} cancelled {} tools {} prompt {} hit rate {:.3f} truncated {} heals {} dedups {} resizes {} ({} refused)\n",
             name, c.seed, r.steps, r.finished, r.cancelled, r.tool_calls, r.prompt_tokens, r.hit_rate(), r.counters.window_truncated_hits,
             r.counters.heals, r.counters.dedups, r.resizes, r.refused_resizes);
  INFO(r.error << r.findings);
  CHECK(r.ok);
  CHECK(r.failed == 0);
  CHECK(r.findings.empty());
  CHECK(r.hit_rate() >= least_hit_rate);
  return r.awaited;
}

}  // namespace

TEST_CASE("the report's load at window ratio 0.2") {
  for (uint32_t conversations : {1, 2, 4, 8}) {
    sim::TrafficConfig c = Report(0.2, 16, 0);
    c.conversations = conversations;
    c.seed = conversations;
    Check(c, "ratio 0.2", 0.95);
  }
}

TEST_CASE("the report's load at window ratio 0.07") {
  for (uint32_t conversations : {1, 2, 4, 8}) {
    sim::TrafficConfig c = Report(0.07, 16, 1);
    c.conversations = conversations;
    c.seed = conversations + 10;
    Check(c, "ratio 0.07", 0.95);
  }
}

TEST_CASE("the report's load with decodes launched before their token is known") {
  for (const uint32_t percent : {100, 60}) {
    for (uint32_t conversations : {1, 4, 8}) {
      sim::TrafficConfig c = Report(0.07, 16, 1);
      c.conversations = conversations;
      c.seed = conversations + 50;
      c.run_ahead_percent = percent;
      CHECK(Check(c, "run ahead", 0.95) > 1000);
    }
  }
  sim::TrafficConfig c = Report(0.07, 16, 1);
  c.scheduler.cache.groups[1].pages = 296;
  c.run_ahead_percent = 100;
  CHECK(Check(c, "run ahead, floor", 0.95) > 1000);
  c = Report(0.1, 16, 1);
  c.seed = 23;
  c.requests = 150;
  c.resize_every = 50;
  c.run_ahead_percent = 100;
  c.scheduler.cache.groups[0].reserve_pages = 10000;
  c.scheduler.cache.groups[1].reserve_pages = 1500;
  CHECK(Check(c, "run ahead, resize", 0.5) > 1000);
}

TEST_CASE("the report's load with the window pool at its floor") {
  sim::TrafficConfig c = Report(0.07, 16, 1);
  c.scheduler.cache.groups[1].pages = 296;
  Check(c, "floor", 0.95);
}

// tests/bench/soak.sh without its model: 18 500 tokens of system prompt, a window of 64, four running. 131072 tokens in the full pool.
TEST_CASE("the soak's load: ratios 0.2 and 0.07, and the window pool at its floor") {
  struct Row {
    const char* name;
    uint32_t window, page_size, window_pages;
    double least[4];  // with 1, 2, 4 and 8 conversations
  };
  // At the floor three decodes and a chunk of 256 tokens leave four pages: with four running the system prompt stays, the conversations' ends go.
  // With smaller pages or a larger window they leave less than that, and the chunk has to give.
  const Row rows[] = {{"soak, ratio 0.2", 64, 16, 1638, {0.985, 0.985, 0.985, 0.985}},
                      {"soak, ratio 0.07", 64, 16, 573, {0.985, 0.985, 0.985, 0.985}},
                      {"soak, floor", 64, 16, 40, {0.985, 0.985, 0.975, 0.975}},
                      {"soak, floor, page 1", 64, 1, 508, {0.985, 0.98, 0.975, 0.975}},
                      {"soak, floor, window 128", 128, 16, 56, {0.985, 0.98, 0.975, 0.975}}};
  for (const Row& row : rows) {
    for (uint32_t i = 0; i < 4; ++i) {
      sim::TrafficConfig c;
      c.soak = true;
      c.check_content = false;  // that is the other cases' business; here it would cost a minute
      c.system_tokens = 18500;
      c.conversations = 1u << i;
      c.seed = 30 + i;
      c.scheduler.cache.page_size = row.page_size;
      c.scheduler.cache.groups = {{0, 131072 / row.page_size, 0}, {row.window, row.window_pages, 0}};
      c.scheduler.max_seq_len = 65536;
      Check(c, row.name, row.least[i]);
    }
  }
}

TEST_CASE("the report's load with page sizes 1 and 32, and windows only") {
  sim::TrafficConfig c = Report(0.2, 1, 0);
  c.requests = 60;
  c.scheduler.audit_period = 256;
  Check(c, "page 1", 0.9);
  c = Report(0.2, 32, 1);
  c.requests = 100;
  Check(c, "page 32", 0.9);
  c = Report(0.2, 16, 0);
  c.requests = 100;
  c.scheduler.cache.groups = {{512, 1200, 0}, {1024, 1600, 0}};
  Check(c, "windows only", 0.9);
}

TEST_CASE("pools are resized every 50 steps under the load") {
  for (uint32_t overlap : {0, 1}) {
    sim::TrafficConfig c = Report(0.1, 16, overlap);
    c.seed = 21 + overlap;
    c.requests = 150;
    c.resize_every = 50;
    c.scheduler.cache.groups[0].reserve_pages = 10000;
    c.scheduler.cache.groups[1].reserve_pages = 1500;
    Check(c, "resize", 0.5);
  }
}

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

void Check(const sim::TrafficConfig& c, const char* name, double least_hit_rate) {
  const sim::TrafficResult r = sim::RunTraffic(c);
  fmt::print("{}: seed {} steps {} finished {} cancelled {} tools {} prompt {} hit rate {:.3f} truncated {} heals {} dedups {} resizes {} ({} refused)\n",
             name, c.seed, r.steps, r.finished, r.cancelled, r.tool_calls, r.prompt_tokens, r.hit_rate(), r.counters.window_truncated_hits,
             r.counters.heals, r.counters.dedups, r.resizes, r.refused_resizes);
  INFO(r.error << r.findings);
  CHECK(r.ok);
  CHECK(r.failed == 0);
  CHECK(r.findings.empty());
  CHECK(r.hit_rate() >= least_hit_rate);
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

TEST_CASE("the report's load with the window pool at its floor") {
  sim::TrafficConfig c = Report(0.07, 16, 1);
  c.scheduler.cache.groups[1].pages = 296;
  Check(c, "floor", 0.95);
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

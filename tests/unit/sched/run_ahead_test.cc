// Decodes launched before their token is known: what is launched, what a stop leaves in flight, and that nobody's answer depends on it.
#include <catch2/catch.hpp>

#include "tests/sim/driver.h"
#include "tests/sim/traffic.h"

using namespace holdfast;
using sched::EndReason;
using sim::Driver;
using sim::Text;

namespace {

sched::SchedulerConfig Small(uint32_t overlap = 1, uint32_t page_size = 4) {
  sched::SchedulerConfig c;
  c.cache.page_size = page_size;
  c.cache.groups = {{0, 200, 260}, {8, 100, 140}};
  c.max_running = 4;
  c.prefill_chunk = 32;
  c.max_seq_len = 400;
  c.overlap_depth = overlap;
  c.audit_period = 1;
  return c;
}

uint32_t Held(Driver& d) {
  uint32_t held = 0;
  for (const kv::PoolView& p : d.s->Pools()) held += p.held;
  return held;
}

}  // namespace

TEST_CASE("a decode is launched while the step that draws its token runs, one for each step more in flight") {
  for (const uint32_t overlap : {1u, 2u}) {
    Driver d(Small(overlap));
    d.run_ahead = true;
    const RequestId r = d.Submit(Text(1, 8), 6);
    CHECK(d.Launch());
    CHECK(!d.last[0].awaits);
    for (uint32_t ahead = 1; ahead <= overlap; ++ahead) {
      CHECK(d.Launch());
      CHECK(d.last[0].awaits);
      CHECK(d.last[0].start == 7 + ahead);
      CHECK(d.last[0].sample);
    }
    CHECK(!d.Launch());
    CHECK(d.tokens[r.v].empty());
    d.Settle();
    CHECK(d.tokens[r.v].size() == 1);
    CHECK(d.Launch());
    CHECK(d.last[0].awaits);
    d.RunAhead();
    CHECK(d.tokens[r.v].size() == 6);
    CHECK(d.ended[r.v].end == EndReason::kLength);
    CHECK(d.steps == 6);  // none too many
    CHECK(d.Wrong() == "");
  }
}

TEST_CASE("nobody runs ahead who may not, with steps one by one, or of a last token") {
  SECTION("it may not") {
    Driver d(Small());
    d.Submit(Text(1, 8), 6);
    CHECK(d.Launch());
    CHECK(!d.Launch());
  }
  SECTION("steps one by one") {
    Driver d(Small(0));
    d.run_ahead = true;
    d.Submit(Text(1, 8), 6);
    CHECK(d.Launch());
    CHECK(!d.Launch());
  }
  SECTION("its token is the last by length") {
    Driver d(Small());
    d.run_ahead = true;
    const RequestId one = d.Submit(Text(1, 8), 1);
    CHECK(d.Launch());
    CHECK(!d.Launch());
    d.RunAhead();
    CHECK(d.tokens[one.v].size() == 1);
    const RequestId end = d.Submit(Text(2, 398), 100);  // max_seq_len
    d.RunAhead();
    CHECK(d.tokens[end.v].size() == 2);
    CHECK(d.Wrong() == "");
  }
}

TEST_CASE("a step is not launched past somebody whose token cannot be run ahead of") {
  Driver d(Small());
  const RequestId bound = d.Submit(Text(1, 8), 6);
  d.run_ahead = true;
  d.Submit(Text(2, 8), 6);
  CHECK(d.Launch());
  CHECK(d.last.size() == 2);
  CHECK(!d.Launch());  // the second could go on, the first would wait for two steps
  d.Settle();
  CHECK(d.Launch());
  CHECK(d.last.size() == 2);
  d.s->Cancel(bound);
  CHECK(d.Launch());
  CHECK(d.last.size() == 1);
  d.RunAhead();
  CHECK(d.Wrong() == "");
}

TEST_CASE("a stop drops the outcome of the step ahead, and the row stays until that has settled") {
  for (const uint32_t page_size : {1u, 4u}) {
    Driver d(Small(1, page_size));
    d.run_ahead = true;
    const RequestId r = d.Submit(Text(1, 7), 50);
    d.stop.insert(r.v);
    CHECK(d.Launch());
    CHECK(d.Launch());
    d.Settle();
    CHECK(d.ended[r.v].end == EndReason::kStop);
    CHECK(d.s->running() == 1);
    CHECK(Held(d) > 0);
    CHECK(d.Wrong() == "");
    CHECK(!d.Launch());
    d.Settle();
    CHECK(d.s->running() == 0);
    CHECK(Held(d) == 0);
    CHECK(d.tokens[r.v].size() == 1);
    CHECK(d.Wrong() == "");
    // The stop token was told, so the block that ends with it is as good as any.
    std::vector<TokenId> again = Text(1, 7);
    again.push_back(d.tokens[r.v][0]);
    again.push_back(5);
    const RequestId next = d.Submit(again, 3);
    d.RunAhead();
    CHECK(d.cached[next.v] == 8);
    CHECK(d.Wrong() == "");
  }
}

TEST_CASE("a cancel with two steps in flight: what was drawn and never told is in no block") {
  Driver d(Small(1, 1));
  d.run_ahead = true;
  const RequestId r = d.Submit(Text(1, 8), 50);
  CHECK(d.Launch());
  const TokenId drawn = d.queue.back().sampled[0].token;
  CHECK(d.Launch());
  d.s->Cancel(r);
  CHECK(d.s->running() == 1);
  d.Settle();
  CHECK(d.s->running() == 1);
  d.Settle();
  CHECK(d.s->running() == 0);
  CHECK(Held(d) == 0);
  CHECK(d.tokens[r.v].empty());
  CHECK(d.Wrong() == "");
  std::vector<TokenId> again = Text(1, 8);
  again.push_back(drawn);
  again.push_back(5);
  const RequestId next = d.Submit(again, 1);
  d.RunAhead();
  CHECK(d.cached[next.v] == 8);
  CHECK(d.Wrong() == "");
}

TEST_CASE("what a failed step computed, and the step ahead of it, enters no index") {
  Driver d(Small(1, 4));
  d.run_ahead = true;
  const RequestId r = d.Submit(Text(1, 7), 50);
  SECTION("the first of them") { d.fail.insert(r.v); }
  SECTION("the one ahead, of a request that has stopped") { d.stop.insert(r.v); }
  CHECK(d.Launch());
  d.fail.insert(r.v);
  CHECK(d.Launch());
  d.Settle();
  CHECK(d.ended.count(r.v) == 1);
  d.Settle();
  CHECK(d.s->running() == 0);
  CHECK(d.s->index_nodes() == 0);
  CHECK(d.Wrong() == "");
}

TEST_CASE("tokens that a step in flight names outlive their request") {
  Driver d(Small());
  d.run_ahead = true;
  const RequestId r = d.Submit(Text(1, 8), 50);
  d.stop.insert(r.v);
  CHECK(d.Launch());
  const sched::StepPlan* plan = d.s->Plan();
  REQUIRE(plan != nullptr);
  sched::StepResult result;
  result.step = plan->step;
  result.sampled.push_back({r, 11});
  d.Settle();  // stopped
  const kv::PageRef& page = sched::TestPeer::running(*d.s)[0]->row.at(0, 0);
  d.s->SuspectPage(0, page.page());  // gone at once, its object taken by another
  d.Submit(Text(2, 8), 1);
  std::vector<TokenId> history = Text(1, 8);
  CHECK(std::equal(history.begin(), history.end(), plan->entries[0].history.begin(), plan->entries[0].history.end()));
  d.s->Apply(result);
  d.RunAhead();
  CHECK(d.ended.size() == 2);
}

TEST_CASE("while a pool shrinks nobody runs ahead") {
  Driver d(Small());
  d.run_ahead = true;
  const RequestId r = d.Submit(Text(1, 30), 50);
  CHECK(d.Launch());
  CHECK(d.Launch());
  sched::ResizeCommand resize;
  resize.operation = 1;
  resize.full_pages = 100;
  d.s->Resize(resize);
  CHECK(d.s->resize().phase == sched::ResizeState::Phase::kRunning);
  d.Settle();
  CHECK(!d.Launch());
  CHECK(d.s->TakePageMoves().empty());
  d.RunAhead();
  CHECK(d.s->resize().phase == sched::ResizeState::Phase::kDone);
  CHECK(d.tokens[r.v].size() == 50);
  CHECK(d.Wrong() == "");
}

// Prompts that share, stops at random tokens, answers that outrun their promise and are preempted, prompts longer than a chunk.
TEST_CASE("answers are the same with steps one by one and ahead") {
  uint64_t preemptions = 0, stops = 0, awaited = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    std::map<uint64_t, std::vector<TokenId>> tokens[3];
    std::map<uint64_t, EndReason> ends[3];
    for (const uint32_t overlap : {0u, 1u, 2u}) {
      sim::Rng rng(seed);
      sched::SchedulerConfig c = Small(overlap, seed % 3 == 0 ? 1 : 4);
      c.cache.groups[0].pages = (seed % 3 == 0 ? 4 : 1) * 30;
      c.cache.groups[1].pages = 140;
      c.cache.groups[0].reserve_pages = 0;
      c.reserve_tokens = seed % 2 == 0 ? 4 : 0;
      c.max_running = rng.Between(1, 4);
      Driver d(c);
      REQUIRE(d.error == "");
      d.stop_at = [](TokenId t) { return t % 23 == 0; };
      uint32_t left = 30;
      for (int round = 0; round < 5000; ++round) {
        while (left > 0 && d.s->waiting() < 3) {
          d.run_ahead = left % 5 != 0;
          std::vector<TokenId> text = Text(rng.Below(3), rng.Between(1, 40));
          const std::vector<TokenId> own = Text(seed * 100 + left, rng.Between(1, 8));
          text.insert(text.end(), own.begin(), own.end());
          d.Submit(std::move(text), rng.Between(1, 40));
          --left;
        }
        if (!d.Round()) break;
        for (const Driver::Planned& e : d.last) awaited += e.awaits;
        d.last.clear();
      }
      REQUIRE(d.Wrong() == "");
      CHECK(d.ended.size() == 30);
      tokens[overlap] = d.tokens;
      for (const auto& [id, event] : d.ended) ends[overlap][id] = event.end, stops += event.end == EndReason::kStop;
      preemptions += overlap > 0 ? d.s->counters().preemptions : 0;
    }
    for (const int ahead : {1, 2}) {
      CAPTURE(seed, ahead);
      CHECK(tokens[ahead] == tokens[0]);
      CHECK(ends[ahead] == ends[0]);
    }
  }
  CHECK(preemptions > 0);
  CHECK(stops > 100);
  CHECK(awaited > 1000);
}

// What the scheduler promises, one scenario each. Content is checked at every step by the engine behind the driver.
#include <catch2/catch.hpp>

#include "tests/sim/driver.h"

using namespace holdfast;
using sim::operator+;
using sim::Driver;
using sim::Text;
using sched::EndReason;

namespace {

sched::SchedulerConfig Small(uint32_t page_size = 4) {
  sched::SchedulerConfig c;
  c.cache.page_size = page_size;
  c.cache.groups = {{0, 200, 260}, {8, 100, 140}};
  c.max_running = 4;
  c.prefill_chunk = 32;
  c.max_seq_len = 400;
  c.audit_period = 1;
  return c;
}

}  // namespace

TEST_CASE("a request runs from prompt to stop, and its events are in order") {
  Driver d(Small());
  const RequestId r = d.Submit(Text(1, 50), 20);
  d.Step();
  CHECK(d.last.size() == 1);
  CHECK(d.last[0].tokens == 32);
  CHECK(!d.last[0].sample);
  d.Step();
  CHECK(d.last[0].start == 32);
  CHECK(d.last[0].tokens == 18);
  CHECK(d.last[0].sample);
  CHECK(d.tokens[r.v].size() == 1);
  for (int i = 0; i < 4; ++i) d.Step();
  CHECK(d.last[0].tokens == 1);
  CHECK(d.tokens[r.v].size() == 5);
  d.stop.insert(r.v);
  d.Run();
  CHECK(d.tokens[r.v].size() == 6);
  CHECK(d.ended[r.v].end == EndReason::kStop);
  CHECK(d.Wrong() == "");
  CHECK(d.s->running() == 0);
}

TEST_CASE("max_tokens and max_seq_len end a request by length") {
  Driver d(Small());
  const RequestId a = d.Submit(Text(1, 10), 3), b = d.Submit(Text(2, 390), 100), c = d.Submit(Text(3, 9), 0);
  d.Run();
  CHECK(d.tokens[a.v].size() == 3);
  CHECK(d.ended[a.v].end == EndReason::kLength);
  CHECK(d.tokens[b.v].size() == 10);
  CHECK(d.ended[b.v].end == EndReason::kLength);
  CHECK(d.tokens[c.v].empty());
  CHECK(d.ended[c.v].end == EndReason::kLength);
  CHECK(d.Wrong() == "");
}

TEST_CASE("what can never fit is refused at once with the limit") {
  sched::SchedulerConfig c = Small();
  c.cache.groups[0].pages = c.cache.groups[0].reserve_pages = 30;
  Driver d(c);
  CHECK(d.s->max_request_tokens() == 120);
  const RequestId a = d.Submit(Text(1, 100), 21), fits = d.Submit(Text(1, 100), 20), b = d.Submit(Text(2, 500), 1), none = d.Submit({}, 5);
  CHECK(d.ended[a.v].end == EndReason::kNeverFits);
  CHECK(d.ended[a.v].limit == 120);
  CHECK(d.ended[a.v].message.find("30") != std::string::npos);
  CHECK(d.ended[b.v].end == EndReason::kNeverFits);
  CHECK(d.ended[none.v].end == EndReason::kFailed);
  d.Run();
  CHECK(d.ended[fits.v].end == EndReason::kLength);
  CHECK(d.Wrong() == "");
}

TEST_CASE("decodes go first and a long prompt never starves them, nor they it") {
  Driver d(Small());
  const RequestId a = d.Submit(Text(1, 8), 100), b = d.Submit(Text(2, 8), 100);
  d.Step();
  d.Step();
  const RequestId longest = d.Submit(Text(3, 300), 4);
  int steps = 0;
  while (!d.tokens.count(longest.v) && steps < 30) {
    const size_t before = d.tokens[a.v].size() + d.tokens[b.v].size();
    d.Step();
    ++steps;
    CHECK(d.tokens[a.v].size() + d.tokens[b.v].size() == before + 2);
    CHECK(d.last[0].request == a);
    CHECK(d.last[1].request == b);
    CHECK(d.last[2].tokens > 0);
    CHECK(d.last[0].tokens + d.last[1].tokens + d.last[2].tokens <= 32);
  }
  CHECK(steps == 10);  // 300 tokens at 30 a step
  CHECK(d.Wrong() == "");
}

TEST_CASE("a shared prompt hits on its second use, however short the turns are") {
  for (uint32_t page_size : {1u, 16u, 32u}) {
    for (uint32_t extra : {1u, 3u, 40u}) {
      sched::SchedulerConfig c;
      c.cache.page_size = page_size;
      // Hardly more window pages than the floor, so that only what is worth keeping stays.
      c.cache.groups = {{0, 4000 / page_size, 0}, {64, 4 * (64 / page_size + 3) + 256 / page_size + 80 / page_size, 0}};
      c.max_running = 4;
      c.prefill_chunk = 256;
      c.max_seq_len = 2000;
      Driver d(c);
      REQUIRE(d.error == "");
      const std::vector<TokenId> system = Text(1, 600);
      const RequestId a = d.Submit(system + Text(2, extra), 30, {600});
      d.Run();
      const RequestId b = d.Submit(system + Text(3, extra), 30, {600});
      d.Run();
      CAPTURE(page_size, extra);
      CHECK(d.cached[a.v] == 0);
      CHECK(d.cached[b.v] == 600 / page_size * page_size);
      CHECK(d.Wrong() == "");
    }
  }
}

TEST_CASE("a window is worth the blocks since the one before it, and outlives later ones by that much") {
  const std::vector<TokenId> system = Text(1, 80), first = system + Text(2, 8);  // 20 and 22 blocks
  const auto worths = [&](const kv::PrefixIndex& index, std::vector<TokenId> text) {
    std::vector<uint32_t> out;
    kv::NodeId n = index.FindRoot("");
    uint64_t chain = kv::SaltHash("");
    for (size_t i = 0; i + 4 <= text.size(); i += 4) {
      chain = kv::ChainHash(chain, &text[i], 4);
      n = index.FindChild(n, chain, &text[i]);
      out.push_back(index.worth(n, 1));
    }
    return out;
  };
  for (const uint32_t elsewhere : {0u, 3u, 25u}) {  // blocks that another computes in between, and that its window is worth
    Driver d(Small());
    kv::Ledger& ledger = sched::TestPeer::ledger(*d.s);
    const RequestId a = d.Submit(first, 9, {80});
    d.Run();
    // Two blocks are a window: of the system prompt, of the prompt, and of the answer, whose last token was not computed on.
    std::vector<uint32_t> expected(24, 2);
    std::fill(expected.begin(), expected.begin() + 18, 0);
    expected[18] = expected[19] = 20;
    CHECK(worths(ledger.index(), first + d.tokens[a.v]) == expected);
    const RequestId b = d.Submit(first + Text(3, 10), 5, {80, 88});
    d.Run();
    CHECK(d.cached[b.v] == 88);
    if (elsewhere > 0) d.Submit(Text(4, 4 * elsewhere), 1);
    d.Run();
    while (ledger.index().heap_size(1) > 2) REQUIRE(ledger.EvictOne(1));
    // Only the system prompt's window is left, although the turns' are younger, until it was not used for as long as it is worth.
    const RequestId c = d.Submit(system + Text(5, 8), 5, {80});
    d.Run();
    CAPTURE(elsewhere);
    CHECK(d.cached[c.v] == (elsewhere < 20 ? 80 : 0));
    CHECK(d.Wrong() == "");
  }
}

TEST_CASE("a window is worth more once the one before it is gone") {
  Driver d(Small());
  kv::Ledger& ledger = sched::TestPeer::ledger(*d.s);
  const std::vector<TokenId> text = Text(1, 80);
  const auto at = [&](uint32_t block) {
    kv::NodeId n = ledger.index().FindRoot("");
    uint64_t chain = kv::SaltHash("");
    for (uint32_t i = 0; i < block; ++i) {
      chain = kv::ChainHash(chain, &text[4 * i], 4);
      n = ledger.index().FindChild(n, chain, &text[4 * i]);
    }
    return n;
  };
  d.Submit(text, 1, {40});
  d.Run();
  CHECK(ledger.index().worth(at(10), 1) == 10);
  CHECK(ledger.index().worth(at(20), 1) == 10);
  const RequestId again = d.Submit(text + Text(2, 2), 1);
  d.Run();
  CHECK(d.cached[again.v] == 80);
  CHECK(ledger.index().worth(at(20), 1) == 10);
  ledger.EvictNode(1, at(10));
  const RequestId third = d.Submit(text + Text(3, 2), 1);
  d.Run();
  CHECK(d.cached[third.v] == 80);
  CHECK(ledger.index().worth(at(20), 1) == 20);
  CHECK(ledger.index().worth(at(10), 1) == 10);
  CHECK(d.Wrong() == "");
}

TEST_CASE("a chunk stops before it costs a window that is worth keeping, for a while, and is never less than a quarter") {
  sched::SchedulerConfig c;
  c.cache.page_size = 4;
  c.cache.groups = {{0, 400, 0}, {32, 18, 0}};  // the floor: 10 pages for the row, 8 for the chunk
  c.max_running = 1;
  c.prefill_chunk = 32;
  c.max_seq_len = 1000;
  for (const uint32_t tokens : {48u, 400u}) {
    Driver d(c);
    REQUIRE(d.error == "");
    const std::vector<TokenId> system = Text(1, 80);
    d.Submit(system, 1);
    d.Run();
    d.Submit(Text(2, tokens), 1);
    std::vector<uint32_t> chunks;
    while (d.Step()) {
      if (!d.last.empty() && d.last[0].tokens > 1) chunks.push_back(d.last[0].tokens);
    }
    // Its own window and the other one leave two pages; 20 blocks after its last use the other one has to go.
    if (tokens == 48) {
      CHECK(chunks == std::vector<uint32_t>{32, 8, 8});
    } else {
      REQUIRE(chunks.size() > 10);
      CHECK(chunks[1] == 8);
      CHECK(std::count(chunks.begin(), chunks.end(), 32u) >= 9);
      CHECK(*std::min_element(chunks.begin(), chunks.end()) >= 8);
    }
    const RequestId again = d.Submit(system + Text(3, 4), 1);
    d.Run();
    CAPTURE(tokens);
    CHECK(d.cached[again.v] == (tokens == 48 ? 80 : 0));
    CHECK(d.Wrong() == "");
  }
}

TEST_CASE("a request whose next block is being computed waits for it, and others may pass") {
  Driver d(Small());
  const std::vector<TokenId> shared = Text(1, 100);
  const RequestId first = d.Submit(shared + Text(2, 4), 4), second = d.Submit(shared + Text(3, 4), 4), other = d.Submit(Text(4, 20), 4);
  d.Step();
  CHECK(d.s->running() == 1);  // the chunk is used up; the second would compute the same block
  d.Run();
  CHECK(d.cached[first.v] == 0);
  CHECK(d.cached[second.v] == 100);
  CHECK(d.ended.count(other.v) == 1);
  CHECK(d.s->counters().computed_prompt_tokens == 104 + 4 + 20);
  CHECK(d.Wrong() == "");
}

TEST_CASE("requests of different salts never share, and no_cache neither matches nor inserts") {
  Driver d(Small());
  const std::vector<TokenId> text = Text(1, 60);
  const RequestId a = d.Submit(text, 2, {}, "x");
  d.Run();
  const RequestId b = d.Submit(text, 2, {}, "y"), c = d.Submit(text, 2, {}, "x"), none = d.Submit(text, 2, {}, "", true);
  d.Run();
  const RequestId plain = d.Submit(text, 2);
  d.Run();
  CHECK(d.cached[a.v] == 0);
  CHECK(d.cached[b.v] == 0);
  CHECK(d.cached[c.v] == 56);
  CHECK(d.cached[none.v] == 0);
  CHECK(d.cached[plain.v] == 0);
  CHECK(d.Wrong() == "");
}

TEST_CASE("a cancel takes effect in every state") {
  sched::SchedulerConfig c = Small();
  c.overlap_depth = 1;
  c.max_running = 2;
  Driver d(c);
  const RequestId decoding = d.Submit(Text(1, 8), 100), prefilling = d.Submit(Text(2, 200), 4), waiting = d.Submit(Text(3, 8), 4);
  d.Step();
  d.Step();
  SECTION("waiting") {
    d.s->Cancel(waiting);
    CHECK(d.s->waiting() == 0);
  }
  SECTION("between plan and settle") {
    CHECK(d.Launch());
    d.s->Cancel(decoding);
    d.s->Cancel(prefilling);
    CHECK(d.s->running() == 2);  // pages stay until the step settles
    CHECK(d.Wrong() == "");
    d.Settle();
    CHECK(d.s->running() == 0);
  }
  SECTION("with nothing in flight") {
    while (!d.queue.empty()) d.Settle();
    d.s->Cancel(decoding);
    CHECK(d.s->running() == 1);
  }
  SECTION("twice, unknown and ended ones are ignored") {
    d.s->Cancel(waiting);
    d.s->Cancel(waiting);
    d.s->Cancel(RequestId(999));
  }
  d.Run();
  CHECK(d.ended.size() == 3);
  CHECK(d.Wrong() == "");
  for (const kv::PoolView& p : d.s->Pools()) CHECK(p.held == 0);
}

TEST_CASE("with a capped reservation the youngest gives way and no token is lost or repeated") {
  sched::SchedulerConfig c = Small(1);
  c.cache.groups = {{0, 60, 0}};
  c.prefill_chunk = 16;
  c.reserve_tokens = 4;
  Driver d(c);
  std::vector<RequestId> ids;
  std::vector<std::vector<TokenId>> prompts;
  for (uint32_t i = 0; i < 4; ++i) {
    prompts.push_back(Text(i + 1, 8));
    ids.push_back(d.Submit(prompts.back(), 30));
  }
  d.Run();
  CHECK(d.s->counters().preemptions > 0);
  for (uint32_t i = 0; i < 4; ++i) {
    Driver alone(c);
    const RequestId solo = alone.Submit(prompts[i], 30);
    alone.Run();
    CHECK(d.tokens[ids[i].v] == alone.tokens[solo.v]);
    CHECK(d.tokens[ids[i].v].size() == 30);
  }
  CHECK(d.Wrong() == "");
}

TEST_CASE("a failed request fails alone and what it computed leaves the index") {
  Driver d(Small());
  const std::vector<TokenId> text = Text(1, 60);
  const RequestId bad = d.Submit(text, 10), good = d.Submit(Text(2, 20), 10);
  d.fail.insert(bad.v);
  d.Run();
  CHECK(d.ended[bad.v].end == EndReason::kFailed);
  CHECK(d.tokens[good.v].size() == 10);
  d.fail.clear();
  const RequestId again = d.Submit(text, 10);
  d.Run();
  CHECK(d.cached[again.v] == 0);
  CHECK(d.Wrong() == "");
}

TEST_CASE("a suspect page restarts exactly its readers and is never handed out again") {
  Driver d(Small());
  const std::vector<TokenId> shared = Text(1, 40);
  const RequestId a = d.Submit(shared + Text(2, 5), 12), b = d.Submit(shared + Text(3, 5), 12), c = d.Submit(Text(4, 30), 12);
  for (int i = 0; i < 6; ++i) d.Step();
  REQUIRE(d.tokens[a.v].size() > 0);
  const int32_t page = sched::TestPeer::Find(*d.s, a)->row.mirror_at(0, 0);
  CHECK(page == sched::TestPeer::Find(*d.s, b)->row.mirror_at(0, 0));
  d.s->SuspectPage(0, static_cast<uint32_t>(page));
  CHECK(d.s->running() == 1);
  CHECK(d.log.count(Severity::kSequence) == 2);
  CHECK(d.s->Pools()[0].quarantined == 1);
  d.log.findings.clear();
  d.Run();
  for (RequestId r : {a, b, c}) CHECK(d.tokens[r.v].size() == 12);
  CHECK(d.Wrong() == "");
  CHECK(d.s->Pools()[0].quarantined == 1);
}

TEST_CASE("pages that are lost while all are promised: the youngest gives way, at once") {
  sched::SchedulerConfig c;
  c.cache.page_size = 4;
  c.cache.groups = {{0, 20, 0}};
  c.max_running = 2;
  c.prefill_chunk = 32;
  c.max_seq_len = 76;
  c.audit_period = 1;
  for (const uint32_t in_flight : {0u, 1u}) {
    Driver d(c);
    REQUIRE(d.error == "");
    d.Submit(Text(1, 8), 1);
    d.Run();
    // Ten pages each: all of the pool. They take nine to begin with; two hold the first one's text.
    const RequestId a = d.Submit(Text(2, 33), 7), b = d.Submit(Text(3, 33), 7);
    while (d.tokens[b.v].empty()) REQUIRE(d.Step());
    REQUIRE(d.s->Pools()[0].reserved == 2);
    REQUIRE(d.s->Pools()[0].evictable == 2);
    const kv::Ledger& ledger = sched::TestPeer::ledger(*d.s);
    uint32_t page = 0;
    while (ledger.arena(0).word(page).ref() != 1 || !ledger.arena(0).word(page).indexed()) ++page;
    if (in_flight > 0) REQUIRE(d.Launch());
    d.s->SuspectPage(0, page);
    CHECK(d.s->running() == 1);
    CHECK(ledger.Available(0) >= d.s->Pools()[0].reserved);
    d.Run();
    CAPTURE(in_flight);
    CHECK(d.log.findings.size() == 1);  // the page itself
    CHECK(d.s->counters().preemptions == 1);
    for (RequestId r : {a, b}) CHECK(d.tokens[r.v].size() == 7);
    d.log.findings.clear();
    CHECK(d.Wrong() == "");
  }
}

TEST_CASE("everything is looked at once when nothing is left to do") {
  sched::SchedulerConfig c = Small();
  c.audit_period = 256;
  Driver d(c);
  const RequestId r = d.Submit(Text(1, 20), 3);
  while (!d.ended.count(r.v)) REQUIRE(d.Step());
  CHECK(d.s->counters().audits == 0);
  // Damage that no edit will meet: a cached page's word says one reference more.
  kv::Arena& arena = kv::TestPeer::arena(sched::TestPeer::ledger(*d.s), 0);
  uint32_t page = 0;
  while (arena.word(page).kind() != kv::PageKind::kHeld) ++page;
  const kv::StateWord w = arena.word(page);
  kv::TestPeer::StompWord(arena, page, kv::StateWord::Make(w.kind(), w.indexed(), w.ref() + 1, w.generation()));
  CHECK(d.log.findings.empty());
  CHECK(!d.Step());
  CHECK(d.s->counters().audits == 1);
  CHECK(!d.log.findings.empty());
  d.log.findings.clear();
  CHECK(!d.Step());
  CHECK(d.s->counters().audits == 1);  // nothing happened since
  CHECK(d.Wrong() == "");
}

TEST_CASE("pools grow and shrink under load without a failed request") {
  Driver d(Small());
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 12; ++i) ids.push_back(d.Submit(Text(1, 20) + Text(i + 2, 30), 25));
  for (int i = 0; i < 5; ++i) d.Step();
  d.s->Resize({.operation = 1, .full_pages = 260, .window_pages = 140});
  CHECK(d.s->resize().phase == sched::ResizeState::Phase::kDone);
  CHECK(d.s->Pools()[0].capacity == 260);
  for (int i = 0; i < 5; ++i) d.Step();
  d.s->Resize({.operation = 2, .full_pages = 90, .window_pages = 40});
  for (int i = 0; i < 400 && d.s->resize().phase == sched::ResizeState::Phase::kRunning; ++i) d.Step();
  CHECK(d.s->resize().phase == sched::ResizeState::Phase::kDone);
  CHECK(d.s->Pools()[0].capacity == 90);
  CHECK(d.s->Pools()[1].capacity == 40);
  CHECK(d.Wrong() == "");
  d.Run();
  for (RequestId r : ids) CHECK(d.tokens[r.v].size() == 25);
  CHECK(d.Wrong() == "");
}

TEST_CASE("a resize below the floor is refused with numbers, and a running one can be cancelled") {
  Driver d(Small());
  d.s->Resize({.operation = 1, .full_pages = 100, .window_pages = 5});
  CHECK(d.s->resize().phase == sched::ResizeState::Phase::kRefused);
  CHECK(d.s->resize().message.find("5 pages") != std::string::npos);
  CHECK(d.s->Pools()[0].capacity == 200);
  d.s->Resize({.operation = 2, .full_pages = 1000});
  CHECK(d.s->resize().phase == sched::ResizeState::Phase::kRefused);
  CHECK(d.s->resize().message.find("260") != std::string::npos);
  // Promised pages keep a shrink waiting.
  const RequestId a = d.Submit(Text(1, 100), 250), b = d.Submit(Text(2, 100), 250);
  for (int i = 0; i < 5; ++i) d.Step();
  d.s->Resize({.operation = 3, .full_pages = 100});
  CHECK(d.s->resize().phase == sched::ResizeState::Phase::kRunning);
  d.Step();
  d.s->Resize({.operation = 3, .cancel = true});
  CHECK(d.s->resize().phase == sched::ResizeState::Phase::kCancelled);
  d.Run();
  CHECK(d.s->Pools()[0].capacity == 200);
  CHECK(d.ended.size() == 2);
  CHECK(d.tokens[a.v].size() + d.tokens[b.v].size() == 500);
  CHECK(d.Wrong() == "");
}

TEST_CASE("requests wait for pages instead of failing, in the order they came") {
  sched::SchedulerConfig c = Small(1);
  c.cache.groups = {{0, 50, 0}, {8, 100, 0}};
  Driver d(c);
  const RequestId a = d.Submit(Text(1, 20), 20), big = d.Submit(Text(2, 40), 8), small = d.Submit(Text(3, 2), 2);
  d.Step();
  CHECK(d.s->running() == 1);
  CHECK(d.s->waiting() == 2);  // the small one would fit, but would take from what the big one waits for
  d.Run();
  CHECK(d.ended.size() == 3);
  CHECK(d.tokens[a.v].size() == 20);
  CHECK(d.tokens[big.v].size() == 8);
  CHECK(d.tokens[small.v].size() == 2);
  CHECK(d.s->counters().deferred >= 1);
  CHECK(d.Wrong() == "");
}

TEST_CASE("nothing waits for ever") {
  Driver d(Small());
  const RequestId r = d.Submit(Text(1, 40), 4);
  // Every page of the full pool is lost while the request waits.
  kv::Ledger& ledger = sched::TestPeer::ledger(*d.s);
  for (uint32_t p = 0; p < 200; ++p) ledger.Quarantine(kv::PageId(0, p));
  d.Run();
  CHECK(d.ended[r.v].end == EndReason::kFailed);
  CHECK(d.ended[r.v].message.find("40 tokens") != std::string::npos);
  CHECK(d.log.findings.size() > 0);
}

TEST_CASE("a full queue and a number used twice are answers, not crashes") {
  sched::SchedulerConfig c = Small();
  c.max_waiting = 2;
  Driver d(c);
  d.Submit(Text(1, 8), 2);
  d.Submit(Text(2, 8), 2);
  const RequestId third = d.Submit(Text(3, 8), 2);
  CHECK(d.ended[third.v].end == EndReason::kFailed);
  sched::SubmitCommand again;
  again.request = RequestId(1);
  again.tokens = Text(9, 5);
  d.s->Submit(std::move(again));
  CHECK(d.log.findings.size() == 1);
  d.log.findings.clear();
  d.Run();
  CHECK(d.ended.size() == 3);
  CHECK(d.Wrong() == "");
}

TEST_CASE("results of the wrong step are a structural finding") {
  Driver d(Small());
  d.Submit(Text(1, 8), 4);
  d.Launch();
  sched::StepResult wrong = d.queue.front();
  wrong.step = StepNo(77);
  d.s->Apply(wrong);
  CHECK(d.log.count(Severity::kStructural) == 1);
  wrong = d.queue.front();
  wrong.sampled.clear();
  d.s->Apply(wrong);
  CHECK(d.log.count(Severity::kStructural) == 2);
  CHECK(d.s->outstanding_steps() == 1);
}

TEST_CASE("a resumed request goes on after its last token") {
  Driver whole(Small());
  const RequestId r = whole.Submit(Text(1, 30), 20);
  whole.Run();
  const std::vector<TokenId> answer = whole.tokens[r.v];
  Driver resumed(Small());
  sched::SubmitCommand c;
  c.request = RequestId(500);
  c.tokens = Text(1, 30);
  c.tokens.insert(c.tokens.end(), answer.begin(), answer.begin() + 7);
  c.prompt_tokens = 30;
  c.max_tokens = 20;
  resumed.engine.Know(c.request, 0);
  resumed.s->Submit(c);
  resumed.Run();
  CHECK(resumed.tokens[500] == std::vector<TokenId>(answer.begin() + 7, answer.end()));
  // Resumed after its last token: nothing is left to do.
  c.request = RequestId(501);
  c.tokens.insert(c.tokens.end(), answer.begin() + 7, answer.end());
  resumed.s->Submit(c);
  resumed.Run();
  CHECK(resumed.ended[501].end == EndReason::kLength);
  CHECK(resumed.Wrong() == "");
}

TEST_CASE("impossible settings are refused with what would work") {
  const auto refused = [](sched::SchedulerConfig c, const char* words) {
    const auto created = sched::Scheduler::Create(c, nullptr);
    CHECK(!created.ok());
    INFO(created.status().message());
    CHECK(std::string(created.status().message()).find(words) != std::string::npos);
  };
  sched::SchedulerConfig c = Small();
  c.cache.page_size = 12;
  refused(c, "power of two");
  c = Small();
  c.cache.groups.clear();
  refused(c, "groups");
  c = Small();
  c.max_running = 0;
  refused(c, "max-running");
  c = Small();
  c.prefill_chunk = 0;
  refused(c, "chunk");
  c = Small();
  c.cache.groups[1].pages = 3;
  refused(c, "at least");
  c = Small();
  c.cache.groups[1].window = 0;
  refused(c, "full-attention");
  c = Small();
  c.max_seq_len = 1;
  refused(c, "max-seq-len");
  c = Small(1);
  c.cache.groups[0].reserve_pages = 1u << 25;
  refused(c, "larger page size");
}

TEST_CASE("pool states sum to capacity at every step") {
  Driver d(Small());
  for (uint32_t i = 0; i < 9; ++i) d.Submit(Text(1, 30) + Text(i, 25), 12);
  do {
    for (const kv::PoolView& p : d.s->Pools()) {
      CHECK(p.capacity == p.free + p.held + p.evictable + p.retiring + p.quarantined);
      CHECK(p.capacity + p.unbacked == (p.window == 0 ? 260u : 140u));
    }
  } while (d.Step());
  const sched::SchedulerCounters& c = d.s->counters();
  CHECK(c.prompt_tokens == 9 * 55);
  CHECK(c.prompt_tokens == c.cached_tokens + c.computed_prompt_tokens);
  CHECK(c.generated_tokens == 9 * 12);
}

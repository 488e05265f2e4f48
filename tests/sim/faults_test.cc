// T5: twelve ways to damage the ledger's memory, under load. Each must be noticed within the audit period and contained:
// after that nobody reads a wrong page, everybody finishes with the right answer, and the process lives.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>

#include "tests/sim/driver.h"
#include "tests/sim/traffic.h"

using namespace holdfast;
using kv::PageKind;
using kv::StateWord;
using Peer = kv::TestPeer;

namespace {

constexpr uint32_t kAuditPeriod = 64;

struct Scene {
  kv::Ledger& ledger;
  kv::SeqRow& row;      // of a running request
  kv::SeqRow& other;
  sim::Rng& rng;
  kv::Arena& full() { return Peer::arena(ledger, 0); }
  kv::Arena& window() { return Peer::arena(ledger, 1); }
  uint32_t Held(kv::Arena& arena) {
    std::vector<uint32_t> held;
    for (uint32_t p = 0; p < arena.size(); ++p) {
      if (arena.word(p).kind() == PageKind::kHeld) held.push_back(p);
    }
    return held[rng.Below(static_cast<uint32_t>(held.size()))];
  }
  uint32_t Free(kv::Arena& arena) {
    std::vector<uint32_t> free;
    for (uint32_t p = 0; p < arena.size(); ++p) {
      if (arena.word(p).kind() == PageKind::kFree) free.push_back(p);
    }
    return free[rng.Below(static_cast<uint32_t>(free.size()))];
  }
};

struct Fault {
  const char* name;
  std::function<void(Scene&)> inject;
};

void DropOnly(Scene& s) {
  const kv::PageRef& last = s.row.at(0, s.row.blocks() - 1);
  s.full().Drop(Peer::Forge(0, last.page(), last.generation()));
}

const std::vector<Fault>& Faults() {
  static const std::vector<Fault> faults = {
      {"free page listed twice", [](Scene& s) { Peer::PushRaw(s.full(), s.Free(s.full())); }},
      {"owned page listed", [](Scene& s) { Peer::PushRaw(s.full(), s.Held(s.full())); }},
      {"freed without leaving the row", DropOnly},
      {"dropped twice", [](Scene& s) { DropOnly(s); DropOnly(s); }},
      {"state flipped to free", [](Scene& s) {
         const uint32_t p = s.Held(s.full());
         const StateWord w = s.full().word(p);
         Peer::StompWord(s.full(), p, StateWord::Make(PageKind::kFree, w.indexed(), w.ref(), w.generation()));
       }},
      {"indexed bit flipped", [](Scene& s) {
         const uint32_t p = s.Held(s.full());
         const StateWord w = s.full().word(p);
         Peer::StompWord(s.full(), p, StateWord::Make(w.kind(), !w.indexed(), w.ref(), w.generation()));
       }},
      {"one reference too many", [](Scene& s) {
         const uint32_t p = s.Held(s.window());
         const StateWord w = s.window().word(p);
         Peer::StompWord(s.window(), p, StateWord::Make(w.kind(), w.indexed(), w.ref() + 1, w.generation()));
       }},
      {"list entry lost", [](Scene& s) { Peer::LoseFree(s.full()); }},
      {"row entry overwritten by another's", [](Scene& s) {
         const uint32_t i = s.rng.Below(s.row.blocks());
         const kv::PageRef& theirs = s.other.at(0, s.other.blocks() - 1);
         const uint32_t page = theirs.page(), generation = theirs.generation();
         Peer::Forget(Peer::entry(s.row, 0, i));
         Peer::entry(s.row, 0, i) = Peer::Forge(0, page, generation);
         Peer::SetMirror(s.row, 0, i, static_cast<int32_t>(page));
       }},
      {"row entry of an earlier generation", [](Scene& s) {
         kv::PageRef& last = Peer::entry(s.row, 0, s.row.blocks() - 1);
         const uint32_t page = last.page(), generation = last.generation();
         Peer::Forget(last);
         last = Peer::Forge(0, page, generation - 1);
       }},
      {"row entry forgotten", [](Scene& s) { Peer::PopEntry(s.row, 0); }},
      {"window page orphaned", [](Scene& s) {
         kv::PageRef& last = Peer::entry(s.row, 1, s.row.blocks() - 1);
         while (s.window().free_listed() == 0 && s.ledger.EvictOne(1)) {
         }
         kv::PageRef fresh = s.window().Take();
         Peer::tally(s.ledger, 1).rows += s.window().Hash(fresh.page());
         Peer::Forget(last);
         Peer::SetMirror(s.row, 1, s.row.blocks() - 1, static_cast<int32_t>(fresh.page()));
         last = std::move(fresh);
       }},
  };
  return faults;
}

struct Latency {
  uint32_t runs = 0, undetected = 0, worst = 0, replayed = 0, wrong_before = 0;
  std::map<std::string, uint32_t> by;
};

void RunFault(const Fault& fault, uint64_t seed, Latency* latency) {
  sched::SchedulerConfig c;
  c.cache.page_size = 4;
  c.cache.groups = {{0, 600, 0}, {8, 120, 0}};
  c.max_running = 4;
  c.prefill_chunk = 64;
  c.max_seq_len = 300;
  c.overlap_depth = seed % 2;
  c.audit_period = kAuditPeriod;
  sim::Driver d(c);
  REQUIRE(d.error == "");
  d.run_ahead = true;
  sim::Rng rng(seed);
  std::vector<std::pair<RequestId, std::pair<std::vector<TokenId>, uint32_t>>> asked;
  const std::vector<TokenId> shared = sim::Text(7, 60);
  int injected = -1, detected = -1;
  uint64_t wrong_reads_at_detection = 0;
  for (int step = 0; step < 400; ++step) {
    while (step < 300 && d.s->waiting() < 2) {
      std::vector<TokenId> prompt(shared.begin(), shared.begin() + rng.Between(10, 60));
      const std::vector<TokenId> own = sim::Text(seed * 1000 + asked.size(), rng.Between(3, 20));
      prompt.insert(prompt.end(), own.begin(), own.end());
      const uint32_t max_tokens = rng.Between(4, 40);
      const RequestId id = d.Submit(prompt, max_tokens);
      asked.push_back({id, {prompt, max_tokens}});
    }
    if (step >= static_cast<int>(60 + seed * 7 % 64) && injected < 0) {
      std::vector<sched::Sequence*> rows;
      for (sched::Sequence* q : sched::TestPeer::running(*d.s)) {
        if (q->row.blocks() > 1) rows.push_back(q);
      }
      if (rows.size() >= 2) {
        Scene scene{sched::TestPeer::ledger(*d.s), rows[seed % rows.size()]->row, rows[(seed + 1) % rows.size()]->row, rng};
        d.engine.tolerant = true;
        fault.inject(scene);
        injected = step;
      }
    }
    d.Round();
    if (injected >= 0 && detected < 0 && !d.log.findings.empty()) {
      detected = step;
      wrong_reads_at_detection = d.engine.wrong_reads;
    }
  }
  d.RunAhead();
  INFO(fault.name << " seed " << seed << "\n" << d.log.Text());
  REQUIRE(injected >= 0);
  ++latency->runs;
  CHECK(d.error == "");
  if (detected < 0) {
    ++latency->undetected;
  } else {
    latency->worst = std::max(latency->worst, static_cast<uint32_t>(detected - injected));
    latency->by[d.log.findings[0].kind]++;
    // One step may be in flight when it is noticed.
    CHECK(detected - injected <= static_cast<int>(kAuditPeriod) + 1);
    CHECK(d.engine.wrong_reads == wrong_reads_at_detection);
  }
  latency->wrong_before += d.engine.wrong_reads > 0;
  latency->replayed += static_cast<uint32_t>(d.log.count(Severity::kSequence));
  CHECK(d.log.count(Severity::kStructural) == 0);
  CHECK(d.ended.size() == asked.size());
  for (const auto& [id, what] : asked) {
    // Bit-identical to an undisturbed solo run.
    uint64_t tag = 1;
    for (TokenId t : what.first) tag = Mix64(tag ^ (t + 1ull));
    std::vector<TokenId> expected;
    for (uint32_t i = 0; i < what.second; ++i) {
      expected.push_back(static_cast<TokenId>(Mix64(tag ^ 0x73) % 30000 + 10));
      tag = Mix64(tag ^ (expected.back() + 1ull));
    }
    CHECK(d.tokens[id.v] == expected);
  }
  d.log.findings.clear();
  d.engine.tolerant = false;
  CHECK(d.Wrong() == "");
  CHECK(d.s->running() + d.s->waiting() == 0);
}

}  // namespace

TEST_CASE("twelve kinds of damage are noticed within the audit period and contained") {
  REQUIRE(Faults().size() == 12);
  for (const Fault& fault : Faults()) {
    Latency latency;
    for (uint64_t seed = 1; seed <= 20; ++seed) RunFault(fault, seed, &latency);
    std::string by;
    for (const auto& [kind, n] : latency.by) by += fmt::format(" {} x{}", kind, n);
    fmt::print("fault: {:36} runs {} undetected {} worst latency {} steps, runs with wrong reads before {}, replayed {};{}\n", fault.name,
               latency.runs, latency.undetected, latency.worst, latency.wrong_before, latency.replayed, by);
    CHECK(latency.undetected == 0);
  }
}

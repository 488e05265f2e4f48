#include "supervisor/request_table.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>
#include <rapidcheck/catch.h>

#include <algorithm>
#include <map>

#include "proto/base/random.h"

namespace holdfast::supervisor {
namespace {

const Instant kNow{std::chrono::hours(1)};

RequestEntry Entry(uint64_t session, uint64_t client, uint64_t fingerprint = 0, uint32_t generated = 0) {
  RequestEntry e;
  e.session = SessionId(session);
  e.client_id = client;
  e.key.fingerprint = fingerprint != 0 ? fingerprint : session * 1000 + client;
  e.generated = generated;
  return e;
}

TEST_CASE("Requests are routed by id, found by session, and end once") {
  RequestTable t(PoisonOptions{});
  const RequestId a = t.Add(kNow, Entry(1, 7)).id;
  const RequestId b = t.Add(kNow, Entry(2, 7)).id;  // the same client_id in another session is another request
  CHECK(a != b);
  CHECK_FALSE(t.CanAdd(SessionId(1), 7));
  CHECK(t.CanAdd(SessionId(1), 8));
  CHECK(t.Find(SessionId(2), 7)->id == b);
  CHECK(t.waiting() == 2);
  t.NoteAdmitted(*t.Find(a), 3);
  t.NoteAdmitted(*t.Find(a), 3);  // twice counts once
  CHECK(t.running() == 1);
  CHECK(t.waiting() == 1);
  t.NoteTokens(*t.Find(a), 2);
  CHECK(t.Find(a)->generated == 2);
  t.End(a, true);
  t.End(a, true);
  CHECK(t.Find(a) == nullptr);
  CHECK(t.running() == 0);
  CHECK(t.CanAdd(SessionId(1), 7));
  CHECK(t.OfSession(SessionId(2)) == std::vector<RequestId>{b});
  CHECK(t.OfSession(SessionId(3)).empty());
}

TEST_CASE("A loss ends every request, and says lost the first time") {
  RequestTable t(PoisonOptions{});
  for (uint64_t i = 0; i < 5; ++i) t.NoteAdmitted(t.Add(kNow, Entry(1, i)), 0);
  const auto lost = t.LoseAll(kNow, true);
  CHECK(lost.size() == 5);
  CHECK(std::none_of(lost.begin(), lost.end(), [](const LostRequest& l) { return l.poison; }));
  CHECK(t.size() == 0);
  CHECK(t.running() == 0);
  CHECK(t.LoseAll(kNow, true).empty());
}

TEST_CASE("A request in flight at two losses without advancing is poison") {
  RequestTable t(PoisonOptions{});
  t.Add(kNow, Entry(1, 1, 42));
  CHECK_FALSE(t.LoseAll(kNow, true)[0].poison);
  CHECK_FALSE(t.poison().IsQuarantined(kNow, {42, 0}));
  t.Add(kNow, Entry(1, 2, 42));
  CHECK(t.LoseAll(kNow, true)[0].poison);
  CHECK(t.poison().IsQuarantined(kNow, {42, 0}));
  CHECK_FALSE(t.poison().IsQuarantined(kNow, {42, 1}));  // another choice of the same prompt is another computation
  CHECK(t.poison().Quarantined(kNow).size() == 1);
  CHECK_FALSE(t.poison().IsQuarantined(kNow + std::chrono::minutes(11), {42, 0}));
  t.poison().NoteRefused({42, 0});
  CHECK(t.poison().Quarantined(kNow)[0].refused == 1);
  CHECK(t.poison().Quarantined(kNow)[0].losses == 2);
  CHECK(t.poison().Clear(kNow, 43) == 0);
  CHECK(t.poison().IsQuarantined(kNow, {42, 0}));
  CHECK(t.poison().Clear(kNow, 42) == 1);
  CHECK_FALSE(t.poison().IsQuarantined(kNow, {42, 0}));
  CHECK(t.poison().size() == 0);  // and it begins with a clean slate: the next loss is its first
  CHECK(t.poison().Clear(kNow) == 0);
}

TEST_CASE("A loss is not held against a request that only waited for a slot") {
  // 42 runs and gets on, 43 is never admitted. Which of 43's losses makes it poison, 0 = none.
  const auto condemned_at = [](CommandSeq consumed, uint32_t slots) {
    RequestTable t(PoisonOptions{});
    for (uint32_t life = 1; life <= 10; ++life) {
      RequestEntry& runs = t.Add(kNow, Entry(1, 1, 42, life * 10));
      runs.command = CommandSeq(1);
      t.NoteAdmitted(runs, 0);
      t.NoteTokens(runs, 5);
      t.Add(kNow, Entry(1, 2, 43)).command = CommandSeq(2);
      for (const LostRequest& l : t.LoseAll(kNow + life * std::chrono::minutes(3), true, {consumed, slots})) {
        if (l.entry.key.fingerprint == 43 && l.poison) return life;
      }
    }
    return 0u;
  };
  CHECK(condemned_at(CommandSeq(2), 1) == 0);
  CHECK(condemned_at(CommandSeq(1), 1) == 2);  // its arrival may be what the worker dies of
  CHECK(condemned_at(CommandSeq(2), 2) == 2);  // a slot was free: the step that was lost may have been its first
}

TEST_CASE("A stop of our own and losses nobody in flight can cause do not count") {
  RequestTable t(PoisonOptions{});
  for (int i = 0; i < 5; ++i) {
    t.Add(kNow, Entry(1, 1, 42));
    CHECK_FALSE(t.LoseAll(kNow, false)[0].poison);
  }
}

// Generates one token a life, which then ends. Returns the loss at which it was failed, 0 = never.
int LivesOfOneToken(RequestTable& t, Duration apart, int lives, int neighbours) {
  std::map<uint64_t, uint32_t> generated;
  for (int i = 0; i < lives; ++i) {
    for (uint64_t f = 42; f <= 42 + static_cast<uint64_t>(neighbours); ++f) {
      RequestEntry& e = t.Add(kNow + i * apart, Entry(1, f, f, generated[f]));
      if (e.state == RequestState::kHeld) continue;
      t.NoteAdmitted(e, 0);
      t.NoteTokens(e, 1);
      ++generated[f];
    }
    for (const LostRequest& l : t.LoseAll(kNow + i * apart, true)) {
      if (l.poison) return i + 1;
    }
  }
  return 0;
}

TEST_CASE("A stream that gets on between losses lives through any number of them, if they are not close together") {
  RequestTable t(PoisonOptions{});
  CHECK(LivesOfOneToken(t, std::chrono::minutes(3), 50, 0) == 0);
}

TEST_CASE("A request that ends each life after one more token is failed at the fifth loss within the window") {
  RequestTable t(PoisonOptions{});
  CHECK(LivesOfOneToken(t, std::chrono::seconds(2), 50, 0) == 5);
  CHECK(t.poison().IsQuarantined(kNow + std::chrono::seconds(20), {42, 0}));
  // With neighbours that share its losses it takes one life more: from the fifth loss on they are sent one at a time.
  RequestTable crowd(PoisonOptions{});
  CHECK(LivesOfOneToken(crowd, std::chrono::seconds(2), 50, 3) == 6);
}

TEST_CASE("Whoever is let in on probation after five losses and ends by itself is cleared of them") {
  RequestTable t(PoisonOptions{});
  for (int i = 0; i < 5; ++i) {
    for (uint64_t f : {1, 2}) {
      RequestEntry& e = t.Add(kNow, Entry(1, f, f, static_cast<uint32_t>(i)));
      t.NoteAdmitted(e, 0);
      t.NoteTokens(e, 1);
    }
    for (const LostRequest& l : t.LoseAll(kNow, true)) REQUIRE_FALSE(l.poison);
  }
  RequestEntry& first = t.Add(kNow, Entry(1, 1, 1, 5));
  CHECK(first.state == RequestState::kQueued);
  CHECK(t.Add(kNow, Entry(1, 2, 2, 5)).state == RequestState::kHeld);
  t.NoteTokens(first, 1);
  CHECK_FALSE(t.ReleaseHeld(kNow));  // a token is no proof here
  t.End(first.id, true);
  CHECK(t.ReleaseHeld(kNow));
  CHECK_FALSE(t.poison().OnProbation(kNow, {1, 0}));
}

TEST_CASE("The poison is failed, the bystanders that got on are not") {
  RequestTable t(PoisonOptions{});
  std::map<uint64_t, uint32_t> position;
  bool caught = false;
  for (int round = 0; round < 3 && !caught; ++round) {
    for (uint64_t f = 1; f <= 4; ++f) {
      RequestEntry& e = t.Add(kNow, Entry(1, f, f, position[f]));
      t.NoteAdmitted(e, 0);
      if (f != 3) {
        t.NoteTokens(e, 5);
        position[f] += 5;
      }
    }
    for (const LostRequest& l : t.LoseAll(kNow, true)) {
      CHECK((!l.poison || l.entry.key.fingerprint == 3));
      caught = caught || l.poison;
    }
  }
  CHECK(caught);
}

// Four requests, one of which kills the worker the moment it is computed, before any other gets a token: the hard case.
TEST_CASE("Suspects that nothing tells apart go on probation, one at a time, and only the guilty is failed") {
  for (uint64_t guilty = 1; guilty <= 4; ++guilty) {
    RequestTable t(PoisonOptions{});
    std::map<uint64_t, uint32_t> generated;
    std::map<uint64_t, bool> done;
    bool caught = false;
    int losses = 0;
    while (done.size() < 4) {
      REQUIRE(++losses < 10);
      for (uint64_t f = 1; f <= 4; ++f) {
        if (!done[f]) t.Add(kNow, Entry(1, f, f, generated[f]));
        if (!done[f]) done.erase(f);
      }
      // The worker: computes everything that was sent; dies at the guilty one first.
      for (bool alive = true; alive && t.size() > 0;) {
        const auto list = t.List(10);
        const auto sent = [&](const RequestEntry& e) { return e.state != RequestState::kHeld; };
        REQUIRE(std::any_of(list.begin(), list.end(), sent));
        for (const RequestEntry& e : list) {
          if (sent(e) && e.key.fingerprint == guilty) alive = false;
        }
        if (!alive) break;
        for (const RequestEntry& e : list) {
          if (!sent(e)) continue;
          RequestEntry* entry = t.Find(e.id);
          t.NoteAdmitted(*entry, 0);
          t.NoteTokens(*entry, 1);
          if (++generated[e.key.fingerprint] >= 3) {
            done[e.key.fingerprint] = true;
            t.End(e.id, true);
          }
        }
        while (t.ReleaseHeld(kNow)) {
        }
      }
      for (const LostRequest& l : t.LoseAll(kNow, true)) {
        if (!l.poison) continue;
        CHECK(l.entry.key.fingerprint == guilty);
        caught = true;
        done[l.entry.key.fingerprint] = true;
      }
    }
    CHECK(caught);
    CHECK(losses <= 5);
  }
}

TEST_CASE("Counts and routes agree with a plain model, whatever happens") {
  rc::prop("model", [] {
    RequestTable t(PoisonOptions{});
    std::map<RequestId, std::pair<uint64_t, bool>> model;  // session, running
    const auto steps = *rc::gen::inRange(0, 200);
    uint64_t random = *rc::gen::arbitrary<uint64_t>();
    const auto next = [&random](uint64_t below) { return (random = Mix64(random)) % below; };
    for (int i = 0; i < steps; ++i) {
      switch (next(6)) {
        case 0: case 1: {
          const uint64_t session = next(4), client = next(8);
          if (!t.CanAdd(SessionId(session), client)) break;
          const RequestId id = t.Add(kNow, Entry(session, client, next(20) + 1)).id;
          RC_ASSERT(model.emplace(id, std::make_pair(session, false)).second);
          break;
        }
        case 2:
          for (auto& [id, m] : model) {
            RequestEntry* e = t.Find(id);
            RC_ASSERT(e != nullptr);
            if (e->state == RequestState::kHeld || next(2) == 0) continue;
            t.NoteAdmitted(*e, 0);
            m.second = true;
            t.NoteTokens(*e, static_cast<uint32_t>(next(3)));
          }
          break;
        case 3:
          if (!model.empty()) {
            const RequestId id = model.begin()->first;
            t.End(id, next(2) == 0);
            model.erase(id);
          }
          break;
        case 4: t.ReleaseHeld(kNow); break;
        case 5:
          if (next(4) == 0) {
            RC_ASSERT(t.LoseAll(kNow, next(2) == 0).size() == model.size());
            model.clear();
          }
          break;
      }
      RC_ASSERT(t.size() == model.size());
      const auto running = static_cast<size_t>(std::count_if(model.begin(), model.end(), [](const auto& kv) { return kv.second.second; }));
      RC_ASSERT(t.running() == running);
      RC_ASSERT(t.waiting() == model.size() - running);
      // Somebody can always go on: requests are held only while another one of theirs is in flight.
      t.ReleaseHeld(kNow);
      RC_ASSERT(t.size() == 0 || t.sent() > 0);
    }
  });
}

TEST_CASE("The register of suspects is bounded") {
  PoisonOptions o;
  o.max_records = 100;
  PoisonRegister p(o);
  for (uint64_t i = 0; i < 1000; ++i) {
    const Suspect s{{i, 0}, 0};
    p.OnLoss(kNow + std::chrono::milliseconds(i), {&s, 1});
  }
  CHECK(p.size() <= 100);
}

}  // namespace
}  // namespace holdfast::supervisor

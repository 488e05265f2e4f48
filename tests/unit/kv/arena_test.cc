// T1 and T11: every state word under every edit, against a table written from the contract.
#include <catch2/catch.hpp>

#include "tests/sim/test_peer.h"
#include "worker/kv/arena.h"

using namespace holdfast;
using namespace holdfast::kv;

namespace {

enum class Op { kTake, kShare, kDrop, kIndexAdd, kIndexDel, kQuarantine };

struct Expected {
  bool done = false;   // the edit counted
  StateWord word;      // afterwards
};

// The contract, edit by edit. g = generation of page and handle.
Expected Contract(Op op, PageKind kind, bool indexed, uint32_t ref, uint32_t g) {
  const StateWord same = StateWord::Make(kind, indexed, ref, g);
  const bool held = kind == PageKind::kHeld && ref > 0;
  const bool droppable = (kind == PageKind::kHeld || kind == PageKind::kQuarantined) && ref > 0;
  const PageKind gone = kind == PageKind::kQuarantined ? PageKind::kQuarantined : PageKind::kFree;
  switch (op) {
    case Op::kTake:
      if (kind == PageKind::kFree && ref == 0 && !indexed) return {true, StateWord::Make(PageKind::kHeld, false, 1, g)};
      return {false, same};
    case Op::kShare:
      if (held && ref < kMaxRef) return {true, StateWord::Make(kind, indexed, ref + 1, g)};
      return {false, same};
    case Op::kDrop:
      if (!droppable || (indexed && ref == 1)) return {false, same};
      if (ref > 1) return {true, StateWord::Make(kind, indexed, ref - 1, g)};
      return {true, StateWord::Make(gone, false, 0, g + 1)};
    case Op::kIndexAdd:
      if (held && !indexed && ref < kMaxRef) return {true, StateWord::Make(kind, true, ref + 1, g)};
      return {false, same};
    case Op::kIndexDel:
      if (!droppable || !indexed) return {false, same};
      if (ref > 1) return {true, StateWord::Make(kind, false, ref - 1, g)};
      return {true, StateWord::Make(gone, false, 0, g + 1)};
    case Op::kQuarantine:
      if (kind == PageKind::kQuarantined) return {true, same};
      if (kind == PageKind::kFree || kind == PageKind::kHeld) return {true, StateWord::Make(PageKind::kQuarantined, indexed, ref, g)};
      return {false, same};
  }
  return {};
}

}  // namespace

TEST_CASE("every state word under every edit does what the contract says") {
  int transitions = 0;
  for (int k = 0; k < 6; ++k) {
    for (uint32_t ref : {0u, 1u, 2u, kMaxRef}) {
      for (bool indexed : {false, true}) {
        for (Op op : {Op::kTake, Op::kShare, Op::kDrop, Op::kIndexAdd, Op::kIndexDel, Op::kQuarantine}) {
          for (bool right_generation : {true, false}) {
            Arena arena(1, 4, 4);
            // One page of four; the others are out of the way.
            for (int i = 0; i < 3; ++i) {
              PageRef other = arena.Take();
              TestPeer::Forget(other);
            }
            const uint32_t page = 3, g = 77;
            const PageKind kind = static_cast<PageKind>(k);
            TestPeer::SetWord(arena, page, StateWord::Make(kind, indexed, ref, g));
            PageRef handle = TestPeer::Forge(1, page, right_generation ? g : g - 1);
            Expected expected = Contract(op, kind, indexed, ref, g);
            if (!right_generation && op != Op::kTake && op != Op::kQuarantine) expected = {false, StateWord::Make(kind, indexed, ref, g)};
            CAPTURE(k, ref, indexed, static_cast<int>(op), right_generation);
            PageRef got;
            bool done = false;
            switch (op) {
              case Op::kTake: got = arena.Take(); done = static_cast<bool>(got); break;
              case Op::kShare: got = arena.Share(handle); done = static_cast<bool>(got); break;
              case Op::kDrop: done = arena.Drop(std::move(handle)); break;
              case Op::kIndexAdd: got = arena.IndexAdd(handle); done = static_cast<bool>(got); break;
              case Op::kIndexDel: done = arena.IndexDel(std::move(handle)); break;
              case Op::kQuarantine: done = arena.Quarantine(page); break;
            }
            const StateWord word = arena.word(page);
            CHECK(done == expected.done);
            CHECK(word == expected.word);
            // A refusal is an event; Take from a list without a page is not one when nothing is wrong with the list.
            if (!done && !(op == Op::kTake && kind == PageKind::kFree)) CHECK(!arena.events().empty());
            if (done) CHECK(arena.events().empty());
            if (got) CHECK(got.page() == page);
            TestPeer::Forget(got);
            TestPeer::Forget(handle);
            ++transitions;
          }
        }
      }
    }
  }
  CHECK(transitions == 6 * 4 * 2 * 6 * 2);
}

TEST_CASE("pages come back first in, first out, in a new generation") {
  Arena arena(0, 3, 3);
  PageRef a = arena.Take(), b = arena.Take(), c = arena.Take();
  CHECK(!arena.Take());
  CHECK(arena.events().empty());
  const uint32_t generation = b.generation(), page = b.page();
  arena.Drop(std::move(b));
  arena.Drop(std::move(a));
  PageRef again = arena.Take();
  CHECK(again.page() == page);
  CHECK(again.generation() == generation + 1);
  // The handle of the page's former life is refused, even though the page is held.
  PageRef stale = TestPeer::Forge(0, page, generation);
  CHECK(!arena.Share(stale));
  CHECK(!arena.Drop(std::move(stale)));
  CHECK(arena.events().size() == 2);
  CHECK(arena.word(page).ref() == 1);
  arena.Drop(std::move(again));
  arena.Drop(std::move(c));
  CHECK(arena.PartitionHolds());
  CHECK(arena.FreeListHolds());
}

TEST_CASE("a generation wraps and still tells lives apart") {
  Arena arena(0, 1, 1);
  TestPeer::SetWord(arena, 0, StateWord::Make(PageKind::kFree, false, 0, 0xFFFFFFFFu));
  PageRef ref = arena.Take();
  CHECK(ref.generation() == 0xFFFFFFFFu);
  arena.Drop(std::move(ref));
  CHECK(arena.word(0).generation() == 0);
  ref = arena.Take();
  PageRef stale = TestPeer::Forge(0, 0, 0xFFFFFFFFu);
  CHECK(!arena.Share(stale));
  TestPeer::Forget(stale);
  arena.Drop(std::move(ref));
  CHECK(arena.PartitionHolds());
}

TEST_CASE("an arena refuses pages of another group") {
  Arena full(0, 2, 2), window(1, 2, 2);
  PageRef ref = full.Take();
  CHECK(!window.Share(ref));
  CHECK(window.events().size() == 1);
  CHECK(full.word(ref.page()).ref() == 1);
  full.Drop(std::move(ref));
}

TEST_CASE("a broken free list is rebuilt from the state words") {
  SECTION("an owned page pushed") {
    Arena arena(0, 4, 4);
    PageRef mine = arena.Take();
    TestPeer::PushRaw(arena, mine.page());
    PageRef next = arena.Take();
    CHECK(next.page() != mine.page());
    CHECK(std::string(arena.events().at(0).what) == "pop_not_free");
    CHECK(arena.FreeListHolds());
    arena.Drop(std::move(next));
    arena.Drop(std::move(mine));
  }
  SECTION("an entry lost") {
    Arena arena(0, 2, 2);
    TestPeer::LoseFree(arena);
    PageRef a = arena.Take(), b = arena.Take();
    CHECK(static_cast<bool>(a));
    CHECK(static_cast<bool>(b));
    CHECK(a.page() != b.page());
    CHECK(!arena.events().empty());
    arena.Drop(std::move(a));
    arena.Drop(std::move(b));
  }
}

TEST_CASE("the limit retires free pages at once and owned ones when they come back") {
  Arena arena(0, 6, 8);
  PageRef held[6];
  for (PageRef& ref : held) ref = arena.Take();
  for (uint32_t p : {0u, 5u}) arena.Drop(std::move(held[p]));
  arena.SetLimit(3);
  CHECK(arena.count(PageKind::kRetiring) == 1);
  CHECK(arena.held_above_limit() == 2);
  CHECK(arena.free_listed() == 1);
  arena.Drop(std::move(held[4]));
  CHECK(arena.count(PageKind::kRetiring) == 2);
  CHECK(arena.UnbackRetired() == 2);
  CHECK(arena.count(PageKind::kUnbacked) == 4);
  arena.SetLimit(8);
  CHECK(arena.free_listed() == 5);
  CHECK(arena.held_above_limit() == 0);
  CHECK(arena.PartitionHolds());
  CHECK(arena.FreeListHolds());
  for (uint32_t p : {1u, 2u, 3u}) arena.Drop(std::move(held[p]));
  CHECK(arena.free_listed() == 8);
}

// The prefix index and the eviction order.
#include <catch2/catch.hpp>
#include <set>

#include "proto/base/random.h"
#include "tests/sim/test_peer.h"
#include "worker/kv/evict_heap.h"
#include "worker/kv/ledger.h"
#include "worker/kv/prefix_index.h"

using namespace holdfast;
using namespace holdfast::kv;

TEST_CASE("the heap gives (class, due, id) order through inserts, removals and new keys") {
  EvictHeap heap;
  heap.Reserve(200);
  std::set<std::tuple<uint32_t, uint64_t, uint32_t>> model;
  std::vector<std::pair<uint8_t, uint64_t>> keys(200);
  uint64_t state = 5;
  for (int i = 0; i < 20000; ++i) {
    state = Mix64(state);
    const NodeId n(static_cast<uint32_t>(state % 200));
    const uint8_t cls = (state >> 20) % 3;
    const uint64_t stamp = (state >> 30) % 50;
    auto& key = keys[n.v];
    switch ((state >> 40) % 3) {
      case 0:
        if (!heap.Contains(n)) {
          key = {cls, stamp};
          heap.Insert(n, cls, stamp);
          model.insert({cls, stamp, n.v});
        }
        break;
      case 1:
        if (heap.Contains(n)) model.erase({key.first, key.second, n.v});
        heap.Remove(n);
        break;
      default:
        if (heap.Contains(n)) {
          model.erase({key.first, key.second, n.v});
          key = {cls, stamp};
          model.insert({cls, stamp, n.v});
        }
        heap.Rekey(n, cls, stamp);
    }
    REQUIRE(heap.size() == model.size());
    if (!model.empty()) REQUIRE(heap.Top().v == std::get<2>(*model.begin()));
  }
}

TEST_CASE("a chain hash that collides costs a comparison, not correctness") {
  std::vector<Arena> arenas;
  arenas.emplace_back(static_cast<uint8_t>(0), 8u, 8u);
  std::vector<GroupTally> tallies(1);
  PrefixIndex index(2, {0}, &arenas, &tallies);
  const NodeId root = index.EnsureRoot("");
  const TokenId one[] = {1, 2}, two[] = {3, 4}, three[] = {5, 6};
  const uint64_t same = 42;
  std::vector<PageRef> pages;
  const auto add = [&](NodeId parent, const TokenId* block) {
    pages.push_back(arenas[0].Take());
    const NodeId n = index.AddChild(parent, same, block);
    index.Attach(n, 0, arenas[0].IndexAdd(pages.back()));
    return n;
  };
  const NodeId a = add(root, one), b = add(root, two), c = add(a, one);
  CHECK(index.FindChild(root, same, one) == a);
  CHECK(index.FindChild(root, same, two) == b);
  CHECK(index.FindChild(a, same, one) == c);
  CHECK(index.FindChild(root, same, three) == kNoNode);
  CHECK(index.FindChild(b, same, one) == kNoNode);
  index.Release(b, 0);
  index.RemoveIfEmpty(b);
  CHECK(index.FindChild(root, same, two) == kNoNode);
  CHECK(index.FindChild(root, same, one) == a);
  for (PageRef& ref : pages) arenas[0].Drop(std::move(ref));
}

TEST_CASE("roots of salts come and go with what is under them") {
  std::vector<Arena> arenas;
  arenas.emplace_back(static_cast<uint8_t>(0), 4u, 4u);
  std::vector<GroupTally> tallies(1);
  PrefixIndex index(1, {0}, &arenas, &tallies);
  const NodeId a = index.EnsureRoot("a"), b = index.EnsureRoot("b");
  CHECK(a != b);
  CHECK(index.FindRoot("a") == a);
  index.Pin(a);
  index.Pin(b);
  index.Unpin(a);
  CHECK(index.FindRoot("a") == kNoNode);
  CHECK(index.FindRoot("b") == b);
  index.Unpin(b);
  CHECK(index.size() == 0);
}

namespace {

// A ledger with one row of three indexed blocks; damage is done by hand.
struct Indexed {
  SeqRow row{1};
  Ledger ledger{{.page_size = 1, .groups = {{0, 8, 0}}}, 2};  // behind the row: it lets go of it first
  std::vector<TokenId> tokens{7, 8, 9};
  std::vector<uint64_t> chain;

  Indexed() {
    for (TokenId t : tokens) chain.push_back(ChainHash(chain.empty() ? SaltHash("") : chain.back(), &t, 1));
    ledger.Adopt(&row, "", ledger.Lookup("", tokens, chain, 2));
    REQUIRE(ledger.ExtendTo(&row, 3));
    row.launched = row.settled = 3;
    uint32_t next_anchor = 0;
    ledger.Commit(&row, {.tokens = tokens, .chain = chain, .anchors = {}, .next_anchor = &next_anchor});
    REQUIRE(ledger.Audit().clean());
  }
  NodeId Owner(uint32_t block) { return ledger.index().owner(0, row.at(0, block).page()); }
  bool Suspects(uint32_t page) {
    const AuditReport report = ledger.Audit();
    return !report.clean() && !report.suspect_pages.empty() && report.suspect_pages[0][page];
  }
};

}  // namespace

TEST_CASE("the audit proves that what nodes name and who owns each page are the same") {
  SECTION("an owner that is another node") {
    Indexed x;
    const uint32_t page = x.row.at(0, 1).page();
    TestPeer::SetOwner(x.ledger, 0, page, x.Owner(2));
    CHECK(x.Suspects(page));
  }
  SECTION("a page without its owner") {
    Indexed x;
    const uint32_t page = x.row.at(0, 1).page();
    TestPeer::SetOwner(x.ledger, 0, page, kNoNode);
    CHECK(x.Suspects(page));
  }
  SECTION("a free page with an owner") {
    Indexed x;
    const uint32_t free = TestPeer::FreeHead(x.ledger.arena(0));
    TestPeer::SetOwner(x.ledger, 0, free, x.Owner(0));
    CHECK(x.Suspects(free));
  }
  SECTION("a page in two nodes") {
    Indexed x;
    const uint32_t page = x.row.at(0, 0).page(), generation = x.row.at(0, 0).generation(), lost = x.row.at(0, 2).page();
    PageRef& entry = TestPeer::NodeRef(x.ledger, x.Owner(2), 0);
    TestPeer::Forget(entry);
    entry = TestPeer::Forge(0, page, generation);
    CHECK(x.Suspects(page));
    CHECK(x.Suspects(lost));
  }
  SECTION("two audits say the same: nothing is left over from the first") {
    Indexed x;
    const uint32_t page = x.row.at(0, 1).page();
    TestPeer::SetOwner(x.ledger, 0, page, kNoNode);
    const uint64_t count = x.ledger.Audit().count;
    CHECK(x.ledger.Audit().count == count);
    TestPeer::SetOwner(x.ledger, 0, page, x.row.node);  // the wrong one
    TestPeer::SetOwner(x.ledger, 0, page, x.ledger.index().parent(x.row.node));
    CHECK(x.ledger.Audit().clean());
  }
}

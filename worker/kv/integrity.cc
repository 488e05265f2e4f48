// The ledger's checks and repairs: fingerprints, the full audit, un-indexing, rebuilding from rows.
#include <fmt/format.h>

#include <algorithm>

#include "worker/kv/ledger.h"

namespace holdfast::kv {
namespace {

constexpr size_t kMaxProblems = 16;
constexpr uint32_t kAhead = 8;  // entries whose pages are fetched before they are looked at

// Cold, so that what finds nothing stays small and fast.
template <class... Args>
[[gnu::cold, gnu::noinline]] void Note(AuditReport* report, const char* kind, size_t g, uint32_t page, fmt::format_string<Args...> format, Args&&... args) {
  ++report->count;
  if (report->problems.size() < kMaxProblems) {
    report->problems.push_back({kind, static_cast<uint8_t>(g), page, fmt::format(format, std::forward<Args>(args)...)});
  }
}

[[gnu::cold, gnu::noinline]] void Mark(std::vector<std::vector<bool>>* pages, size_t g, uint32_t page, const Arena& arena) {
  if (pages->size() <= g) pages->resize(g + 1);
  if ((*pages)[g].empty()) (*pages)[g].resize(arena.size());
  (*pages)[g][page] = true;
}

bool Marked(const std::vector<std::vector<bool>>& pages, size_t g, uint32_t page) {
  return g < pages.size() && !pages[g].empty() && pages[g][page];
}

}  // namespace

bool Ledger::FingerprintsHold() const {
  for (size_t g = 0; g < groups(); ++g) {
    if (!arenas_[g].PartitionHolds() || arenas_[g].refs_fingerprint() != tallies_[g].rows + tallies_[g].index) return false;
    // Full pages are in the heap only as leaves; window pages all are.
    if (windows_[g] != 0 && index_.heap_size(g) != arenas_[g].evictable()) return false;
  }
  return true;
}

bool Ledger::HasEvents() const {
  for (const Arena& arena : arenas_) {
    if (!arena.events().empty()) return true;
  }
  return false;
}

std::vector<ArenaEvent> Ledger::DrainEvents() {
  std::vector<ArenaEvent> out;
  for (Arena& arena : arenas_) {
    out.insert(out.end(), arena.events().begin(), arena.events().end());
    arena.events().clear();
  }
  return out;
}

void Ledger::AuditRow(const SeqRow& row, AuditReport* report) const {
  const uint64_t before = report->count;
  const uint32_t blocks = row.blocks();
  for (size_t g = 0; g < groups(); ++g) {
    const Arena& arena = arenas_[g];
    const uint32_t mine = row.blocks_in(g);
    if (mine != blocks) Note(report, "row_length", g, 0, "{} entries, group 0 has {}", mine, blocks);
    const uint32_t w = windows_[g];
    const uint32_t low = w == 0 || row.settled < w ? 0 : (row.settled - w + 1) / page_size_;
    const uint32_t high = (row.launched + page_size_ - 1) / page_size_;
    if (mine < high) Note(report, "row_short", g, 0, "{} blocks, launched {} tokens", mine, row.launched);
    for (uint32_t i = 0; i < mine; ++i) {
      if (i + kAhead < mine) {
        const PageRef& next = row.at(g, i + kAhead);
        if (next && next.page() < arena.size()) {
          arena.Prefetch(next.page());
          __builtin_prefetch(&scratch_.namings[g][next.page()], 1);
        }
      }
      const PageRef& ref = row.at(g, i);
      if (!ref) {
        if (i >= low && i < high) Note(report, "row_hole", g, 0, "block {} is missing, settled {} launched {}", i, row.settled, row.launched);  // I11
        if (row.mirror_at(g, i) != -1) Note(report, "mirror", g, 0, "block {} is null, mirror has {}", i, row.mirror_at(g, i));
        continue;
      }
      if (row.mirror_at(g, i) != static_cast<int32_t>(ref.page())) Note(report, "mirror", g, ref.page(), "block {}: mirror {}", i, row.mirror_at(g, i));
      if (ref.id().group() != g || ref.page() >= arena.size()) {
        Note(report, "row_foreign_page", g, ref.page(), "block {} names a page of group {}", i, ref.id().group());
        continue;
      }
      Naming& naming = scratch_.namings[g][ref.page()];
      naming.rows++;
      const StateWord word = arena.word(ref.page());
      const bool quarantined = word.kind() == PageKind::kQuarantined && word.generation() == ref.generation();
      if (!arena.Live(ref) && !quarantined) {  // I4
        Note(report, "row_stale", g, ref.page(), "block {} names generation {}, page has kind {} ref {} generation {}", i, ref.generation(),
             static_cast<int>(word.kind()), word.ref(), word.generation());
        Mark(&report->suspect_pages, g, ref.page(), arena);
      }
      // A page of several rows is the same block of the same path in all of them.
      if (naming.block == 0) naming.block = i + 1;
      if (naming.block != i + 1) {
        Note(report, "row_two_blocks", g, ref.page(), "blocks {} and {}", naming.block - 1, i);
        Mark(&report->doubtful_pages, g, ref.page(), arena);
      }
      // I6: what is still written is nobody else's.
      if ((i + 1) * page_size_ > row.settled && (word.ref() != 1 || word.indexed())) {
        Note(report, "row_shared_write", g, ref.page(), "block {} is being written, ref {} indexed {}", i, word.ref(), word.indexed());
        Mark(&report->doubtful_pages, g, ref.page(), arena);
      }
    }
  }
  AuditPath(row, report);
  if (report->count != before) report->suspect_rows.push_back(const_cast<SeqRow*>(&row));
}

// I7, for the window groups too while the row holds the page.
void Ledger::AuditPath(const SeqRow& row, AuditReport* report) const {
  if (row.node == kNoNode) return;
  if (!index_.live(row.node) || index_.depth(row.node) != row.indexed || row.indexed > row.blocks()) {
    Note(report, "row_node", 0, 0, "node {} for {} indexed blocks", row.node.v, row.indexed);
    return;
  }
  NodeId n = row.node;
  for (uint32_t i = row.indexed; i > 0; --i, n = index_.parent(n)) {
    for (size_t g = 0; g < groups(); ++g) {
      if (i - 1 >= row.blocks_in(g)) continue;
      const PageRef& mine = row.at(g, i - 1);
      if (mine && !index_.ref(n, g).Names(mine)) {
        Note(report, "row_node_page", g, mine.page(), "block {} differs from its node {}", i - 1, n.v);
        if (mine.page() < arenas_[g].size()) Mark(&report->doubtful_pages, g, mine.page(), arenas_[g]);
      }
    }
  }
}

// All nodes for one group. What it counts is kept in locals: a store to memory would make every pointer here be read again.
void Ledger::AuditNodes(size_t g, AuditReport* report) const {
  const Arena& arena = arenas_[g];
  const bool full = windows_[g] == 0;
  const uint32_t nodes = index_.slab_size(), pages = arena.size();
  uint32_t entries = 0;
  for (uint32_t v = 0; v < nodes; ++v) {
    // Pages of nodes lie anywhere: what the next nodes name is fetched while this one is looked at.
    if (v + kAhead < nodes) {
      if (const PageRef& next = index_.ref(NodeId(v + kAhead), g); next && next.page() < pages) {
        arena.Prefetch(next.page());
        index_.PrefetchOwner(g, next.page());
      }
    }
    const NodeId n(v);
    if (!index_.live(n)) continue;
    const PageRef& ref = index_.ref(n, g);
    if (!ref) {
      if (full && index_.depth(n) > 0) Note(report, "node_without_page", g, 0, "node {}", v);
      if (g == 0 && index_.children(n) == 0 && index_.pins(n) == 0) {
        bool any = false;
        for (size_t other = 1; other < groups(); ++other) any = any || index_.ref(n, other);
        if (!any) Note(report, "node_empty", 0, 0, "node {}", v);
      }
      continue;
    }
    const uint32_t page = ref.page();
    if (ref.id().group() != g || page >= pages) {
      Note(report, "node_foreign_page", g, page, "node {}", v);
      continue;
    }
    if (const NodeId owner = index_.owner(g, page); owner == n) {
      ++entries;
    } else {  // I5: of several nodes naming one page only one can be its owner
      Note(report, "owner", g, page, "node {} names it, its owner is {}", v, owner.v);
      Mark(&report->suspect_pages, g, page, arena);
      Mark(&report->doubtful_pages, g, page, arena);
    }
    const StateWord word = arena.word(page);
    if (word.kind() != PageKind::kHeld || word.ref() == 0 || word.generation() != ref.generation() || !word.indexed()) {  // I4
      Note(report, "node_stale", g, page, "node {} names generation {}, page has kind {} indexed {} generation {}", v, ref.generation(),
           static_cast<int>(word.kind()), word.indexed(), word.generation());
      Mark(&report->suspect_pages, g, page, arena);
    }
    const bool evictable = word.ref() == 1 && (!full || index_.children(n) == 0);
    if (evictable != index_.in_heap(n, g)) Note(report, "eviction_order", g, page, "node {} evictable {}", v, evictable);
    // I8: below an index-only full page everything is index-only.
    if (full && word.ref() > 1 && index_.depth(n) > 1) {
      const PageRef& up = index_.ref(index_.parent(n), g);
      if (up && up.page() < pages && arena.word(up.page()).ref() == 1) Note(report, "closure", g, page, "node {} is in use, its parent is not", v);
    }
  }
  scratch_.entries[g] = entries;
}

void Ledger::AuditPages(size_t g, AuditReport* report) const {
  const Arena& arena = arenas_[g];
  if (!arena.PartitionHolds()) Note(report, "partition", g, 0, "kinds do not partition the pages");  // I13
  if (arena.refs_fingerprint() != tallies_[g].rows + tallies_[g].index) Note(report, "refs", g, 0, "references differ from rows and index");
  if (!arena.FreeListHolds()) Note(report, "free_list", g, 0, "{} listed, {} free", arena.free_listed(), arena.count(PageKind::kFree));  // I2
  uint32_t evictable = 0, owned = 0;
  Naming* const namings = scratch_.namings[g].data();
  const uint32_t size = arena.size(), limit = arena.limit();
  for (uint32_t p = 0; p < size; ++p) {
    const StateWord word = arena.word(p);
    const uint32_t rows = namings[p].rows, nodes = index_.owner(g, p) != kNoNode;
    namings[p] = {};
    const uint32_t named = rows + nodes;
    owned += nodes;
    bool ok = word.ref() == named && word.indexed() == (nodes > 0) && word.io_pin() == 0;  // I3
    switch (word.kind()) {                                                                  // I1
      case PageKind::kFree: ok = ok && word.ref() == 0 && p < limit; break;
      case PageKind::kHeld: ok = ok && word.ref() > 0; break;
      case PageKind::kRetiring:
      case PageKind::kUnbacked: ok = ok && word.ref() == 0 && p >= limit; break;
      case PageKind::kQuarantined: break;
      default: ok = false;
    }
    evictable += word.kind() == PageKind::kHeld && word.indexed() && word.ref() == 1;
    if (ok) continue;
    Note(report, "page_state", g, p, "kind {} ref {} indexed {} io {}, named by {} row entries and {} nodes", static_cast<int>(word.kind()), word.ref(),
         word.indexed(), word.io_pin(), rows, nodes);
    Mark(&report->suspect_pages, g, p, arena);
    if (named > word.ref()) Mark(&report->doubtful_pages, g, p, arena);
    if (named == 0 && word.ref() > 0) report->orphan = true;
  }
  if (evictable != arena.evictable()) Note(report, "evictable", g, 0, "{} counted, {} kept", evictable, arena.evictable());
  // Every node entry whose page owns it back is one page's owner; equal numbers make the two the same set.
  if (owned == scratch_.entries[g]) return;
  for (uint32_t p = 0; p < arena.size(); ++p) {
    const NodeId owner = index_.owner(g, p);
    if (owner == kNoNode) continue;
    const bool named = index_.live(owner) && index_.ref(owner, g) && index_.ref(owner, g).id() == PageId(static_cast<uint8_t>(g), p);
    if (named) continue;
    Note(report, "owner", g, p, "its owner, node {}, does not name it", owner.v);
    Mark(&report->suspect_pages, g, p, arena);
    Mark(&report->doubtful_pages, g, p, arena);
  }
}

AuditReport Ledger::Audit() const {
  AuditReport report;
  scratch_.namings.resize(groups());
  scratch_.entries.assign(groups(), 0);
  for (size_t g = 0; g < groups(); ++g) scratch_.namings[g].resize(arenas_[g].size());
  for (const SeqRow* row : rows_) AuditRow(*row, &report);
  for (size_t g = 0; g < groups(); ++g) AuditNodes(g, &report);
  for (size_t g = 0; g < groups(); ++g) AuditPages(g, &report);
  if (report.clean()) return report;
  for (SeqRow* row : rows_) {
    bool doubtful = report.orphan;
    for (size_t g = 0; g < groups() && !doubtful; ++g) {
      for (uint32_t i = 0; i < row->blocks_in(g) && !doubtful; ++i) {
        const PageRef& ref = row->at(g, i);
        doubtful = ref && ref.id().group() == g && ref.page() < arenas_[g].size() && Marked(report.doubtful_pages, g, ref.page());
      }
    }
    if (doubtful && std::find(report.suspect_rows.begin(), report.suspect_rows.end(), row) == report.suspect_rows.end()) report.suspect_rows.push_back(row);
  }
  return report;
}

void Ledger::UnindexSubtree(NodeId top) {
  // Rows on it leave first: they pin their node.
  for (SeqRow* row : rows_) {
    for (NodeId n = row->node; n != kNoNode; n = index_.parent(n)) {
      if (n != top) continue;
      Leave(row);
      break;
    }
  }
  if (!index_.live(top)) return;
  // Deepest first, so that every full page is given back as a leaf's.
  std::vector<NodeId> order{top};
  for (size_t i = 0; i < order.size(); ++i) {
    for (NodeId c = index_.first_child(order[i]); c != kNoNode; c = index_.next_sibling(c)) order.push_back(c);
  }
  for (size_t i = order.size(); i > 0; --i) {
    for (size_t g = groups(); g > 0; --g) index_.Release(order[i - 1], g - 1);
    if (index_.live(order[i - 1])) index_.RemoveIfEmpty(order[i - 1]);
  }
}

void Ledger::Unindex(PageId page) {
  const NodeId owner = index_.owner(page.group(), page.page());
  if (owner != kNoNode) UnindexSubtree(owner);
}

void Ledger::UnindexRow(SeqRow* row, uint32_t from) {
  if (row->node == kNoNode) return;
  if (row->indexed <= from) return Leave(row);
  NodeId n = row->node;
  while (index_.depth(n) > from + 1) n = index_.parent(n);
  UnindexSubtree(n);
}

void Ledger::ResetIndex() {
  for (SeqRow* row : rows_) Leave(row);
  std::vector<NodeId> tops;
  for (const auto& [salt, root] : index_.roots()) {
    for (NodeId c = index_.first_child(root); c != kNoNode; c = index_.next_sibling(c)) tops.push_back(c);
  }
  for (NodeId top : tops) UnindexSubtree(top);
}

void Ledger::Forget(SeqRow* row) {
  row->ForgetAll();
  const auto it = std::find(rows_.begin(), rows_.end(), row);
  if (it != rows_.end()) rows_.erase(it);
}

void Ledger::RebuildFromRows(const std::vector<std::vector<bool>>& quarantine) {
  index_.ForgetAll();
  for (SeqRow* row : rows_) {
    row->node = kNoNode;
    row->indexed = 0;
    row->RewriteMirror();
  }
  for (size_t g = 0; g < groups(); ++g) {
    std::vector<uint32_t> refs(arenas_[g].size()), generations(arenas_[g].size());
    tallies_[g] = {};
    for (const SeqRow* row : rows_) {
      for (uint32_t i = 0; i < row->blocks_in(g); ++i) {
        const PageRef& ref = row->at(g, i);
        if (!ref) continue;
        refs[ref.page()]++;
        generations[ref.page()] = ref.generation();
        tallies_[g].rows += arenas_[g].Hash(ref.page());
      }
    }
    std::vector<bool> unowned(arenas_[g].size());
    for (uint32_t p = 0; p < arenas_[g].size(); ++p) unowned[p] = Marked(quarantine, g, p) && refs[p] == 0;
    arenas_[g].Rebuild(refs, generations, unowned);
    arenas_[g].events().clear();
  }
}

}  // namespace holdfast::kv

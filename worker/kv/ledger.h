#pragma once
// Who owns which page. The ledger joins the arenas, the rows of running requests and the prefix index, and holds the few operations by which
// references come and go. Nobody is ever handed pages to free: a page leaves use when its last counted reference is dropped, and references
// live in rows and index nodes only. README.md in this folder is the contract (I1-I16 are its invariants).
//
// Not thread-safe. Deterministic: no clock, no address, no hash order decides anything. No allocation while decoding.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/kv/arena.h"
#include "worker/kv/prefix_index.h"
#include "worker/kv/row.h"
#include "worker/kv/units.h"

namespace holdfast::kv {

// A prefix found in the index. Valid until the next operation on the ledger.
struct PrefixMatch {
  uint32_t blocks = 0;      // cached blocks that may be used
  uint32_t walked = 0;      // blocks whose full pages are there; more than `blocks` when a window is missing
  uint32_t pin_loss = 0;    // full pages among `blocks` that are evictable now and would not be when used
};

// What Commit needs to know of a sequence.
struct SequenceView {
  std::span<const TokenId> tokens;
  std::span<const uint64_t> chain;          // chain hash of every full block of tokens
  std::span<const uint32_t> anchors;        // ascending prefix lengths whose window is worth keeping
  uint32_t* next_anchor = nullptr;          // the first anchor not yet seen
};

struct LedgerCounters {
  uint64_t heals = 0, dedups = 0;
  std::vector<uint64_t> evictions;  // [group]
};

// What an audit found. Empty `problems` = clean.
struct AuditReport {
  struct Problem {
    const char* kind = "";
    uint8_t group = 0;
    uint32_t page = 0;
    std::string detail;
  };
  std::vector<Problem> problems;                 // the first few
  uint64_t count = 0;
  std::vector<SeqRow*> suspect_rows;             // may have read or be about to read something that is not theirs
  std::vector<std::vector<bool>> suspect_pages;  // [group][page], groups without any are empty or missing: states that disagree
  std::vector<std::vector<bool>> doubtful_pages; // likewise: somebody names it who has no right to; every row naming it is suspect
  bool orphan = false;                           // a page is held that nobody names: any row may have lost it, so all are suspect
  bool clean() const { return count == 0; }
};

class Ledger {
 public:
  Ledger(const CacheShape& shape, uint32_t max_rows);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  size_t groups() const { return arenas_.size(); }
  uint32_t page_size() const { return page_size_; }
  uint32_t window(size_t g) const { return windows_[g]; }
  bool has_full() const { return windows_[0] == 0; }
  const Arena& arena(size_t g) const { return arenas_[g]; }
  const PrefixIndex& index() const { return index_; }
  const LedgerCounters& counters() const { return counters_; }

  // ---- the life of a row ---------------------------------------------------------------------------------------------------
  // The longest usable cached prefix of at most max_blocks blocks. A boundary is usable when the full pages before it are there and, for
  // every window group, either no page is missing since the root or the last ceil((W-1)/ps) are there.
  PrefixMatch Lookup(const std::string& salt, std::span<const TokenId> tokens, std::span<const uint64_t> chain, uint32_t max_blocks);
  // Starts a row on the match of the last Lookup, of the same salt. Returns the blocks taken: match.blocks, or 0 if a handle was stale.
  uint32_t Adopt(SeqRow* row, const std::string& salt, const PrefixMatch& match);
  // Starts a row that takes no part in the index.
  void AdoptPrivate(SeqRow* row);
  // Pages for blocks up to `blocks`, of every group, evicting as needed. False when pages ran out, which admission's proof excludes: the
  // row keeps what it got.
  bool ExtendTo(SeqRow* row, uint32_t blocks);
  // One block more would cost a window that was used less than its worth ago.
  bool NextBlockIsDear() const;
  // Indexes every full settled block. Adds references only; a block that is there already is shared and the row's own page dropped.
  void Commit(SeqRow* row, const SequenceView& sequence);
  // Drops window pages no later query of the row can see.
  void Slide(SeqRow* row);
  // The end of the cached prefix of a finished row is worth keeping.
  void MarkEnd(SeqRow* row);
  // Drops everything, deepest first. The row is empty and out of the ledger afterwards.
  void Release(SeqRow* row);

  // ---- capacity ----------------------------------------------------------------------------------------------------------------
  // Pages of the group that could be handed out before rows hold everything: limit - quarantined - held by rows (A of README.md). Negative
  // while a pool shrinks below what rows hold.
  int64_t Available(size_t g, uint32_t limit) const;
  int64_t Available(size_t g) const { return Available(g, arenas_[g].limit()); }
  uint32_t Usable(size_t g) const { return arenas_[g].limit() - arenas_[g].quarantined_below_limit(); }
  bool EvictOne(size_t g);
  // Gives up the node's page of window group g, or, of the full group, the whole node: a leaf that only the index holds.
  void EvictNode(size_t g, NodeId victim);

  // ---- resizing ----------------------------------------------------------------------------------------------------------------
  void SetLimit(size_t g, uint32_t limit);
  // Moves at most `budget` owned pages at or above the limit below it, giving up the least useful cached pages when none is free there.
  // Appends {from, to}. Requires that nothing is in flight.
  struct Move {
    uint8_t group;
    uint32_t from, to;
  };
  void MoveDown(size_t g, uint32_t budget, std::vector<Move>* moves);
  uint32_t UnbackRetired(size_t g) { return arenas_[g].UnbackRetired(); }

  // ---- integrity -----------------------------------------------------------------------------------------------------------------
  // I13, O(groups).
  bool FingerprintsHold() const;
  // True when an edit refused something since the last ClearEvents.
  bool HasEvents() const;
  std::vector<ArenaEvent> DrainEvents();
  // Everything, O(pages + rows + nodes). Changes nothing but scratch of its own; allocates only when something is wrong or for the first time.
  AuditReport Audit() const;
  // The index gives every reference back; rows leave it.
  void ResetIndex();
  // Sets arenas and an empty index from what rows name. Pages of `quarantine` (as suspect_pages) that no row names are quarantined.
  void RebuildFromRows(const std::vector<std::vector<bool>>& quarantine);
  // The row is emptied without giving anything back; only before RebuildFromRows.
  void Forget(SeqRow* row);
  // Takes the node of this page, and what depends on it, out of the index; rows on it leave the index.
  void Unindex(PageId page);
  // As Unindex, for the row's nodes from block `from` on. Afterwards the row takes no part in the index, whatever it had there.
  void UnindexRow(SeqRow* row, uint32_t from);
  void Quarantine(PageId page) { arenas_[page.group()].Quarantine(page.page()); }
  std::span<SeqRow* const> rows() const { return rows_; }

  // Folded over every decision: pages taken, victims, de-duplications, moves.
  uint64_t digest() const { return digest_; }

 private:
  friend struct TestPeer;
  void Fold(uint64_t what, uint64_t value) { digest_ = Mix64(digest_ ^ (what << 56) ^ value); }
  PageRef TakePage(size_t g);
  PageRef ShareRef(size_t g, const PageRef& ref);
  void DropRef(size_t g, PageRef ref);
  void CommitBlock(SeqRow* row, const SequenceView& sequence);
  void ShareWithNode(SeqRow* row, uint32_t block, NodeId node, size_t g);
  void KeepWindow(NodeId node);
  void Leave(SeqRow* row);
  void UnindexSubtree(NodeId top);
  // How often rows name a page, as the audit counts it. The index's side is `owner`, which the audit proves to be the nodes' entries.
  struct Naming {
    uint32_t rows = 0;
    uint32_t block = 0;  // 1 + the block it is in rows
  };
  struct AuditScratch {
    std::vector<std::vector<Naming>> namings;  // [group][page], all zero between audits
    std::vector<uint32_t> entries;             // [group] node entries whose page says the node owns it
  };
  void AuditRow(const SeqRow& row, AuditReport* report) const;
  void AuditPath(const SeqRow& row, AuditReport* report) const;
  void AuditNodes(size_t g, AuditReport* report) const;
  void AuditPages(size_t g, AuditReport* report) const;

  uint32_t page_size_;
  std::vector<uint32_t> windows_;
  std::vector<Arena> arenas_;
  std::vector<GroupTally> tallies_;
  PrefixIndex index_;
  std::vector<SeqRow*> rows_;
  std::vector<NodeId> path_;         // of the last Lookup
  std::vector<uint32_t> runs_;       // [group] scratch of Lookup
  std::vector<uint32_t> run_needed_; // [group] ceil((W-1)/ps)
  uint64_t tick_ = 0;                // logical time of use
  uint64_t digest_ = 0x6c65'6467'6572ull;
  LedgerCounters counters_;
  mutable AuditScratch scratch_;
};

}  // namespace holdfast::kv

#pragma once
// A request's page tables: for every group the page of each block, as counted references and as the int32 mirror kernels read (-1 = none).
// Rows are the ground truth: index, reference counts and free lists can be rebuilt from them. All groups have the same number of blocks; a
// window group's entry is null once the block left the window.
//
// A row only stores references; the Ledger takes and gives them back. It keeps the rows' side of the fingerprint (I13), one tally a group,
// independently of the arena's.
#include <cstdint>
#include <span>
#include <vector>

#include "worker/kv/arena.h"
#include "worker/kv/ids.h"

namespace holdfast::kv {

// Sums of page hashes over every row entry and every index entry of one group.
struct GroupTally {
  uint64_t rows = 0;
  uint64_t index = 0;
};

class SeqRow {
 public:
  explicit SeqRow(size_t groups) : tables_(groups) {}

  // Room for `blocks` entries a group, so that growing does not allocate.
  void Reserve(uint32_t blocks);

  uint32_t blocks() const { return static_cast<uint32_t>(tables_[0].refs.size()); }
  size_t groups() const { return tables_.size(); }
  uint32_t blocks_in(size_t group) const { return static_cast<uint32_t>(tables_[group].refs.size()); }
  const PageRef& at(size_t group, uint32_t block) const { return tables_[group].refs[block]; }
  const int32_t* mirror(size_t group) const { return tables_[group].mirror.data(); }
  int32_t mirror_at(size_t group, uint32_t block) const { return tables_[group].mirror[block]; }

  // Entries [begin, end) of the mirror changed since the last call (an executor with tables of its own copies only these).
  struct Range {
    uint32_t begin = 0, end = 0;
  };
  Range TakeDirty(size_t group);

  void Append(size_t group, PageRef ref, const Arena& arena, GroupTally& tally);
  // The entry becomes `ref` (may be null); the old one is returned.
  [[nodiscard]] PageRef Exchange(size_t group, uint32_t block, PageRef ref, const Arena& arena, GroupTally& tally);
  // Removes the last entry of the group, which must be null.
  void DropLast(size_t group);
  // Empties the row when nothing counts its entries (rebuilding). Tallies are the caller's to recompute.
  void ForgetAll();
  // The mirror again, from the references.
  void RewriteMirror();

  // Where the row stands in the prefix index: `node` is the node of block indexed - 1, or the root of the request's salt, or kNoNode when
  // the row takes no part.
  NodeId node = kNoNode;
  uint32_t indexed = 0;
  // Positions [0, settled) are computed and their step's outcome is applied; [settled, launched) are in flight.
  uint32_t settled = 0;
  uint32_t launched = 0;
  // Blocks below have left the window of group g.
  uint32_t slid(size_t group) const { return tables_[group].slid; }
  void set_slid(size_t group, uint32_t block) { tables_[group].slid = block; }

 private:
  friend struct TestPeer;
  struct Table {
    std::vector<PageRef> refs;
    std::vector<int32_t> mirror;
    uint32_t slid = 0;
    uint32_t dirty_begin = UINT32_MAX, dirty_end = 0;
  };
  void Touch(Table& table, uint32_t block);
  std::vector<Table> tables_;
};

}  // namespace holdfast::kv

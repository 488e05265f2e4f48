#pragma once
// The pages of one group: one 64-bit state word each, and an intrusive FIFO list of the free ones. The arena is the only mutator of state
// words. Ownership changes by six edits and no other way: Take, Share, Drop, IndexAdd, IndexDel, Quarantine. Limit (resizing) only moves
// pages that nobody owns.
//
// An edit that finds its page in a state it cannot be in changes nothing, records an event and says so by its return value: suspect
// state is reported, never asserted. Not thread-safe. No allocation after construction, except by Limit.
#include <array>
#include <cstdint>
#include <vector>

#include "proto/base/random.h"
#include "worker/kv/ids.h"

namespace holdfast::kv {

enum class PageKind : uint8_t {
  kNull = 0,         // never a page: what a zeroed word says
  kFree = 1,         // ref 0, on the free list exactly once
  kHeld = 2,         // ref > 0
  kRetiring = 3,     // at or above the limit, owned by nobody, waiting to be unbacked
  kQuarantined = 4,  // never handed out again; references that exist may still be dropped
  kUnbacked = 5,     // address space without memory
};
inline constexpr int kPageKinds = 8;  // of the field's 3 bits; 6 and 7 mean nothing

// kind:3 indexed:1 io_pin:4 ref:24 generation:32. io_pin counts users off the compute stream; there are none yet and audits check for 0.
struct StateWord {
  uint64_t v = 0;

  static constexpr StateWord Make(PageKind kind, bool indexed, uint32_t ref, uint32_t generation) {
    return {static_cast<uint64_t>(kind) | (indexed ? 8u : 0u) | (static_cast<uint64_t>(ref) << 8) |
            (static_cast<uint64_t>(generation) << 32)};
  }
  constexpr PageKind kind() const { return static_cast<PageKind>(v & 7); }
  constexpr bool indexed() const { return (v >> 3) & 1; }
  constexpr uint32_t io_pin() const { return (v >> 4) & 15; }
  constexpr uint32_t ref() const { return (v >> 8) & 0xFFFFFF; }
  constexpr uint32_t generation() const { return static_cast<uint32_t>(v >> 32); }
  constexpr bool operator==(const StateWord&) const = default;
};
inline constexpr uint32_t kMaxRef = 0xFFFFFF;

// Something an edit refused or repaired. `what` is a fixed short name.
struct ArenaEvent {
  const char* what = "";
  uint32_t page = 0;
  StateWord word;
};

class Arena {
 public:
  // Pages [0, backed) start Free, [backed, reserved) Unbacked. backed <= reserved <= kMaxPages.
  Arena(uint8_t group, uint32_t backed, uint32_t reserved);

  // ---- the six edits ---------------------------------------------------------------------------------------------------
  // The oldest free page, Free -> Held with one reference; null when there is none.
  [[nodiscard]] PageRef Take();
  // One more reference to what `ref` names; null when it is stale.
  [[nodiscard]] PageRef Share(const PageRef& ref);
  // Gives a reference back. The last one frees the page (generation + 1). `ref` is null afterwards, whatever happened. True when it counted.
  bool Drop(PageRef&& ref);
  // A reference for the index: Share, and the page is marked indexed. Null when it is stale or another node has the page.
  [[nodiscard]] PageRef IndexAdd(const PageRef& ref);
  // The index gives its reference back.
  bool IndexDel(PageRef&& ref);
  // Free or Held -> Quarantined. References of a held page stay until dropped; nobody can share it or take it any more.
  bool Quarantine(uint32_t page);

  // ---- resizing (owned pages are not touched) ----------------------------------------------------------------------------
  // Pages at or above `limit` retire when nobody owns them, pages below are backed: Unbacked|Retiring -> Free, Free -> Retiring.
  void SetLimit(uint32_t limit);
  // Retiring -> Unbacked for every page at or above the limit; returns how many there were.
  uint32_t UnbackRetired();
  uint32_t limit() const { return limit_; }
  // Held pages at or above the limit: what shrinking still has to move.
  uint32_t held_above_limit() const { return held_above_; }

  // ---- views -------------------------------------------------------------------------------------------------------------
  uint8_t group() const { return group_; }
  uint32_t size() const { return static_cast<uint32_t>(words_.size()); }
  StateWord word(uint32_t page) const { return words_[page]; }
  void Prefetch(uint32_t page) const { __builtin_prefetch(&words_[page]); }
  // Held, of this group and generation.
  bool Live(const PageRef& ref) const {
    if (!ref || ref.id().group() != group_ || ref.page() >= words_.size()) return false;
    const StateWord word = words_[ref.page()];
    return word.kind() == PageKind::kHeld && word.ref() > 0 && word.generation() == ref.generation();
  }
  uint32_t count(PageKind kind) const { return counts_[static_cast<int>(kind)]; }
  uint32_t free_listed() const { return free_count_; }
  uint32_t evictable() const { return evictable_; }        // indexed and ref == 1
  uint32_t quarantined_below_limit() const { return quarantined_below_; }
  // Pages that rows hold: held less those only the index holds.
  uint32_t row_held() const { return count(PageKind::kHeld) - evictable_; }
  uint64_t refs_fingerprint() const { return refs_fp_; }
  uint64_t Hash(uint32_t page) const { return Mix64((static_cast<uint64_t>(group_) << 32 | page) ^ 0x6b76'7061'6765'7321ull); }
  // I13's first half: the kinds partition the pages, and the list is as long as there are free pages.
  bool PartitionHolds() const;

  // Events since the last call; at most kMaxEvents are kept.
  std::vector<ArenaEvent>& events() { return events_; }
  const std::vector<ArenaEvent>& events() const { return events_; }

#ifdef HOLDFAST_DRILLS
  // What a ledger without owners does: gives a reference back that somebody still names.
  void DropForDrill(const PageRef& ref) { (void)Drop(PageRef(ref.id(), ref.generation())); }
  void DropPageForDrill(uint32_t page) { (void)Drop(PageRef(PageId(group_, page), words_[page].generation())); }
#endif

  // ---- repair --------------------------------------------------------------------------------------------------------------
  // Walks the free list; true when it holds every Free page once and nothing else.
  bool FreeListHolds() const;
  // Sets every word from what rows name: page p has refs[p] references of generation generations[p] and is not indexed; what nobody
  // names becomes Free (or, above the limit, Retiring) in a new generation. Quarantined pages stay so, and those of `quarantine` become
  // so. The list is rebuilt in page order. All three have size() entries.
  void Rebuild(const std::vector<uint32_t>& refs, const std::vector<uint32_t>& generations, const std::vector<bool>& quarantine);

 private:
  friend struct TestPeer;
  static constexpr uint32_t kEnd = 0xFFFFFFFFu;
  static constexpr size_t kMaxEvents = 64;

  void Event(const char* what, uint32_t page);
  // Moves the page between kinds in counts and fingerprints and stores the word.
  void Put(uint32_t page, StateWord next);
  void Push(uint32_t page);
  void RebuildFreeList();
  bool Check(const PageRef& ref, const char* what, bool allow_quarantined);

  uint8_t group_;
  std::vector<StateWord> words_;
  std::vector<uint32_t> next_;  // of a Free page: the one behind it in the list
  uint32_t head_ = kEnd, tail_ = kEnd, free_count_ = 0;
  uint32_t limit_ = 0, held_above_ = 0, quarantined_below_ = 0, evictable_ = 0;
  std::array<uint32_t, kPageKinds> counts_{};
  std::array<uint64_t, kPageKinds> kind_fp_{};
  uint64_t total_fp_ = 0, refs_fp_ = 0;
  std::vector<ArenaEvent> events_;
};

}  // namespace holdfast::kv

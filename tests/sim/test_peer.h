#pragma once
// The door tests use to look at and stomp on private state. Never part of a shipped binary.
#include <cstdint>
#include <utility>
#include <vector>

#include "worker/kv/ledger.h"
#include "worker/sched/scheduler_impl.h"

namespace holdfast::kv {

struct TestPeer {
  static void SetWord(Arena& a, uint32_t page, StateWord word) { a.Put(page, word); }
  static void StompWord(Arena& a, uint32_t page, StateWord word) { a.words_[page] = word; }
  static PageRef Forge(uint8_t group, uint32_t page, uint32_t generation) { return PageRef(PageId(group, page), generation); }
  static void Forget(PageRef& ref) { ref.Forget(); }
  static void PushRaw(Arena& a, uint32_t page) {  // a list entry that no state change made
    a.next_[page] = a.head_;
    a.head_ = page;
    if (a.tail_ == Arena::kEnd) a.tail_ = page;
  }
  static void LoseFree(Arena& a) { if (a.head_ != Arena::kEnd) a.head_ = a.next_[a.head_]; }
  static uint32_t FreeHead(const Arena& a) { return a.head_; }
  static Arena& arena(Ledger& l, size_t g) { return l.arenas_[g]; }
  static GroupTally& tally(Ledger& l, size_t g) { return l.tallies_[g]; }
  static PrefixIndex& index(Ledger& l) { return l.index_; }
  static PageRef& entry(SeqRow& row, size_t g, uint32_t block) { return row.tables_[g].refs[block]; }
  static void PopEntry(SeqRow& row, size_t g) {
    row.tables_[g].refs.back().Forget();
    row.tables_[g].refs.pop_back();
    row.tables_[g].mirror.pop_back();
  }
  static void SetMirror(SeqRow& row, size_t g, uint32_t block, int32_t page) { row.tables_[g].mirror[block] = page; }
};

}  // namespace holdfast::kv

namespace holdfast::sched {

struct TestPeer {
  static SchedulerImpl& impl(Scheduler& s) { return static_cast<SchedulerImpl&>(s); }
  static kv::Ledger& ledger(Scheduler& s) { return impl(s).ledger_; }
  static const std::vector<Sequence*>& running(Scheduler& s) { return impl(s).running_; }
  static const std::vector<Sequence*>& waiting(Scheduler& s) { return impl(s).waiting_; }
  static uint64_t reserved(Scheduler& s) { return impl(s).reserved_; }
  static const kv::StepLimits& limits(Scheduler& s) { return impl(s).limits_; }
  static int64_t headroom(Scheduler& s) { return impl(s).FullHeadroom(); }
  static Sequence* Find(Scheduler& s, RequestId id) {
    const auto it = impl(s).by_request_.find(id.v);
    return it == impl(s).by_request_.end() ? nullptr : it->second;
  }
};

}  // namespace holdfast::sched

#include "worker/kv/arena.h"

#include "worker/kv/drill.h"

namespace holdfast::kv {

#ifdef HOLDFAST_DRILLS
namespace drill {
Drill active = Drill::kNone;
uint64_t rank_skew = 0;
}  // namespace drill
#endif

Arena::Arena(uint8_t group, uint32_t backed, uint32_t reserved)
    : group_(group), words_(reserved), next_(reserved, kEnd), limit_(backed) {
  HF_CHECKF(backed <= reserved && reserved <= kMaxPages, "group {}: {} of {} pages", group, backed, reserved);
  events_.reserve(kMaxEvents);
  for (uint32_t p = 0; p < reserved; ++p) {
    const PageKind kind = p < backed ? PageKind::kFree : PageKind::kUnbacked;
    // Generations start at a value of the page's own, so a handle with a wrong page is stale too.
    words_[p] = StateWord::Make(kind, false, 0, static_cast<uint32_t>(Hash(p)));
    counts_[static_cast<int>(kind)]++;
    kind_fp_[static_cast<int>(kind)] += Hash(p);
    total_fp_ += Hash(p);
    if (kind == PageKind::kFree) Push(p);
  }
}

void Arena::Event(const char* what, uint32_t page) {
  if (events_.size() < kMaxEvents) events_.push_back({what, page, page < words_.size() ? words_[page] : StateWord{}});
}

void Arena::Put(uint32_t page, StateWord next) {
  const StateWord old = words_[page];
  if (old.kind() != next.kind()) {
    const int from = static_cast<int>(old.kind()), to = static_cast<int>(next.kind());
    const uint64_t h = Hash(page);
    counts_[from]--;
    kind_fp_[from] -= h;
    counts_[to]++;
    kind_fp_[to] += h;
    if (page >= limit_) {
      held_above_ += next.kind() == PageKind::kHeld;
      held_above_ -= old.kind() == PageKind::kHeld;
    } else {
      quarantined_below_ += next.kind() == PageKind::kQuarantined;
      quarantined_below_ -= old.kind() == PageKind::kQuarantined;
    }
  }
  const auto evictable = [](StateWord w) { return w.kind() == PageKind::kHeld && w.indexed() && w.ref() == 1; };
  evictable_ += evictable(next);
  evictable_ -= evictable(old);
  refs_fp_ += Hash(page) * (static_cast<uint64_t>(next.ref()) - old.ref());
  words_[page] = next;
}

void Arena::Push(uint32_t page) {
  next_[page] = kEnd;
  if (tail_ == kEnd) {
    head_ = page;
  } else {
    next_[tail_] = page;
  }
  tail_ = page;
  ++free_count_;
}

void Arena::RebuildFreeList() {
  head_ = tail_ = kEnd;
  free_count_ = 0;
  for (uint32_t p = 0; p < words_.size(); ++p) {
    if (words_[p].kind() == PageKind::kFree) Push(p);
  }
}

PageRef Arena::Take() {
  // Two repairs at most: of a list that ends early or names a page that is not free. The state words say what is free.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (head_ == kEnd && free_count_ == 0) return {};
    if (head_ == kEnd || head_ >= words_.size()) {
      Event("free_list_broken", head_);
    } else {
      const uint32_t page = head_;
      const StateWord word = words_[page];
      if (word.kind() == PageKind::kFree && word.ref() == 0 && !word.indexed() && page < limit_ && free_count_ > 0) {
        head_ = next_[page];
        if (head_ == kEnd) tail_ = kEnd;
        --free_count_;
        Put(page, StateWord::Make(PageKind::kHeld, false, 1, word.generation()));
        return PageRef(PageId(group_, page), word.generation());
      }
      Event("pop_not_free", page);
    }
    RebuildFreeList();
  }
  return {};
}

bool Arena::Check(const PageRef& ref, const char* what, bool allow_quarantined) {
  const uint32_t page = ref.page();
  if (!ref || ref.id().group() != group_ || page >= words_.size()) {
    Event(what, page);
    return false;
  }
  const StateWord word = words_[page];
  const bool kind_ok = word.kind() == PageKind::kHeld || (allow_quarantined && word.kind() == PageKind::kQuarantined);
  if (!kind_ok || word.ref() == 0 || (word.generation() != ref.generation() && !HF_DRILL(kNoGenerationCheck))) {
    Event(what, page);
    return false;
  }
  return true;
}

PageRef Arena::Share(const PageRef& ref) {
  if (!Check(ref, "share_stale", false)) return {};
  const StateWord word = words_[ref.page()];
  if (word.ref() == kMaxRef) {
    Event("share_overflow", ref.page());
    return {};
  }
  Put(ref.page(), StateWord::Make(PageKind::kHeld, word.indexed(), word.ref() + 1, word.generation()));
  return PageRef(ref.id(), word.generation());
}

bool Arena::Drop(PageRef&& ref) {
  const bool ok = Check(ref, "drop_stale", true);
  const uint32_t page = ref.page();
  ref.Forget();
  if (!ok) return false;
  const StateWord word = words_[page];
  if (word.ref() == 1 && word.indexed()) {
    Event("drop_index_ref", page);  // the last reference is the index's: this holder had none
    return false;
  }
  if (word.ref() > 1) {
    Put(page, StateWord::Make(word.kind(), word.indexed(), word.ref() - 1, word.generation()));
    return true;
  }
  const uint32_t generation = word.generation() + 1;
  if (word.kind() == PageKind::kQuarantined && !HF_DRILL(kQuarantineReturns)) {
    Put(page, StateWord::Make(PageKind::kQuarantined, false, 0, generation));
  } else if (page >= limit_) {
    Put(page, StateWord::Make(PageKind::kRetiring, false, 0, generation));
  } else {
    Put(page, StateWord::Make(PageKind::kFree, false, 0, generation));
    Push(page);
  }
  return true;
}

PageRef Arena::IndexAdd(const PageRef& ref) {
  if (!Check(ref, "index_add_stale", false)) return {};
  const StateWord word = words_[ref.page()];
  if (word.indexed() || word.ref() == kMaxRef) {
    Event("index_add_twice", ref.page());
    return {};
  }
  Put(ref.page(), StateWord::Make(PageKind::kHeld, true, word.ref() + 1, word.generation()));
  return PageRef(ref.id(), word.generation());
}

bool Arena::IndexDel(PageRef&& ref) {
  if (!Check(ref, "index_del_stale", true)) {
    ref.Forget();
    return false;
  }
  const StateWord word = words_[ref.page()];
  if (!word.indexed()) {
    Event("index_del_not_indexed", ref.page());
    ref.Forget();
    return false;
  }
  Put(ref.page(), StateWord::Make(word.kind(), false, word.ref(), word.generation()));
  return Drop(std::move(ref));
}

bool Arena::Quarantine(uint32_t page) {
  if (page >= words_.size()) {
    Event("quarantine_no_page", page);
    return false;
  }
  const StateWord word = words_[page];
  if (word.kind() == PageKind::kQuarantined) return true;
  if (word.kind() != PageKind::kFree && word.kind() != PageKind::kHeld) {
    Event("quarantine_not_backed", page);
    return false;
  }
  Put(page, StateWord::Make(PageKind::kQuarantined, word.indexed(), word.ref(), word.generation()));
  if (word.kind() == PageKind::kFree) RebuildFreeList();  // rare, and the list has no back links
  return true;
}

void Arena::SetLimit(uint32_t limit) {
  HF_CHECKF(limit <= words_.size(), "limit {} of {}", limit, words_.size());
  limit_ = limit;
  held_above_ = quarantined_below_ = 0;
  for (uint32_t p = 0; p < words_.size(); ++p) {
    const StateWord word = words_[p];
    PageKind next = word.kind();
    if (p < limit && (next == PageKind::kUnbacked || next == PageKind::kRetiring)) next = PageKind::kFree;
    if (p >= limit && next == PageKind::kFree) next = PageKind::kRetiring;
    if (next != word.kind()) Put(p, StateWord::Make(next, false, 0, word.generation()));
    const bool quarantined = next == PageKind::kQuarantined;
    if (p >= limit && next == PageKind::kHeld) ++held_above_;
    if (p < limit && quarantined) ++quarantined_below_;
  }
  RebuildFreeList();
}

uint32_t Arena::UnbackRetired() {
  uint32_t n = 0;
  for (uint32_t p = limit_; p < words_.size(); ++p) {
    if (words_[p].kind() != PageKind::kRetiring) continue;
    Put(p, StateWord::Make(PageKind::kUnbacked, false, 0, words_[p].generation()));
    ++n;
  }
  return n;
}

bool Arena::PartitionHolds() const {
  uint64_t sum = 0;
  for (uint64_t fp : kind_fp_) sum += fp;
  return sum == total_fp_ && free_count_ == count(PageKind::kFree);
}

bool Arena::FreeListHolds() const {
  uint32_t n = 0;
  for (uint32_t p = head_; p != kEnd; p = next_[p]) {
    if (p >= words_.size() || words_[p].kind() != PageKind::kFree || words_[p].ref() != 0 || ++n > free_count_) return false;
    if (next_[p] == kEnd && p != tail_) return false;
  }
  uint32_t free = 0;
  for (StateWord word : words_) free += word.kind() == PageKind::kFree;
  return n == free_count_ && n == free;
}

void Arena::Rebuild(const std::vector<uint32_t>& refs, const std::vector<uint32_t>& generations,
                    const std::vector<bool>& quarantine) {
  counts_ = {};
  kind_fp_ = {};
  refs_fp_ = 0;
  evictable_ = held_above_ = quarantined_below_ = 0;
  for (uint32_t p = 0; p < words_.size(); ++p) {
    const StateWord word = words_[p];
    PageKind kind = p < limit_ ? PageKind::kFree : PageKind::kRetiring;
    uint32_t generation = word.generation();
    if (refs[p] > 0) {
      kind = PageKind::kHeld;
      generation = generations[p];
    } else if (p >= limit_ && word.kind() == PageKind::kUnbacked) {
      kind = PageKind::kUnbacked;
    } else if (word.kind() != PageKind::kFree) {
      ++generation;
    }
    if (word.kind() == PageKind::kQuarantined || quarantine[p]) kind = PageKind::kQuarantined;
    words_[p] = StateWord::Make(kind, false, refs[p], generation);
    counts_[static_cast<int>(kind)]++;
    kind_fp_[static_cast<int>(kind)] += Hash(p);
    refs_fp_ += Hash(p) * refs[p];
    if (p >= limit_ && kind == PageKind::kHeld) ++held_above_;
    if (p < limit_ && kind == PageKind::kQuarantined) ++quarantined_below_;
  }
  RebuildFreeList();
}

}  // namespace holdfast::kv

// The queue: who may start now. Order of arrival; admission reserves the worst case first (README.md, Capacity in ../kv/README.md).
#include <algorithm>

#include "worker/kv/drill.h"
#include "worker/sched/scheduler_impl.h"

namespace holdfast::sched {
namespace {

constexpr uint32_t kScan = 64;        // waiting requests looked at in a step
constexpr uint32_t kMaxPassed = 32;   // later requests admitted before a held-back one, at most

}  // namespace

void SchedulerImpl::Enqueue(Sequence* s) {
  s->state = SequenceState::kWaiting;
  s->writer_order = 0;
  const auto at = std::upper_bound(waiting_.begin(), waiting_.end(), s, [](const Sequence* a, const Sequence* b) { return a->order < b->order; });
  waiting_.insert(at, s);
}

SchedulerImpl::Demand SchedulerImpl::Measure(Sequence* s) {
  Demand demand;
  if (s->use_cache) {
    if (s->chain.empty()) ExtendChain(s);
    if (!s->prompt_logprobs) {
      // At least one token is computed: somebody has to produce the logits.
      const uint32_t blocks = (static_cast<uint32_t>(s->tokens.size()) - 1) / page_size_;
      demand.match = ledger_.Lookup(s->salt, s->tokens, s->chain, blocks);
    }
  }
  if (ledger_.has_full()) demand.pages = ReservePages(*s) - demand.match.blocks;
  return demand;
}

// The next block it would compute is being computed by a running request: its commit is near and will be a hit.
bool SchedulerImpl::HeldBack(Sequence* s, uint32_t blocks) {
  if (!s->use_cache || s->prompt_logprobs || blocks >= s->chain.size()) return false;
  for (const Sequence* o : running_) {
    if (!o->running() || o->row.node == kv::kNoNode || blocks >= o->chain.size() || o->chain[blocks] != s->chain[blocks]) continue;
    const uint64_t end = (blocks + 1ull) * page_size_;
    if (end > o->target || end <= o->row.settled) continue;
    // Chains agree up to the point of divergence, so the common blocks are found by bisection.
    uint32_t low = blocks + 1, high = static_cast<uint32_t>(std::min<size_t>({s->chain.size(), o->chain.size(), o->target / page_size_}));
    while (low < high) {
      const uint32_t middle = low + (high - low + 1) / 2;
      if (s->chain[middle - 1] == o->chain[middle - 1]) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    s->writer_order = o->order;
    s->writer_slot = o->slot.v;
    s->writer_tokens = low * page_size_;
    return true;
  }
  return false;
}

bool SchedulerImpl::StillHeldBack(const Sequence& s) const {
  if (s.writer_order == 0) return false;
  const Sequence* o = slots_[s.writer_slot];
  return o != nullptr && o->order == s.writer_order && o->running() && o->row.node != kv::kNoNode &&
         o->row.settled < s.writer_tokens;
}

void SchedulerImpl::Admit(Sequence* s, const Demand& demand) {
  const uint32_t reserve = ledger_.has_full() ? ReservePages(*s) : 0;
  s->tokens.reserve(s->final_tokens);
  s->chain.reserve(s->final_tokens / page_size_ + 1);
  s->row.Reserve(Pages(s->final_tokens));
  s->hit_blocks = 0;
  if (s->use_cache) {
    s->hit_blocks = ledger_.Adopt(&s->row, s->salt, demand.match);
  } else {
    ledger_.AdoptPrivate(&s->row);
  }
  const uint32_t slot = static_cast<uint32_t>(std::find(slots_.begin(), slots_.end(), nullptr) - slots_.begin());
  slots_[slot] = s;
  s->slot = SequenceSlot(slot);
  s->reserved = ledger_.has_full() ? reserve - s->hit_blocks : 0;
  reserved_ += s->reserved;
  s->target = static_cast<uint32_t>(s->tokens.size());
  s->state = SequenceState::kPrefill;
  s->next_anchor = 0;
  while (s->next_anchor < s->anchors.size() && s->anchors[s->next_anchor] / page_size_ <= s->hit_blocks) ++s->next_anchor;
  running_.push_back(s);
  const uint32_t cached = s->hit_blocks * page_size_;
  Fold(s->request.v ^ static_cast<uint64_t>(cached) << 32);
  if (s->use_cache && !s->prompt_logprobs) {
    counters_.lookups++;
    counters_.hits += s->hit_blocks > 0;
    counters_.window_truncated_hits += demand.match.walked > demand.match.blocks;
  }
  if (s->admitted_once) return;
  s->admitted_once = true;
  const uint32_t of_prompt = std::min(cached, s->prompt_tokens);
  counters_.prompt_tokens += s->prompt_tokens;
  counters_.cached_tokens += of_prompt;
  RequestEvent& event = Emit(*s);
  event.admitted = true;
  event.cached_tokens = of_prompt;
}

void SchedulerImpl::AdmitWaiting(Launch* launch, uint32_t* budget) {
  Sequence* head = nullptr;   // the first that had to wait although it has room
  uint64_t head_demand = 0;
  uint32_t scanned = 0;
  for (size_t i = 0; i < waiting_.size() && *budget > 0 && running_.size() < limits_.running && scanned < kScan; ++scanned) {
    Sequence* s = waiting_[i];
    // A request may pass the head only if the head still finds a place and its pages afterwards, and not for ever.
    if (head != nullptr && (head->passed >= kMaxPassed || running_.size() + 1 >= limits_.running)) break;
    if (StillHeldBack(*s)) {
      if (head == nullptr) {
        head = s;
        head_demand = Measure(s).total();
      }
      ++i;
      continue;
    }
    s->writer_order = 0;
    const Demand demand = Measure(s);
    const bool fits = HF_DRILL(kNoReservation) || !ledger_.has_full() ||
                      static_cast<int64_t>(demand.total() + head_demand) <= FullHeadroom();
    if (fits && !HeldBack(s, demand.match.blocks)) {
      if (head != nullptr) head->passed++;
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
      Admit(s, demand);
      const uint32_t wanted = std::min(*budget, s->target - s->row.launched);
      const uint32_t n = GrowChunk(s, wanted);
      if (n == 0) break;
      AddEntry(launch, s, n);
      *budget = n < wanted ? 0 : *budget - n;
      continue;
    }
    counters_.deferred += !s->deferred;
    s->deferred = true;
    if (head == nullptr) {
      head = s;
      head_demand = demand.total();
      if (!fits) break;  // anything admitted now would take from what it waits for
    }
    ++i;
  }
}

}  // namespace holdfast::sched

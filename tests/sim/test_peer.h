#pragma once
// The door tests use to look at and stomp on private state. Never part of a shipped binary.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
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
  static PageRef Copy(const PageRef& ref) { return ref ? PageRef(ref.id(), ref.generation()) : PageRef(); }
  static void CopyRow(const SeqRow& from, SeqRow& to) {
    to.ForgetAll();
    for (size_t g = 0; g < from.tables_.size(); ++g) {
      const SeqRow::Table& a = from.tables_[g];
      SeqRow::Table& b = to.tables_[g];
      for (const PageRef& ref : a.refs) b.refs.push_back(Copy(ref));
      b.mirror = a.mirror;
      b.slid = a.slid;
      b.dirty_begin = a.dirty_begin;
      b.dirty_end = a.dirty_end;
    }
    to.node = from.node;
    to.indexed = from.indexed;
    to.settled = from.settled;
    to.launched = from.launched;
  }
  // Everything but the list of rows.
  static void CopyLedger(const Ledger& from, Ledger& to) {
    to.arenas_ = from.arenas_;
    to.tallies_ = from.tallies_;
    to.path_ = from.path_;
    to.tick_ = from.tick_;
    to.digest_ = from.digest_;
    to.counters_ = from.counters_;
    const PrefixIndex& a = from.index_;
    PrefixIndex& b = to.index_;
    for (PageRef& ref : b.refs_) ref.Forget();
    b.refs_.resize(a.refs_.size());
    for (size_t i = 0; i < a.refs_.size(); ++i) b.refs_[i] = Copy(a.refs_[i]);
    b.nodes_ = a.nodes_;
    b.tokens_ = a.tokens_;
    b.worth_ = a.worth_;
    b.stamp_ = a.stamp_;
    b.free_ = a.free_;
    b.buckets_ = a.buckets_;
    b.owner_ = a.owner_;
    b.heaps_ = a.heaps_;
    b.roots_ = a.roots_;
    b.root_salt_ = a.root_salt_;
    b.live_ = a.live_;
  }
  static std::vector<SeqRow*>& rows(Ledger& l) { return l.rows_; }
  static void SetOwner(Ledger& l, size_t g, uint32_t page, NodeId owner) { l.index_.owner_[g][page] = owner; }
  static PageRef& NodeRef(Ledger& l, NodeId n, size_t g) { return l.index_.refs_[n.v * l.index_.groups_ + g]; }
  static void SetMirror(SeqRow& row, size_t g, uint32_t block, int32_t page) { row.tables_[g].mirror[block] = page; }
};

}  // namespace holdfast::kv

namespace holdfast::sched {

struct TestPeer {
  static SchedulerImpl& impl(Scheduler& s) { return static_cast<SchedulerImpl&>(s); }
  // A copy of the whole scheduler: every reference, list and step in flight. Plans of steps in flight can be settled, not run.
  static std::unique_ptr<SchedulerImpl> Clone(const SchedulerImpl& from) {
    auto to = std::make_unique<SchedulerImpl>(from.config_, from.question_, from.findings_);
    kv::TestPeer::CopyLedger(from.ledger_, to->ledger_);
    std::unordered_map<const Sequence*, Sequence*> map{{nullptr, nullptr}};
    for (const auto& s : from.pool_) {
      to->pool_.push_back(std::make_unique<Sequence>(from.ledger_.groups()));
      Sequence& c = *to->pool_.back();
      map[s.get()] = &c;
      c.request = s->request, c.order = s->order, c.epoch = s->epoch, c.state = s->state;
      c.tokens = s->tokens, c.chain = s->chain, c.anchors = s->anchors, c.next_anchor = s->next_anchor;
      c.prompt_tokens = s->prompt_tokens, c.final_tokens = s->final_tokens, c.salt = s->salt, c.salt_hash = s->salt_hash;
      c.use_cache = s->use_cache, c.prompt_logprobs = s->prompt_logprobs, c.slot = s->slot, c.target = s->target;
      c.run_ahead = s->run_ahead, c.pending = s->pending, c.sampled_in = s->sampled_in;
      c.inflight = s->inflight, c.reserved = s->reserved, c.hit_blocks = s->hit_blocks, c.admitted_once = s->admitted_once;
      c.leave_running = s->leave_running, c.writer_order = s->writer_order, c.writer_slot = s->writer_slot;
      c.writer_tokens = s->writer_tokens, c.deferred = s->deferred, c.passed = s->passed;
      kv::TestPeer::CopyRow(s->row, c.row);
    }
    const auto copy = [&](const std::vector<Sequence*>& a, std::vector<Sequence*>& b) {
      b.clear();
      for (Sequence* s : a) b.push_back(map.at(s));
    };
    copy(from.free_, to->free_);
    copy(from.waiting_, to->waiting_);
    copy(from.running_, to->running_);
    copy(from.slots_, to->slots_);
    for (const auto& s : from.pool_) {
      if (s->state != SequenceState::kFree) to->by_request_[s->request.v] = map.at(s.get());
    }
    for (const Sequence* s : from.running_) kv::TestPeer::rows(to->ledger_).push_back(&map.at(s)->row);
    to->launches_ = from.launches_;
    for (SchedulerImpl::Launch& l : to->launches_) {
      for (auto& m : l.members) m.sequence = map.at(m.sequence);
    }
    to->limits_ = from.limits_, to->usable_ = from.usable_, to->next_order_ = from.next_order_, to->reserved_ = from.reserved_;
    to->oldest_ = from.oldest_, to->outstanding_ = from.outstanding_, to->inflight_tokens_ = from.inflight_tokens_;
    to->next_step_ = from.next_step_, to->digest_ = from.digest_, to->counters_ = from.counters_;
    to->steps_to_audit_ = from.steps_to_audit_, to->audited_at_ = from.audited_at_, to->containments_ = from.containments_, to->resize_ = from.resize_;
    to->targets_ = from.targets_, to->moves_ = from.moves_;
    return to;
  }
  // What decides the scheduler's future, with pages renamed in order of appearance: two states with equal words behave alike but for the
  // choice of victims, which explicit evictions cover. tag(group, page, offset) is the content.
  template <class Tag>
  static void Canonical(const SchedulerImpl& s, Tag tag, std::vector<uint64_t>* out) {
    out->clear();
    const kv::Ledger& ledger = s.ledger_;
    const kv::PrefixIndex& index = ledger.index();
    std::vector<std::vector<uint32_t>> names;
    std::vector<uint32_t> next(ledger.groups(), 1);
    for (size_t g = 0; g < ledger.groups(); ++g) names.emplace_back(ledger.arena(g).size(), 0);
    const auto page = [&](size_t g, const kv::PageRef& ref) {
      if (!ref) {
        out->push_back(0);
        return;
      }
      uint32_t& name = names[g][ref.page()];
      const bool fresh = name == 0;
      if (fresh) name = next[g]++;
      out->push_back(name);
      if (!fresh) return;
      out->push_back(ledger.arena(g).word(ref.page()).ref());
      for (uint32_t o = 0; o < ledger.page_size(); ++o) out->push_back(tag(g, ref.page(), o));
    };
    std::unordered_map<uint32_t, uint64_t> node_name{{kv::kNoNode.v, 0}};
    std::vector<kv::NodeId> stack;
    for (const auto& [salt, root] : index.roots()) stack.push_back(root);
    while (!stack.empty()) {
      const kv::NodeId n = stack.back();
      stack.pop_back();
      node_name.emplace(n.v, node_name.size());
      if (index.depth(n) > 0) {
        out->push_back(node_name[index.parent(n).v]);
        for (uint32_t i = 0; i < ledger.page_size(); ++i) out->push_back(index.tokens(n)[i]);
        for (size_t g = 0; g < ledger.groups(); ++g) page(g, index.ref(n, g));
      }
      std::vector<kv::NodeId> children;
      for (kv::NodeId c = index.first_child(n); c != kv::kNoNode; c = index.next_sibling(c)) children.push_back(c);
      std::sort(children.begin(), children.end(), [&](kv::NodeId a, kv::NodeId b) {
        return std::lexicographical_compare(index.tokens(b), index.tokens(b) + ledger.page_size(), index.tokens(a), index.tokens(a) + ledger.page_size());
      });
      stack.insert(stack.end(), children.begin(), children.end());
    }
    for (const auto* list : {&s.waiting_, &s.running_}) {
      out->push_back(0xFFFF0000ull + list->size());
      for (const Sequence* q : *list) {
        const Sequence* writer = q->writer_order != 0 ? s.slots_[q->writer_slot] : nullptr;
        const bool held = writer != nullptr && writer->order == q->writer_order;
        out->insert(out->end(), {q->request.v, q->tokens.size(), q->row.settled, q->row.launched, q->inflight, static_cast<uint64_t>(q->state), q->row.indexed,
                                 q->reserved, q->target, q->passed, held ? writer->request.v : 0, held ? q->writer_tokens : 0u,
                                 node_name.at(q->row.node.v), static_cast<uint64_t>(q->leave_running), q->pending,
                                 q->pending > 0 ? s.next_step_.v - q->sampled_in.v : 0});
        for (size_t g = 0; g < ledger.groups(); ++g) {
          out->push_back(q->row.slid(g));
          for (uint32_t i = 0; i < q->row.blocks_in(g); ++i) page(g, q->row.at(g, i));
        }
      }
    }
    for (uint32_t i = 0; i < s.outstanding_; ++i) {
      const SchedulerImpl::Launch& l = s.launches_[(s.oldest_ + i) % s.launches_.size()];
      out->push_back(0xEEEE0000ull + l.members.size());
      for (size_t m = 0; m < l.members.size(); ++m) {
        out->insert(out->end(), {l.members[m].epoch == l.members[m].sequence->epoch ? l.plan.entries[m].request.v : 0, l.members[m].start, l.members[m].tokens,
                                 static_cast<uint64_t>(l.plan.entries[m].sample) | static_cast<uint64_t>(l.plan.entries[m].awaits) << 1});
      }
    }
    for (size_t g = 0; g < ledger.groups(); ++g) out->push_back(ledger.arena(g).free_listed());
  }
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

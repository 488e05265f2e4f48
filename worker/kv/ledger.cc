#include "worker/kv/ledger.h"

#include <algorithm>

#include "worker/kv/drill.h"

namespace holdfast::kv {
namespace {

enum FoldKind : uint64_t { kFoldTake = 1, kFoldEvict, kFoldDedup, kFoldHeal, kFoldMove };

std::vector<Arena> MakeArenas(const CacheShape& shape) {
  std::vector<Arena> arenas;
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    const GroupShape& group = shape.groups[g];
    arenas.emplace_back(static_cast<uint8_t>(g), group.pages, std::max(group.pages, group.reserve_pages));
  }
  return arenas;
}

std::vector<uint32_t> Windows(const CacheShape& shape) {
  std::vector<uint32_t> windows;
  for (const GroupShape& group : shape.groups) windows.push_back(group.window);
  return windows;
}

}  // namespace

Ledger::Ledger(const CacheShape& shape, uint32_t max_rows)
    : page_size_(shape.page_size),
      windows_(Windows(shape)),
      arenas_(MakeArenas(shape)),
      tallies_(shape.groups.size()),
      index_(shape.page_size, windows_, &arenas_, &tallies_) {
  rows_.reserve(max_rows);
  runs_.resize(groups());
  for (uint32_t w : windows_) run_needed_.push_back(w == 0 ? 0 : (w - 1 + page_size_ - 1) / page_size_);
  counters_.evictions.resize(groups());
  // Every node but roots and bare ancestors holds a page of its own, so this many never run out while decoding.
  uint32_t pages = 0;
  for (const Arena& arena : arenas_) pages = std::max(pages, arena.limit());
  index_.Reserve(pages + 2 * max_rows + 16);
  path_.reserve(1024);
}

Ledger::~Ledger() {
  for (SeqRow* row : rows_) row->ForgetAll();
}

// ---- references ---------------------------------------------------------------------------------------------------------------

PageRef Ledger::TakePage(size_t g) {
  while (arenas_[g].free_listed() == 0) {
    if (!EvictOne(g)) break;
  }
  PageRef ref = arenas_[g].Take();
  if (ref) Fold(kFoldTake, ref.id().v);
  return ref;
}

PageRef Ledger::ShareRef(size_t g, const PageRef& ref) {
  PageRef shared = arenas_[g].Share(ref);
  if (shared) {
    const StateWord word = arenas_[g].word(shared.page());
    const NodeId owner = index_.owner(g, shared.page());
    if (word.indexed() && word.ref() == 2 && owner != kNoNode) index_.Refresh(owner, g);
  }
  return shared;
}

void Ledger::DropRef(size_t g, PageRef ref) {
  if (!ref) return;
  const uint32_t page = ref.page();
  if (!arenas_[g].Drop(std::move(ref)) || page >= arenas_[g].size()) return;
  const StateWord word = arenas_[g].word(page);
  const NodeId owner = index_.owner(g, page);
  if (word.indexed() && word.ref() == 1 && owner != kNoNode) index_.Refresh(owner, g);
}

bool Ledger::EvictOne(size_t g) {
  const NodeId victim = index_.Victim(g);
  if (victim == kNoNode) return false;
  EvictNode(g, victim);
  return true;
}

void Ledger::EvictNode(size_t g, NodeId victim) {
  Fold(kFoldEvict, static_cast<uint64_t>(g) << 32 | victim.v);
  counters_.evictions[g]++;
  if (windows_[g] != 0) {
    index_.Release(victim, g);
  } else {
    for (size_t other = groups(); other > 0; --other) index_.Release(victim, other - 1);
  }
  index_.RemoveIfEmpty(victim);
}

// ---- the life of a row ----------------------------------------------------------------------------------------------------------

PrefixMatch Ledger::Lookup(const std::string& salt, std::span<const TokenId> tokens, std::span<const uint64_t> chain,
                           uint32_t max_blocks) {
  PrefixMatch match;
  path_.clear();
  NodeId node = index_.FindRoot(salt);
  if (node == kNoNode) return match;
  std::fill(runs_.begin(), runs_.end(), 0);
  uint32_t pin_loss = 0;
  constexpr uint32_t kAhead = 8;
  for (uint32_t i = 0; i < max_blocks; ++i) {
    if (i + kAhead < max_blocks) index_.Prefetch(chain[i + kAhead]);
    node = index_.FindChild(node, chain[i], &tokens[static_cast<size_t>(i) * page_size_]);
    if (node == kNoNode) break;
    path_.push_back(node);
    bool usable = true;
    for (size_t g = 0; g < groups(); ++g) {
      const PageRef& ref = index_.ref(node, g);
      if (windows_[g] == 0) {
        usable = usable && ref;
        if (ref && arenas_[g].word(ref.page()).ref() == 1) ++pin_loss;
      } else {
        // A run that has reached the root has no hole: i + 1 blocks of it.
        runs_[g] = ref ? runs_[g] + 1 : 0;
        const uint32_t needed = run_needed_[g] - (HF_DRILL(kMatchShortWindow) && run_needed_[g] > 0 ? 1 : 0);
        usable = usable && (runs_[g] == i + 1 || runs_[g] >= needed);
      }
    }
    match.walked = i + 1;
    if (usable) {
      match.blocks = i + 1;
      match.pin_loss = pin_loss;
    }
  }
  return match;
}

void Ledger::AdoptPrivate(SeqRow* row) {
  row->node = kNoNode;
  row->indexed = 0;
  rows_.push_back(row);
}

uint32_t Ledger::Adopt(SeqRow* row, const std::string& salt, const PrefixMatch& match) {
  ++tick_;
  bool stale = false;
  rows_.push_back(row);
  const uint64_t start = static_cast<uint64_t>(match.blocks) * page_size_;
  for (size_t g = 0; g < groups() && !stale; ++g) {
    const uint32_t w = windows_[g];
    const uint32_t first = w == 0 || start < w ? 0 : static_cast<uint32_t>((start - w + 1) / page_size_);
    for (uint32_t i = 0; i < match.blocks; ++i) {
      const NodeId node = path_[i];
      PageRef ref;
      if (i >= first) {
        ref = ShareRef(g, index_.ref(node, g));
        if (!ref) {
          stale = true;
          break;
        }
        index_.Touch(node, g, tick_);
      }
      row->Append(g, std::move(ref), arenas_[g], tallies_[g]);
    }
    row->set_slid(g, first);
  }
  if (stale) {
    // The event is recorded; the request starts cold.
    for (size_t g = groups(); g > 0; --g) {
      for (uint32_t i = row->blocks_in(g - 1); i > 0; --i) {
        DropRef(g - 1, row->Exchange(g - 1, i - 1, PageRef(), arenas_[g - 1], tallies_[g - 1]));
      }
    }
    row->ForgetAll();
    row->node = kNoNode;
    return 0;
  }
  row->node = match.blocks > 0 ? path_[match.blocks - 1] : index_.EnsureRoot(salt);
  row->indexed = match.blocks;
  row->settled = row->launched = static_cast<uint32_t>(start);
  index_.Pin(row->node);
  KeepWindow(row->node);  // a hit ended here, others may follow
  return match.blocks;
}

bool Ledger::ExtendTo(SeqRow* row, uint32_t blocks) {
  while (row->blocks() < blocks) {
    for (size_t g = 0; g < groups(); ++g) {
      PageRef ref = TakePage(g);
      if (!ref) {
        // Keep the tables equally long: what this block got goes back.
        for (size_t other = 0; other < g; ++other) {
          DropRef(other, row->Exchange(other, row->blocks_in(other) - 1, PageRef(), arenas_[other], tallies_[other]));
          row->DropLast(other);
        }
        return false;
      }
      row->Append(g, std::move(ref), arenas_[g], tallies_[g]);
    }
  }
  return true;
}

bool Ledger::NextBlockIsDear() const {
  for (size_t g = 0; g < groups(); ++g) {
    if (windows_[g] != 0 && arenas_[g].free_listed() == 0 && index_.VictimIsDear(g, tick_)) return true;
  }
  return false;
}

void Ledger::ShareWithNode(SeqRow* row, uint32_t block, NodeId node, size_t g) {
  PageRef shared = ShareRef(g, index_.ref(node, g));
  if (!shared) return;
  Fold(kFoldDedup, shared.id().v);
  PageRef own = row->Exchange(g, block, std::move(shared), arenas_[g], tallies_[g]);
  if (HF_DRILL(kDedupKeepsTally)) tallies_[g].rows += arenas_[g].Hash(own.page());
  DropRef(g, std::move(own));
  if (windows_[g] == 0) counters_.dedups++;
}

void Ledger::CommitBlock(SeqRow* row, const SequenceView& sequence) {
  const uint32_t i = row->indexed;
  const TokenId* block = &sequence.tokens[static_cast<size_t>(i) * page_size_];
  const NodeId parent = row->node;
  NodeId child = index_.FindChild(parent, sequence.chain[i], block);
  ++tick_;
  if (child == kNoNode) {
    const bool branch = index_.depth(parent) > 0 && index_.children(parent) > 0;
    child = index_.AddChild(parent, sequence.chain[i], block);
    index_.Pin(child);
    for (size_t g = 0; g < groups(); ++g) {
      if (!row->at(g, i)) continue;
      PageRef ref = arenas_[g].IndexAdd(row->at(g, i));
      if (ref) index_.Attach(child, g, std::move(ref));
    }
    if (branch) KeepWindow(parent);
  } else {
    index_.Pin(child);
    for (size_t g = 0; g < groups(); ++g) {
      const PageRef& own = row->at(g, i);
      if (!own) continue;
#ifdef HOLDFAST_DRILLS
      if (HF_DRILL(kFreeTokenCommit) && windows_[g] == 0 && groups() > 1 && !index_.ref(child, 1) && index_.ref(child, 0) &&
          arenas_[0].word(index_.ref(child, 0).page()).ref() > 1 && !index_.ref(child, 0).Names(own)) {
        arenas_[g].DropForDrill(own);  // the duplicate is freed; the row goes on naming it
        break;
      }
      if (HF_DRILL(kDisplacingRevive) && windows_[g] == 0 && index_.ref(child, 0) && !index_.ref(child, 0).Names(own)) {
        const uint32_t displaced = index_.ref(child, 0).page();
        index_.Release(child, 0);
        while (arenas_[0].word(displaced).ref() > 0) arenas_[0].DropPageForDrill(displaced);
        index_.Attach(child, 0, arenas_[0].IndexAdd(own));
        continue;
      }
#endif
      if (!index_.ref(child, g)) {
        PageRef ref = arenas_[g].IndexAdd(own);
        if (!ref) continue;
        Fold(kFoldHeal, ref.id().v);
        index_.Attach(child, g, std::move(ref));
#ifdef HOLDFAST_DRILLS
        if (HF_DRILL(kHealMoves)) DropRef(g, row->Exchange(g, i, PageRef(), arenas_[g], tallies_[g]));
#endif
        counters_.heals++;
      } else if (!index_.ref(child, g).Names(own)) {
        ShareWithNode(row, i, child, g);
      }
    }
  }
  for (size_t g = 0; g < groups(); ++g) index_.Touch(child, g, tick_);
  index_.Unpin(parent);
  row->node = child;
  row->indexed = i + 1;
}

void Ledger::Commit(SeqRow* row, const SequenceView& sequence) {
  if (row->node == kNoNode) return;
  // A row that ended with a step of its own ahead of it has settled one position whose token nobody was told.
  const uint64_t known = std::min<uint64_t>(row->settled, sequence.tokens.size());
  while ((row->indexed + 1ull) * page_size_ <= known) {
    CommitBlock(row, sequence);
    uint32_t& next = *sequence.next_anchor;
    for (; next < sequence.anchors.size() && sequence.anchors[next] / page_size_ <= row->indexed; ++next) {
      if (sequence.anchors[next] / page_size_ == row->indexed) KeepWindow(row->node);
    }
  }
}

void Ledger::KeepWindow(NodeId node) {
  if (index_.depth(node) == 0) return;
  for (size_t g = 0; g < groups(); ++g) {
    if (windows_[g] == 0) continue;
    // Who does not find it begins at the kept window before it, if that is still there.
    uint32_t worth = 1;
    for (NodeId n = index_.parent(node); index_.depth(n) > 0 && !(index_.kept(n) && index_.ref(n, g)); n = index_.parent(n)) ++worth;
    NodeId n = node;
    for (uint32_t i = 0; i < run_needed_[g] && index_.depth(n) > 0; ++i) {
      index_.RaiseWorth(n, g, worth);
      n = index_.parent(n);
    }
  }
  index_.Keep(node);
}

void Ledger::MarkEnd(SeqRow* row) {
  if (row->node != kNoNode) KeepWindow(row->node);
}

void Ledger::Slide(SeqRow* row) {
  const uint32_t settled = HF_DRILL(kSlideOnLaunched) ? row->launched : row->settled;
  for (size_t g = 0; g < groups(); ++g) {
    const uint32_t w = windows_[g];
    if (w == 0 || settled < w) continue;
    const uint32_t low = std::min((settled - w + 1) / page_size_, row->blocks());
    for (uint32_t i = row->slid(g); i < low; ++i) DropRef(g, row->Exchange(g, i, PageRef(), arenas_[g], tallies_[g]));
    if (low > row->slid(g)) row->set_slid(g, low);
  }
}

void Ledger::Leave(SeqRow* row) {
  if (row->node == kNoNode) return;
  index_.Unpin(std::exchange(row->node, kNoNode));
  row->indexed = 0;
}

void Ledger::Release(SeqRow* row) {
  for (size_t g = groups(); g > 0; --g) {
    for (uint32_t i = row->blocks_in(g - 1); i > 0; --i) {
      DropRef(g - 1, row->Exchange(g - 1, i - 1, PageRef(), arenas_[g - 1], tallies_[g - 1]));
    }
  }
  Leave(row);
  row->ForgetAll();
  const auto it = std::find(rows_.begin(), rows_.end(), row);
  if (it != rows_.end()) rows_.erase(it);
}

// ---- capacity and resizing ------------------------------------------------------------------------------------------------------

int64_t Ledger::Available(size_t g, uint32_t limit) const {
  return static_cast<int64_t>(limit) - arenas_[g].quarantined_below_limit() - arenas_[g].row_held();
}

void Ledger::SetLimit(size_t g, uint32_t limit) {
  arenas_[g].SetLimit(limit);
  index_.Reserve(limit + 2 * static_cast<uint32_t>(rows_.capacity()) + 16);
}

void Ledger::MoveDown(size_t g, uint32_t budget, std::vector<Move>* moves) {
  Arena& arena = arenas_[g];
  struct Holder {
    uint32_t page;
    SeqRow* row;
    uint32_t block;
  };
  std::vector<Holder> holders;
  for (SeqRow* row : rows_) {
    for (uint32_t i = 0; i < row->blocks_in(g); ++i) {
      if (row->at(g, i) && row->at(g, i).page() >= arena.limit()) holders.push_back({row->at(g, i).page(), row, i});
    }
  }
  std::stable_sort(holders.begin(), holders.end(), [](const Holder& a, const Holder& b) { return a.page < b.page; });
  auto holder = holders.begin();
  for (uint32_t p = arena.limit(); p < arena.size() && budget > 0 && arena.held_above_limit() > 0; ++p) {
    while (arena.word(p).kind() == PageKind::kHeld && arena.free_listed() == 0 && EvictOne(g)) {
    }
    if (arena.word(p).kind() != PageKind::kHeld) continue;
    PageRef fresh = arena.Take();
    if (!fresh) return;
    Fold(kFoldMove, static_cast<uint64_t>(p) << 24 | fresh.page());
    moves->push_back({static_cast<uint8_t>(g), p, fresh.page()});
    --budget;
    while (holder != holders.end() && holder->page < p) ++holder;
    const NodeId owner = index_.owner(g, p);
    for (; holder != holders.end() && holder->page == p; ++holder) {
      DropRef(g, holder->row->Exchange(g, holder->block, ShareRef(g, fresh), arena, tallies_[g]));
    }
    if (owner != kNoNode) {
      PageRef indexed = arena.IndexAdd(fresh);
      if (indexed) index_.Repoint(owner, g, std::move(indexed));
    }
    DropRef(g, std::move(fresh));
  }
}

}  // namespace holdfast::kv

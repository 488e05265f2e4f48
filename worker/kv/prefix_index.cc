#include "worker/kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "proto/base/random.h"

namespace holdfast::kv {

uint64_t ChainHash(uint64_t previous, const TokenId* block, uint32_t page_size) {
  uint64_t h = previous;
  uint32_t i = 0;
  for (; i + 2 <= page_size; i += 2) h = Mix64(h ^ (static_cast<uint64_t>(block[i]) << 32 | block[i + 1]));
  if (i < page_size) h = Mix64(h ^ (static_cast<uint64_t>(block[i]) << 32 | 0xFFFFFFFFu));
  return h;
}

uint64_t SaltHash(const std::string& salt) {
  uint64_t h = 0x686f'6c64'6661'7374ull ^ salt.size();
  for (unsigned char c : salt) h = Mix64(h ^ c);
  return h;
}

PrefixIndex::PrefixIndex(uint32_t page_size, std::vector<uint32_t> windows, std::vector<Arena>* arenas, std::vector<GroupTally>* tallies)
    : page_size_(page_size), windows_(std::move(windows)), groups_(windows_.size()), arenas_(arenas), tallies_(tallies), heaps_(groups_) {
  for (const Arena& arena : *arenas_) owner_.emplace_back(arena.size(), kNoNode);
  buckets_.assign(16, kNoNode);
}

PrefixIndex::~PrefixIndex() { ForgetAll(); }

void PrefixIndex::Reserve(uint32_t nodes) {
  if (nodes <= nodes_.size()) return;
  const uint32_t old = static_cast<uint32_t>(nodes_.size());
  nodes_.resize(nodes);
  tokens_.resize(static_cast<size_t>(nodes) * page_size_);
  refs_.resize(nodes * groups_);
  worth_.resize(nodes * groups_);
  stamp_.resize(nodes * groups_);
  free_.reserve(nodes);
  // Lower ids are handed out first.
  std::vector<NodeId> fresh;
  for (uint32_t n = nodes; n > old; --n) fresh.push_back(NodeId(n - 1));
  free_.insert(free_.begin(), fresh.begin(), fresh.end());
  for (EvictHeap& heap : heaps_) heap.Reserve(nodes);
  if (buckets_.size() < nodes) {
    buckets_.assign(std::bit_ceil(static_cast<size_t>(nodes)), kNoNode);
    Rehash();
  }
}

void PrefixIndex::Rehash() {
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    if (!node.live || node.depth == 0) continue;
    NodeId& bucket = buckets_[node.chain & (buckets_.size() - 1)];
    node.hash_next = bucket;
    bucket = NodeId(n);
  }
}

NodeId PrefixIndex::NewNode() {
  if (free_.empty()) Reserve(std::max<uint32_t>(64, static_cast<uint32_t>(nodes_.size()) * 2));
  const NodeId n = free_.back();
  free_.pop_back();
  nodes_[n.v] = Node{};
  nodes_[n.v].live = true;
  for (size_t g = 0; g < groups_; ++g) worth_[n.v * groups_ + g] = 0, stamp_[n.v * groups_ + g] = 0;
  ++live_;
  return n;
}

NodeId PrefixIndex::FindRoot(const std::string& salt) const {
  const auto it = roots_.find(salt);
  return it == roots_.end() ? kNoNode : it->second;
}

NodeId PrefixIndex::EnsureRoot(const std::string& salt) {
  const NodeId known = FindRoot(salt);
  if (known != kNoNode) return known;
  const NodeId n = NewNode();
  nodes_[n.v].chain = SaltHash(salt);
  roots_.emplace(salt, n);
  root_salt_.emplace(n.v, salt);
  return n;
}

NodeId PrefixIndex::FindChild(NodeId parent, uint64_t chain, const TokenId* block) const {
  for (NodeId n = buckets_[chain & (buckets_.size() - 1)]; n != kNoNode; n = nodes_[n.v].hash_next) {
    const Node& node = nodes_[n.v];
    if (node.chain == chain && node.parent == parent && std::memcmp(tokens(n), block, page_size_ * sizeof(TokenId)) == 0) return n;
  }
  return kNoNode;
}

NodeId PrefixIndex::AddChild(NodeId parent, uint64_t chain, const TokenId* block) {
  const NodeId n = NewNode();
  Node& node = nodes_[n.v];
  Node& up = nodes_[parent.v];
  node.chain = chain;
  node.parent = parent;
  node.depth = up.depth + 1;
  std::memcpy(&tokens_[static_cast<size_t>(n.v) * page_size_], block, page_size_ * sizeof(TokenId));
  NodeId& bucket = buckets_[chain & (buckets_.size() - 1)];
  node.hash_next = bucket;
  bucket = n;
  node.next_sibling = up.first_child;
  if (up.first_child != kNoNode) nodes_[up.first_child.v].previous_sibling = n;
  up.first_child = n;
  up.children++;
  for (size_t g = 0; g < groups_; ++g) {
    if (windows_[g] == 0) Refresh(parent, g);  // no longer a leaf
  }
  return n;
}

void PrefixIndex::Unpin(NodeId n) {
  nodes_[n.v].pins--;
  RemoveIfEmpty(n);
}

void PrefixIndex::Attach(NodeId n, size_t g, PageRef ref) {
  (*tallies_)[g].index += (*arenas_)[g].Hash(ref.page());
  owner_[g][ref.page()] = n;
  refs_[n.v * groups_ + g] = std::move(ref);
  Refresh(n, g);
}

void PrefixIndex::Release(NodeId n, size_t g) {
  PageRef ref = std::move(refs_[n.v * groups_ + g]);
  if (!ref) return;
  heaps_[g].Remove(n);
  owner_[g][ref.page()] = kNoNode;
  (*tallies_)[g].index -= (*arenas_)[g].Hash(ref.page());
  (*arenas_)[g].IndexDel(std::move(ref));
}

void PrefixIndex::Repoint(NodeId n, size_t g, PageRef to) {
  Release(n, g);
  Attach(n, g, std::move(to));
}

void PrefixIndex::Touch(NodeId n, size_t g, uint64_t stamp) {
  stamp_[n.v * groups_ + g] = stamp;
  heaps_[g].Rekey(n, cls(n, g), due(n, g));
}

void PrefixIndex::RaiseWorth(NodeId n, size_t g, uint32_t worth) {
  uint32_t& mine = worth_[n.v * groups_ + g];
  if (mine >= worth) return;
  mine = worth;
  heaps_[g].Rekey(n, cls(n, g), due(n, g));
}

void PrefixIndex::Refresh(NodeId n, size_t g) {
  const PageRef& r = ref(n, g);
  bool evictable = false;
  if (r) {
    const StateWord word = (*arenas_)[g].word(r.page());
    evictable = word.indexed() && word.ref() == 1 && (windows_[g] != 0 || nodes_[n.v].children == 0);
  }
  if (evictable) {
    heaps_[g].Insert(n, cls(n, g), due(n, g));
  } else {
    heaps_[g].Remove(n);
  }
}

void PrefixIndex::RemoveIfEmpty(NodeId n) {
  while (n != kNoNode) {
    Node& node = nodes_[n.v];
    if (node.children > 0 || node.pins > 0) return;
    for (size_t g = 0; g < groups_; ++g) {
      if (ref(n, g)) return;
    }
    const NodeId up = node.parent;
    if (node.depth == 0) {
      const auto salt = root_salt_.find(n.v);
      roots_.erase(salt->second);
      root_salt_.erase(salt);
    } else {
      NodeId* link = &buckets_[node.chain & (buckets_.size() - 1)];
      while (*link != n) link = &nodes_[link->v].hash_next;
      *link = node.hash_next;
      if (node.previous_sibling != kNoNode) {
        nodes_[node.previous_sibling.v].next_sibling = node.next_sibling;
      } else {
        nodes_[up.v].first_child = node.next_sibling;
      }
      if (node.next_sibling != kNoNode) nodes_[node.next_sibling.v].previous_sibling = node.previous_sibling;
      nodes_[up.v].children--;
      for (size_t g = 0; g < groups_; ++g) {
        if (windows_[g] == 0) Refresh(up, g);  // perhaps a leaf now
      }
    }
    node.live = false;
    --live_;
    free_.push_back(n);
    n = up;
  }
}

void PrefixIndex::ForgetAll() {
  for (PageRef& ref : refs_) ref.Forget();
  for (EvictHeap& heap : heaps_) heap.Clear();
  for (auto& owners : owner_) std::fill(owners.begin(), owners.end(), kNoNode);
  for (GroupTally& tally : *tallies_) tally.index = 0;
  std::fill(buckets_.begin(), buckets_.end(), kNoNode);
  free_.clear();
  for (uint32_t n = static_cast<uint32_t>(nodes_.size()); n > 0; --n) {
    nodes_[n - 1].live = false;
    free_.push_back(NodeId(n - 1));
  }
  roots_.clear();
  root_salt_.clear();
  live_ = 0;
}

}  // namespace holdfast::kv

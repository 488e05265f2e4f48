#pragma once
// The prefix index: a tree of token blocks, one node a full block of page_size tokens, one root for every cache salt. A node holds one
// counted reference a group: the full page (never null where the model has a full group) and window pages (null = evicted, a "tombstone").
// Looked up by (parent, chain hash) and confirmed by comparing tokens, so a hash collision costs time, never correctness.
//
// This class keeps the structure and the eviction order; Ledger decides. The evictable pages (indexed, one reference) are in a heap a
// group: full pages only while their node is a leaf. Not thread-safe. Allocates when roots are made or more pages are backed than before.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "worker/kv/arena.h"
#include "worker/kv/evict_heap.h"
#include "worker/kv/ids.h"
#include "worker/kv/row.h"

namespace holdfast::kv {

// The chain hash of a block: of its tokens and of the chain before it.
uint64_t ChainHash(uint64_t previous, const TokenId* block, uint32_t page_size);
// Where the chains of a salt begin.
uint64_t SaltHash(const std::string& salt);

class PrefixIndex {
 public:
  PrefixIndex(uint32_t page_size, std::vector<uint32_t> windows, std::vector<Arena>* arenas, std::vector<GroupTally>* tallies);
  ~PrefixIndex();

  // Room for this many nodes without allocating.
  void Reserve(uint32_t nodes);

  NodeId FindRoot(const std::string& salt) const;  // kNoNode when there is none
  NodeId EnsureRoot(const std::string& salt);
  NodeId FindChild(NodeId parent, uint64_t chain, const TokenId* block) const;
  NodeId AddChild(NodeId parent, uint64_t chain, const TokenId* block);
  void Prefetch(uint64_t chain) const { __builtin_prefetch(&buckets_[chain & (buckets_.size() - 1)]); }

  // A row stands at the node: it is not removed meanwhile.
  void Pin(NodeId node) { nodes_[node.v].pins++; }
  void Unpin(NodeId node);

  NodeId parent(NodeId n) const { return nodes_[n.v].parent; }
  uint32_t depth(NodeId n) const { return nodes_[n.v].depth; }  // blocks on its path; 0 = root
  uint32_t children(NodeId n) const { return nodes_[n.v].children; }
  NodeId first_child(NodeId n) const { return nodes_[n.v].first_child; }
  NodeId next_sibling(NodeId n) const { return nodes_[n.v].next_sibling; }
  uint32_t pins(NodeId n) const { return nodes_[n.v].pins; }
  bool live(NodeId n) const { return n.v < nodes_.size() && nodes_[n.v].live; }
  const TokenId* tokens(NodeId n) const { return &tokens_[static_cast<size_t>(n.v) * page_size_]; }
  const PageRef& ref(NodeId n, size_t g) const { return refs_[n.v * groups_ + g]; }
  // A window that is worth keeping ends at the node.
  bool kept(NodeId n) const { return nodes_[n.v].kept; }
  // Blocks that somebody computes again when the node's page of window group g is gone; 0 where nobody is expected to look for it.
  uint32_t worth(NodeId n, size_t g) const { return worth_[n.v * groups_ + g]; }
  uint64_t stamp(NodeId n, size_t g) const { return stamp_[n.v * groups_ + g]; }
  NodeId owner(size_t g, uint32_t page) const { return owner_[g][page]; }
  void PrefetchOwner(size_t g, uint32_t page) const { __builtin_prefetch(&owner_[g][page]); }
  uint32_t slab_size() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t size() const { return live_ - static_cast<uint32_t>(roots_.size()); }  // nodes without roots
  const std::map<std::string, NodeId>& roots() const { return roots_; }

  // Gives the node an index reference (made by Arena::IndexAdd) to its page of group g.
  void Attach(NodeId n, size_t g, PageRef ref);
  // Drops the node's reference to its page of group g. The node stays.
  void Release(NodeId n, size_t g);
  void Touch(NodeId n, size_t g, uint64_t stamp);
  void Keep(NodeId n) { nodes_[n.v].kept = true; }
  void RaiseWorth(NodeId n, size_t g, uint32_t worth);
  // The page's reference count crossed 1: in or out of the eviction order.
  void Refresh(NodeId n, size_t g);
  // Next to give up in group g, or kNoNode.
  NodeId Victim(size_t g) const { return heaps_[g].Top(); }
  // The next to give up in group g is a kept page whose last use is less than its worth ago.
  bool VictimIsDear(size_t g, uint64_t now) const {
    const NodeId n = heaps_[g].Top();
    return n != kNoNode && cls(n, g) > 0 && due(n, g) > now;
  }
  uint32_t heap_size(size_t g) const { return heaps_[g].size(); }
  bool in_heap(NodeId n, size_t g) const { return heaps_[g].Contains(n); }
  // Removes the node, and then its ancestors, while they hold nothing: no reference, no child, no row.
  void RemoveIfEmpty(NodeId n);

  // The page moved: the node's reference becomes `to`, the old one is dropped.
  void Repoint(NodeId n, size_t g, PageRef to);
  // Forgets everything without giving references back (rebuilding: the arenas are set from rows afterwards). Tallies become 0.
  void ForgetAll();

 private:
  friend struct TestPeer;
  struct Node {
    uint64_t chain = 0;
    NodeId parent = kNoNode, hash_next = kNoNode, first_child = kNoNode, next_sibling = kNoNode, previous_sibling = kNoNode;
    uint32_t depth = 0, children = 0, pins = 0;
    bool live = false, kept = false;
  };
  NodeId NewNode();
  // What the order of eviction looks at: interior pages before kept ones, then how long ago the last use was, less what the page is worth.
  uint8_t cls(NodeId n, size_t g) const { return windows_[g] != 0 && worth(n, g) > 0; }
  uint64_t due(NodeId n, size_t g) const { return stamp(n, g) + (windows_[g] == 0 ? 0 : worth(n, g)); }
  void Rehash();

  uint32_t page_size_;
  std::vector<uint32_t> windows_;
  size_t groups_;
  std::vector<Arena>* arenas_;
  std::vector<GroupTally>* tallies_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;              // [node][page_size]
  std::vector<PageRef> refs_;                // [node][group]
  std::vector<uint32_t> worth_;              // [node][group], blocks
  std::vector<uint64_t> stamp_;              // [node][group]
  std::vector<NodeId> free_;                 // last in, first out
  std::vector<NodeId> buckets_;              // power of two
  std::vector<std::vector<NodeId>> owner_;   // [group][page]
  std::vector<EvictHeap> heaps_;             // [group]
  std::map<std::string, NodeId> roots_;
  std::map<uint32_t, std::string> root_salt_;
  uint32_t live_ = 0;
};

}  // namespace holdfast::kv

#pragma once
// An indexed binary min-heap of nodes by (class, due, id): the order in which index-only pages are given up. O(log n) insert, remove and
// re-key, no allocation once Reserve'd. Keys are logical time, blocks and ids only, so every rank picks the same victim.
#include <cstdint>
#include <vector>

#include "worker/kv/drill.h"
#include "worker/kv/ids.h"

namespace holdfast::kv {

class EvictHeap {
 public:
  void Reserve(uint32_t nodes) {
    if (position_.size() < nodes) position_.resize(nodes, kAbsent);
    entries_.reserve(nodes);
  }
  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }
  bool Contains(NodeId node) const { return position_[node.v] != kAbsent; }
  NodeId Top() const { return entries_.empty() ? kNoNode : NodeId(entries_[0].node); }
  void Clear() {
    for (const Entry& e : entries_) position_[e.node] = kAbsent;
    entries_.clear();
  }

  void Insert(NodeId node, uint8_t cls, uint64_t due) {
    if (Contains(node)) return;
    entries_.push_back({Key(cls, due), node.v});
    position_[node.v] = static_cast<uint32_t>(entries_.size() - 1);
    Up(entries_.size() - 1);
  }

  void Remove(NodeId node) {
    const uint32_t at = position_[node.v];
    if (at == kAbsent) return;
    position_[node.v] = kAbsent;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (at == entries_.size()) return;
    Place(at, last);
    Up(at);
    Down(position_[last.node]);
  }

  // New class or due of a node that may be in the heap.
  void Rekey(NodeId node, uint8_t cls, uint64_t due) {
    const uint32_t at = position_[node.v];
    if (at == kAbsent) return;
    entries_[at].key = Key(cls, due);
    Up(at);
    Down(position_[node.v]);
  }

 private:
  static constexpr uint32_t kAbsent = 0xFFFFFFFFu;
  struct Entry {
    uint64_t key;
    uint32_t node;
  };
  static uint64_t Key(uint8_t cls, uint64_t due) { return (static_cast<uint64_t>(cls) << 62) | due; }
  static bool Before(const Entry& a, const Entry& b) {
#ifdef HOLDFAST_DRILLS
    if (HF_DRILL(kTieByAddress)) return a.key != b.key ? a.key < b.key : (a.node ^ drill::rank_skew) < (b.node ^ drill::rank_skew);
#endif
    return a.key != b.key ? a.key < b.key : a.node < b.node;
  }
  void Place(size_t at, const Entry& e) {
    entries_[at] = e;
    position_[e.node] = static_cast<uint32_t>(at);
  }
  void Up(size_t at) {
    const Entry e = entries_[at];
    while (at > 0) {
      const size_t parent = (at - 1) / 2;
      if (!Before(e, entries_[parent])) break;
      Place(at, entries_[parent]);
      at = parent;
    }
    Place(at, e);
  }
  void Down(size_t at) {
    const Entry e = entries_[at];
    for (;;) {
      size_t child = 2 * at + 1;
      if (child >= entries_.size()) break;
      if (child + 1 < entries_.size() && Before(entries_[child + 1], entries_[child])) ++child;
      if (!Before(entries_[child], e)) break;
      Place(at, entries_[child]);
      at = child;
    }
    Place(at, e);
  }

  std::vector<Entry> entries_;
  std::vector<uint32_t> position_;  // [node]
};

}  // namespace holdfast::kv

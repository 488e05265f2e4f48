#pragma once
// Names of the ledger: pages, nodes of the prefix index, and the owner of a page reference.
#include <compare>
#include <cstdint>
#include <utility>

#include "proto/base/check.h"
#include "proto/base/ids.h"

namespace holdfast::kv {

inline constexpr uint32_t kMaxPages = 1u << 24;  // of one group
inline constexpr uint32_t kMaxGroups = 255;

// A node of the prefix index: one full block of tokens on one path. Reused after removal.
using NodeId = StrongId<struct NodeIdTag, uint32_t>;
inline constexpr NodeId kNoNode{0xFFFFFFFFu};

// A page of one group. The group is part of the name, so an arena refuses pages of another group at run time (ADR 0010).
struct PageId {
  uint32_t v = 0xFFFFFFFFu;  // group:8, page:24

  constexpr PageId() = default;
  constexpr PageId(uint8_t group, uint32_t page) : v((static_cast<uint32_t>(group) << 24) | page) {}
  constexpr uint8_t group() const { return static_cast<uint8_t>(v >> 24); }
  constexpr uint32_t page() const { return v & 0xFFFFFFu; }
  constexpr auto operator<=>(const PageId&) const = default;
};

// One counted reference to a page: the page and the generation it was taken in. 8 bytes, move-only and linear: the holder gives it back
// to the arena (Drop, IndexDel) or hands it on; destroying or overwriting one that still holds is a defect of the program and dies.
class PageRef {
 public:
  PageRef() = default;
  PageRef(PageRef&& other) noexcept : id_(std::exchange(other.id_, PageId())), generation_(other.generation_) {}
  PageRef& operator=(PageRef&& other) noexcept {
    HF_CHECKF(!*this, "a reference to page {} of group {} would be lost", id_.page(), id_.group());
    id_ = std::exchange(other.id_, PageId());
    generation_ = other.generation_;
    return *this;
  }
  PageRef(const PageRef&) = delete;
  PageRef& operator=(const PageRef&) = delete;
  ~PageRef() { HF_CHECKF(!*this, "a reference to page {} of group {} was dropped by scope", id_.page(), id_.group()); }

  explicit operator bool() const { return id_ != PageId(); }
  PageId id() const { return id_; }
  uint32_t page() const { return id_.page(); }
  uint32_t generation() const { return generation_; }
  bool Names(const PageRef& other) const { return id_ == other.id_ && generation_ == other.generation_; }

 private:
  friend class Arena;         // makes and consumes them
  friend class SeqRow;        // rebuilding: forgets entries that nothing counts any more
  friend class PrefixIndex;   // likewise
  friend struct TestPeer;     // tests stomp on them
  PageRef(PageId id, uint32_t generation) : id_(id), generation_(generation) {}
  void Forget() { id_ = PageId(); }

  PageId id_;
  uint32_t generation_ = 0;
};
static_assert(sizeof(PageRef) == 8);

}  // namespace holdfast::kv

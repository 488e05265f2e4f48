#pragma once
// Two hash tables of the vocabulary, built once and then only read: flat arrays with linear probing, at most half full. Their order is
// never looked at, so results do not depend on the hash.
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/random.h"

namespace holdfast::text {

// Text -> token. The texts live elsewhere: callers pass a function from token to text.
class TextIndex final {
 public:
  void Reserve(size_t count) {
    size_t size = 16;
    while (size < 2 * count) size *= 2;
    slots_.assign(size, kEmpty);
  }
  // Returns the token already there with that text, or kEmpty when `id` was added. At most Reserve's count of texts.
  template <class TextOf>
  TokenId Add(TokenId id, TextOf text_of) {
    const std::string_view text = text_of(id);
    size_t at = Slot(text);
    for (; slots_[at] != kEmpty; at = (at + 1) & (slots_.size() - 1)) {
      if (text_of(slots_[at]) == text) return slots_[at];
    }
    slots_[at] = id;
    return kEmpty;
  }
  template <class TextOf>
  TokenId Find(std::string_view text, TextOf text_of) const {
    for (size_t at = Slot(text); slots_[at] != kEmpty; at = (at + 1) & (slots_.size() - 1)) {
      if (text_of(slots_[at]) == text) return slots_[at];
    }
    return kEmpty;
  }
  static constexpr TokenId kEmpty = UINT32_MAX;

 private:
  size_t Slot(std::string_view text) const { return Mix64(std::hash<std::string_view>()(text)) & (slots_.size() - 1); }
  std::vector<TokenId> slots_ = std::vector<TokenId>(16, kEmpty);
};

// A pair of symbols -> the rank of their merge and the symbol it makes.
class MergeTable final {
 public:
  struct Merge {
    uint32_t rank = UINT32_MAX;  // lower merges first; UINT32_MAX: no such merge
    uint32_t result = 0;
  };
  void Reserve(size_t count) {
    size_t size = 16;
    while (size < 2 * count) size *= 2;
    slots_.assign(size, {});
  }
  // The first one added for a pair counts.
  void Add(uint32_t left, uint32_t right, Merge merge) {
    Slot& slot = slots_[Probe(left, right)];
    if (slot.merge.rank == UINT32_MAX) slot = {left, right, merge};
  }
  Merge Find(uint32_t left, uint32_t right) const { return slots_[Probe(left, right)].merge; }

 private:
  struct Slot {
    uint32_t left = 0, right = 0;
    Merge merge;
  };
  size_t Probe(uint32_t left, uint32_t right) const {
    const size_t mask = slots_.size() - 1;
    size_t at = Mix64((uint64_t{left} << 32) | right) & mask;
    while (slots_[at].merge.rank != UINT32_MAX && (slots_[at].left != left || slots_[at].right != right)) at = (at + 1) & mask;
    return at;
  }
  std::vector<Slot> slots_ = std::vector<Slot>(16);
};

}  // namespace holdfast::text

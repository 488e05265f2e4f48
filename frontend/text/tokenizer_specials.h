#pragma once
// Finds special tokens (control, unknown, user-defined) in text: a trie over their stored texts.
#include <cstdint>
#include <string_view>
#include <vector>

#include "frontend/text/vocabulary.h"

namespace holdfast::text {

class SpecialTrie final {
 public:
  explicit SpecialTrie(const Vocabulary& vocabulary);

  // Walks the tokens that text has at `from`, shortest first, and calls visit(token, end offset) for each. Returns the steps taken: at
  // most one more than the longest special token has bytes.
  template <class Visit>
  size_t Walk(std::string_view text, size_t from, Visit visit) const {
    uint32_t node = roots_[static_cast<uint8_t>(text[from])];
    size_t at = from;
    while (node != kNone) {
      ++at;
      if (nodes_[node].token != kNoToken) visit(nodes_[node].token, at);
      if (at >= text.size()) break;
      node = Child(node, static_cast<uint8_t>(text[at]));
    }
    return at - from + 1;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    TokenId token = kNoToken;
    uint32_t first = 0;  // its children in edges_
    uint32_t count = 0;
  };
  struct Edge {
    uint8_t byte;
    uint32_t node;
  };
  uint32_t Child(uint32_t node, uint8_t byte) const;

  std::vector<uint32_t> roots_;  // [256]
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;      // children of a node are together and ascending
};

}  // namespace holdfast::text

#include "frontend/text/tokenizer_specials.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace holdfast::text {

SpecialTrie::SpecialTrie(const Vocabulary& vocabulary) : roots_(256, kNone) {
  std::vector<std::pair<std::string_view, TokenId>> texts;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const bool special = vocabulary.IsHidden(id) || vocabulary.type(id) == TokenType::kUserDefined;
    if (special && !vocabulary.stored(id).empty()) texts.emplace_back(vocabulary.stored(id), id);
  }
  std::sort(texts.begin(), texts.end());
  // Each entry is a node and the sorted texts that pass through it; they share their first `depth` bytes.
  struct Todo {
    uint32_t node;
    size_t from, to, depth;
  };
  std::deque<Todo> todo;
  const auto split = [&](size_t from, size_t to, size_t depth, auto add) {
    for (size_t i = from; i < to;) {
      const char byte = texts[i].first[depth];
      size_t end = i;
      while (end < to && texts[end].first[depth] == byte) ++end;
      const auto node = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      add(static_cast<uint8_t>(byte), node);
      todo.push_back({node, i, end, depth + 1});
      i = end;
    }
  };
  split(0, texts.size(), 0, [&](uint8_t byte, uint32_t node) { roots_[byte] = node; });
  while (!todo.empty()) {
    Todo t = todo.front();
    todo.pop_front();
    if (texts[t.from].first.size() == t.depth) nodes_[t.node].token = texts[t.from++].second;  // the shortest comes first; no two are equal
    nodes_[t.node].first = static_cast<uint32_t>(edges_.size());
    split(t.from, t.to, t.depth, [&](uint8_t byte, uint32_t node) { edges_.push_back({byte, node}); });
    nodes_[t.node].count = static_cast<uint32_t>(edges_.size()) - nodes_[t.node].first;
  }
}

uint32_t SpecialTrie::Child(uint32_t node, uint8_t byte) const {
  const auto begin = edges_.begin() + nodes_[node].first;
  const auto end = begin + nodes_[node].count;
  const auto it = std::lower_bound(begin, end, byte, [](const Edge& e, uint8_t b) { return e.byte < b; });
  return it != end && it->byte == byte ? it->node : kNone;
}

}  // namespace holdfast::text

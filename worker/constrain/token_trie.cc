#include "worker/constrain/token_trie.h"

#include <algorithm>

namespace holdfast::constrain {
namespace {

// No tokenizer has words of this length; what has would make every bound of the matcher useless.
constexpr size_t kLongest = 1024;

}  // namespace

TokenTrie::TokenTrie(std::span<const std::string> texts) {
  text_at_.reserve(texts.size() + 1);
  text_at_.push_back(0);
  std::vector<TokenId> order;
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!texts[id].empty() && texts[id].size() <= kLongest) {
      texts_ += texts[id];
      order.push_back(static_cast<TokenId>(id));
    }
    text_at_.push_back(static_cast<uint32_t>(texts_.size()));
  }
  std::sort(order.begin(), order.end(), [this](TokenId a, TokenId b) {
    const std::string_view x = text(a), y = text(b);
    return x != y ? x < y : a < b;
  });
  byte_.push_back(0);
  depth_.push_back(0);
  skip_.push_back(0);
  tokens_at_.push_back(0);
  std::vector<uint32_t> open{0};       // the path to the last node
  std::string_view last;
  for (const TokenId id : order) {
    const std::string_view t = text(id);
    size_t common = 0;
    while (common < last.size() && common < t.size() && last[common] == t[common]) ++common;
    while (open.size() > common + 1) {
      skip_[open.back()] = nodes();
      open.pop_back();
    }
    for (size_t i = common; i < t.size(); ++i) {
      open.push_back(nodes());
      byte_.push_back(static_cast<uint8_t>(t[i]));
      depth_.push_back(static_cast<uint16_t>(i + 1));
      skip_.push_back(0);
      tokens_at_.push_back(static_cast<uint32_t>(tokens_.size()));
    }
    tokens_.push_back(id);
    max_depth_ = std::max(max_depth_, static_cast<uint32_t>(t.size()));
    last = t;
  }
  for (const uint32_t node : open) skip_[node] = nodes();
  tokens_at_.push_back(static_cast<uint32_t>(tokens_.size()));
}

size_t TokenTrie::memory() const {
  return texts_.capacity() + text_at_.capacity() * 4 + byte_.capacity() + skip_.capacity() * 4 + depth_.capacity() * 2 + tokens_at_.capacity() * 4 +
         tokens_.capacity() * 4;
}

}  // namespace holdfast::constrain

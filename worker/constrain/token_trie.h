#pragma once
// The texts of a vocabulary's ordinary tokens as a tree of bytes, in the order of a walk: a node's subtree is the nodes behind it up to
// skip(node). Node 0 is the root. Immutable; any thread.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"

namespace holdfast::constrain {

class TokenTrie final {
 public:
  // texts[id]: what token `id` adds to a text; empty for tokens that add none (special tokens, tokens without a use).
  explicit TokenTrie(std::span<const std::string> texts);

  uint32_t vocabulary() const { return static_cast<uint32_t>(text_at_.size() - 1); }
  uint32_t nodes() const { return static_cast<uint32_t>(byte_.size()); }
  uint8_t byte(uint32_t node) const { return byte_[node]; }
  uint32_t skip(uint32_t node) const { return skip_[node]; }
  uint32_t depth(uint32_t node) const { return depth_[node]; }
  std::span<const TokenId> tokens(uint32_t node) const {
    return std::span(tokens_).subspan(tokens_at_[node], tokens_at_[node + 1] - tokens_at_[node]);
  }
  // Bytes of the longest token.
  uint32_t max_depth() const { return max_depth_; }
  std::string_view text(TokenId id) const { return std::string_view(texts_).substr(text_at_[id], text_at_[id + 1] - text_at_[id]); }
  size_t memory() const;

 private:
  std::string texts_;
  std::vector<uint32_t> text_at_;
  std::vector<uint8_t> byte_;
  std::vector<uint32_t> skip_;
  std::vector<uint16_t> depth_;
  std::vector<uint32_t> tokens_at_;
  std::vector<TokenId> tokens_;
  uint32_t max_depth_ = 0;
};

}  // namespace holdfast::constrain

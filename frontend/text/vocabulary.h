#pragma once
// A model's vocabulary, checked once, as the tokenizer and the detokenizer use it. Immutable; any thread.
//
// Three texts of a token are told apart: the stored one (as in the file), its bytes (what it adds to a text: GPT-2's printable alphabet
// undone, U+2581 as a space, <0xXX> as one byte), and its key (what the tokenizer searches: the bytes for gpt2, the stored text with
// spaces as U+2581 for the others).
#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/vocabulary_index.h"
#include "proto/base/ids.h"

namespace holdfast::proto {
class ModelCard;
}

namespace holdfast::text {

enum class TokenizerModel : uint8_t { kBpe, kSpm, kGemma4 };  // tokenizer.ggml.model: gpt2, llama, gemma4

enum class TokenType : uint8_t { kUndefined = 0, kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

inline constexpr TokenId kNoToken = TextIndex::kEmpty;
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

class Vocabulary final {
 public:
  // kInvalidArgument when the card contradicts itself: an unknown tokenizer model, no tokens or more than the model has logits, two
  // tokens with one text, types or scores that do not match in number, special ids out of range.
  static absl::StatusOr<Vocabulary> Create(const proto::ModelCard& card);

  TokenizerModel model() const { return model_; }
  size_t size() const { return types_.size(); }  // tokens with a text; the model may have more logits
  TokenType type(TokenId id) const { return types_[id]; }
  float score(TokenId id) const { return scores_.empty() ? 0.0f : scores_[id]; }

  // Preconditions: id < size().
  std::string_view stored(TokenId id) const { return stored_.Get(id); }
  std::string_view bytes(TokenId id) const { return bytes_.Get(id); }
  std::string_view key(TokenId id) const { return model_ == TokenizerModel::kBpe ? bytes_.Get(id) : keys_.Get(id); }
  // Control and unknown tokens: they have no place in a text.
  bool IsHidden(TokenId id) const { return types_[id] == TokenType::kControl || types_[id] == TokenType::kUnknown; }
  // Tokens that a piece of ordinary text may become: normal ones, and user-defined ones that are only blanks (runs of newlines, tabs,
  // spaces). Markers are not among them, so that no text can forge one.
  bool IsOrdinary(TokenId id) const { return ordinary_[id]; }

  TokenId FindOrdinary(std::string_view key) const;  // an ordinary token, or kNoToken
  TokenId FindStored(std::string_view text) const;   // any token, or kNoToken
  // The token of one byte of text: of GPT-2's alphabet, or <0xXX>; kNoToken when the vocabulary lacks it.
  TokenId byte_token(uint8_t b) const { return byte_tokens_[b]; }
  size_t longest_key() const { return longest_key_; }  // bytes, over the ordinary tokens

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> unknown() const { return unknown_; }
  bool add_bos() const { return add_bos_; }                    // implies bos()
  bool add_eos() const { return add_eos_; }                    // implies eos()
  bool add_space_prefix() const { return add_space_prefix_; }  // SPM only

  // The tokens that end a generation, ascending: eos, eot, eom, fim ends, and tokens with a known name (the list is in
  // vocabulary.cc) unless they are normal tokens that merges spell. Those found by name count as control tokens.
  const std::vector<TokenId>& stop_tokens() const { return stop_tokens_; }

 private:
  // Strings one behind the other.
  class Texts final {
   public:
    void Add(std::string_view s) {
      all_.append(s);
      end_.push_back(static_cast<uint32_t>(all_.size()));
    }
    std::string_view Get(TokenId id) const {
      const uint32_t from = id == 0 ? 0 : end_[id - 1];
      return std::string_view(all_).substr(from, end_[id] - from);
    }

   private:
    std::string all_;
    std::vector<uint32_t> end_;
  };

  Vocabulary() = default;
  absl::Status ReadTokens(const proto::ModelCard& card);
  absl::Status IndexStored();
  absl::Status ReadSpecials(const proto::ModelCard& card);
  void IndexOrdinary();

  TokenizerModel model_{};
  Texts stored_, bytes_, keys_;  // keys_: not for gpt2
  std::vector<TokenType> types_;
  std::vector<float> scores_;    // empty or one a token
  std::vector<bool> ordinary_;
  std::array<TokenId, 256> byte_tokens_{};
  TextIndex by_key_, by_stored_;
  size_t longest_key_ = 0;
  std::optional<TokenId> bos_, eos_, unknown_;
  bool add_bos_ = false, add_eos_ = false, add_space_prefix_ = false;
  std::vector<TokenId> stop_tokens_;
};

}  // namespace holdfast::text

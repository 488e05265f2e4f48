#pragma once
// Text -> tokens, for the vocabularies of gpt2 (byte-level BPE), llama (SentencePiece) and gemma4. Immutable after Create; any thread;
// time O(n log n) in the text.
//
// Trust: special tokens are recognised only in trusted text (what a chat template wrote), never in what a user supplied, so that no
// message can forge a turn or a tool call. Spans are joined before anything else: a token may cross from one into the next, a special
// token only within trusted text. One exception, which forges nothing: user-defined tokens made of blanks alone (Gemma's runs of
// newlines) are text like any other and are found everywhere.
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/tokenizer_bpe.h"
#include "frontend/text/tokenizer_specials.h"
#include "frontend/text/tokenizer_split.h"
#include "frontend/text/vocabulary.h"

namespace holdfast::text {

struct TextSpan {
  std::string_view text;
  bool trusted = false;
};

class Tokenizer final {
 public:
  // kInvalidArgument says what in the card is wrong or unsupported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const proto::ModelCard& card);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // add_special: bos before and eos after, where the model wants them; neither is doubled when the text already has it there.
  // Texts together: less than 1 GiB. `work`, when given, is added to.
  std::vector<TokenId> Encode(std::span<const TextSpan> spans, bool add_special, EncodeWork* work = nullptr) const;

  // One text as llama.cpp's tokenize sees it: with parse_special every special token is recognised; without it user-defined tokens
  // still are. For /tokenize and test vectors, not for prompts.
  std::vector<TokenId> EncodePlain(std::string_view text, bool add_special, bool parse_special, EncodeWork* work = nullptr) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // The tokens that end a generation, ascending.
  const std::vector<TokenId>& StopTokens() const { return vocabulary_.stop_tokens(); }
  bool IsStopToken(TokenId id) const;
  // A token by its stored text ("<|tool_call>"); nullopt when there is none.
  std::optional<TokenId> FindToken(std::string_view stored) const;

 private:
  enum class Parse : uint8_t { kTrusted, kUserDefined, kAll };
  struct Scratch {
    BpeMerger::Scratch bpe;
    std::vector<uint32_t> ends;
    std::string normalised;
  };

  explicit Tokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)), specials_(vocabulary_) {}
  std::vector<TokenId> EncodeJoined(std::string_view text, std::span<const uint32_t> trusted, Parse parse, bool add_special,
                                    EncodeWork* work) const;
  // A stretch without special tokens; follows_special: it is the text's start or stands after a special token.
  void EncodeFragment(std::string_view text, bool follows_special, Scratch* scratch, std::vector<TokenId>* out, EncodeWork* work) const;

  Vocabulary vocabulary_;
  SpecialTrie specials_;
  std::optional<BpeMerger> merger_;        // not for SPM
  SplitPattern pattern_ = SplitPattern::kGpt2;
  bool whole_pieces_first_ = false;        // a piece that is a token is taken whole, before any merge
};

}  // namespace holdfast::text

#pragma once
// Byte-pair encoding over symbols: the merging that gpt2 and gemma4 vocabularies share. O(n log n) in the piece, whatever its length.
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/vocabulary.h"

namespace holdfast::proto {
class ModelCard;
}

namespace holdfast::text {

// Counts what an encoding did, so that tests can see its order of growth without a clock: trie steps, pair look-ups, heap pushes.
struct EncodeWork {
  uint64_t steps = 0;
};

class BpeMerger final {
 public:
  // Buffers of one Encode call, kept between pieces.
  struct Scratch {
    struct Symbol {
      uint32_t id;          // a token, a symbol that is no token (>= the vocabulary's size), or kNoToken for an unknown character
      uint32_t begin, end;  // bytes of the piece
      int32_t previous, next;
    };
    struct Candidate {
      uint64_t order;       // rank, then position of the left symbol
      uint32_t left_id, right_id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::vector<uint32_t> parts;
  };

  // Reads the merges of a card. kInvalidArgument when one has no space between its halves, or a half is neither a token nor the result
  // of an earlier merge. `vocabulary` must outlive the merger.
  static absl::StatusOr<BpeMerger> Create(const proto::ModelCard& card, const Vocabulary* vocabulary);

  // Appends the tokens of one piece: bytes of text for gpt2, text with U+2581 for gemma4.
  void Encode(std::string_view piece, Scratch* scratch, std::vector<TokenId>* out, EncodeWork* work) const;

 private:
  struct Parts {
    uint32_t left, right;
  };

  explicit BpeMerger(const Vocabulary* vocabulary) : vocabulary_(vocabulary) {}
  void Emit(std::string_view piece, const Scratch::Symbol& symbol, Scratch* scratch, std::vector<TokenId>* out) const;

  const Vocabulary* vocabulary_;
  MergeTable merges_;
  std::vector<Parts> virtual_;  // symbols that merges make but that are no ordinary tokens: id - vocabulary size -> halves
};

// Appends the tokens of single bytes: byte tokens, else (not for gpt2) the unknown token, else nothing.
void EmitBytes(const Vocabulary& vocabulary, std::string_view bytes, std::vector<TokenId>* out);

}  // namespace holdfast::text

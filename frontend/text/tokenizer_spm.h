#pragma once
// SentencePiece's score-driven merging (tokenizer model "llama"): adjacent symbols whose concatenation is a token merge, the highest
// score first and the leftmost of equals; what is no token at the end becomes byte tokens. O(n log n).
#include <cstdint>
#include <string_view>
#include <vector>

#include "frontend/text/tokenizer_bpe.h"
#include "frontend/text/vocabulary.h"

namespace holdfast::text {

// Appends the tokens of a text whose spaces are already U+2581.
void EncodeSpm(const Vocabulary& vocabulary, std::string_view text, std::vector<TokenId>* out, EncodeWork* work);

}  // namespace holdfast::text

#pragma once
// Tokens -> text, one token at a time. Works on bytes, because a token may end inside a character: what is given out is always whole
// characters, and the concatenation of all pieces is the same however the tokens came. Its state follows from the tokens alone.
// One generation's; not thread-safe.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/vocabulary.h"

namespace holdfast::text {

class Detokenizer final {
 public:
  struct Options {
    // Hidden tokens (control, unknown) that are written as their stored text all the same: markers a parser looks for.
    std::vector<TokenId> preserved;
    bool render_all = false;          // every hidden token is written
    bool drop_leading_space = false;  // the first space of the text is the one that add_space_prefix put there
  };

  // `vocabulary` must outlive the detokenizer.
  Detokenizer(const Vocabulary* vocabulary, Options options);

  // Appends the characters that `id` completes. A maximal bad subpart becomes one U+FFFD. Ids outside the vocabulary add nothing.
  void Push(TokenId id, std::string* out);
  // The end: an incomplete character becomes one U+FFFD. Push starts a new text afterwards.
  void Finish(std::string* out);

  // The bytes with which `id` takes part in the text ("" for hidden tokens): what logprobs report. Valid as long as the vocabulary.
  std::string_view TokenBytes(TokenId id) const;

  // Bytes (0..3) of a character that is not complete yet.
  std::string_view pending() const { return pending_; }

 private:
  const Vocabulary* vocabulary_;
  Options options_;
  std::string pending_;
  bool at_start_ = true;
};

// The text of all tokens at once, as /detokenize gives it: without a leading bos and the space that tokenizing put in front.
std::string DetokenizeAll(const Vocabulary& vocabulary, std::span<const TokenId> tokens, bool render_special);

}  // namespace holdfast::text

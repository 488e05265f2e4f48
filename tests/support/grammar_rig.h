#pragma once
// Runs compiled grammars in tests: over a vocabulary of single bytes, over random vocabularies, along random walks.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/grammar/builder.h"
#include "proto/base/ids.h"
#include "worker/constrain/engine.h"

namespace holdfast::test {

// A small generator of its own: the same walk on every platform.
class Dice final {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(Next() % n); }
  bool Chance(uint32_t of_hundred) { return Below(100) < of_hundred; }

 private:
  uint64_t state_;
};

// Tokens 0 to 255 are bytes; the next `specials` ids have no text.
inline constexpr TokenId kFirstSpecial = 256;
std::vector<std::string> ByteVocabulary(uint32_t specials = 8);
// All bytes and the specials as above, then words that JSON and text are likely to be cut into.
std::vector<std::string> RandomVocabulary(Dice& dice, uint32_t words, uint32_t specials = 8);

// A built grammar over a vocabulary. Aborts the test when it cannot be built or decoded.
std::unique_ptr<constrain::Engine> MakeEngine(const std::string& program, const std::vector<std::string>& vocabulary,
                                              const constrain::EngineLimits& limits = {});
std::string Compile(grammar::Builder& builder, grammar::Node root);

// Texts with specials: \x01N in the text stands for special token N ('0' to '7').
std::vector<TokenId> Tokens(std::string_view text);

class Acceptor final {
 public:
  Acceptor(grammar::Builder& builder, grammar::Node root);
  // The whole text is an answer.
  bool Takes(std::string_view text) const;
  // The text can go on to an answer.
  bool Begins(std::string_view text) const;

 private:
  std::unique_ptr<constrain::Engine> engine_;
};

// Random tokens that the masks allow, until the answer is complete and the dice say so. Nothing: no end within `most` tokens (after half of
// them closing brackets and quotes are preferred). An empty mask before the answer is complete aborts the test.
std::optional<std::vector<TokenId>> RandomWalk(constrain::Engine& engine, const std::vector<std::string>& vocabulary, Dice& dice, size_t most = 600);
std::string TextOf(const std::vector<TokenId>& tokens, const std::vector<std::string>& vocabulary);
std::vector<TokenId> AllowedAt(constrain::Engine& engine, const constrain::Position& position);

}  // namespace holdfast::test

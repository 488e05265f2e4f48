#include "tests/support/grammar_rig.h"

#include <catch2/catch.hpp>

#include "proto/engine.pb.h"

namespace holdfast::test {

uint64_t Dice::Next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::vector<std::string> ByteVocabulary(uint32_t specials) {
  std::vector<std::string> out;
  for (int b = 0; b < 256; ++b) out.emplace_back(1, static_cast<char>(b));
  out.resize(out.size() + specials);
  return out;
}

std::vector<std::string> RandomVocabulary(Dice& dice, uint32_t words, uint32_t specials) {
  static const std::string kPieces[] = {"\"", "\":", "{\"", "\",", "}", "]", "},", "[", ":", ",", " ", ", ", "\n", "0", "1", "12", "-", ".5", "e", "a", "b",
                                        "ab", "the", " na", "me", "true", "fal", "se", "nul", "l", "\\", "\\\"", "\\u00", "\\n", "\xC3\xA9", "\xE6\x97", "\xA5",
                                        "\xF0\x9F\x98\x80", "x", "A", "F", "/", "k", "<", ">", "tool"};
  std::vector<std::string> out = ByteVocabulary(specials);
  for (uint32_t i = 0; i < words; ++i) {
    std::string word;
    for (uint32_t n = 1 + dice.Below(4); n > 0; --n) word += kPieces[dice.Below(static_cast<uint32_t>(std::size(kPieces)))];
    out.push_back(word);
  }
  return out;
}

std::unique_ptr<constrain::Engine> MakeEngine(const std::string& program, const std::vector<std::string>& vocabulary, const constrain::EngineLimits& limits) {
  auto decoded = constrain::Program::Decode(program, static_cast<uint32_t>(vocabulary.size()));
  INFO(decoded.status().ToString());
  REQUIRE(decoded.ok());
  return std::make_unique<constrain::Engine>(*std::move(decoded), std::make_shared<constrain::TokenTrie>(vocabulary), limits);
}

std::string Compile(grammar::Builder& builder, grammar::Node root) {
  const auto built = builder.Build(root);
  INFO(built.status().ToString());
  REQUIRE(built.ok());
  return built->program();
}

std::vector<TokenId> Tokens(std::string_view text) {
  std::vector<TokenId> out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 1 && i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '7') {
      out.push_back(kFirstSpecial + static_cast<TokenId>(text[++i] - '0'));
    } else {
      out.push_back(static_cast<uint8_t>(text[i]));
    }
  }
  return out;
}

Acceptor::Acceptor(grammar::Builder& builder, grammar::Node root) : engine_(MakeEngine(Compile(builder, root), ByteVocabulary())) {}

bool Acceptor::Takes(std::string_view text) const {
  constrain::Position position;
  return engine_->Advance(Tokens(text), &position).ok() && engine_->Complete(position);
}

bool Acceptor::Begins(std::string_view text) const {
  constrain::Position position;
  return engine_->Advance(Tokens(text), &position).ok();
}

std::vector<TokenId> AllowedAt(constrain::Engine& engine, const constrain::Position& position) {
  const auto mask = engine.MaskAt(position);
  INFO(mask.status().ToString());
  REQUIRE(mask.ok());
  if (!(*mask)->dense) return (*mask)->few;
  std::vector<TokenId> out;
  for (size_t id = 0; id < (*mask)->bits.size() * 64; ++id) {
    if ((*mask)->Allows(static_cast<TokenId>(id))) out.push_back(static_cast<TokenId>(id));
  }
  return out;
}

std::optional<std::vector<TokenId>> RandomWalk(constrain::Engine& engine, const std::vector<std::string>& vocabulary, Dice& dice, size_t most) {
  std::vector<TokenId> history;
  constrain::Position position;
  while (history.size() < most) {
    REQUIRE(engine.Advance(history, &position).ok());
    const std::vector<TokenId> allowed = AllowedAt(engine, position);
    const bool complete = engine.Complete(position);
    if (complete && (allowed.empty() || dice.Chance(30) || history.size() > most / 2)) return history;
    INFO("after " << TextOf(history, vocabulary));
    REQUIRE_FALSE(allowed.empty());
    TokenId pick = allowed[dice.Below(static_cast<uint32_t>(allowed.size()))];
    if (history.size() > most / 2 || dice.Chance(15)) {
      for (const char closing : {'"', '}', ']', '1'}) {
        const auto id = static_cast<TokenId>(static_cast<uint8_t>(closing));
        if (std::find(allowed.begin(), allowed.end(), id) != allowed.end()) {
          pick = id;
          break;
        }
      }
    }
    history.push_back(pick);
  }
  return std::nullopt;
}

std::string TextOf(const std::vector<TokenId>& tokens, const std::vector<std::string>& vocabulary) {
  std::string out;
  for (const TokenId t : tokens) out += vocabulary[t];
  return out;
}

}  // namespace holdfast::test

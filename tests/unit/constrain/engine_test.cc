// Masks against trying every token, positions against fresh replays, programs against damage.
#include "worker/constrain/engine.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include "frontend/grammar/builder.h"
#include "frontend/text/json_value.h"
#include "proto/engine.pb.h"
#include "tests/support/grammar_rig.h"

namespace holdfast::test {
namespace {

using constrain::Engine;
using constrain::EngineLimits;
using constrain::Position;
using constrain::Program;
using grammar::Builder;
using grammar::Node;

// A grammar of any shape, with recursion, loops and specials.
Node RandomNode(Builder& b, Dice& dice, int depth, Node self) {
  static const char* const kTexts[] = {"a", "ab", "\"", "\":", "x", "}", "true", "12", "{\"", " "};
  switch (depth == 0 ? dice.Below(3) : dice.Below(9)) {
    case 0: return b.Literal(kTexts[dice.Below(std::size(kTexts))]);
    case 1: return b.Special(kFirstSpecial + dice.Below(4));
    case 2: {
      const std::pair<uint32_t, uint32_t> ranges[] = {{'a', 'a' + dice.Below(5)}, {0xE0, 0x6000 + dice.Below(9)}};
      return b.CodePoints(ranges, dice.Chance(30));
    }
    case 3:
    case 4: return b.Seq({RandomNode(b, dice, depth - 1, self), RandomNode(b, dice, depth - 1, self)});
    case 5: return b.Choice({RandomNode(b, dice, depth - 1, self), RandomNode(b, dice, depth - 1, self)});
    case 6: {
      const uint32_t min = dice.Below(3);
      static constexpr uint32_t kMore[] = {0, 1, 3, 400, Builder::kNoLimit};
      const uint32_t more = kMore[dice.Below(5)];
      return b.Repeat(RandomNode(b, dice, depth - 1, self), min, more == Builder::kNoLimit ? more : min + more);
    }
    case 7: {
      const std::string words[] = {kTexts[dice.Below(std::size(kTexts))]};
      return b.Seq({b.Literal("<"), b.TextWithout(words), b.Literal(">")});
    }
    default: return b.Seq({b.Literal("("), self, b.Literal(")")});
  }
}

std::optional<std::string> RandomProgram(Dice& dice) {
  Builder b;
  const Node self = b.Declare("self");
  b.Define(self, RandomNode(b, dice, 4, self));
  const auto built = b.Build(self);
  return built.ok() ? std::optional(built->program()) : std::nullopt;
}

TEST_CASE("a mask holds what trying every token says") {
  uint64_t compared = 0;
  CHECK(rc::check("mask", [&](uint64_t seed) {
    Dice dice(seed);
    const auto program = RandomProgram(dice);
    if (!program) RC_DISCARD();
    const auto vocabulary = RandomVocabulary(dice, 150);
    EngineLimits limits;
    if (dice.Chance(20)) limits.max_mask_bytes = 1;  // nothing is kept
    const auto engine = MakeEngine(*program, vocabulary, limits);
    std::vector<TokenId> history;
    for (int step = 0; step < 12; ++step) {
      Position position;
      if (!engine->Advance(history, &position).ok()) RC_DISCARD();  // too ambiguous
      const auto mask = engine->MaskAt(position);
      if (!mask.ok()) RC_DISCARD();
      const constrain::Mask copy = **mask;
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < vocabulary.size(); ++id) {
        std::vector<TokenId> longer = history;
        longer.push_back(id);
        Position there = position;
        const bool fits = engine->Advance(longer, &there).ok();
        RC_ASSERT(fits == copy.Allows(id));
        if (fits) allowed.push_back(id);
        ++compared;
      }
      RC_ASSERT(copy.count == allowed.size());
      RC_ASSERT(copy.complete == engine->Complete(position));
      RC_ASSERT(copy.complete || !allowed.empty());
      if (allowed.empty()) break;
      history.push_back(allowed[dice.Below(static_cast<uint32_t>(allowed.size()))]);
    }
  }));
  CHECK(compared > 10'000);
}

TEST_CASE("a position is a function of the history, wherever it was begun") {
  CHECK(rc::check("cut points", [](uint64_t seed) {
    Dice dice(seed);
    const auto program = RandomProgram(dice);
    if (!program) RC_DISCARD();
    const auto vocabulary = RandomVocabulary(dice, 100);
    const auto engine = MakeEngine(*program, vocabulary);
    std::vector<TokenId> history;
    Position rolling;
    for (int step = 0; step < 30; ++step) {
      if (!engine->Advance(history, &rolling).ok()) RC_DISCARD();
      const auto mask = engine->MaskAt(rolling);
      if (!mask.ok()) RC_DISCARD();
      const auto here = AllowedAt(*engine, rolling);
      const bool complete = engine->Complete(rolling);
      // Another engine, as after the loss of a worker, that reads the history in two goes.
      const auto other = MakeEngine(*program, vocabulary);
      Position resumed;
      RC_ASSERT(other->Advance(std::span(history).first(dice.Below(static_cast<uint32_t>(history.size() + 1))), &resumed).ok());
      RC_ASSERT(other->Advance(history, &resumed).ok());
      RC_ASSERT(AllowedAt(*other, resumed) == here);
      RC_ASSERT(other->Complete(resumed) == complete);
      // And back: a preempted request is asked for less than it had.
      if (!history.empty() && dice.Chance(20)) history.resize(dice.Below(static_cast<uint32_t>(history.size())));
      if (!engine->Advance(history, &rolling).ok()) RC_DISCARD();
      const auto next = AllowedAt(*engine, rolling);
      if (next.empty()) break;
      history.push_back(next[dice.Below(static_cast<uint32_t>(next.size()))]);
    }
  }));
}

TEST_CASE("a token that does not fit is named") {
  Builder b;
  const auto engine = MakeEngine(Compile(b, b.Literal("abc")), ByteVocabulary());
  Position position;
  const absl::Status status = engine->Advance(Tokens("abx"), &position);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("token 2 (id 120)"));
}

TEST_CASE("loops near and far from their ends") {
  Builder b;
  const std::pair<uint32_t, uint32_t> any[] = {{'a', 'c'}};
  const auto program = Compile(b, b.Seq({b.Literal("\""), b.Repeat(b.CodePoints(any), 300, 1000), b.Literal("\"")}));
  std::vector<std::string> vocabulary = ByteVocabulary();
  for (const char* word : {"ab", "abc", "abcabc", "a\"", "abc\"", "\"a"}) vocabulary.emplace_back(word);
  const auto engine = MakeEngine(program, vocabulary);
  std::vector<TokenId> history{'"'};
  Position position;
  for (int n = 0; n <= 1000; ++n) {
    REQUIRE(engine->Advance(history, &position).ok());
    const auto mask = engine->MaskAt(position);
    REQUIRE(mask.ok());
    const auto fits = [&](size_t word) { return (*mask)->Allows(static_cast<TokenId>(kFirstSpecial + 8 + word)); };
    INFO(n);
    CHECK((*mask)->Allows('"') == (n >= 300));
    CHECK((*mask)->Allows('b') == (n < 1000));
    CHECK(fits(0) == (n + 2 <= 1000));
    CHECK(fits(2) == (n + 6 <= 1000));
    CHECK(fits(3) == (n + 1 >= 300 && n + 1 <= 1000));
    CHECK(fits(4) == (n + 3 >= 300 && n + 3 <= 1000));
    history.push_back('a');
  }
  CHECK_FALSE(engine->Advance(history, &position).ok());
}

TEST_CASE("a long string has few masks, counted by a loop or by states") {
  for (const bool loop : {true, false}) {
    Builder b;
    const std::pair<uint32_t, uint32_t> any[] = {{'a', 'c'}};
    Node text = b.Repeat(b.CodePoints(any), 0, 1000);
    if (!loop) {
      std::vector<Builder::Edge> edges;
      std::vector<uint32_t> finals;
      for (uint32_t i = 0; i <= 1000; ++i) {
        finals.push_back(i);
        if (i < 1000) edges.push_back({i, b.CodePoints(any), i + 1});
      }
      text = b.Graph(1001, edges, finals);
    }
    const auto program = Compile(b, b.Seq({b.Literal("{\""), text, b.Literal("\"}")}));
    std::vector<std::string> vocabulary = ByteVocabulary();
    for (const char* word : {"ab", "abcabcab", "c\"}"}) vocabulary.emplace_back(word);
    const auto engine = MakeEngine(program, vocabulary);
    std::vector<TokenId> history = Tokens("{\"");
    Position position;
    for (int n = 0; n <= 1000; ++n) {
      REQUIRE(engine->Advance(history, &position).ok());
      const auto mask = engine->MaskAt(position);
      REQUIRE(mask.ok());
      INFO(n);
      CHECK((*mask)->Allows(kFirstSpecial + 9) == (n + 8 <= 1000));
      CHECK((*mask)->Allows(kFirstSpecial + 10) == (n + 1 <= 1000));
      history.push_back('a');
    }
    CHECK(engine->masks_computed() < 30);
  }
}

TEST_CASE("too ambiguous a grammar fails by itself, and the engine goes on") {
  Builder b;
  const Node as = b.Repeat(b.Literal("a"), 1, Builder::kNoLimit);
  const auto program = Compile(b, b.Repeat(b.Seq({as, b.Optional(b.Literal("b"))}), 1, 100'000));
  EngineLimits limits;
  limits.configurations.max_stacks = 64;
  const auto engine = MakeEngine(program, ByteVocabulary(), limits);
  Position position;
  const absl::Status status = engine->Advance(Tokens(std::string(500, 'a')), &position);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("ambiguous"));
  Position other;
  CHECK(engine->Advance(Tokens("aab"), &other).ok());
}

TEST_CASE("damaged programs are refused or run, never worse") {
  std::vector<std::string> programs;
  {
    Builder b;
    programs.push_back(Compile(b, b.AnyValue({})));
  }
  for (uint64_t seed = 0; programs.size() < 6; ++seed) {
    Dice dice(seed);
    if (auto p = RandomProgram(dice)) programs.push_back(*p);
  }
  const auto vocabulary = ByteVocabulary();
  const auto trie = std::make_shared<constrain::TokenTrie>(vocabulary);
  int refused = 0, ran = 0;
  Dice dice(1);
  for (int i = 0; i < 4000; ++i) {
    std::string p = programs[dice.Below(static_cast<uint32_t>(programs.size()))];
    for (uint32_t n = 1 + dice.Below(3); n > 0; --n) p[dice.Below(static_cast<uint32_t>(p.size()))] = static_cast<char>(dice.Below(256));
    if (dice.Chance(10)) p.resize(dice.Below(static_cast<uint32_t>(p.size())));
    auto decoded = Program::Decode(p, static_cast<uint32_t>(vocabulary.size()));
    if (!decoded.ok()) {
      ++refused;
      CHECK(decoded.status().code() == absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++ran;
    EngineLimits limits;
    limits.configurations.max_frames = 20'000;
    limits.configurations.max_sets = 5'000;
    Engine engine(*std::move(decoded), trie, limits);
    std::vector<TokenId> history;
    Position position;
    for (int step = 0; step < 20 && engine.Advance(history, &position).ok(); ++step) {
      const auto mask = engine.MaskAt(position);
      if (!mask.ok() || (*mask)->count == 0) break;
      const auto allowed = AllowedAt(engine, position);
      history.push_back(allowed[dice.Below(static_cast<uint32_t>(allowed.size()))]);
    }
  }
  CHECK(refused > 100);
  CHECK(ran > 100);
}

TEST_CASE("what the decoder refuses") {
  const auto why = [](std::string_view body) {
    const auto p = Program::Decode("HFC1" + std::string(body), 300);
    REQUIRE_FALSE(p.ok());
    return std::string(p.status().message());
  };
  using namespace std::string_view_literals;
  CHECK(Program::Decode("HFC1\x01\x00\x01\x01"sv, 300).ok());  // the empty answer
  CHECK_THAT(std::string(Program::Decode("nonsense", 300).status().message()), Catch::Matchers::Contains("begin"));
  CHECK_THAT(why("\x00\x00"sv), Catch::Matchers::Contains("no rules"));
  CHECK_THAT(why("\x01\x00\x01\x05zy\x00"sv), Catch::Matchers::Contains("out of order"));
  CHECK_THAT(why("\x01\x00\x01\x05yz\x07"sv), Catch::Matchers::Contains("state 7 of 1"));
  CHECK_THAT(why("\x01\x00\x01\x03\x01\x00\x00\xAC\x02\x00"sv), Catch::Matchers::Contains("special token 300 of 300"));
  CHECK_THAT(why("\x01\x00\x01\x03\x00\x01\x00\x00\x00"sv), Catch::Matchers::Contains("calls the whole answer"));
  CHECK_THAT(why("\x02\x00\x01\x03\x00\x01\x00\x01\x00\x01\x02\x00\x01\x00\x01\x00"sv), Catch::Matchers::Contains("begins with itself"));
  CHECK_THAT(why("\x02\x00\x01\x01\x01\x01"sv), Catch::Matchers::Contains("empty text"));
  CHECK_THAT(why("\x01\x01\x00\x00\x00\x01\x01"sv), Catch::Matchers::Contains("loop of rule 0"));
  CHECK_THAT(why("\x01\x00\x01\x01!"sv), Catch::Matchers::Contains("behind its end"));
  CHECK_THAT(why("\xFF\xFF\xFF\xFF\xFF\x01"sv), Catch::Matchers::Contains("too large"));
  CHECK_THAT(why("\xFF\x7F\x00"sv), Catch::Matchers::Contains("room"));
}

TEST_CASE("the token tree") {
  const std::vector<std::string> texts{"b", "abc", "", "ab", "b", std::string(2000, 'x'), "a"};
  const constrain::TokenTrie trie(texts);
  CHECK(trie.vocabulary() == 7);
  CHECK(trie.max_depth() == 3);
  CHECK(trie.nodes() == 5);  // the root, a, ab, abc, b
  CHECK(trie.text(1) == "abc");
  CHECK(trie.text(5).empty());
  std::vector<std::pair<int, std::vector<TokenId>>> seen;
  for (uint32_t n = 1; n < trie.nodes(); ++n) seen.push_back({trie.byte(n), {trie.tokens(n).begin(), trie.tokens(n).end()}});
  CHECK(seen == std::vector<std::pair<int, std::vector<TokenId>>>{{'a', {6}}, {'b', {3}}, {'c', {1}}, {'b', {0, 4}}});
  CHECK(trie.skip(1) == 4);
  CHECK(trie.skip(3) == 4);
  CHECK(trie.skip(4) == 5);
}

}  // namespace
}  // namespace holdfast::test

#include "frontend/text/detokenizer.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include "frontend/text/utf8.h"
#include "tests/support/tiny_cards.h"

namespace holdfast::text {
namespace {

Vocabulary Tiny(const proto::ModelCard& card) {
  auto v = Vocabulary::Create(card);
  REQUIRE(v.ok());
  return *std::move(v);
}

// What each token releases, the end last; byte tokens have the ids of the bytes.
std::vector<std::string> Pieces(const Vocabulary& v, const std::vector<TokenId>& ids, Detokenizer::Options options = {}) {
  Detokenizer d(&v, std::move(options));
  std::vector<std::string> out;
  for (const TokenId id : ids) d.Push(id, &out.emplace_back());
  d.Finish(&out.emplace_back());
  return out;
}
using Strings = std::vector<std::string>;
const std::string kBad(kReplacementUtf8);

TEST_CASE("B041 a character cut over tokens appears whole with its last byte") {
  const Vocabulary v = Tiny(testing::TinyBpeCard());
  CHECK(Pieces(v, {0xF0, 0x9F, 0x98, 0x80, 'x'}) == Strings{"", "", "", "\xF0\x9F\x98\x80", "x", ""});
  const TokenId first = v.FindStored(testing::Gpt2Text("\xF0\x9F")), second = v.FindStored(testing::Gpt2Text("\x98\x80"));
  CHECK(Pieces(v, {first, second}) == Strings{"", "\xF0\x9F\x98\x80", ""});
  CHECK(v.bytes(first) == "\xF0\x9F");
}

TEST_CASE("B043 invalid bytes: one replacement for each maximal bad subpart, valid ones survive") {
  const Vocabulary v = Tiny(testing::TinyBpeCard());
  CHECK(Pieces(v, {0xC3, ' ', 0xA9}) == Strings{"", kBad + " ", kBad, ""});
  CHECK(Pieces(v, {0xC3, 0xA9, ' ', 'x'}) == Strings{"", "\xC3\xA9", " ", "x", ""});
  CHECK(Pieces(v, {0xE2, 0x82, 0xE2, 0x82, 0xAC}) == Strings{"", "", kBad, "", "\xE2\x82\xAC", ""});
  CHECK(Pieces(v, {0xFF, 0xFE}) == Strings{kBad, kBad, ""});
  // A genuine U+FFFD is not held back.
  CHECK(Pieces(v, {0xEF, 0xBF, 0xBD, 'a'}) == Strings{"", "", kBad, "a", ""});
}

TEST_CASE("B045 an incomplete end becomes one replacement") {
  const Vocabulary v = Tiny(testing::TinyBpeCard());
  CHECK(Pieces(v, {'a', 0xF0, 0x9F, 0x98}) == Strings{"a", "", "", "", kBad});
  CHECK(Pieces(v, {0xC3}) == Strings{"", kBad});
  CHECK(Pieces(v, {}) == Strings{""});
}

TEST_CASE("hidden tokens add nothing unless preserved") {
  const Vocabulary v = Tiny(testing::TinyGemma4Card());
  const TokenId turn = v.FindStored("<|turn>"), call = v.FindStored("<|tool_call>"), a = v.FindStored("a"), bos = v.FindStored("<bos>");
  CHECK(Pieces(v, {bos, turn, a, call}) == Strings{"", "", "a", "<|tool_call>", ""});
  Detokenizer::Options preserved;
  preserved.preserved = {turn};
  CHECK(Pieces(v, {bos, turn, a}, preserved) == Strings{"", "<|turn>", "a", ""});
  Detokenizer::Options all;
  all.render_all = true;
  CHECK(Pieces(v, {bos, turn}, all) == Strings{"<bos>", "<|turn>", ""});
  CHECK(Pieces(v, {static_cast<TokenId>(v.size()), UINT32_MAX, a}) == Strings{"", "", "a", ""});
  // A hidden token does not complete or break a character.
  const TokenId c3 = v.byte_token(0xC3), a9 = v.byte_token(0xA9);
  CHECK(Pieces(v, {c3, turn, a9}) == Strings{"", "", "\xC3\xA9", ""});
}

TEST_CASE("SentencePiece: spaces, byte tokens and the space in front") {
  const Vocabulary v = Tiny(testing::TinySpmCard());
  const TokenId hello = v.FindStored("\xE2\x96\x81hello"), world = v.FindStored("\xE2\x96\x81world");
  CHECK(Pieces(v, {hello, world}) == Strings{" hello", " world", ""});
  Detokenizer::Options drop;
  drop.drop_leading_space = true;
  CHECK(Pieces(v, {hello, world}, drop) == Strings{"hello", " world", ""});
  CHECK(Pieces(v, {v.byte_token(0xC3), v.byte_token(0xA9)}) == Strings{"", "\xC3\xA9", ""});
  const TokenId bos = *v.bos(), eos = *v.eos();
  CHECK(DetokenizeAll(v, std::vector<TokenId>{bos, hello, world, eos}, false) == "hello world");
  CHECK(DetokenizeAll(v, std::vector<TokenId>{bos, hello, eos}, true) == "hello</s>");
  CHECK(DetokenizeAll(v, std::vector<TokenId>{eos, hello}, true) == "</s> hello");
}

TEST_CASE("joined bytes of all tokens give the text, however they are cut") {
  const Vocabulary v = Tiny(testing::TinyBpeCard());
  CHECK(rc::check([&](const std::vector<uint8_t>& bytes) {
    Detokenizer d(&v, {});
    std::string raw, live, whole;
    for (const uint8_t b : bytes) {
      const auto id = static_cast<TokenId>(b);
      raw += d.TokenBytes(id);
      d.Push(id, &live);
      RC_ASSERT(IsValidUtf8(live));
    }
    d.Finish(&live);
    AppendValidUtf8(raw, &whole);
    RC_ASSERT(live == whole);
    RC_ASSERT(raw == std::string(bytes.begin(), bytes.end()));
  }));
}

TEST_CASE("replaying the tokens so far gives the same state at every position") {
  const Vocabulary v = Tiny(testing::TinySpmCard());
  CHECK(rc::check([&] {
    const auto ids = *rc::gen::container<std::vector<TokenId>>(rc::gen::inRange<TokenId>(0, static_cast<TokenId>(v.size())));
    Detokenizer::Options options;
    options.drop_leading_space = *rc::gen::arbitrary<bool>();
    Detokenizer live(&v, options);
    std::string text;
    for (size_t n = 0; n < ids.size(); ++n) {
      live.Push(ids[n], &text);
      Detokenizer replay(&v, options);
      std::string again;
      for (size_t i = 0; i <= n; ++i) replay.Push(ids[i], &again);
      RC_ASSERT(again == text);
      RC_ASSERT(replay.pending() == live.pending());
    }
  }));
}

}  // namespace
}  // namespace holdfast::text

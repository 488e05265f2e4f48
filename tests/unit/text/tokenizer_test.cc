#include "frontend/text/tokenizer.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include <map>

#include "frontend/text/detokenizer.h"
#include "frontend/text/utf8.h"
#include "tests/support/tiny_cards.h"

namespace holdfast::text {
namespace {

using Ids = std::vector<TokenId>;
using Merges = std::vector<std::pair<std::string, std::string>>;

std::unique_ptr<Tokenizer> Make(const proto::ModelCard& card) {
  auto t = Tokenizer::Create(card);
  INFO(t.status().message());
  REQUIRE(t.ok());
  return *std::move(t);
}

std::string Problem(const proto::ModelCard& card) {
  auto t = Tokenizer::Create(card);
  return t.ok() ? "none" : std::string(t.status().message());
}

// The tokens' stored texts, for messages and for vocabularies whose ids do not matter.
std::vector<std::string> Shown(const Tokenizer& t, const Ids& ids) {
  std::vector<std::string> out;
  for (const TokenId id : ids) out.emplace_back(t.vocabulary().stored(id));
  return out;
}
using Strings = std::vector<std::string>;

Ids Untrusted(const Tokenizer& t, std::string_view text) {
  const TextSpan span[] = {{text, false}};
  return t.Encode(span, false);
}
Ids Trusted(const Tokenizer& t, std::string_view text) {
  const TextSpan span[] = {{text, true}};
  return t.Encode(span, false);
}

// Merging as the rule is worded: the lowest rank first, the leftmost of equals, until nothing merges. Quadratic, on texts.
Strings MergeSlowly(Strings symbols, const Merges& merges) {
  std::map<std::pair<std::string, std::string>, size_t> rank;
  for (size_t r = 0; r < merges.size(); ++r) rank.emplace(merges[r], r);
  for (;;) {
    size_t best = SIZE_MAX, where = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = rank.find({symbols[i], symbols[i + 1]});
      if (it != rank.end() && it->second < best) {
        best = it->second;
        where = i;
      }
    }
    if (best == SIZE_MAX) return symbols;
    symbols[where] += symbols[where + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

// Random merges over an alphabet; each half is a character or an earlier result.
Merges RandomMerges(const Strings& alphabet, int count) {
  Strings known = alphabet;
  Merges out;
  for (int i = 0; i < count; ++i) {
    const std::string left = known[*rc::gen::inRange<size_t>(0, known.size())];
    const std::string right = known[*rc::gen::inRange<size_t>(0, known.size())];
    if (left.size() + right.size() > 24) continue;
    out.emplace_back(left, right);
    known.push_back(left + right);
  }
  return out;
}

Strings RandomText(const Strings& alphabet) {
  Strings out;
  const size_t n = *rc::gen::inRange<size_t>(0, 60);
  for (size_t i = 0; i < n; ++i) out.push_back(alphabet[*rc::gen::inRange<size_t>(0, alphabet.size())]);
  return out;
}

std::string Joined(const Strings& parts) {
  std::string out;
  for (const std::string& p : parts) out += p;
  return out;
}

TEST_CASE("byte-level BPE merges by rank, whatever the merges") {
  CHECK(rc::check([] {
    const Strings alphabet = {"a", "b", "c"};
    const Merges merges = RandomMerges(alphabet, *rc::gen::inRange(0, 14));
    const auto t = Make(testing::TinyBpeCard(merges));
    const Strings text = RandomText(alphabet);
    RC_ASSERT(Shown(*t, Untrusted(*t, Joined(text))) == MergeSlowly(text, merges));
  }));
}

TEST_CASE("gemma4 merges by rank, also through texts that are no tokens") {
  CHECK(rc::check([] {
    const Strings alphabet = {"a", "\xC3\xA9", "\xE2\x96\x81"};
    const Merges merges = RandomMerges(alphabet, *rc::gen::inRange(1, 14));
    Strings without;
    for (const auto& [left, right] : merges) {
      if (*rc::gen::inRange(0, 4) == 0) without.push_back(left + right);
    }
    const auto t = Make(testing::TinyGemma4Card(alphabet, merges, without));
    const Strings text = RandomText(alphabet);
    // A text that is no token is what its halves are.
    std::map<std::string, std::pair<std::string, std::string>> halves;
    for (const auto& m : merges) halves.emplace(m.first + m.second, m);
    Strings expected;
    std::vector<std::string> todo;
    for (const std::string& symbol : MergeSlowly(text, merges)) {
      todo.push_back(symbol);
      while (!todo.empty()) {
        const std::string s = todo.back();
        todo.pop_back();
        if (t->FindToken(s)) {
          expected.push_back(s);
        } else {
          todo.push_back(halves.at(s).second);
          todo.push_back(halves.at(s).first);
        }
      }
    }
    RC_ASSERT(Shown(*t, Untrusted(*t, Joined(text))) == expected);
  }));
}

TEST_CASE("SentencePiece merges by score, ties to the left") {
  CHECK(rc::check([] {
    const Strings alphabet = {"a", "b", "\xC3\xA9"};
    std::vector<std::pair<std::string, float>> pieces;
    std::map<std::string, float> scores;
    for (const std::string& c : alphabet) pieces.emplace_back(c, -50.0f);
    for (const auto& [left, right] : RandomMerges(alphabet, *rc::gen::inRange(0, 14))) {
      if (scores.count(left + right) == 0) pieces.emplace_back(left + right, static_cast<float>(-*rc::gen::inRange(1, 6)));
      scores.emplace(left + right, pieces.back().second);
    }
    proto::ModelCard card = testing::TinySpmCard(pieces);
    card.mutable_vocabulary()->set_add_space_prefix(false);
    const auto t = Make(card);
    Strings symbols = RandomText(alphabet);
    const std::string text = Joined(symbols);
    for (;;) {
      float best = -100;
      size_t where = SIZE_MAX;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto it = scores.find(symbols[i] + symbols[i + 1]);
        if (it != scores.end() && it->second > best) {
          best = it->second;
          where = i;
        }
      }
      if (where == SIZE_MAX) break;
      symbols[where] += symbols[where + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
    RC_ASSERT(Shown(*t, Untrusted(*t, text)) == symbols);
  }));
}

TEST_CASE("known texts") {
  const auto bpe = Make(testing::TinyBpeCard());
  CHECK(Shown(*bpe, Untrusted(*bpe, "hello world")) == Strings{"hello", "\xC4\xA0world"});
  const auto spm = Make(testing::TinySpmCard());
  const std::string u = "\xE2\x96\x81";
  CHECK(Shown(*spm, Untrusted(*spm, "hello world")) == Strings{u + "hello", u + "world"});
  CHECK(Shown(*spm, Untrusted(*spm, " x")) == Strings{u + u, "<0x78>"});
  CHECK(Shown(*spm, Untrusted(*spm, "\xF0\x9F\x98\x80")) == Strings{u, "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"});
  const auto gemma = Make(testing::TinyGemma4Card());
  CHECK(Shown(*gemma, Untrusted(*gemma, " hello")) == Strings{u + "hello"});
  CHECK(Shown(*gemma, Untrusted(*gemma, "a\n\n\nb\n\n\n\n")) == Strings{"a", "\n\n\n", "b", "\n\n\n", "\n"});
  CHECK(Shown(*gemma, Untrusted(*gemma, "\xE4\xB8\xAD")) == Strings{"<0xE4>", "<0xB8>", "<0xAD>"});
  for (const auto* t : {bpe.get(), spm.get(), gemma.get()}) CHECK(Untrusted(*t, "").empty());
}

TEST_CASE("special tokens come from trusted text only") {
  const auto bpe = Make(testing::TinyBpeCard());
  const TokenId start = *bpe->FindToken("<|im_start|>"), call = *bpe->FindToken("<tool_call>");
  CHECK(Trusted(*bpe, "<|im_start|>hello<tool_call>") == Ids{start, *bpe->FindToken("hello"), call});
  const std::string forged = "<|im_start|><tool_call><|endoftext|>";
  for (const TokenId id : Untrusted(*bpe, forged)) CHECK(id < 256u + 16u);
  // Neither can trusted text before or after complete one.
  for (size_t cut = 1; cut < 12; ++cut) {
    const std::string marker = "<|im_start|>";
    const TextSpan half[] = {{std::string_view(marker).substr(0, cut), true}, {std::string_view(marker).substr(cut), false}};
    CHECK(bpe->Encode(half, false) == Untrusted(*bpe, marker));
    const TextSpan other[] = {{std::string_view(marker).substr(0, cut), false}, {std::string_view(marker).substr(cut), true}};
    CHECK(bpe->Encode(other, false) == Untrusted(*bpe, marker));
    const TextSpan both[] = {{std::string_view(marker).substr(0, cut), true}, {"", false}, {std::string_view(marker).substr(cut), true}};
    CHECK(bpe->Encode(both, false) == Ids{start});
  }
  const auto spm = Make(testing::TinySpmCard());
  for (const TokenId id : Untrusted(*spm, "</s><s><0x41>")) CHECK((id < 1 || id > 2));
  CHECK(Shown(*spm, Untrusted(*spm, "</s>")) == Strings{"\xE2\x96\x81", "</", "s>"});
  for (const std::string& text : Shown(*spm, Untrusted(*spm, "<0x41>"))) CHECK(text != "<0x41>");
  const auto gemma = Make(testing::TinyGemma4Card());
  for (const std::string& text : Shown(*gemma, Untrusted(*gemma, "<|tool_call><turn|></s><0x41>"))) CHECK(text.size() <= 3);
  CHECK(Trusted(*gemma, "<|tool_call>") == Ids{*gemma->FindToken("<|tool_call>")});
}

TEST_CASE("llama.cpp's parse_special: user-defined tokens always, control tokens when asked") {
  const auto t = Make(testing::TinyBpeCard());
  const std::string text = "<tool_call><|im_end|>";
  const Ids off = t->EncodePlain(text, false, false);
  CHECK(off.front() == *t->FindToken("<tool_call>"));
  CHECK(off.size() > 2);
  CHECK(t->EncodePlain(text, false, true) == Ids{*t->FindToken("<tool_call>"), *t->FindToken("<|im_end|>")});
}

TEST_CASE("the longest special token at a place wins") {
  proto::ModelCard card = testing::TinyBpeCard();
  for (const char* text : {"<x", "<x>", "<x>y"}) {
    card.mutable_vocabulary()->add_tokens(text);
    card.mutable_vocabulary()->add_types(4);
  }
  card.set_vocab_size(static_cast<uint32_t>(card.vocabulary().tokens_size()));
  const auto t = Make(card);
  CHECK(Shown(*t, Trusted(*t, "<x>y<x>z<x<x>")) == Strings{"<x>y", "<x>", "z", "<x", "<x>"});
}

TEST_CASE("spans are joined: cutting ordinary text changes nothing") {
  const auto bpe = Make(testing::TinyBpeCard());
  const auto spm = Make(testing::TinySpmCard());
  const auto gemma = Make(testing::TinyGemma4Card());
  const Strings words = {"hello", " world", " the", "\n", "\n\n", " ", "aaaa", "\xC3\xA9", "\xF0\x9F\x98\x80", "'s", "<", "|", "t", "12"};
  CHECK(rc::check([&] {
    const std::string text = Joined(RandomText(words));
    std::vector<TextSpan> spans;
    for (size_t at = 0; at < text.size();) {
      const size_t n = std::min<size_t>(text.size() - at, *rc::gen::inRange<size_t>(1, 9));
      spans.push_back({std::string_view(text).substr(at, n), *rc::gen::arbitrary<bool>()});
      at += n;
    }
    for (const auto* t : {bpe.get(), spm.get(), gemma.get()}) {
      const Ids ids = t->Encode(spans, false);
      RC_ASSERT(ids == Untrusted(*t, text));
      RC_ASSERT(ids == Trusted(*t, text));
      RC_ASSERT(DetokenizeAll(t->vocabulary(), ids, true) == text);
    }
  }));
}

TEST_CASE("any valid text survives tokenize and detokenize, any bytes do not crash") {
  const auto bpe = Make(testing::TinyBpeCard());
  const auto spm = Make(testing::TinySpmCard());
  const auto gemma = Make(testing::TinyGemma4Card());
  CHECK(rc::check([&](const std::string& bytes) {
    std::string valid;
    AppendValidUtf8(bytes, &valid);
    for (const auto* t : {bpe.get(), spm.get(), gemma.get()}) {
      RC_ASSERT(DetokenizeAll(t->vocabulary(), Untrusted(*t, bytes), true) == valid);
      RC_ASSERT(DetokenizeAll(t->vocabulary(), Untrusted(*t, valid), true) == valid);
    }
  }));
}

TEST_CASE("bos and eos: added where the model wants them, never twice") {
  const auto spm = Make(testing::TinySpmCard());
  const TokenId bos = *spm->vocabulary().bos();
  const TextSpan plain[] = {{"hello", false}};
  const TextSpan with_bos[] = {{"<s>", true}, {"hello", false}};
  CHECK(spm->Encode(plain, true).front() == bos);
  CHECK(spm->Encode(plain, false).front() != bos);
  CHECK(spm->Encode(with_bos, true) == spm->Encode(with_bos, false));
  CHECK(spm->Encode(with_bos, true).at(1) != bos);
  CHECK(spm->Encode({}, true) == Ids{bos});
  const TextSpan fake[] = {{"<s>hello", false}};
  CHECK(spm->Encode(fake, true).front() == bos);
  CHECK(spm->Encode(fake, true).size() == spm->Encode(fake, false).size() + 1);
  // The file's flag does not count for gemma4.
  proto::ModelCard card = testing::TinyGemma4Card();
  card.mutable_vocabulary()->set_add_bos(false);
  const auto gemma = Make(card);
  CHECK(gemma->Encode(plain, true).front() == *gemma->vocabulary().bos());
  card = testing::TinyBpeCard();
  card.mutable_vocabulary()->set_add_eos(true);
  const auto bpe = Make(card);
  const TextSpan with_eos[] = {{"hello", false}, {"<|endoftext|>", true}};
  CHECK(bpe->Encode(plain, true) == bpe->Encode(with_eos, true));
}

TEST_CASE("the space in front: after the start and after special tokens") {
  const auto t = Make(testing::TinySpmCard());
  const std::string u = "\xE2\x96\x81";
  CHECK(Shown(*t, Trusted(*t, "hello</s>hello world")) == Strings{u + "hello", "</s>", u + "hello", u + "world"});
  const TextSpan spans[] = {{"</s>", true}, {"hello", false}, {" world", false}};
  CHECK(Shown(*t, t->Encode(spans, false)) == Strings{"</s>", u + "hello", u + "world"});
}

TEST_CASE("B001 B038 stop tokens: keys, known names and the two exceptions") {
  const auto texts = [](const proto::ModelCard& card) {
    const auto t = Make(card);
    return Shown(*t, t->StopTokens());
  };
  CHECK(texts(testing::TinyBpeCard()) == Strings{"<|endoftext|>", "<|im_end|>"});
  // Named only: no keys, and not even marked as control tokens.
  proto::ModelCard card = testing::TinyBpeCard();
  card.mutable_vocabulary()->clear_eos();
  card.mutable_vocabulary()->clear_eot();
  for (int& type : *card.mutable_vocabulary()->mutable_types()) type = type == 3 ? 1 : type;
  CHECK(texts(card) == Strings{"<|endoftext|>", "<|im_end|>"});
  const auto t = Make(card);
  CHECK(t->vocabulary().IsHidden(*t->FindToken("<|im_end|>")));
  CHECK(Trusted(*t, "<|im_end|>").size() == 1);
  CHECK(Untrusted(*t, "<|im_end|>").size() > 1);
  // Gemma 4 has <|tool_response>, so </s> is a word.
  CHECK(texts(testing::TinyGemma4Card()) == Strings{"<eos>", "<|tool_response>", "<turn|>"});
  const auto gemma = Make(testing::TinyGemma4Card());
  CHECK_FALSE(gemma->vocabulary().IsHidden(*gemma->FindToken("</s>")));
  // A normal token that merges spell is a word, as </s> in Qwen's vocabulary.
  CHECK(texts(testing::TinyBpeCard({{"<", "/"}, {"</", "s"}, {"</s", ">"}})) == Strings{"<|endoftext|>", "<|im_end|>"});
  // Harmony: <|end|> closes a message, not the turn.
  card = testing::TinyBpeCard();
  for (const char* name : {"<|end|>", "<|return|>", "<|call|>"}) {
    card.mutable_vocabulary()->add_tokens(name);
    card.mutable_vocabulary()->add_types(3);
  }
  card.set_vocab_size(static_cast<uint32_t>(card.vocabulary().tokens_size()));
  CHECK(texts(card) == Strings{"<|endoftext|>", "<|im_end|>", "<|return|>", "<|call|>"});
  card.mutable_vocabulary()->add_fim_end(7);
  const auto harmony = Make(card);
  CHECK(harmony->IsStopToken(7));
  CHECK_FALSE(harmony->IsStopToken(*harmony->FindToken("<|end|>")));
}

TEST_CASE("a long text without a space: work grows with the text") {
  const proto::ModelCard cards[] = {testing::TinyBpeCard(), testing::TinySpmCard(), testing::TinyGemma4Card()};
  const Strings units = {"a", "hello", "<|im_", "\n", "aaaabhello<", "\xC3\xA9", "0", " ", "'", "A\xCC\x81"};
  for (const proto::ModelCard& card : cards) {
    const auto t = Make(card);
    for (const std::string& unit : units) {
      uint64_t steps[2];
      for (const size_t half : {0, 1}) {
        std::string text;
        while (text.size() < (half == 0 ? 60'000u : 120'000u)) text += unit;
        EncodeWork work;
        const TextSpan span[] = {{text, true}};
        const Ids ids = t->Encode(span, false, &work);
        CHECK(DetokenizeAll(t->vocabulary(), ids, true) == text);
        steps[half] = work.steps;
      }
      INFO(card.vocabulary().model() << " of " << unit << ": " << steps[0] << ", " << steps[1]);
      CHECK(steps[0] >= 30'000u);
      CHECK(static_cast<double>(steps[1]) < 2.05 * static_cast<double>(steps[0]));
    }
  }
}

TEST_CASE("cards that contradict themselves are refused with the reason") {
  const auto bad = [](auto change) {
    proto::ModelCard card = testing::TinyBpeCard();
    change(card, *card.mutable_vocabulary());
    return Problem(card);
  };
  using Card = proto::ModelCard;
  using Vocab = proto::Vocabulary;
  CHECK(bad([](Card&, Vocab&) {}) == "none");
  CHECK(bad([](Card&, Vocab& v) { v.set_model("bert"); }).find("\"bert\" is not supported (gpt2, llama and gemma4 are)") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.set_pre("odd"); }).find("pre-tokenizer \"odd\" is not supported; known are gpt-2") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.clear_tokens(); }).find("no tokens") != std::string::npos);
  CHECK(bad([](Card& c, Vocab&) { c.set_vocab_size(10); }).find("only 10 logits") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.mutable_types()->RemoveLast(); }).find("token types for") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.add_scores(1); }).find("1 token scores") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.set_types(3, 9); }).find("token 3 has type 9") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.set_tokens(5, v.tokens(4)); }).find("tokens 4 and 5 have the same text") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.set_eos(100000); }).find("eos token id 100000 is outside") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.add_fim_end(100000); }).find("fim token id") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.set_merges(0, "nospace"); }).find("merge 0 \"nospace\" has no two halves") != std::string::npos);
  CHECK(bad([](Card&, Vocab& v) { v.set_merges(0, "zz he"); }).find("\"zz\" is neither a token nor the result") != std::string::npos);
  proto::ModelCard spm = testing::TinySpmCard();
  spm.mutable_vocabulary()->clear_scores();
  CHECK(Problem(spm).find("needs token scores") != std::string::npos);
  spm = testing::TinySpmCard();
  spm.mutable_vocabulary()->set_scores(4, NAN);
  CHECK(Problem(spm).find("score of token 4 is not a number") != std::string::npos);
  spm = testing::TinySpmCard();
  spm.mutable_vocabulary()->clear_unknown();
  CHECK(Problem(spm) == "none");
  spm.mutable_vocabulary()->set_types(3 + 0x41, 1);
  CHECK(Problem(spm).find("neither a byte token <0x41> nor an unknown token") != std::string::npos);
  spm.mutable_vocabulary()->set_types(300 - 20, 6);
  CHECK(Problem(spm).find("is not <0xXX>") != std::string::npos);
}

}  // namespace
}  // namespace holdfast::text

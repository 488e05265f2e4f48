// The combinators, run as a worker runs them.
#include "frontend/grammar/builder.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include "frontend/text/utf8.h"
#include "proto/engine.pb.h"
#include "tests/support/grammar_rig.h"

namespace holdfast::test {
namespace {

using grammar::Builder;
using grammar::BuilderLimits;
using grammar::Node;

std::string WhyNot(Builder& b, Node root) {
  const auto built = b.Build(root);
  REQUIRE_FALSE(built.ok());
  CHECK(built.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(built.status().message());
}

TEST_CASE("literals, sequences, choices and options") {
  Builder b;
  const Acceptor a(b, b.Seq({b.Literal("ab"), b.Choice({b.Literal("c"), b.Literal("cd")}), b.Optional(b.Literal("!"))}));
  for (const char* good : {"abc", "abcd", "abc!", "abcd!"}) CHECK(a.Takes(good));
  for (const char* bad : {"", "ab", "abd", "abc!!", "abcd!x"}) CHECK_FALSE(a.Takes(bad));
  CHECK(a.Begins("ab"));
  CHECK_FALSE(a.Begins("b"));
}

TEST_CASE("the empty text") {
  Builder b;
  const Acceptor a(b, b.Repeat(b.Literal("x"), 0, Builder::kNoLimit));
  CHECK(a.Takes(""));
  CHECK(a.Takes("xxx"));
  CHECK_FALSE(a.Takes("y"));
}

TEST_CASE("repetitions, written out and counted") {
  for (const auto& [min, max] : std::vector<std::pair<uint32_t, uint32_t>>{{0, 1}, {0, 3}, {2, 2}, {2, 5}, {1, Builder::kNoLimit}, {3, Builder::kNoLimit},
                                                                           {0, 400}, {300, 400}, {300, Builder::kNoLimit}, {399, 400}}) {
    Builder b;
    const Acceptor a(b, b.Seq({b.Repeat(b.Choice({b.Literal("xy"), b.Literal("z")}), min, max), b.Literal(".")}));
    for (const uint32_t n : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 299u, 300u, 301u, 399u, 400u, 401u, 500u}) {
      std::string text;
      for (uint32_t i = 0; i < n; ++i) text += i % 3 == 0 ? "xy" : "z";
      INFO(min << " to " << max << ": " << n);
      CHECK(a.Takes(text + ".") == (n >= min && (max == Builder::kNoLimit || n <= max)));
    }
  }
}

TEST_CASE("a counted repetition of what may be empty") {
  Builder b;
  const Acceptor a(b, b.Seq({b.Repeat(b.Optional(b.Literal("x")), 500, 1000), b.Literal(".")}));
  CHECK(a.Takes("."));
  CHECK(a.Takes("xxx."));
  CHECK(a.Takes(std::string(1000, 'x') + "."));
  CHECK_FALSE(a.Takes(std::string(1001, 'x') + "."));
}

TEST_CASE("special tokens occur only where they are named") {
  Builder b;
  const Acceptor a(b, b.Seq({b.Special(kFirstSpecial + 2), b.TextWithout({}), b.Special(kFirstSpecial + 3)}));
  CHECK(a.Takes("\x01" "2abc" "\x01" "3"));
  CHECK_FALSE(a.Takes("abc" "\x01" "3"));
  CHECK_FALSE(a.Takes("\x01" "2abc" "\x01" "4"));
  CHECK_FALSE(a.Takes("\x01" "2a" "\x01" "2bc" "\x01" "3"));
}

TEST_CASE("characters as UTF-8") {
  const std::vector<std::pair<uint32_t, uint32_t>> ranges{{'a', 'c'}, {0xE0, 0x900}, {0xFFF0, 0x10010}, {0x10FFFF, 0x10FFFF}, {0xD000, 0xE010}};
  for (const bool negated : {false, true}) {
    Builder b;
    const Acceptor a(b, b.CodePoints(ranges, negated));
    for (const uint32_t c : {0u, 0x60u, 0x61u, 0x63u, 0x64u, 0x7Fu, 0x80u, 0xDFu, 0xE0u, 0x7FFu, 0x800u, 0x900u, 0x901u, 0xCFFFu, 0xD000u, 0xD7FFu, 0xE000u,
                             0xE010u, 0xE011u, 0xFFEFu, 0xFFF0u, 0xFFFFu, 0x10000u, 0x10010u, 0x10011u, 0x10FFFEu, 0x10FFFFu}) {
      std::string text;
      text::AppendUtf8(c, &text);
      bool in = false;
      for (const auto& [lo, hi] : ranges) in = in || (c >= lo && c <= hi);
      INFO(c);
      CHECK(a.Takes(text) == (in != negated));
    }
    CHECK_FALSE(a.Takes("\xED\xA0\x80"));      // a surrogate
    CHECK_FALSE(a.Takes("\xF4\x90\x80\x80"));  // beyond U+10FFFF
  }
}

TEST_CASE("recursion") {
  Builder b;
  const Node value = b.Declare("value");
  b.Define(value, b.Choice({b.Literal("x"), b.Seq({b.Literal("("), value, b.Literal(")")})}));
  const Acceptor a(b, value);
  CHECK(a.Takes("x"));
  CHECK(a.Takes("(((x)))"));
  CHECK_FALSE(a.Takes("((x)"));
  CHECK(a.Begins("((x)"));
  const std::string deep = std::string(5000, '(') + "x" + std::string(5000, ')');
  CHECK(a.Takes(deep));
}

TEST_CASE("graphs") {
  Builder b;
  const Builder::Edge edges[] = {{0, b.Literal("a"), 1}, {1, b.Literal("b"), 0}, {1, b.Empty(), 2}};
  const uint32_t finals[] = {2};
  const Acceptor a(b, b.Graph(3, edges, finals));
  CHECK(a.Takes("a"));
  CHECK(a.Takes("aba"));
  CHECK_FALSE(a.Takes("ab"));
}

TEST_CASE("what cannot be built is refused with the reason") {
  {
    Builder b;
    const Node rule = b.Declare("loopy");
    b.Define(rule, b.Seq({b.Optional(b.Literal("x")), rule, b.Literal("y")}));
    CHECK_THAT(WhyNot(b, rule), Catch::Matchers::Contains("begins with itself: loopy"));
  }
  {
    Builder b;
    CHECK_THAT(WhyNot(b, b.Seq({b.Literal("x"), b.Declare("nowhere")})), Catch::Matchers::Contains("nowhere"));
  }
  {
    Builder b;
    CHECK_THAT(WhyNot(b, b.Never()), Catch::Matchers::Contains("no answer at all"));
  }
  {
    Builder b;
    const Node endless = b.Declare("endless");
    b.Define(endless, b.Seq({b.Literal("x"), endless}));
    CHECK_THAT(WhyNot(b, endless), Catch::Matchers::Contains("no answer at all"));
  }
  {
    Builder b;
    Node n = b.Literal("x");
    for (int i = 0; i < 2000; ++i) n = b.Optional(b.Seq({n, b.Literal("y")}));
    CHECK_THAT(WhyNot(b, n), Catch::Matchers::Contains("deep"));
  }
  {
    BuilderLimits limits;
    limits.max_states = 1000;
    Builder b(limits);
    // Which of the last twelve characters was an a: two to the twelfth states.
    const std::pair<uint32_t, uint32_t> ab[] = {{'a', 'b'}};
    const Node any = b.CodePoints(ab);
    CHECK_THAT(WhyNot(b, b.Seq({b.Repeat(any, 0, Builder::kNoLimit), b.Literal("a"), b.Repeat(any, 12, 12)})), Catch::Matchers::Contains("1000 states"));
  }
}

TEST_CASE("branches that contradict themselves are left out, so no text leads into them") {
  Builder b;
  const Node endless = b.Declare("endless");
  b.Define(endless, b.Seq({b.Literal("x"), endless}));
  const Acceptor a(b, b.Choice({b.Seq({b.Literal("ab"), endless}), b.Literal("ac"), b.Seq({b.Literal("d"), b.Never()})}));
  CHECK(a.Takes("ac"));
  CHECK_FALSE(a.Begins("ab"));
  CHECK_FALSE(a.Begins("d"));
}

TEST_CASE("text without strings") {
  CHECK(rc::check("agrees with looking for them", [] {
    const auto words = *rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab<")))));
    const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab<")));
    Builder b;
    const Acceptor a(b, b.TextWithout(words));
    bool found = false;
    for (const std::string& w : words) found = found || text.find(w) != std::string::npos;
    RC_ASSERT(a.Takes(text) == !found);
    RC_ASSERT(a.Begins(text) == !found);
  }));
  Builder b;
  const std::vector<std::string> words{"<tool_call>", "\xE6\x97\xA5"};
  const Acceptor a(b, b.Seq({b.TextWithout(words), b.Literal("<tool_call>")}));
  CHECK(a.Takes("a <tool_cal <tool_call>"));
  CHECK(a.Takes("\xC3\xA9\xE6\x97\xA4<tool_call>"));
  CHECK_FALSE(a.Begins("\xE6\x97\xA5"));
  CHECK_FALSE(a.Begins("\xFF"));
  CHECK_FALSE(a.Begins("\xC0\x80"));
}

TEST_CASE("the same grammar gives the same bytes") {
  const auto program = [] {
    Builder b;
    return Compile(b, b.AnyValue({}));
  };
  CHECK(program() == program());
}

}  // namespace
}  // namespace holdfast::test

// Regular expressions against a matcher that works on another principle (derivatives of the expression itself).
#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include <memory>

#include "frontend/grammar/builder.h"
#include "proto/engine.pb.h"
#include "frontend/text/utf8.h"
#include "tests/support/grammar_rig.h"

namespace holdfast::test {
namespace {

using grammar::Builder;

bool Matches(const std::string& pattern, const std::string& text) {
  Builder b;
  const auto node = b.Regex(pattern, "p");
  INFO(pattern << ": " << node.status().ToString());
  REQUIRE(node.ok());
  return Acceptor(b, *node).Takes(text);
}

std::string WhyNot(const std::string& pattern) {
  Builder b;
  const auto node = b.Regex(pattern, "here");
  INFO(pattern);
  REQUIRE_FALSE(node.ok());
  CHECK(node.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(absl::string_view(node.status().message()).substr(0, 4) == "here");
  return std::string(node.status().message());
}

// An expression over the letters a and b.
struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;
struct Expr {
  enum Kind { kNone, kEmpty, kLetter, kSeq, kAlt, kStar } kind = kEmpty;
  char letter = 'a';
  ExprPtr left, right;
};

ExprPtr Make(Expr::Kind kind, ExprPtr l = nullptr, ExprPtr r = nullptr, char c = 'a') {
  Expr e;
  e.kind = kind;
  e.letter = c;
  e.left = std::move(l);
  e.right = std::move(r);
  return std::make_shared<const Expr>(std::move(e));
}

bool Nullable(const ExprPtr& e) {
  switch (e->kind) {
    case Expr::kEmpty:
    case Expr::kStar: return true;
    case Expr::kSeq: return Nullable(e->left) && Nullable(e->right);
    case Expr::kAlt: return Nullable(e->left) || Nullable(e->right);
    default: return false;
  }
}

ExprPtr Derive(const ExprPtr& e, char c) {
  switch (e->kind) {
    case Expr::kLetter: return Make(e->letter == c ? Expr::kEmpty : Expr::kNone);
    case Expr::kAlt: return Make(Expr::kAlt, Derive(e->left, c), Derive(e->right, c));
    case Expr::kStar: return Make(Expr::kSeq, Derive(e->left, c), e);
    case Expr::kSeq: {
      const ExprPtr first = Make(Expr::kSeq, Derive(e->left, c), e->right);
      return Nullable(e->left) ? Make(Expr::kAlt, first, Derive(e->right, c)) : first;
    }
    default: return Make(Expr::kNone);
  }
}

ExprPtr Random(Dice& dice, int depth, std::string* text) {
  switch (depth == 0 ? dice.Below(2) : dice.Below(8)) {
    case 0: *text += 'a'; return Make(Expr::kLetter, nullptr, nullptr, 'a');
    case 1: *text += 'b'; return Make(Expr::kLetter, nullptr, nullptr, 'b');
    case 2: *text += "[ab]"; return Make(Expr::kAlt, Make(Expr::kLetter, nullptr, nullptr, 'a'), Make(Expr::kLetter, nullptr, nullptr, 'b'));
    case 3:
    case 4: {
      ExprPtr l = Random(dice, depth - 1, text), r = Random(dice, depth - 1, text);
      return Make(Expr::kSeq, l, r);
    }
    case 5: {
      *text += "(?:";
      ExprPtr l = Random(dice, depth - 1, text);
      *text += "|";
      ExprPtr r = Random(dice, depth - 1, text);
      *text += ")";
      return Make(Expr::kAlt, l, r);
    }
    case 6: {
      *text += "(";
      ExprPtr l = Random(dice, depth - 1, text);
      *text += dice.Chance(50) ? ")*" : ")*?";
      return Make(Expr::kStar, l);
    }
    default: {
      const uint32_t min = dice.Below(3), more = dice.Below(3);
      *text += "(";
      ExprPtr l = Random(dice, depth - 1, text);
      *text += ")";
      if (min == 0 && more == 1) {
        *text += "?";
      } else {
        *text += "{" + std::to_string(min) + "," + std::to_string(min + more) + "}";
      }
      ExprPtr out = Make(Expr::kEmpty);
      for (uint32_t i = 0; i < more; ++i) out = Make(Expr::kAlt, Make(Expr::kEmpty), Make(Expr::kSeq, l, out));
      for (uint32_t i = 0; i < min; ++i) out = Make(Expr::kSeq, l, out);
      return out;
    }
  }
}

TEST_CASE("random expressions match what their derivatives match") {
  CHECK(rc::check("regex", [](uint64_t seed) {
    Dice dice(seed);
    std::string pattern;
    const ExprPtr expr = Random(dice, 4, &pattern);
    Builder b;
    const auto node = b.Regex(pattern, "p");
    RC_LOG() << pattern << '\n';
    RC_ASSERT(node.ok());
    if (!b.Build(*node).ok()) RC_DISCARD();
    const Acceptor a(b, *node);
    for (int i = 0; i < 40; ++i) {
      std::string text;
      ExprPtr e = expr;
      for (uint32_t n = dice.Below(7); n > 0; --n) {
        text += dice.Chance(50) ? 'a' : 'b';
        e = Derive(e, text.back());
      }
      RC_LOG() << text << '\n';
      RC_ASSERT(a.Takes(text) == Nullable(e));
    }
  }));
}

TEST_CASE("B124 classes, escapes, counts and anchors") {
  CHECK(Matches("\\d{3}-\\w+", "123-ab_9"));
  CHECK_FALSE(Matches("\\d{3}-\\w+", "12-ab"));
  CHECK(Matches("[^a-c]\\s\\S", "d x"));
  CHECK_FALSE(Matches("[^a-c]", "b"));
  CHECK(Matches("[\\w.-]+", "a.b-c"));
  CHECK(Matches("\\x41\\u0042\\u{43}\\cA", std::string("ABC\x01")));
  CHECK(Matches("\\ud83d\\ude00", "\xF0\x9F\x98\x80"));
  CHECK(Matches("a{,3}", "a{,3}"));  // no quantifier, as the web has it
  CHECK(Matches("x{2,}", "xxxx"));
  CHECK_FALSE(Matches("x{2,}", "x"));
  CHECK(Matches("^abc$", "abc"));
  CHECK(Matches("^(?:a|b)$|^c$", "c"));
  CHECK(Matches("(?<year>\\d{4})", "2024"));
  CHECK(Matches(".", "\xE6\x97\xA5"));
  CHECK_FALSE(Matches(".", "\n"));
  CHECK(Matches("\\p{Lu}\\p{L}*", "\xC3\x89t\xC3\xA9"));
  CHECK_FALSE(Matches("\\p{Lu}", "\xC3\xA9"));
  CHECK(Matches("[\\x00-\\u2e7f]*", "a\xC3\xA9\xE2\xB9\xBF"));
  CHECK_FALSE(Matches("[\\x00-\\u2e7f]*", "\xE2\xBA\x80"));
  CHECK(Matches("a{1000}", std::string(1000, 'a')));
  CHECK_FALSE(Matches("a{1000}", std::string(999, 'a')));
}

TEST_CASE("B115 B119 what is no regular expression is refused by name") {
  CHECK_THAT(WhyNot("foo**"), Catch::Matchers::Contains("quantifier behind a quantifier"));
  CHECK_THAT(WhyNot("("), Catch::Matchers::Contains("( without a )"));
  CHECK_THAT(WhyNot(")"), Catch::Matchers::Contains(") without a ("));
  CHECK_THAT(WhyNot("["), Catch::Matchers::Contains("[ without a ]"));
  CHECK_THAT(WhyNot("(?<=x)*"), Catch::Matchers::Contains("looks behind"));
  CHECK_THAT(WhyNot("a{2,1}"), Catch::Matchers::Contains("from 2 to 1"));
  CHECK_THAT(WhyNot("\\"), Catch::Matchers::Contains("backslash"));
  CHECK_THAT(WhyNot("(a)\\1"), Catch::Matchers::Contains("refers back"));
  CHECK_THAT(WhyNot("a(?=b)"), Catch::Matchers::Contains("looks ahead"));
  CHECK_THAT(WhyNot("\\bx"), Catch::Matchers::Contains("word boundary"));
  CHECK_THAT(WhyNot("*a"), Catch::Matchers::Contains("nothing before it"));
  CHECK_THAT(WhyNot("{2}"), Catch::Matchers::Contains("nothing before it"));
  CHECK_THAT(WhyNot("a^b"), Catch::Matchers::Contains("ends of alternatives"));
  CHECK_THAT(WhyNot("[z-a]"), Catch::Matchers::Contains("ends before it begins"));
  CHECK_THAT(WhyNot("\\p{Script=Greek}"), Catch::Matchers::Contains("property"));
  CHECK_THAT(WhyNot("a{200000}"), Catch::Matchers::Contains("100000 times"));
  CHECK_THAT(WhyNot(std::string(100'000, '(')), Catch::Matchers::Contains("bytes"));
  CHECK_THAT(WhyNot(std::string(5000, '(') + std::string(5000, ')')), Catch::Matchers::Contains("deep"));
  CHECK_THAT(WhyNot("\xFF"), Catch::Matchers::Contains("UTF-8"));
}

}  // namespace
}  // namespace holdfast::test

// The split scanners against the original patterns: tests/golden/text/split_cases.json, made by the script beside it.
#include "frontend/text/tokenizer_split.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include <fstream>
#include <iterator>

#include "frontend/text/json_value.h"
#include "frontend/text/unicode.h"

namespace holdfast::text {
namespace {

std::vector<std::string> Split(SplitPattern pattern, std::string_view text) {
  std::vector<uint32_t> ends;
  SplitText(pattern, text, &ends);
  std::vector<std::string> out;
  size_t at = 0;
  for (const uint32_t end : ends) {
    out.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}
using Pieces = std::vector<std::string>;

TEST_CASE("splits agree with the original patterns") {
  std::ifstream in(std::string(HOLDFAST_SOURCE_DIR) + "/tests/golden/text/split_cases.json");
  REQUIRE(in.good());
  auto golden = ParseJson(std::string(std::istreambuf_iterator<char>(in), {}));
  INFO(golden.status().message());
  REQUIRE(golden.ok());
  size_t checked = 0;
  for (const JsonValue& item : golden->Find("cases")->AsArray()) {
    const std::string& text = item.Find("text")->AsString();
    for (const auto& [name, lengths] : item.Find("pieces")->AsObject()) {
      const auto pattern = SplitPatternOf(name);
      REQUIRE(pattern.has_value());
      Pieces wanted;
      size_t at = 0;
      for (const JsonValue& length : lengths.AsArray()) {
        wanted.push_back(text.substr(at, static_cast<size_t>(length.AsInt())));
        at += static_cast<size_t>(length.AsInt());
      }
      INFO(name);
      CHECK(Split(*pattern, text) == wanted);
      ++checked;
    }
  }
  CHECK(checked == 2400);
}

TEST_CASE("splits of known texts") {
  CHECK(Split(SplitPattern::kGpt2, "I've  3 apples\n\n x") == Pieces{"I", "'ve", " ", " 3", " apples", "\n\n", " x"});
  CHECK(Split(SplitPattern::kSmollm, "a 12b") == Pieces{"a", " ", "1", "2", "b"});
  CHECK(Split(SplitPattern::kLlamaBpe, "I'VE 12345 (x)\n\n y") == Pieces{"I", "'VE", " ", "123", "45", " (", "x", ")\n\n", " y"});
  CHECK(Split(SplitPattern::kQwen2, "1234") == Pieces{"1", "2", "3", "4"});
  CHECK(Split(SplitPattern::kGpt4o, "camelCaseABCd it's a/b") == Pieces{"camel", "Case", "ABCd", " it's", " a", "/b"});
  CHECK(Split(SplitPattern::kQwen35, "e\xCC\x81t") == Pieces{"e\xCC\x81t"});
  for (int p = 0; p <= static_cast<int>(SplitPattern::kTekken); ++p) CHECK(Split(static_cast<SplitPattern>(p), "").empty());
}

TEST_CASE("any bytes split into pieces that cover them") {
  CHECK(rc::check([](const std::string& text) {
    for (int p = 0; p <= static_cast<int>(SplitPattern::kTekken); ++p) {
      std::string joined;
      for (const std::string& piece : Split(static_cast<SplitPattern>(p), text)) {
        RC_ASSERT(!piece.empty());
        joined += piece;
      }
      RC_ASSERT(joined == text);
    }
  }));
}

TEST_CASE("unknown pre-tokenizers are not guessed") {
  CHECK_FALSE(SplitPatternOf("somebody-elses").has_value());
  CHECK(SplitPatternOf("") == SplitPattern::kGpt2);
  CHECK(SplitPatternOf("default") == SplitPattern::kGpt2);
  CHECK(SplitPatternOf("refact") == SplitPattern::kSmollm);
}

TEST_CASE("character classes") {
  CHECK(ClassOf('A') == CharClass::kUpper);
  CHECK(ClassOf('z') == CharClass::kLower);
  CHECK(ClassOf(0x01C5) == CharClass::kTitle);
  CHECK(ClassOf(0x02B0) == CharClass::kModifier);
  CHECK(ClassOf(0x4E2D) == CharClass::kOtherLetter);
  CHECK(ClassOf(0x0301) == CharClass::kMark);
  CHECK(ClassOf(0x216B) == CharClass::kNumber);
  CHECK(ClassOf(0x3000) == CharClass::kSpace);
  CHECK(ClassOf(0x200B) == CharClass::kOther);
  CHECK(ClassOf(0x1F999) == CharClass::kOther);
  CHECK(ClassOf(0x10FFFF) == CharClass::kOther);
  CHECK(ClassOf(0x110000) == CharClass::kOther);
}

}  // namespace
}  // namespace holdfast::text

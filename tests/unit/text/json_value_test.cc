#include "frontend/text/json_value.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "frontend/text/utf8.h"

namespace holdfast::text {
namespace {

std::string Again(std::string_view text) {
  auto v = ParseJson(text);
  return v.ok() ? v->Dump() : std::string(v.status().message());
}

std::string Error(std::string_view text, const JsonLimits& limits = {}) {
  auto v = ParseJson(text, limits);
  return v.ok() ? "no error: " + v->Dump() : std::string(v.status().message());
}

// Any number with any exponent, including the subnormal ones.
double AnyDouble() {
  for (;;) {
    const uint64_t bits = *rc::gen::arbitrary<uint64_t>();
    double d;
    std::memcpy(&d, &bits, sizeof(d));
    if (std::isfinite(d)) return d;
  }
}

TEST_CASE("values keep their kinds and members their order") {
  CHECK(Again(R"( {"b" : [1, -2, 3.0, null, true, false, "x"], "a":{}, "c":[]} )") ==
        R"({"b":[1,-2,3.0,null,true,false,"x"],"a":{},"c":[]})");
  auto v = ParseJson(R"({"i":-9223372036854775808,"u":18446744073709551615,"m":9223372036854775807,"d":1e2})");
  REQUIRE(v.ok());
  CHECK(v->Find("i")->AsInt() == INT64_MIN);
  CHECK(v->Find("u")->kind() == JsonValue::Kind::kUint);
  CHECK(v->Find("u")->AsUint() == UINT64_MAX);
  CHECK(v->Find("m")->AsInt() == INT64_MAX);
  CHECK(v->Find("d")->kind() == JsonValue::Kind::kDouble);
  CHECK(v->Find("none") == nullptr);
  CHECK(JsonValue(1).Find("a") == nullptr);
}

TEST_CASE("numbers are printed as Python's json.dumps prints them") {
  // Expected texts from Python 3.11.
  const std::pair<double, const char*> cases[] = {
      {1.0, "1.0"},       {0.0, "0.0"},     {-0.0, "-0.0"},         {0.1, "0.1"},
      {0.7, "0.7"},       {1e15, "1000000000000000.0"},             {1e16, "1e+16"},
      {123456789012345680.0, "1.2345678901234568e+17"},             {1e-4, "0.0001"},
      {1e-5, "1e-05"},    {0.00012345, "0.00012345"},               {1.5e300, "1.5e+300"},
      {5e-324, "5e-324"}, {1.7976931348623157e308, "1.7976931348623157e+308"},
      {-2.5, "-2.5"},     {1234.5678, "1234.5678"},                 {100.0, "100.0"},
      {9007199254740993.0, "9007199254740992.0"},                   {-1e-7, "-1e-07"},
  };
  for (const auto& [number, text] : cases) CHECK(JsonValue(number).Dump() == text);
  CHECK(JsonValue(std::nan("")).Dump() == "null");
  CHECK(JsonValue(INFINITY).Dump() == "null");
  CHECK(Again("123456789012345678901234567890") == "1.2345678901234568e+29");
  CHECK(Again("-0") == "0");
  CHECK(Again("-0.0") == "-0.0");
}

TEST_CASE("every finite double survives print and parse") {
  CHECK(rc::check([] {
    const double d = AnyDouble();
    auto v = ParseJson(JsonValue(d).Dump());
    RC_ASSERT(v.ok());
    RC_ASSERT(v->kind() == JsonValue::Kind::kDouble);
    const double back = v->AsDouble();
    RC_ASSERT(std::memcmp(&back, &d, sizeof(d)) == 0);
  }));
}

TEST_CASE("decimal texts are read with correct rounding") {
  CHECK(rc::check([] {
    const uint64_t whole = *rc::gen::arbitrary<uint64_t>();
    const uint64_t part = *rc::gen::arbitrary<uint64_t>();
    const int exponent = *rc::gen::inRange(-330, 280);
    const std::string text = std::to_string(whole) + "." + std::to_string(part) + "e" + std::to_string(exponent);
    const double expected = std::strtod(text.c_str(), nullptr);
    auto v = ParseJson(text);
    RC_ASSERT(v.ok());
    RC_ASSERT(v->AsDouble() == expected);
  }));
  CHECK(ParseJson("2.2250738585072011e-308")->AsDouble() == 2.2250738585072011e-308);
  CHECK(ParseJson("1e-400")->AsDouble() == 0.0);
  CHECK(ParseJson("1.0e-326")->AsDouble() == 0.0);
  CHECK(Again("-1.0E-999999999999999999999999") == "-0.0");
  CHECK(ParseJson("0." + std::string(400, '0') + "1e+402")->AsDouble() == 10.0);
  CHECK(ParseJson("0." + std::string(1000, '0') + "1e+100")->AsDouble() == 0.0);
  CHECK(ParseJson(std::string(300, '9') + "e-10")->AsDouble() == 1e290);
}

TEST_CASE("strings: escapes, NUL and characters beyond the first plane") {
  auto v = ParseJson(R"("a\u0000b\ud83d\ude00\u00e9\n\/")");
  REQUIRE(v.ok());
  CHECK(v->AsString() == std::string("a\0b\xF0\x9F\x98\x80\xC3\xA9\n/", 11));
  CHECK(v->Dump() == "\"a\\u0000b\xF0\x9F\x98\x80\xC3\xA9\\n/\"");
  CHECK(JsonValue("\x01\x1f\"\\\b\f\r\t\x7f").Dump() == "\"\\u0001\\u001f\\\"\\\\\\b\\f\\r\\t\x7f\"");
  CHECK(JsonValue(std::string("x\xFFy\xE2\x82")).Dump() == "\"x\xEF\xBF\xBDy\xEF\xBF\xBD\"");
}

TEST_CASE("a byte order mark is skipped and offsets count it") {
  CHECK(Again("\xEF\xBB\xBF[1]") == "[1]");
  CHECK(Error("\xEF\xBB\xBF[1") == "JSON error at byte 5: Missing a comma or ']' after an array element.");
}

TEST_CASE("bad JSON is refused with the place and the reason") {
  CHECK(Error("") == "JSON error at byte 0: The document is empty.");
  CHECK(Error("[1,]").find("at byte 3") != std::string::npos);
  CHECK(Error("{\"a\" 1}").find("at byte 5: Missing a colon") != std::string::npos);
  CHECK(Error("[1] x").find("at byte 4") != std::string::npos);
  CHECK(Error(std::string_view("[1]\0[2]", 7)) == "JSON error at byte 3: there is text after the value");
  CHECK(Error("NaN").find("JSON error at byte 0") == 0);
  CHECK(Error("[Infinity]").find("JSON error at byte 1") == 0);
  CHECK(Error("[1e999]") == "JSON error at byte 1: Number too big to be stored in double.");
  CHECK(Error("[1.8e308]") == "JSON error at byte 1: the number 1.8e308 is too big for a double");
  CHECK(Error("-1e+999999999999999999999").find("too big") != std::string::npos);
  CHECK(Error(std::string(400, '9')).find("too big") != std::string::npos);
  CHECK(Error("01").find("JSON error") == 0);
  CHECK(Error("'a'").find("JSON error") == 0);
  CHECK(Error("\"a\nb\"").find("JSON error") == 0);
  CHECK(Error("[1] // c").find("JSON error") == 0);
  CHECK(Error("\"\\ud83d\"").find("JSON error") == 0);
  CHECK(Error("\"\\ude00\"").find("JSON error") == 0);
  CHECK(Error("\"\\ud83dx\"").find("JSON error") == 0);
  CHECK(Error("{\"\\ude00\":1}").find("JSON error") == 0);
  CHECK(Error("\"ab\xED\xA0\x80\"") == "JSON error at byte 3: byte 0xED does not belong to valid UTF-8");
  CHECK(Error("\"\xC0\x80\"").find("byte 0xC0") != std::string::npos);
  CHECK(Error("\"\xF4\x90\x80\x80\"").find("byte 0xF4") != std::string::npos);
}

TEST_CASE("A-63 B120 depth and number of values are limited without recursion") {
  const std::string deep(1'000'000, '[');
  CHECK(Error(deep).find("nested deeper than 128 levels") != std::string::npos);
  CHECK(Again(std::string(128, '[') + std::string(128, ']')) == std::string(128, '[') + std::string(128, ']'));
  std::string objects;
  for (int i = 0; i < 129; ++i) objects += "{\"a\":";
  CHECK(Error(objects).find("nested deeper") != std::string::npos);
  JsonLimits three;
  three.max_values = 3;
  CHECK(ParseJson("[1,2]", three).ok());
  CHECK(Error("[1,2,3]", three).find("more than 3 values") != std::string::npos);
}

TEST_CASE("a key given twice keeps the first place and the last value") {
  CHECK(Again(R"({"a":1,"b":2,"a":3,"c":4,"a":5})") == R"({"a":5,"b":2,"c":4})");
  std::string many = "{";
  for (int i = 0; i < 50'000; ++i) many += "\"k\":" + std::to_string(i) + ",";
  many += "\"z\":0}";
  CHECK(Again(many) == R"({"k":49999,"z":0})");
}

TEST_CASE("UTF-8: one replacement for each maximal bad subpart") {
  const auto repaired = [](std::string_view s) {
    std::string out;
    AppendValidUtf8(s, &out);
    return out;
  };
  const std::string r(kReplacementUtf8);
  CHECK(repaired("a\xC3\xA9") == "a\xC3\xA9");
  CHECK(repaired("\xC3 \xA9") == r + " " + r);
  // The example of the Unicode Standard, table 3-8 and its neighbours.
  CHECK(repaired("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64") == "a" + r + r + r + "b" + r + "c" + r + r + "d");
  CHECK(repaired("\xED\xA0\x80") == r + r + r);
  CHECK(repaired("\xF0\x80\x80\x41") == r + r + r + "A");
  CHECK(repaired("\xE2\x82") == r);
  CHECK(IncompleteUtf8Tail("a\xE2\x82") == 2);
  CHECK(IncompleteUtf8Tail("a\xF0\x9F\x98") == 3);
  CHECK(IncompleteUtf8Tail("a\xF0") == 1);
  CHECK(IncompleteUtf8Tail("\xE2\x82\xAC") == 0);
  CHECK(IncompleteUtf8Tail("\xED\xA0") == 0);
  CHECK(IncompleteUtf8Tail("\x80\x80\x80\x80") == 0);
  CHECK(IncompleteUtf8Tail("") == 0);
}

TEST_CASE("UTF-8: every scalar value survives, everything repaired is valid") {
  for (char32_t c = 0; c <= 0x10FFFF; c += (c < 0x3000 ? 1 : 17)) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string s;
    AppendUtf8(c, &s);
    const Utf8Step step = DecodeUtf8(s, 0);
    if (step.code_point != c || step.length != s.size() || step.kind != Utf8Kind::kOk) FAIL("code point " << uint32_t{c});
  }
  CHECK(rc::check([](const std::string& s) {
    std::string out;
    AppendValidUtf8(s, &out);
    RC_ASSERT(IsValidUtf8(out));
    if (IsValidUtf8(s)) RC_ASSERT(out == s);
  }));
}

}  // namespace
}  // namespace holdfast::text

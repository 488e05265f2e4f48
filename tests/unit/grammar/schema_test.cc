// JSON Schemas: what they let through, what they refuse, and random ones walked at random.
#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include "frontend/grammar/builder.h"
#include "frontend/grammar/response_format.h"
#include "frontend/text/json_value.h"
#include "proto/engine.pb.h"
#include "tests/support/grammar_rig.h"
#include "tests/support/schema_check.h"

namespace holdfast::test {
namespace {

using grammar::Builder;
using grammar::SchemaStyle;
using grammar::ValueStyle;
using text::JsonValue;
using text::ParseJson;

JsonValue Json(std::string_view text) {
  const auto value = ParseJson(text);
  INFO(text << ": " << value.status().ToString());
  REQUIRE(value.ok());
  return *value;
}

Acceptor Of(std::string_view schema, SchemaStyle style = {}) {
  Builder b;
  const auto node = b.Schema(Json(schema), style, "s");
  INFO(schema << ": " << node.status().ToString());
  REQUIRE(node.ok());
  return Acceptor(b, *node);
}

std::string WhyNot(std::string_view schema, SchemaStyle style = {}) {
  Builder b;
  const auto node = b.Schema(Json(schema), style, "s");
  const absl::Status status = node.ok() ? b.Build(*node).status() : node.status();
  INFO(schema);
  REQUIRE_FALSE(status.ok());
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

struct Case {
  const char* schema;
  std::vector<const char*> good, bad;
};

TEST_CASE("schemas and texts") {
  const std::vector<Case> cases = {
      {R"({"type":"string"})", {R"("")", R"("a\n\u00e9\ud83d\ude00é")"}, {R"(")", "1", R"("\ud83d")", "\"\n\"", R"("\x")"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", R"("a\né")"}, {R"("a")", R"("abcd")"}},
      {R"({"type":"integer"})", {"0", "-12", "123456789"}, {"01", "1.0", "1e3", "-", "+1"}},
      {R"({"type":"number"})", {"0", "-1.5", "2e10", "3.25E-2"}, {".5", "1.", "NaN"}},
      {R"({"type":"integer","minimum":-3,"maximum":120})", {"-3", "0", "-1", "99", "120", "13"}, {"-4", "121", "-10", "1200", "007"}},
      {R"({"type":"integer","minimum":0})", {"0", "7", "123456"}, {"-1"}},
      {R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":10})", {"1", "9"}, {"0", "10"}},
      {R"({"type":"integer","minimum":345,"maximum":6789})", {"345", "999", "1000", "6789", "678"}, {"344", "6790", "34", "99", "10000"}},
      {R"({"type":"number","minimum":0,"maximum":1})", {"0", "1", "0.5", "0.999"}, {"1.5", "-0.5", "2", "1.001"}},
      {R"({"type":"number","minimum":-2.5,"maximum":0.25})", {"-2.500", "-1.75", "0", "0.250", "-0.5"}, {"-2.501", "0.251", "1", "-3"}},
      {R"({"type":"number","exclusiveMinimum":0.1,"maximum":0.9})", {"0.101", "0.900"}, {"0.100", "0.901", "0", "1"}},
      {R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "700"}, {"1", "8", "07"}},
      {R"({"type":"integer","multipleOf":5,"minimum":1,"maximum":20})", {"5", "20"}, {"0", "25", "7"}},
      {R"({"type":"number","multipleOf":0.01})", {"1", "2.5", "3.25"}, {"1.234"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"null", "1"}},
      {R"({"type":["string","null"]})", {"null", R"("x")"}, {"1"}},
      {R"({"type":"string","nullable":true})", {"null", R"("x")"}, {"1"}},
      {R"({"enum":["a",1,null,{"k":[1,2]}]})", {R"("a")", "1", "null", R"({"k":[1,2]})"}, {R"("b")", "2", R"({"k":[1]})"}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"const":"x\"y"})", {R"("x\"y")"}, {R"("x")"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
       {R"({"a":1})", R"({"a":1,"b":"x"})", R"({"a": 1, "b": "x"})"}, {R"({})", R"({"b":"x"})", R"({"a":1,"c":2})", R"({"a":1,})", R"({,"a":1})", R"({"a":"x"})"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{"type":"null"}}})",
       {"{}", R"({"a":1})", R"({"b":[]})", R"({"c":null})", R"({"a":{},"c":null})", R"({"b":1,"c":null})"}, {R"({"c":1})", R"({"b":1,"a":1})"}},
      {R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"ab":1})", R"({"ab":1,"x":true})", R"({"x":true,"y":false})", R"({"a":true})", R"({"abc":true})"},
       {R"({"ab":true})", R"({"x":1})", R"({"ab":1,"ab":true})", R"({"ab":true,"x":true})"}},
      {R"({"type":"object"})", {"{}", R"({"a":{"b":[1,{"c":null}]}})"}, {"[]", "1"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
      {R"({"type":"object","required":["k"]})", {R"({"k":1})"}, {"{}"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":2})", {"{}", R"({"a":1,"b":2})"}, {R"({"a":1,"b":2,"c":3})"}},
      {R"({"type":"object","properties":{"a":{},"b":{}},"minProperties":1})", {R"({"a":1})", R"({"b":1})"}, {"{}"}},
      {R"({"type":"object","patternProperties":{"^x-[a-z]+$":{"type":"integer"}},"additionalProperties":false})",
       {"{}", R"({"x-ab":1})"}, {R"({"x-":1})", R"({"y":1})", R"({"x-a":"s"})"}},
      {R"({"type":"object","propertyNames":{"enum":["k","l"]},"additionalProperties":{"type":"integer"}})", {R"({"k":1})", R"({"l":2})"}, {R"({"m":1})"}},
      {R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1,2, 3]"}, {"[1,]", "[\"x\"]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})", {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})", {"[]", "[1]", R"([1,"x"])"}, {R"(["x"])", R"([1,"x",2])"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"null"},"minItems":2,"maxItems":3})", {"[1,null]", "[1,null,null]"},
       {"[1]", "[null]", "[1,null,null,null]"}},
      {R"({"type":"array","items":[{"type":"integer"},{"type":"string"}],"additionalItems":false})", {R"([1,"x"])"}, {R"([1,"x",1])"}},
      {R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":1})", {R"(["a"])", R"(["a","c"])", R"(["a","b","c"])"},
       {"[]", R"(["a","a"])", R"(["b","b"])"}},
      {R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"maxItems":2})", {"[]", R"(["a"])", R"(["b","c"])"}, {R"(["a","b","c"])", R"(["c","c"])"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"string"}}]})", {"1", R"(["x"])"}, {R"("x")", "[1]"}},
      {R"({"oneOf":[{"type":"string"},{"type":"null"}]})", {R"("x")", "null"}, {"1"}},
      {R"({"oneOf":[{"type":"object","properties":{"t":{"const":"a"},"x":{"type":"integer"}},"required":["t","x"]},
                    {"type":"object","properties":{"t":{"const":"b"}},"required":["t"]}]})",
       {R"({"t":"a","x":1})", R"({"t":"b"})"}, {R"({"t":"a"})", R"({"t":"c"})"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"null"},"a":{"minimum":5}}}]})",
       {R"({"a":5})", R"({"a":7,"b":null})"}, {R"({"a":4})", R"({"b":null})"}},
      {R"({"type":"object","properties":{"x":{"type":"integer"}},"anyOf":[{"required":["x"]},{"properties":{"y":{"type":"null"}},"required":["y"]}]})",
       {R"({"x":1})", R"({"x":1,"y":null})", R"({"y":null})"}, {"{}"}},
      {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/n"}},"required":["v"]}}})",
       {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":{"v":3}}})"}, {R"({"next":{"v":1}})"}},
      {R"({"type":"object","properties":{"c":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["c"]})", {R"({"c":null})", R"({"c":{"c":null}})"}, {"{}"}},
      {R"({"type":"string","pattern":"^[a-z]+-\\d{2}$"})", {R"("ab-12")"}, {R"("ab-1")", R"("AB-12")", R"("ab-123")"}},
      {R"({"type":"string","pattern":"b+"})", {R"("b")", R"("abbc")", R"("\nb\"")"}, {R"("ac")", R"("")"}},
      {R"({"type":"string","pattern":"^\\S+$","maxLength":3})", {R"("abc")", R"("\"")"}, {R"("abcd")", R"("a b")", R"("")"}},
      {R"({"type":"string","pattern":"^a(b|c)*$","minLength":2,"maxLength":4})", {R"("ab")", R"("abcb")"}, {R"("a")", R"("abcbc")"}},
      {R"({"type":"string","pattern":"^[\"\\\\\\n]$"})", {R"("\"")", R"("\\")", R"("\n")"}, {R"x(""")x", R"("n")"}},
      {R"({"type":"string","format":"date"})", {R"("2024-02-29")", R"("2023-12-31")"}, {R"("2023-02-29")", R"("2023-13-01")", R"("x")"}},
      {R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
      {R"({"type":"string","format":"date-time"})", {R"("2024-01-31T23:59:59Z")", R"("2024-01-31T00:00:00.5+02:00")"}, {R"("2024-01-31")"}},
      {R"({"type":"string","format":"ipv4"})", {R"("127.0.0.1")"}, {R"("256.1.1.1")"}},
      {R"({"type":"string","format":"email"})", {R"("a.b@example.org")"}, {R"("a@b")", R"("@x.y")"}},
      {R"({"type":"string","format":"uri"})", {R"("https://example.org/a%20b?q=1#f")"}, {R"("no uri")"}},
      {R"({"type":"string","format":"a note"})", {R"("x")"}, {}},
      {R"({"title":"t","description":"d","default":1,"examples":[1],"$schema":"x","$id":"y","$comment":"c","x-any":{},"type":"null"})", {"null"}, {"1"}},
      {"true", {"1", R"({"a":[true]})"}, {"tru e"}},
      {"{}", {"1", R"("x")", R"([[],{}])"}, {"x"}},
  };
  for (const Case& c : cases) {
    const Acceptor a = Of(c.schema);
    for (const char* good : c.good) {
      INFO(c.schema << " should take " << good);
      CHECK(a.Takes(good));
    }
    for (const char* bad : c.bad) {
      INFO(c.schema << " should not take " << bad);
      CHECK_FALSE(a.Takes(bad));
    }
  }
}

TEST_CASE("B122 white space is bounded") {
  SchemaStyle style;
  style.any_whitespace = true;
  const Acceptor a = Of(R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}}})", style);
  CHECK(a.Takes("{\n  \"a\" : [ 1 ,\t2 ]\n}"));
  CHECK(a.Takes("{}"));
  CHECK_FALSE(a.Begins("{" + std::string(20, ' ')));
  CHECK_FALSE(a.Begins("{\"a\":" + std::string(20, '\n')));
  CHECK_FALSE(a.Begins(" {"));
}

TEST_CASE("Gemma 4's spelling") {
  SchemaStyle style;
  style.style = ValueStyle::kGemma4;
  style.quote = kFirstSpecial;
  const Acceptor a = Of(R"({"type":"object","properties":{"city":{"type":"string"},"n":{"type":"integer"},"o":{"type":"object","properties":{"deep":{"type":"boolean"}}},
                            "tags":{"type":"array","items":{"enum":["a","b\""]}},"free":{}},"required":["city"]})", style);
  CHECK(a.Takes("{city:\x01" "0Paris \"} \n\x01" "0}"));
  CHECK(a.Takes("{city:\x01" "0\x01" "0,n:-2,o:{deep:true},tags:[\x01" "0a\x01" "0,\x01" "0b\"\x01" "0],free:{x:[1,null]}}"));
  CHECK_FALSE(a.Begins("{\"city\""));
  CHECK_FALSE(a.Begins("{city:\""));
  CHECK_FALSE(a.Begins("{city:\x01" "0x\x01" "1"));
  // What would end a bare key, or begin a string, stands between markers.
  CHECK(Of(R"x({"type":"object","properties":{"a:b":{"type":"integer"},"f(x)":{"type":"null"},"":{}},"required":["a:b"]})x", style)
            .Takes("{\x01" "0a:b\x01" "0:1,\x01" "0f(x)\x01" "0:null,\x01" "0\x01" "0:[]}"));
  const Acceptor any = Of(R"({"type":"object"})", style);
  CHECK(any.Takes("{a_b:{c-d:[\x01" "0x\x01" "0]},e:1.5}"));
  CHECK_FALSE(any.Begins("{a b"));
}

TEST_CASE("B115 B117 what cannot be enforced is refused with path and keyword") {
  CHECK_THAT(WhyNot(R"({"type":"object","properties":{"a":{"not":{}}}})"), Catch::Matchers::Contains("s.properties.a.not"));
  CHECK_THAT(WhyNot(R"({"if":{},"then":{}})"), Catch::Matchers::Contains("s.if"));
  CHECK_THAT(WhyNot(R"({"type":"array","contains":{}})"), Catch::Matchers::Contains("s.contains"));
  CHECK_THAT(WhyNot(R"({"type":"array","items":{"type":"string"},"uniqueItems":true})"), Catch::Matchers::Contains("s.uniqueItems"));
  CHECK_THAT(WhyNot(R"({"type":"string","minLenght":2})"), Catch::Matchers::Contains("s.minLenght"));
  CHECK_THAT(WhyNot(R"({"type":"hiccup"})"), Catch::Matchers::Contains("s.type"));
  CHECK_THAT(WhyNot(R"({"type":123})"), Catch::Matchers::Contains("s.type"));
  CHECK_THAT(WhyNot(R"({"properties":[]})"), Catch::Matchers::Contains("s.properties"));
  CHECK_THAT(WhyNot(R"({"required":"x"})"), Catch::Matchers::Contains("s.required"));
  CHECK_THAT(WhyNot(R"({"$ref":"#/x"})"), Catch::Matchers::Contains("#/x"));
  CHECK_THAT(WhyNot(R"({"$ref":"http://x/y"})"), Catch::Matchers::Contains("http://x/y"));
  CHECK_THAT(WhyNot(R"({"enum":[]})"), Catch::Matchers::Contains("s.enum"));
  CHECK_THAT(WhyNot(R"({"minLength":-1})"), Catch::Matchers::Contains("s.minLength"));
  CHECK_THAT(WhyNot(R"("text")"), Catch::Matchers::Contains("must be an object"));
  CHECK_THAT(WhyNot(R"({"type":"integer","minimum":5,"maximum":4})"), Catch::Matchers::Contains("bounds"));
  CHECK_THAT(WhyNot(R"({"type":"object","required":["a"],"additionalProperties":false})"), Catch::Matchers::Contains("\"a\""));
  CHECK_THAT(WhyNot(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"), Catch::Matchers::Contains("s.oneOf"));
  CHECK_THAT(WhyNot(R"({"anyOf":[{"$ref":"#/anyOf/0"}]})"), Catch::Matchers::Contains("begins with itself"));
  CHECK_THAT(WhyNot(R"({"allOf":[{"$ref":"#"},{"type":"integer"}]})"), Catch::Matchers::Contains("refers to itself"));
  for (const char* pattern : {"foo**", "(", "[", "(?<=x)*", "a{2,1}", "\\\\"}) {
    CHECK_THAT(WhyNot("{\"type\":\"string\",\"pattern\":\"" + std::string(pattern) + "\"}"), Catch::Matchers::Contains("s.pattern"));
  }
}

TEST_CASE("B119 deep and circular schemas end") {
  std::string deep = R"({"type":"null"})";
  for (int i = 0; i < 40; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  CHECK(Of(deep).Takes(std::string(40, '[') + "null" + std::string(40, ']')));
  std::string deeper = deep;
  for (int i = 0; i < 20; ++i) deeper = R"({"anyOf":[)" + deeper + "]}";
  for (int i = 0; i < 20; ++i) deeper = R"({"type":"array","items":)" + deeper + "}";
  CHECK_THAT(WhyNot(deeper), Catch::Matchers::Contains("deep"));
  std::string chain = R"({"$ref":"#/$defs/r0","$defs":{)";
  for (int i = 0; i < 3000; ++i) chain += "\"r" + std::to_string(i) + R"(":{"type":"array","items":{"$ref":"#/$defs/r)" + std::to_string(i + 1) + "\"}},";
  chain += R"("r3000":{"type":"null"}}})";
  CHECK(Of(chain).Takes("[[]]"));
}

TEST_CASE("B121 large schemas of real tools are accepted") {
  for (const char* length : {"2000", "10000", "65536"}) {
    const std::string text = R"({"type":"string","maxLength":)" + std::string(length) + "}";
    const std::string object = R"({"type":"object","properties":{"a":)" + text + R"(,"b":{"type":"array","items":{"type":"object","properties":{"c":)" + text + R"(}}}}})";
    const Acceptor a = Of(object);
    const size_t n = std::stoul(length);
    CHECK(a.Takes(R"({"a":")" + std::string(n, 'x') + R"("})"));
    CHECK_FALSE(a.Begins(R"({"a":")" + std::string(n + 1, 'x')));
    CHECK(a.Takes(R"({"b":[{"c":"\n"},{"c":"x"}]})"));
  }
  std::string values = R"({"enum":["v0")";
  for (int i = 1; i < 5000; ++i) values += ",\"v" + std::to_string(i * 7919) + "\"";
  const Acceptor many = Of(values + "]}");
  CHECK(many.Takes("\"v39587081\""));
  CHECK_FALSE(many.Takes("\"v39587082\""));
  std::string any = R"({"anyOf":[)";
  for (int i = 0; i < 50; ++i) {
    any += std::string(i == 0 ? "" : ",") + R"({"type":"object","properties":{"kind":{"const":")" + std::to_string(i) + R"("},"x":{"type":"string"}},"required":["kind"]})";
  }
  CHECK(Of(any + "]}").Takes(R"({"kind":"49","x":"y"})"));
}

std::string Numbers(int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += (i == 0 ? "" : ",") + std::to_string(i);
  return out;
}

// Each of these would otherwise take minutes or years.
TEST_CASE("schemas that are small to write and large to combine are refused in bounded time") {
  const auto nest = [](const std::string& key, const std::string& rest, const std::string& leaf) {
    std::string out = R"({"$ref":"#/$defs/r0","title":"t",)" + rest + R"("$defs":{)";
    for (int i = 0; i < 20; ++i) {
      const std::string next = R"({"$ref":"#/$defs/r)" + std::to_string(i + 1) + R"("})";
      out += "\"r" + std::to_string(i) + "\":{\"" + key + "\":[" + next;
      for (int k = 1; k < 30; ++k) out += "," + next;
      out += "]},";
    }
    return out + R"("r20":)" + leaf + "}}";
  };
  const std::string never = R"({"allOf":[{"type":"string"},{"type":"integer"}]})";
  CHECK_THAT(WhyNot(nest("anyOf", R"("type":"string",)", never)), Catch::Matchers::Contains("too many"));
  CHECK_THAT(WhyNot(nest("oneOf", R"("type":"string",)", never)), Catch::Matchers::Contains("too many"));
  CHECK_THAT(WhyNot(nest("allOf", R"("type":"string",)", R"({"minLength":1})")), Catch::Matchers::Contains("too many"));
  // A thousand branches, each compared with each.
  std::string properties, branches;
  for (int i = 0; i < 300; ++i) properties += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + R"(":{"anyOf":[{"type":"integer"},{"type":"null"}]})";
  for (int i = 0; i < 900; ++i) {
    branches += std::string(i == 0 ? "" : ",") + R"({"type":"object","properties":{"k":{"const":)" + std::to_string(i) + R"(}},"required":["k","p1","p2"]})";
  }
  CHECK_THAT(WhyNot(R"({"type":"object","properties":{)" + properties + R"(},"oneOf":[)" + branches + "]}"), Catch::Matchers::Contains("too many"));
  const std::string many = Numbers(200'000);
  CHECK_THAT(WhyNot(R"({"type":"array","uniqueItems":true,"items":{"enum":[)" + many + "]}}"), Catch::Matchers::Contains("uniqueItems"));
  CHECK_THAT(WhyNot(R"({"allOf":[{"enum":[)" + many + R"(]},{"enum":[)" + many + "]}]}"), Catch::Matchers::Contains("too many"));
  std::string required, wide;
  for (int i = 0; i < 150'000; ++i) {
    required += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\"";
    wide += (i == 0 ? "\"" : ",\"") + std::to_string(i + 1'000'000) + "\":true";
  }
  (void)WhyNot(R"({"type":"object","properties":{)" + wide + R"(},"required":[)" + required + "]}");
  (void)WhyNot(R"({"type":"object","properties":{")" + std::string(4 << 20, 'x') + R"(":true},"additionalProperties":true})");
  (void)WhyNot(R"({"enum":[")" + std::string(8 << 20, 'x') + R"("]})");
  std::string letters;
  for (int i = 0; i < 3000; ++i) letters += "\\\\p{L}";
  Builder b;
  const auto node = b.Schema(Json(R"({"type":"string","pattern":")" + letters + "\"}"), {}, "s");
  if (node.ok()) (void)b.Build(*node);
}

// ---- random schemas -------------------------------------------------------------------------------------------------

std::string RandomSchema(Dice& dice, int depth) {
  const auto number = [&](uint32_t n) { return std::to_string(dice.Below(n)); };
  switch (depth == 0 ? dice.Below(8) : dice.Below(14)) {
    case 0: return R"({"type":"string"})";
    case 1: {
      const uint32_t min = dice.Below(4);
      return R"({"type":"string","minLength":)" + std::to_string(min) + R"(,"maxLength":)" + std::to_string(min + dice.Below(20)) + "}";
    }
    case 2: {
      const int lo = static_cast<int>(dice.Below(2000)) - 1000;
      return R"({"type":"integer","minimum":)" + std::to_string(lo) + R"(,"maximum":)" + std::to_string(lo + static_cast<int>(dice.Below(3000))) + "}";
    }
    case 3: return dice.Chance(50) ? R"({"type":"number"})" : R"({"type":"integer"})";
    case 4: return dice.Chance(50) ? R"({"type":"boolean"})" : R"({"type":["null","integer"]})";
    case 5: return R"({"enum":["a",)" + number(100) + R"(,null,{"x":[1,"y"]}]})";
    case 6: {
      const double lo = static_cast<double>(dice.Below(400)) / 8 - 25;
      return R"({"type":"number","minimum":)" + std::to_string(lo) + R"(,"exclusiveMaximum":)" + std::to_string(lo + 0.5 + dice.Below(30)) + "}";
    }
    case 7: return R"({"type":"integer","multipleOf":)" + std::to_string(2 + dice.Below(9)) + "}";
    case 8:
    case 9: {
      const uint32_t min = dice.Below(3);
      return R"({"type":"array","items":)" + RandomSchema(dice, depth - 1) + R"(,"minItems":)" + std::to_string(min) + R"(,"maxItems":)" +
             std::to_string(min + dice.Below(4)) + "}";
    }
    case 10: return R"({"anyOf":[)" + RandomSchema(dice, depth - 1) + "," + RandomSchema(dice, depth - 1) + "]}";
    default: {
      static const char* const kNames[] = {"a", "ab", "name", "k\\\"q", "\xC3\xA9t\xC3\xA9"};
      std::string properties, required;
      for (const char* name : kNames) {
        if (dice.Chance(50)) continue;
        properties += std::string(properties.empty() ? "" : ",") + "\"" + name + "\":" + RandomSchema(dice, depth - 1);
        if (dice.Chance(50)) required += std::string(required.empty() ? "" : ",") + "\"" + name + "\"";
      }
      std::string out = R"({"type":"object","properties":{)" + properties + R"(},"required":[)" + required + "]";
      if (dice.Chance(30)) out += R"(,"additionalProperties":)" + RandomSchema(dice, depth - 1);
      if (dice.Chance(20)) out += R"(,"additionalProperties":false)";
      return out + "}";
    }
  }
}

TEST_CASE("random walks under random schemas end in valid JSON") {
  uint32_t ended = 0, walked = 0;
  CHECK(rc::check("walk", [&](uint64_t seed) {
    Dice dice(seed);
    const std::string schema_text = RandomSchema(dice, 3);
    const JsonValue schema = Json(schema_text);
    Builder b;
    SchemaStyle style;
    style.any_whitespace = dice.Chance(50);
    const auto node = b.Schema(schema, style, "s");
    RC_LOG() << schema_text << '\n' << node.status().ToString() << '\n';
    RC_ASSERT(node.ok());
    const auto vocabulary = RandomVocabulary(dice, 200);
    const auto engine = MakeEngine(Compile(b, *node), vocabulary);
    for (int i = 0; i < 3; ++i) {
      ++walked;
      const auto walk = RandomWalk(*engine, vocabulary, dice);
      if (!walk) continue;
      ++ended;
      const std::string text = TextOf(*walk, vocabulary);
      RC_LOG() << text << '\n';
      const auto value = ParseJson(text);
      RC_ASSERT(value.ok());
      RC_ASSERT(WhyInvalid(schema, *value) == "");
    }
  }));
  CHECK(ended * 2 > walked);
}

TEST_CASE("any object, walked at random, is JSON") {
  Dice dice(7);
  const auto vocabulary = RandomVocabulary(dice, 300);
  grammar::ResponseFormat format;
  format.kind = grammar::ResponseFormat::Kind::kJsonObject;
  const auto constraint = grammar::AnswerConstraint(format);
  REQUIRE(constraint.ok());
  const auto engine = MakeEngine(constraint->program(), vocabulary);
  int ended = 0;
  for (int i = 0; i < 200; ++i) {
    const auto walk = RandomWalk(*engine, vocabulary, dice, 400);
    if (!walk) continue;
    ++ended;
    const std::string text = TextOf(*walk, vocabulary);
    INFO(text);
    const auto value = ParseJson(text);
    REQUIRE(value.ok());
    CHECK(value->is_object());
  }
  CHECK(ended > 50);
}

TEST_CASE("compiled constraints are kept by key") {
  grammar::ConstraintCache cache(2000);
  int compiled = 0;
  const auto get = [&](const std::string& key) {
    return cache.Get(key, [&]() -> absl::StatusOr<proto::Constraint> {
      ++compiled;
      proto::Constraint c;
      c.set_program(std::string(500, 'x') + key);
      return c;
    });
  };
  REQUIRE(get("a").ok());
  REQUIRE(get("a").ok());
  CHECK(compiled == 1);
  CHECK(cache.hits() == 1);
  for (const char* key : {"b", "c", "d"}) REQUIRE(get(key).ok());
  CHECK(cache.bytes() <= 2000);
  REQUIRE(get("a").ok());
  CHECK(compiled == 5);
  CHECK_FALSE(cache.Get("bad", [] { return absl::StatusOr<proto::Constraint>(absl::InvalidArgumentError("no")); }).ok());
}

}  // namespace
}  // namespace holdfast::test

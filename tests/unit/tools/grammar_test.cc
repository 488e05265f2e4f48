// What a format's grammar allows, its parser reads: random answers under the grammar become calls whose arguments follow the schema, with
// nothing left over. Also what a grammar refuses, with its words.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tests/support/grammar_rig.h"
#include "tests/unit/tools/rig.h"

namespace holdfast::tools::testing {
namespace {

using holdfast::test::Dice;

struct Family {
  std::string tools, reasoning, open_tail;   // open_tail: a prompt that leaves a thought open
  std::vector<std::string> tags;
};

std::string DeepSeekTag(std::string words) {
  std::string out;
  for (const char c : words) out += c == ' ' ? std::string("\xE2\x96\x81") : std::string(1, c);
  return "<\xEF\xBD\x9C" + out + "\xEF\xBD\x9C>";
}

std::vector<Family> Families() {
  const std::vector<std::string> deepseek = {DeepSeekTag("tool calls begin"), DeepSeekTag("tool calls end"), DeepSeekTag("tool call begin"),
                                             DeepSeekTag("tool call end"), DeepSeekTag("tool sep"), "<think>", "</think>"};
  return {
      {"gemma4", "gemma4", "<|channel>thought\n", {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"}},
      {"hermes", "think", "<think>\n", {"<think>", "</think>"}},
      {"qwen3-coder", "think", "<think>\n", {"<think>", "</think>"}},
      {"glm", "think", "<think>", {"<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}},
      {"llama3", "think", "<think>", {"<|python_tag|>"}},
      {"mistral", "mistral", "[THINK]", {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}},
      {"mistral-v11", "mistral", "[THINK]", {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}},
      {"deepseek-v3", "think", "<think>", deepseek},
      {"deepseek-v3.1", "think", "<think>", deepseek},
      {"kimi-k2", "", "", {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
                           "<|tool_call_argument_begin|>"}},
      {"harmony", "harmony", "<|start|>assistant<|channel|>analysis<|message|>",
       {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"}},
  };
}

// What closes strings, values, thoughts and calls of a format.
std::vector<std::string> Closers(const Family& family) {
  std::vector<std::string> out = {"\"", "}", "]", "1", "\"}", "\n</parameter>\n", "</function>\n</tool_call>", "</arg_value>\n", "</tool_call>", "</think>",
                                  "[/THINK]", "<|end|><|start|>assistant<|channel|>final<|message|>", "\n```", "e", "fast", "null"};
  out.insert(out.end(), family.tags.begin(), family.tags.end());
  return out;
}

constexpr char kSchema[] = R"({"type":"object","properties":{"a":{"type":"string"},"n":{"type":"integer"},"on":{"type":"boolean"},
  "mode":{"enum":["fast","slow"]},"code":{"type":"string","pattern":"^.+$"},"list":{"type":"array","items":{"type":"number"}},"words":{"type":"array","items":{"type":"string"}},
  "short":{"type":"array","items":{"type":"string","maxLength":40}},"any":{"type":"object"}},"required":["a","n","mode"]})";

std::vector<std::string> Texts(const text::Vocabulary& v) {
  std::vector<std::string> texts;
  for (TokenId id = 0; id < v.size(); ++id) texts.emplace_back(v.IsOrdinary(id) ? v.bytes(id) : std::string_view());
  return texts;
}

// What the walk generated, as the parser gets it.
std::vector<Unit> UnitsOf(const Rig& rig, const std::vector<TokenId>& ids) {
  std::vector<Unit> out;
  std::string bytes;
  const auto flush = [&] {
    std::string valid;
    text::AppendValidUtf8(bytes, &valid);
    REQUIRE(valid == bytes);
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = text::DecodeUtf8(bytes, at).length;
      out.push_back({bytes.substr(at, n), text::kNoToken});
      at += n;
    }
    bytes.clear();
  };
  for (const TokenId id : ids) {
    if (rig.vocabulary.IsOrdinary(id)) {
      bytes += rig.vocabulary.bytes(id);
    } else {
      flush();
      out.push_back({std::string(rig.vocabulary.stored(id)), id});
    }
  }
  flush();
  return out;
}

std::string Joined(const std::vector<Unit>& units) {
  std::string text;
  for (const Unit& u : units) text += u.text;
  return text;
}

void CheckArguments(const Call& call, bool enforced) {
  const auto parsed = text::ParseJson(call.arguments);
  REQUIRE(parsed.ok());
  REQUIRE(parsed->is_object());
  if (call.name != "f" || !enforced) return;
  const text::JsonValue *a = parsed->Find("a"), *n = parsed->Find("n"), *mode = parsed->Find("mode"), *on = parsed->Find("on"), *list = parsed->Find("list");
  REQUIRE((a != nullptr && n != nullptr && mode != nullptr));
  CHECK(a->is_string());
  CHECK((n->kind() == text::JsonValue::Kind::kInt || n->kind() == text::JsonValue::Kind::kUint));
  REQUIRE(mode->is_string());
  CHECK((mode->AsString() == "fast" || mode->AsString() == "slow"));
  if (on != nullptr) CHECK(on->is_bool());
  if (list != nullptr) {
    REQUIRE(list->is_array());
    for (const text::JsonValue& v : list->AsArray()) CHECK(v.is_number());
  }
  for (const char* key : {"words", "short"}) {
    const text::JsonValue* words = parsed->Find(key);
    if (words == nullptr) continue;
    REQUIRE(words->is_array());
    for (const text::JsonValue& v : words->AsArray()) CHECK(v.is_string());
  }
  if (const text::JsonValue* any = parsed->Find("any"); any != nullptr) CHECK(any->is_object());
}

// A random answer. Half of the way in, and now and then before, it tries to write what closes something: tags, quotes, brackets.
std::optional<std::vector<TokenId>> RandomAnswer(const Rig& rig, holdfast::constrain::Engine& engine, Dice& dice, const std::vector<std::string>& closers) {
  constexpr size_t kMost = 1500, kLate = 60;
  std::vector<TokenId> history, plan;
  holdfast::constrain::Position position;
  while (history.size() < kMost) {
    REQUIRE(engine.Advance(history, &position).ok());
    const std::vector<TokenId> allowed = holdfast::test::AllowedAt(engine, position);
    const bool late = history.size() > kLate;
    if (engine.Complete(position) && plan.empty() && (allowed.empty() || late || dice.Chance(30))) return history;
    REQUIRE_FALSE(allowed.empty());
    const auto may = [&](TokenId id) { return std::find(allowed.begin(), allowed.end(), id) != allowed.end(); };
    if (plan.empty() && (late || dice.Chance(15))) {
      for (const Unit& u : rig.Units(closers[dice.Below(static_cast<uint32_t>(closers.size()))])) {
        if (u.marker != text::kNoToken) {
          plan.push_back(u.marker);
        } else {
          for (const char c : u.text) plan.push_back(static_cast<uint8_t>(c));
        }
      }
    }
    TokenId next = allowed[dice.Below(static_cast<uint32_t>(allowed.size()))];
    if (!plan.empty() && may(plan.front())) {
      next = plan.front();
      plan.erase(plan.begin());
    } else {
      plan.clear();
    }
    history.push_back(next);
  }
  return std::nullopt;
}

// Random answers under the policy; the number that came to an end.
int Walk(Rig& rig, Dice& dice, int rounds, const std::vector<std::string>& closers) {
  grammar::Builder builder;
  const auto root = rig.format->Grammar(builder, rig.tools, rig.policy, rig.prompt_tail);
  REQUIRE(root.ok());
  const std::vector<std::string> texts = Texts(rig.vocabulary);
  const auto engine = holdfast::test::MakeEngine(holdfast::test::Compile(builder, *root), texts);
  int ended = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto ids = RandomAnswer(rig, *engine, dice, closers);
    if (!ids) continue;
    ++ended;
    const std::vector<Unit> units = UnitsOf(rig, *ids);
    const std::string text = Joined(units);
    CAPTURE(text);
    const Answer a = rig.ParseUnits(units, [](size_t at) { return at % 3 == 0; });
    for (const Call& call : a.calls) {
      CHECK(call.ended);
      CheckArguments(call, rig.policy.mode == Mode::kRequired || rig.tools[0].strict);
      if (!rig.policy.allowed.empty()) CHECK(call.name == rig.policy.allowed[0]);
    }
    if (rig.policy.mode == Mode::kRequired) {
      CHECK_FALSE(a.calls.empty());
      CHECK(a.content.empty());
    }
    if (!rig.policy.parallel) CHECK(a.calls.size() <= 1);
    if (rig.policy.mode == Mode::kNone) CHECK(a.calls.empty());
  }
  return ended;
}

TEST_CASE("grammars of tool formats: what they allow is read as calls") {
  Dice dice(7);
  for (const Family& family : Families()) {
    for (const bool special : {true, false}) {
      if (!special && family.tools == "gemma4") continue;   // refused, see below
      Rig rig(family.tools, family.reasoning, special ? family.tags : std::vector<std::string>{});
      rig.tools = MakeTools({{"f", kSchema}, {"g", ""}, {"get.x-1", R"({"type":"object","properties":{}})"}});
      int ended = 0;
      const std::vector<std::string> closers = Closers(family);
      CAPTURE(family.tools, special);
      rig.policy = {Mode::kRequired, {}, true};
      ended += Walk(rig, dice, 20, closers);
      rig.policy = {Mode::kRequired, {"f"}, false};
      ended += Walk(rig, dice, 20, closers);
      rig.prompt_tail = family.open_tail;
      ended += Walk(rig, dice, 10, closers);
      rig.policy = {Mode::kAuto, {}, true};
      rig.tools[0].strict = true;
      ended += Walk(rig, dice, 10, closers);
      rig.prompt_tail.clear();
      ended += Walk(rig, dice, 10, closers);
      rig.tools[0].strict = false;
      ended += Walk(rig, dice, 10, closers);
      rig.policy.mode = Mode::kNone;
      ended += Walk(rig, dice, 5, closers);
      CHECK(ended > 30);
    }
  }
}

TEST_CASE("grammars of tool formats: an answer in JSON behind a thought") {
  Dice dice(9);
  for (const Family& family : Families()) {
    Rig rig(family.tools, family.reasoning, family.tags);
    CAPTURE(family.tools);
    for (const std::string& tail : {std::string(), family.open_tail}) {
      rig.prompt_tail = tail;
      grammar::Builder builder;
      const grammar::Node root = rig.format->WithReasoning(builder, builder.Literal("{\"x\": 1}"), tail);
      const std::vector<std::string> texts = Texts(rig.vocabulary);
      const auto engine = holdfast::test::MakeEngine(holdfast::test::Compile(builder, root), texts);
      const std::vector<std::string> closers = Closers(family);
      for (int i = 0; i < 10; ++i) {
        const auto ids = RandomAnswer(rig, *engine, dice, closers);
        if (!ids) continue;
        const std::vector<Unit> units = UnitsOf(rig, *ids);
        const std::string text = Joined(units);
        CAPTURE(text);
        CHECK(rig.ParseUnits(units, [](size_t) { return true; }).content == "{\"x\": 1}");
      }
    }
  }
}

TEST_CASE("grammars of tool formats: what cannot be enforced is refused with its path") {
  const auto status = [](std::string_view tools, const std::vector<std::string>& specials, const std::string& schema, std::vector<std::string> allowed = {}) {
    Rig rig(tools, "", specials);
    rig.tools = MakeTools({{"f", schema}});
    grammar::Builder builder;
    return std::string(rig.format->Grammar(builder, rig.tools, {Mode::kRequired, std::move(allowed), true}, "").status().message());
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    CAPTURE(text, part);
    CHECK(text.find(part) != std::string::npos);
  };
  contains(status("gemma4", {}, ""), "no token <|\"|>");
  contains(status("hermes", {}, R"({"type":"array"})"), "tools[0].function.parameters.type");
  contains(status("hermes", {}, "[]"), "tools[0].function.parameters must be");
  contains(status("", {}, "{}"), "--tool-call-parser");
  contains(status("hermes", {}, "{}", {"other"}), "none of the tools");
  contains(status("qwen3-coder", {}, R"({"properties":{"a":{"type":"string","format":"date"}}})"), "tools[0].function.parameters.properties.a.format");
  contains(status("qwen3-coder", {}, R"({"anyOf":[]})"), "tools[0].function.parameters.anyOf");
  CHECK(status("qwen3-coder", {}, R"({"properties":{"a":{"type":"string","maxLength":5},"b":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}}})").empty());
  for (const char* format : {"qwen3-coder", "glm"}) {
    for (const char* values : {"\"x\"", "1", "{}", "null", "[]", "[1]"}) {
      contains(status(format, {}, fmt::format(R"({{"properties":{{"a":{{"type":"string","enum":{}}}}}}})", values)), "tools[0].function.parameters.properties.a.enum");
    }
    contains(status(format, {}, R"({"properties":{"a":{"type":"string","const":1}}})"), "tools[0].function.parameters.properties.a");
    contains(status(format, {}, R"({"properties":{"a":{"type":"string","minLength":"x"}}})"), "tools[0].function.parameters.properties.a.minLength");
    contains(status(format, {}, R"({"properties":{"a":{"type":"string","maxLength":1.5}}})"), "tools[0].function.parameters.properties.a.maxLength");
    contains(status(format, {}, R"({"properties":{"a":{"type":"string","minLength":5,"maxLength":4}}})"), "tools[0].function.parameters.properties.a: minLength 5");
  }
}

TEST_CASE("the type of a tagged argument is found in bounded time") {
  // Each definition names the next one many times over, or itself.
  const auto nest = [](int levels, const char* last) {
    std::string defs;
    for (int i = 0; i < levels; ++i) {
      std::string parts;
      for (int k = 0; k < 30; ++k) parts += fmt::format("{}{{\"$ref\":\"#/$defs/r{}\"}}", k == 0 ? "" : ",", i + 1);
      defs += fmt::format("\"r{}\":{{\"anyOf\":[{}]}},", i, parts);
    }
    return fmt::format(R"({{"properties":{{"a":{{"$ref":"#/$defs/r0"}}}},"$defs":{{{}"r{}":{}}}}})", defs, levels, last);
  };
  for (const std::string& schema : {nest(12, R"({"type":"integer"})"), nest(3, R"({"anyOf":[{"$ref":"#/$defs/r0"},{"$ref":"#/$defs/r1"},{"$ref":"#/$defs/r2"}]})")}) {
    Rig rig("qwen3-coder", "", {});
    rig.tools = MakeTools({{"f", schema}});
    const Answer a = rig.Parse("<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>");
    CheckCall(a, 0, "f", R"({"a":5})");
    grammar::Builder builder;
    (void)rig.format->Grammar(builder, rig.tools, {Mode::kRequired, {}, true}, "");
  }
}

// Names that look like the words around them.
TEST_CASE("grammars of tool formats: a named tool is the one that is called") {
  Dice dice(13);
  const std::vector<std::string> names = {"f", "call:f", "call", "function", "functions.f", "f:0", "functions.f:0", "to", "json", "assistant", "name"};
  for (const Family& family : Families()) {
    Rig rig(family.tools, family.reasoning, family.tags);
    std::vector<std::pair<std::string, std::string>> tools;
    for (const std::string& name : names) tools.push_back({name, R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})"});
    rig.tools = MakeTools(tools);
    for (const auto& [name, schema] : tools) {
      rig.policy = {Mode::kRequired, {name}, false};
      grammar::Builder builder;
      const auto root = rig.format->Grammar(builder, rig.tools, rig.policy, "");
      REQUIRE(root.ok());
      const auto engine = holdfast::test::MakeEngine(holdfast::test::Compile(builder, *root), Texts(rig.vocabulary));
      rig.policy.allowed.clear();  // the reader is to know which of all it is
      const auto ids = RandomAnswer(rig, *engine, dice, Closers(family));
      REQUIRE(ids);
      const std::vector<Unit> units = UnitsOf(rig, *ids);
      const std::string text = Joined(units);
      CAPTURE(family.tools, name, text);
      const Answer a = rig.ParseUnits(units, [](size_t) { return true; });
      REQUIRE(a.calls.size() == 1);
      CHECK(a.calls[0].name == name);
    }
  }
}

// Names with whatever a client may write into them: a grammar that takes one has to write calls that the parser reads with that name.
TEST_CASE("grammars of tool formats: property names come through, or are refused") {
  Dice dice(11);
  const char* const names[] = {"'x", "a=b", "f(x)", "a)b", "a b", "\xC3\xA9t\xC3\xA9", "a'b", "$ref", "a.b-c", "x'", "a\xC2\xA0z", "b\\c", "a\"b",
                               "-1", "null", "a]", "\xF0\x9F\x98\x80", "call:f", "=", "'", "a/b", "@t", "#", "a\tb"};
  for (const Family& family : Families()) {
    for (const char* name : names) {
      Rig rig(family.tools, family.reasoning, family.tags);
      const text::JsonValue schema(text::JsonValue::Object{
          {"type", "object"}, {"properties", text::JsonValue::Object{{name, text::JsonValue::Object{{"type", "integer"}}}, {"a", text::JsonValue::Object{{"type", "integer"}}}}},
          {"required", text::JsonValue::Array{name, "a"}}});
      rig.tools = MakeTools({{"f", schema.Dump()}});
      rig.policy = {Mode::kRequired, {}, false};
      CAPTURE(family.tools, name);
      grammar::Builder builder;
      const auto root = rig.format->Grammar(builder, rig.tools, rig.policy, "");
      if (!root.ok()) {
        CHECK(std::string(root.status().message()).find("name") != std::string::npos);
        continue;
      }
      const auto engine = holdfast::test::MakeEngine(holdfast::test::Compile(builder, *root), Texts(rig.vocabulary));
      const auto ids = RandomAnswer(rig, *engine, dice, Closers(family));
      REQUIRE(ids);
      const std::vector<Unit> units = UnitsOf(rig, *ids);
      const std::string text = Joined(units);
      CAPTURE(text);
      const Answer a = rig.ParseUnits(units, [](size_t) { return true; });
      REQUIRE(a.calls.size() == 1);
      const auto parsed = text::ParseJson(a.calls[0].arguments);
      REQUIRE(parsed.ok());
      CHECK(parsed->AsObject().size() == 2);
      REQUIRE(parsed->Find(name) != nullptr);
      CHECK(parsed->Find(name)->kind() == text::JsonValue::Kind::kInt);
    }
  }
}

}  // namespace
}  // namespace holdfast::tools::testing

// qwen3-coder and glm, whose arguments stand between tags, and harmony.
#include "tests/unit/tools/rig.h"

namespace holdfast::tools::testing {
namespace {

constexpr char kSchema[] = R"({"type":"object","properties":{"path":{"type":"string"},"n":{"type":"integer"},"x":{"type":"number"},
  "on":{"type":"boolean"},"list":{"type":"array"},"o":{"type":"object"},"any":{},"opt":{"type":["string","null"]},
  "mode":{"enum":["a","5"]},"either":{"anyOf":[{"type":"integer"},{"type":"string"}]},"ref":{"$ref":"#/$defs/s"}},
  "$defs":{"s":{"type":"string"}}})";

std::vector<Tool> Tools() { return MakeTools({{"write", kSchema}, {"ping", ""}}); }

Rig Coder(bool special = true) {
  Rig rig("qwen3-coder", "think", special ? std::vector<std::string>{"<think>", "</think>"} : std::vector<std::string>{});
  rig.tools = Tools();
  return rig;
}

std::string Write(const std::string& parameters) {
  return "<tool_call>\n<function=write>\n" + parameters + "</function>\n</tool_call>";
}
std::string P(const std::string& key, const std::string& value) { return "<parameter=" + key + ">\n" + value + "\n</parameter>\n"; }

TEST_CASE("qwen3-coder: values are typed by the schema") {
  const Rig rig = Coder();
  const auto one = [&](const std::string& parameters, std::string_view arguments) {
    CAPTURE(parameters);
    const Answer a = rig.Parse(Write(parameters));
    CHECK(a.content.empty());
    CheckCall(a, 0, "write", arguments);
  };
  one("", "{}");
  one(P("path", "a b.txt"), R"({"path":"a b.txt"})");
  one(P("path", "5") + P("n", "5"), R"({"path":"5","n":5})");
  one(P("x", "-1.5e3") + P("on", "True") + P("list", "[1, \"a\"]") + P("o", "{\"k\": null}"), R"({"x":-1.5e3,"on":true,"list":[1, "a"],"o":{"k": null}})");
  one(P("n", "five") + P("on", "maybe") + P("list", "[1,"), R"({"n":"five","on":"maybe","list":"[1,"})");
  one(P("any", "5") + P("any2", "text") + P("opt", "null") + P("opt", "5"), R"({"any":5,"any2":"text","opt":null,"opt":"5"})");
  one(P("mode", "5") + P("either", "5") + P("either", "five") + P("ref", "7"), R"({"mode":"5","either":5,"either":"five","ref":"7"})");
  one(P("path", "\n  two\n\nlines\n"), R"({"path":"\n  two\n\nlines\n"})");
  one(P("path", ""), R"({"path":""})");
  one("<parameter=path>flat</parameter>", R"({"path":"flat"})");
  one(P("path", "say \"x\" \\ {}"), R"({"path":"say \"x\" \\ {}"})");
}

TEST_CASE("B009 qwen3-coder: tags inside values, two calls of one tool") {
  for (const bool special : {true, false}) {
    const Rig rig = Coder(special);
    const std::string value = "a </parameter> b <tool_call> </tool_call> <function=x> </function> <parameter=y> <think>";
    Answer a = rig.Parse("Look.\n" + Write(P("path", value)) + "\n" + Write(P("path", "two")));
    CHECK(a.content == "Look.");
    CHECK(a.calls.size() == 2);
    CheckCall(a, 0, "write", "{\"path\":\"" + value + "\"}");
    CheckCall(a, 1, "write", R"({"path":"two"})");
    a = rig.Parse("<function=write>\n" + P("n", "1") + "</function>");   // without the outer tag
    CheckCall(a, 0, "write", R"({"n":1})");
    a = rig.Parse("<tool_call>\n<function=write>\n" + P("n", "1") + "</tool_call>done");
    CheckCall(a, 0, "write", R"({"n":1})");
    CHECK(a.content == "done");
    for (const std::string text : {"<tool_call>", "<tool_call>\n<function=nobody>\n</function>\n</tool_call>", "<tool_call>\n<function=write>\nhm",
                                   "the <function= tag", "<function=write>text"}) {
      CAPTURE(text);
      CHECK(rig.Parse(text).content == text);
    }
  }
}

TEST_CASE("B010 B015 qwen3-coder: a prefix is never a whole call, and strings stream") {
  const Rig rig = Coder();
  const std::vector<Unit> units = rig.Units(Write(P("path", "a\nb") + P("n", "12") + P("opt", "x")));
  std::string before;
  bool partial = false;
  for (size_t n = 0; n < units.size(); ++n) {
    const Answer a = rig.ParseUnits({units.begin(), units.begin() + static_cast<long>(n)}, [](size_t) { return true; }, true);
    if (a.calls.empty()) continue;
    CHECK_FALSE(a.calls[0].ended);
    CHECK_FALSE(text::ParseJson(a.calls[0].arguments).ok());
    CHECK(a.calls[0].arguments.starts_with(before));
    before = a.calls[0].arguments;
    partial = partial || before == "{\"path\":\"a";
  }
  CHECK(partial);
}

TEST_CASE("glm: keys and values between tags") {
  for (const std::vector<std::string>& specials :
       {std::vector<std::string>{"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>"}, std::vector<std::string>{}}) {
    Rig rig("glm", "think", specials);
    rig.tools = Tools();
    const auto arg = [](const std::string& k, const std::string& v) {
      return "<arg_key>" + k + "</arg_key>\n<arg_value>" + v + "</arg_value>\n";
    };
    Answer a = rig.Parse("\n<think>hm</think>\nOk.\n<tool_call>write\n" + arg("path", "a </arg_value> b") + arg("n", "3") + arg("list", "[1]") +
                         "</tool_call>\n<tool_call>ping\n</tool_call>");
    CHECK(a.reasoning == "hm");
    CHECK(a.content == "Ok.");
    CHECK(a.calls.size() == 2);
    CheckCall(a, 0, "write", R"({"path":"a </arg_value> b","n":3,"list":[1]})");
    CheckCall(a, 1, "ping", "{}");
    CheckCall(rig.Parse("<tool_call>ping</tool_call>"), 0, "ping", "{}");
    CheckCall(rig.Parse("<tool_call>write<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>"), 0, "write", R"({"n":1})");
    for (const std::string text : {"<tool_call>nobody\n</tool_call>", "<tool_call>ping\nhello", "<tool_call>write\n<arg_key>n</arg_key>x"}) {
      CAPTURE(text);
      CHECK(rig.Parse(text).content == text);
    }
  }
}

const std::vector<std::string> kHarmony = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"};

TEST_CASE("harmony: channels and calls") {
  for (const bool special : {true, false}) {
    Rig rig("harmony", "harmony", special ? kHarmony : std::vector<std::string>{});
    rig.tools = Tools();
    rig.prompt_tail = "<|start|>assistant";
    const std::string thought = "<|channel|>analysis<|message|>Need it.<|end|>";
    Answer a = rig.Parse(thought + "<|start|>assistant<|channel|>final<|message|>Hi \xF0\x9F\x98\x80.<|return|>");
    CHECK(a.reasoning == "Need it.");
    CHECK(a.content == "Hi \xF0\x9F\x98\x80.");
    for (const std::string header : {"<|channel|>commentary to=functions.write <|constrain|>json<|message|>", " to=functions.write<|channel|>commentary json<|message|>",
                                     "<|channel|>analysis to=functions.write code<|message|>", "<|channel|>commentary to=write<|message|>"}) {
      CAPTURE(header);
      a = rig.Parse(thought + "<|start|>assistant" + header + "{\"n\": 5}<|call|>");
      CHECK(a.reasoning == "Need it.");
      CHECK(a.content.empty());
      CheckCall(a, 0, "write", R"({"n": 5})");
      CheckCall(rig.Parse(header + "{\"n\": 5}"), 0, "write", R"({"n": 5})");    // the stop token is not fed
      CHECK_FALSE(rig.Parse(header + "{\"n\": 5}", true).calls[0].ended);
      CHECK(rig.Parse(header + "{\"n\": 5}", true).calls[0].arguments == "{\"n\": 5");
    }
    a = rig.Parse("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.ping<|message|>{}<|call|>");
    CHECK(a.content == "I look.");
    CheckCall(a, 0, "ping", "{}");
    CHECK(rig.Parse("Just text.").content == "Just text.");
    CHECK(rig.Parse("assist me").content == "assist me");
    for (const std::string text : {"<|channel|>commentary to=functions.nobody<|message|>{}", "<|channel|>commentary to=functions.ping<|message|>hello"}) {
      CAPTURE(text);
      CHECK(rig.Parse(text).content == text);
    }
    CHECK(rig.Parse("<|channel|>commentary to=functions.wri", true).content.empty());
    rig.separate_reasoning = false;
    CHECK(rig.Parse(thought + "<|start|>assistant<|channel|>final<|message|>Hi").content == thought + "Hi");
    rig.separate_reasoning = true;
    rig.prompt_tail = "<|start|>assistant<|channel|>analysis<|message|>";
    CHECK(rig.Parse("more<|end|><|start|>assistant<|channel|>final<|message|>Hi").reasoning == "more");
    rig.prompt_tail = "<|start|>assistant<|channel|>final<|message|>";
    CHECK(rig.Parse("Hi").content == "Hi");
    rig.prompt_tail = "<|start|>assistant";
    rig.policy.mode = Mode::kNone;
    const std::string call = "<|channel|>commentary to=functions.ping<|message|>{}";
    CHECK(rig.Parse(call).content == call);
  }
}

TEST_CASE("harmony: cannot be mixed with other formats") {
  const text::Vocabulary v = MakeVocabulary({});
  CHECK_FALSE(CreateFormat("harmony", "think", v).ok());
  CHECK_FALSE(CreateFormat("hermes", "harmony", v).ok());
  CHECK(CreateFormat("gpt-oss", "", v).ok());
}

}  // namespace
}  // namespace holdfast::tools::testing

// The formats whose calls are JSON: hermes, llama3, mistral, deepseek, kimi, and thoughts in <think>.
#include "tests/unit/tools/rig.h"

namespace holdfast::tools::testing {
namespace {

const std::string kCall = R"({"name": "get_weather", "arguments": {"city": "Paris", "days": 2}})";
const std::string kArguments = R"({"city": "Paris", "days": 2})";

std::vector<Tool> Tools() { return MakeTools({{"get_weather", ""}, {"ping", ""}, {"read", ""}}); }

Rig Make(std::string_view tools, std::string_view reasoning, const std::vector<std::string>& specials = {}) {
  Rig rig(tools, reasoning, specials);
  rig.tools = Tools();
  return rig;
}

// As special tokens and spelled.
std::vector<Rig> Hermes() {
  std::vector<Rig> out;
  out.push_back(Make("hermes", "think", {"<think>", "</think>"}));  // the calls' tags are in the tiny vocabulary
  out.push_back(Make("hermes", "think"));
  return out;
}

TEST_CASE("hermes: a call, with text and a thought before it") {
  for (const Rig& rig : Hermes()) {
    Answer a = rig.Parse("<tool_call>\n" + kCall + "\n</tool_call>");
    CheckCall(a, 0, "get_weather", kArguments);
    CHECK(a.content.empty());
    a = rig.Parse("<think>\nI need it.\n</think>\n\nLet me see.\n<tool_call>\n" + kCall + "\n</tool_call>\n");
    CHECK(a.reasoning == "I need it.");
    CHECK(a.content == "Let me see.");
    CheckCall(a, 0, "get_weather", kArguments);
  }
}

TEST_CASE("B005 hermes: several calls, also after one without arguments") {
  for (const Rig& rig : Hermes()) {
    const std::string ping = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";
    const std::string read = "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"v\": 1}}\n</tool_call>";
    Answer a = rig.Parse(ping + "\n" + read);
    CHECK(a.calls.size() == 2);
    CheckCall(a, 0, "ping", "{}");
    CheckCall(a, 1, "read", R"({"v": 1})");
    a = rig.Parse(read + ping + ping + ping);
    CHECK(a.calls.size() == 4);
    for (size_t i = 1; i < 4; ++i) CheckCall(a, i, "ping", "{}");
    a = rig.Parse("<tool_call>\n{\"name\": \"ping\"}\n{\"name\": \"read\", \"arguments\": {\"v\": 2}}</tool_call>");
    CHECK(a.calls.size() == 2);
    CHECK(a.content.empty());
  }
}

TEST_CASE("B007 hermes: tags inside strings, keys in any order, arguments in a string") {
  for (const Rig& rig : Hermes()) {
    const auto one = [&](const std::string& object, std::string_view arguments) {
      CAPTURE(object);
      const Answer a = rig.Parse("<tool_call>" + object + "</tool_call>");
      REQUIRE(a.calls.size() == 1);
      CHECK(a.calls[0].arguments == arguments);
      CHECK(a.calls[0].ended);
      CHECK(a.content.empty());
    };
    one(R"({"name":"read","arguments":{"a":"</tool_call> <tool_call> <think>"}})", R"({"a":"</tool_call> <tool_call> <think>"})");
    one(R"({"arguments":{"a":1},"name":"read"})", R"({"a":1})");
    one(R"({"id":"x","type":"function","name":"read","parameters":{"a":1},"more":[1,{"b":"}"}]})", R"({"a":1})");
    one(R"({"name":"read","arguments":"{\"a\": \"x\\ny\", \"b\": [1]}"})", R"({"a": "x\ny", "b": [1]})");
    one(R"({"name":"read","arguments":""})", "{}");
    one(R"({"name":"read","arguments":null})", "{}");
    one(R"({"name":"read"})", "{}");
    one(R"({"name":"r\u0065ad","arguments":{"a":"head -100 \"x\" | wc"}})", R"({"a":"head -100 \"x\" | wc"})");
    // Repairs.
    one("{\"name\":\"read\",\"arguments\":{\"a\":\"x\ny\tz\"}}", R"({"a":"x\ny\tz"})");
    one(R"({"name":"read","arguments":{"a":"\d\ud83d","b":"\ud83d\ude00"}})", R"({"a":"\\d\ufffd","b":"\ud83d\ude00"})");
    one(R"({"name":"read","arguments":{'a':'it's',"b":True,c:None,}})", R"({"a":"it's","b":true,"c":null})");
    one(R"({"name":"read","arguments":{"a":1e999,"b":-0.5e3}})", R"({"a":"1e999","b":-0.5e3})");
    one(R"({"name":"read","arguments":{"a":[1,2})", R"({"a":[1,2]})");
    one(R"({"name":"read","arguments":{"a":{"b":1)", R"({"a":{"b":1}})");
  }
}

TEST_CASE("B019 hermes: what is no call is content, byte for byte") {
  for (const Rig& rig : Hermes()) {
    for (const std::string text :
         {"BEGIN <tool_call> AFTER END", "BEGIN <think> AFTER </think> END", "`<tool_call>`", "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
          "<tool_call>[1]</tool_call>", "<tool_call>{\"name\": \"read\", \"arguments\": [1]}</tool_call>", "<tool_call>{\"answer\": 42}</tool_call>",
          "<tool_call>{\"name\": \"read\", \"city\": \"x\"}</tool_call>", "<tool_call>\n{\"name\": \"re", "a < b </tool_call> <", "<tool_cal"}) {
      CAPTURE(text);
      const Answer a = rig.Parse(text);
      CHECK(a.content == text);
      CHECK(a.calls.empty());
    }
    Rig none = Make("hermes", "think");
    none.tools.clear();
    CHECK(none.Parse("a\n<tool_call>\n" + kCall + "\n</tool_call>\n").content == "a\n<tool_call>\n" + kCall + "\n</tool_call>\n");
    const Answer twice = rig.Parse("<tool_call>\n<tool_call>\n" + kCall + "\n</tool_call>");
    CHECK(twice.content == "<tool_call>");
    CheckCall(twice, 0, "get_weather", kArguments);
  }
}

TEST_CASE("B010 B015 hermes: a prefix is never a whole call, and deltas only append") {
  for (const Rig& rig : Hermes()) {
    for (const std::string object : {R"({"name": "read", "arguments": {"t": "a\\b\u00e9\n\"c\"", "n": -1.5e10, "b": true, "l": [1, {"x": null}]}})",
                                     R"({"arguments": {"t": "x"}, "name": "read"})", R"({"name": "read", "arguments": "{\"t\": \"x\"}"})"}) {
      const std::vector<Unit> units = rig.Units("<tool_call>\n" + object + "\n</tool_call>");
      std::string before;
      for (size_t n = 0; n < units.size(); ++n) {
        const Answer a = rig.ParseUnits({units.begin(), units.begin() + static_cast<long>(n)}, [](size_t) { return true; }, true);
        if (a.calls.empty()) continue;
        CHECK_FALSE(a.calls[0].ended);
        CHECK_FALSE(text::ParseJson(a.calls[0].arguments).ok());
        CHECK(a.calls[0].arguments.starts_with(before));
        before = a.calls[0].arguments;
      }
      // The model ended behind the object: whole. It was cut there: not.
      const std::vector<Unit> open = rig.Units("<tool_call>\n" + object);
      CHECK(rig.ParseUnits(open, [](size_t) { return true; }, false).calls[0].ended);
      CHECK_FALSE(rig.ParseUnits(open, [](size_t) { return true; }, true).calls[0].ended);
    }
  }
}

TEST_CASE("B020 think: opened by the prompt, not closed, cut, with a call inside") {
  for (Rig& rig : Hermes()) {
    CHECK(rig.Parse("<think>\n\n</think>\n\nHi").content == "Hi");
    CHECK(rig.Parse("\n<think>a</think>b").reasoning == "a");
    CHECK(rig.Parse("x <think>a</think>").content == "x <think>a</think>");
    rig.prompt_tail = "<|im_start|>assistant\n<think>\n";
    Answer a = rig.Parse("hm\nso\n</think>\n\nHi\n");
    CHECK(a.reasoning == "hm\nso");
    CHECK(a.content == "Hi\n");
    CHECK(rig.Parse("<think>\nhm</think>Hi").reasoning == "hm");   // opened twice
    a = rig.Parse("only this");                                    // never closed
    CHECK(a.reasoning == "only this");
    CHECK(a.content.empty());
    a = rig.Parse("cut he", true);
    CHECK(a.reasoning == "cut he");
    CHECK(a.content.empty());
    a = rig.Parse("I call\n<tool_call>\n" + kCall + "\n</tool_call>");
    CHECK(a.reasoning == "I call");
    CheckCall(a, 0, "get_weather", kArguments);
    a = rig.Parse("the tag <tool_call> is\n</think>fine");
    CHECK(a.reasoning == "the tag <tool_call> is");
    CHECK(a.content == "fine");
    rig.separate_reasoning = false;
    CHECK(rig.Parse("hm\n</think>\n\nHi").content == "hm\n</think>\n\nHi");
    rig.prompt_tail = "<|im_start|>assistant\n<think>\n\n</think>\n\n";   // thinking off
    rig.separate_reasoning = true;
    CHECK(rig.Parse("Hi").content == "Hi");
  }
}

TEST_CASE("llama3: JSON at the beginning, with and without the tag") {
  for (const std::vector<std::string>& specials : {std::vector<std::string>{"<|python_tag|>"}, std::vector<std::string>{}}) {
    Rig rig = Make("llama3", "", specials);
    const std::string call = R"({"name": "get_weather", "parameters": {"city": "Paris"}})";
    for (const std::string before : {"", "<|python_tag|>", "\n "}) {
      const Answer a = rig.Parse(before + call);
      CHECK(a.content.empty());
      CheckCall(a, 0, "get_weather", R"({"city": "Paris"})");
    }
    CheckCall(rig.Parse(R"({"type": "function", "name": "ping", "parameters": {}})"), 0, "ping", "{}");
    Answer a = rig.Parse(call + "; " + R"({"name": "ping", "parameters": {}})");
    CHECK(a.calls.size() == 2);
    CheckCall(a, 1, "ping", "{}");
    CHECK(a.content.empty());
    a = rig.Parse("Sure. <|python_tag|>" + call);
    CHECK(a.content == "Sure.");
    CHECK(a.calls.size() == 1);
    for (const std::string& text : {"Sure: " + call, std::string(R"({"answer": 42, "name": "x"})"), std::string(R"({"name": "unknown", "parameters": {}})"),
                                   std::string("{}"), std::string("{\"na"), std::string("<|python_tag|>search.call(query=\"x\")")}) {
      CAPTURE(text);
      CHECK(rig.Parse(text).content == text);
      CHECK(rig.Parse(text).calls.empty());
    }
    rig.policy.parallel = false;
    a = rig.Parse(call + "; " + call);
    CHECK(a.complete);
    CHECK(a.calls.size() == 1);
  }
}

TEST_CASE("mistral: an array of calls and NAME[ARGS]") {
  for (const std::vector<std::string>& specials :
       {std::vector<std::string>{"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}, std::vector<std::string>{}}) {
    Rig rig = Make("mistral", "mistral", specials);
    Answer a = rig.Parse("[TOOL_CALLS][" + kCall + ", {\"name\": \"ping\", \"arguments\": {}, \"id\": \"abcdefghi\"}]");
    CHECK(a.calls.size() == 2);
    CheckCall(a, 0, "get_weather", kArguments);
    CheckCall(a, 1, "ping", "{}");
    CHECK(a.content.empty());
    a = rig.Parse("[THINK]hm[/THINK]Ok. [TOOL_CALLS]get_weather[ARGS]" + kArguments + "[TOOL_CALLS]read[CALL_ID]abcdefghi[ARGS]{\"a\": \"[TOOL_CALLS]\"}");
    CHECK(a.reasoning == "hm");
    CHECK(a.content == "Ok.");
    CHECK(a.calls.size() == 2);
    CheckCall(a, 0, "get_weather", kArguments);
    CheckCall(a, 1, "read", R"({"a": "[TOOL_CALLS]"})");
    CheckCall(rig.Parse("[TOOL_CALLS]ping{}"), 0, "ping", "{}");
    for (const std::string text : {"[TOOL_CALLS]nobody[ARGS]{}", "[TOOL_CALLS]", "[TOOL_CALLS]ping[ARGS]x", "[TOOL_CALLS][1]", "a [ARGS] b", "[TOOL"}) {
      CAPTURE(text);
      CHECK(rig.Parse(text).content == text);
    }
  }
}

const std::string kBar = "\xEF\xBD\x9C", kGap = "\xE2\x96\x81";
std::string DeepSeekTag(std::string words) {
  std::string out;
  for (const char c : words) out += c == ' ' ? kGap : std::string(1, c);
  return "<" + kBar + out + kBar + ">";
}

TEST_CASE("deepseek: v3 and v3.1") {
  const std::string begin = DeepSeekTag("tool calls begin"), end = DeepSeekTag("tool calls end"), call = DeepSeekTag("tool call begin"),
                    call_end = DeepSeekTag("tool call end"), sep = DeepSeekTag("tool sep");
  for (const std::vector<std::string>& specials : {std::vector<std::string>{begin, end, call, call_end, sep, "<think>", "</think>"}, std::vector<std::string>{}}) {
    Rig rig = Make("deepseek-v3.1", "think", specials);
    rig.prompt_tail = "<" + kBar + "Assistant" + kBar + "><think>";
    Answer a = rig.Parse("hm</think>Ok." + begin + call + "get_weather" + sep + kArguments + call_end + call + "ping" + sep + "{}" + call_end + end);
    CHECK(a.reasoning == "hm");
    CHECK(a.content == "Ok.");
    CHECK(a.calls.size() == 2);
    CheckCall(a, 0, "get_weather", kArguments);
    CheckCall(a, 1, "ping", "{}");
    rig.prompt_tail = "<" + kBar + "Assistant" + kBar + "></think>";
    a = rig.Parse(begin + call + "function" + sep + "read\n```json\n{\"a\": \"```\"}\n```" + call_end + "\n" + call + "function" + sep +
                  "ping\n```json\n{}\n```" + call_end + end);
    CHECK(a.calls.size() == 2);
    CheckCall(a, 0, "read", R"({"a": "```"})");
    CheckCall(a, 1, "ping", "{}");
    CHECK(a.content.empty());
    const std::string unknown = begin + call + "nobody" + sep + "{}" + call_end + end;
    CHECK(rig.Parse(unknown).content == unknown);
    CheckCall(rig.Parse(begin + call + "read" + sep + "{\"a\":[1" + call_end + end), 0, "read", R"({"a":[1]})");
  }
}

TEST_CASE("kimi: functions.NAME:INDEX") {
  Rig rig = Make("kimi-k2", "");
  const Answer a = rig.Parse("Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>" + kArguments +
                             "<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>");
  CHECK(a.content == "Ok.");
  CHECK(a.calls.size() == 2);
  CheckCall(a, 0, "get_weather", kArguments);
  CheckCall(a, 1, "ping", "{}");
}

}  // namespace
}  // namespace holdfast::tools::testing

// For every format: the events of a text do not depend on how it was cut; nothing crashes; a call that ended has arguments that parse;
// without tools nothing of a text is lost.
#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <rapidcheck/catch.h>

#include "tests/unit/tools/rig.h"

namespace holdfast::tools::testing {
namespace {

struct Family {
  std::string tools, reasoning;
  std::vector<std::string> tags;      // of the format, as special tokens in one of its two rigs
  std::vector<std::string> phrases;   // whole and broken calls and thoughts
};

const std::vector<Family>& Families() {
  static const std::vector<Family> families = {
      {"gemma4", "gemma4", {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"},
       {"<|tool_call>call:f{a:<|\"|>x<|\"|>,b:[1,{c:true}]}<tool_call|>", "<|channel>thought\nhm\n<channel|>", "<|tool_call>call:g{}<tool_call|>", "call:f{",
        "thought\n", "<|\"|>", "=", "(", ")"}},
      {"hermes", "think", {"<tool_call>", "</tool_call>", "<think>", "</think>"},
       {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\\u00e9\", \"b\": [1, null]}}\n</tool_call>", "<think>\nhm\n</think>\n\n",
        "{\"arguments\": \"{\\\"a\\\": 1}\", \"name\": \"g\"}", "\"name\": \"f\",", "\"arguments\": {"}},
      {"qwen3-coder", "think", {"<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "<think>", "</think>"},
       {"<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\n[1]\n</parameter>\n</function>\n</tool_call>", "<function=g>", "f>", "a>\n", ">"}},
      {"glm", "think", {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>"},
       {"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>b</arg_key><arg_value>[1]</arg_value></tool_call>", "<tool_call>g</tool_call>", "f\n"}},
      {"llama3", "think", {"<|python_tag|>", "<think>", "</think>"},
       {"{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "; ", "<|python_tag|>{\"name\": \"g\"}", "{\"name\": \"f\", "}},
      {"mistral", "mistral", {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"},
       {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]", "[TOOL_CALLS]f[ARGS]{\"a\": 1}",
        "[TOOL_CALLS]g[CALL_ID]x[ARGS]{", "[THINK]hm[/THINK]"}},
      {"deepseek-v3.1", "think",
       {"<\xEF\xBD\x9Ctool\xE2\x96\x81" "calls\xE2\x96\x81" "begin\xEF\xBD\x9C>", "<\xEF\xBD\x9Ctool\xE2\x96\x81" "calls\xE2\x96\x81" "end\xEF\xBD\x9C>",
        "<\xEF\xBD\x9Ctool\xE2\x96\x81" "call\xE2\x96\x81" "begin\xEF\xBD\x9C>", "<\xEF\xBD\x9Ctool\xE2\x96\x81" "call\xE2\x96\x81" "end\xEF\xBD\x9C>",
        "<\xEF\xBD\x9Ctool\xE2\x96\x81" "sep\xEF\xBD\x9C>"},
       {"f<\xEF\xBD\x9Ctool\xE2\x96\x81" "sep\xEF\xBD\x9C>{\"a\": 1}", "function<\xEF\xBD\x9Ctool\xE2\x96\x81" "sep\xEF\xBD\x9C>g\n```json\n{}\n```", "f", "function"}},
      {"kimi-k2", "",
       {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"},
       {"functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>", "functions.g:1", "f"}},
      {"harmony", "harmony", {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"},
       {"<|channel|>analysis<|message|>hm<|end|>", "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
        "<|channel|>final<|message|>", "assistant", " to=functions.g", "commentary"}},
  };
  return families;
}

const std::vector<std::string> kGarbage = {"{", "}", "[", "]", ",", ":", "\"", "'", "\\", "\\u12", "\\ud83d", "\n", " ", "tru", "-1.5e", "null", "a", "text",
                                           "\xC3\xA9", "\xF0\x9F\x98\x80", "<", "<|", "\x01", "`", "name", ";"};

std::string Draw(const Family& family) {
  std::string text;
  const int parts = *rc::gen::inRange(0, 12);
  for (int i = 0; i < parts; ++i) {
    switch (*rc::gen::inRange(0, 4)) {
      case 0: text += *rc::gen::elementOf(family.phrases); break;
      case 1: text += *rc::gen::elementOf(family.tags); break;
      case 2: text += *rc::gen::elementOf(kGarbage); break;
      default: {
        std::string phrase = *rc::gen::elementOf(family.phrases);   // with a piece missing or something put in
        const size_t at = *rc::gen::inRange<size_t>(0, phrase.size() + 1);
        if (*rc::gen::arbitrary<bool>()) {
          phrase.insert(at, *rc::gen::elementOf(kGarbage));
        } else {
          phrase.erase(at, *rc::gen::inRange<size_t>(1, 6));
        }
        text += phrase;
      }
    }
  }
  std::string valid;
  text::AppendValidUtf8(text, &valid);
  return valid;
}

const std::vector<std::string> kTails = {"", "<|start|>assistant", "<think>\n", "<think>\n\n</think>\n\n", "<|turn>model\n<|channel>thought\n",
                                         "<|channel>thought\n<channel|>", "[THINK]", "<|start|>assistant<|channel|>analysis<|message|>"};

void CheckFamily(const Family& family) {
  const Rig special(family.tools, family.reasoning, family.tags), spelled(family.tools, family.reasoning, {});
  const std::vector<Tool> tools =
      MakeTools({{"f", R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array"}}})"}, {"g", ""}});
  rc::prop(family.tools, [&] {
    Rig rig = *rc::gen::arbitrary<bool>() ? special : spelled;
    rig.tools = tools;
    rig.prompt_tail = *rc::gen::elementOf(kTails);
    rig.separate_reasoning = *rc::gen::inRange(0, 4) != 0;
    rig.policy.parallel = *rc::gen::inRange(0, 4) != 0;
    if (*rc::gen::inRange(0, 6) == 0) rig.tools.clear();
    const bool cut = *rc::gen::arbitrary<bool>();
    const std::string text = Draw(family);
    const std::vector<Unit> units = rig.Units(text);
    const std::vector<bool> ends = *rc::gen::container<std::vector<bool>>(units.size(), rc::gen::arbitrary<bool>());
    const Answer whole = rig.ParseUnits(units, [](size_t) { return false; }, cut);
    const Answer pieces = rig.ParseUnits(units, [&](size_t i) { return ends[i]; }, cut);
    const Answer single = rig.ParseUnits(units, [](size_t) { return true; }, cut);
    RC_ASSERT(whole.events == pieces.events);
    RC_ASSERT(whole.events == single.events);
    RC_ASSERT(whole.complete == single.complete);
    for (const Call& call : whole.calls) {
      RC_ASSERT(call.name == "f" || call.name == "g");
      const auto parsed = text::ParseJson(call.arguments);
      RC_ASSERT(parsed.ok() == call.ended);
      if (parsed.ok()) RC_ASSERT(parsed->is_object());
    }
    RC_ASSERT(text::IsValidUtf8(whole.content));
    RC_ASSERT(text::IsValidUtf8(whole.reasoning));
    if (!rig.policy.parallel) RC_ASSERT(whole.calls.size() <= 1u);
    if (rig.tools.empty()) RC_ASSERT(whole.calls.empty());
    // Without thoughts and calls to take out, the text is the content.
    if (rig.tools.empty() && !rig.separate_reasoning && family.tools != "harmony") RC_ASSERT(whole.content == text);
  });
}

TEST_CASE("B002 parsers: any cut of any text says the same") {
  for (const Family& family : Families()) CheckFamily(family);
}

}  // namespace
}  // namespace holdfast::tools::testing

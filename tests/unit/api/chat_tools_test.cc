// Tool calls, thoughts and forms of the answer through /v1/chat/completions, against an engine whose answers are known (A-14 ... A-18, A-34,
// A-43 ... A-59 and the table of finish reasons).
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}}},)"
    R"({"type":"function","function":{"name":"now"}}])";
const std::string kCall = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Par\xC3\xADs {\\\"x\\\"}\"}}\n</tool_call>";
const std::string kArguments = "{\"city\": \"Par\xC3\xADs {\\\"x\\\"}\"}";
const std::string kNow = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

FakeEngine::Script Says(std::string text) {
  return [text](const proto::GenerateRequest&) { return ToolAnswer(text); };
}

std::string Chat(const std::string& fields = "") {
  return R"({"messages":[{"role":"user","content":"Hi there"}])" + (fields.empty() ? "" : "," + fields) + "}";
}
std::string Streamed(const std::string& fields) { return Chat(fields + R"(,"stream":true,"stream_options":{"include_usage":true})"); }

text::JsonValue UsageOf(const FakeExchange& exchange) {
  if (!exchange.streamed) return *exchange.Json().Find("usage");
  const auto events = exchange.Events();
  return *text::ParseJson(events[events.size() - 2])->Find("usage");
}

TEST_CASE("A-54 A-55 A-56 A-58 B008 a streamed answer with a thought, a text and two calls is the plain one in pieces") {
  FakeEngine engine(ToolCard(), Says("<think>\nFirst the weather.\n</think>\n\nLet me look. " + kCall + "\n" + kNow));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const auto plain = rig.Ask("POST", "/v1/chat/completions", Chat(kTools));
  INFO(plain->body);
  REQUIRE(plain->status == 200);
  CHECK(plain->Reasoning() == "First the weather.");
  CHECK(plain->Text() == "Let me look.");
  CHECK(plain->Finish() == "tool_calls");
  const auto calls = plain->Calls();
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].name == "weather");
  CHECK(text::ParseJson(calls[0].arguments)->Dump() == text::ParseJson(kArguments)->Dump());
  CHECK(calls[1].name == "now");
  CHECK(calls[1].arguments == "{}");
  std::set<std::string> ids;
  for (const auto& call : calls) {
    CHECK(call.id.size() == 29);
    CHECK(call.id.rfind("call_", 0) == 0);
    ids.insert(call.id);
  }
  CHECK(UsageOf(*plain).Find("completion_tokens_details")->Find("reasoning_tokens")->AsInt() > 18);
  for (const uint32_t portion : {1u, 2u, 7u, 1000u}) {
    engine.SetTokensPerEvent(portion);
    const auto streamed = rig.Ask("POST", "/v1/chat/completions", Streamed(kTools));
    CHECK(streamed->Reasoning() == plain->Reasoning());
    CHECK(streamed->Text() == plain->Text());
    CHECK(streamed->Finish() == "tool_calls");
    const auto got = streamed->Calls();
    REQUIRE(got.size() == 2);
    for (size_t i = 0; i < 2; ++i) {
      CHECK(got[i].name == calls[i].name);
      CHECK(got[i].arguments == calls[i].arguments);
      ids.insert(got[i].id);
    }
    CHECK(UsageOf(*streamed).Dump() == UsageOf(*plain).Dump());
    CHECK(streamed->Events().back() == "[DONE]");
  }
  CHECK(ids.size() == 10);  // every answer names its calls anew
}

TEST_CASE("A-57 a message with calls alone has null content, one without calls has no tool_calls") {
  FakeEngine engine(ToolCard(), Says(kNow));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const auto message = [&](const std::string& fields) {
    return *rig.Ask("POST", "/v1/chat/completions", Chat(fields))->Json().Find("choices")->AsArray()[0].Find("message");
  };
  const text::JsonValue calls = message(kTools);
  CHECK(calls.Find("content")->is_null());
  CHECK(calls.Find("tool_calls")->AsArray().size() == 1);
  CHECK(calls.Find("reasoning_content") == nullptr);
  const text::JsonValue text = message("\"n\":1");  // no tools: what looks like a call is text
  CHECK(text.Find("tool_calls") == nullptr);
  CHECK(text.Find("content")->AsString().find("\"name\": \"now\"") != std::string::npos);
}

TEST_CASE("A-14 with tool_choice none nothing is parsed and the tools stay out of the prompt") {
  FakeEngine engine(ToolCard(), Says("see " + kNow));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const auto none = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"tool_choice":"none")"));
  CHECK(none->Calls().empty());
  CHECK(none->Finish() == "stop");
  CHECK(none->Text().find("now") != std::string::npos);
  const auto bare = rig.Ask("POST", "/v1/chat/completions", Chat());
  const auto with = rig.Ask("POST", "/v1/chat/completions", Chat(kTools));
  const auto seen = engine.requests();
  REQUIRE(seen.size() == 3);
  CHECK(seen[0].tokens_size() == seen[1].tokens_size());
  CHECK(seen[2].tokens_size() > seen[1].tokens_size());
  for (const auto& request : seen) CHECK_FALSE(request.has_constraint());
}

TEST_CASE("A-14 A-15 A-16 calls that must be valid carry a constraint, one for all choices and for every resume") {
  FakeEngine engine(ToolCard(), Says(kCall));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const auto constraint = [&](const std::string& fields) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + fields));
    INFO(answer->body);
    REQUIRE(answer->status == 200);
    CHECK(answer->Finish() == "tool_calls");
    const auto seen = engine.requests().back();
    CHECK(seen.sampling().stop_tokens_size() > 0);
    return seen.has_constraint() ? seen.constraint().program() : std::string();
  };
  const std::string required = constraint(R"(,"tool_choice":"required","ignore_eos":true)");
  CHECK_FALSE(required.empty());
  CHECK(constraint(R"(,"tool_choice":"required")") == required);
  const std::string named = constraint(R"(,"tool_choice":{"type":"function","function":{"name":"weather"}})");
  CHECK_FALSE(named.empty());
  CHECK(named != required);
  CHECK_FALSE(constraint(R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"weather"}]})").empty());
  CHECK(constraint("").empty());
  engine.LoseAfter(9);
  const size_t before = engine.requests().size();
  CHECK(rig.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"tool_choice":"required","n":2)"))->Finish(1) == "tool_calls");
  const auto all = engine.requests();
  CHECK(all.size() > before + 2);
  for (size_t i = before; i < all.size(); ++i) CHECK(all[i].constraint().program() == required);
}

TEST_CASE("strict tools hold the model to their schema, others leave it free") {
  FakeEngine engine(ToolCard(), Says("ok"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f","strict":STRICT,"parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}}}])";
  for (const std::string strict : {"true", "false"}) {
    std::string one = tool;
    one.replace(one.find("STRICT"), 6, strict);
    CHECK(rig.Ask("POST", "/v1/chat/completions", Chat(one))->status == 200);
    CHECK(engine.requests().back().has_constraint() == (strict == "true"));
  }
}

TEST_CASE("A-27 a form of the answer carries a constraint, one that cannot be kept is a 400 that names the place") {
  FakeEngine engine(ToolCard(), Says("{\"a\": 1}"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  for (const char* fields : {R"("response_format":{"type":"json_object"})", R"("response_format":{"type":"regex","pattern":"[{].*[}]"})",
                             R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}})"}) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(fields));
    INFO(answer->body);
    CHECK(answer->status == 200);
    CHECK(answer->Text() == "{\"a\": 1}");
    CHECK(engine.requests().back().has_constraint());
  }
  const auto completion = rig.Ask("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9,"response_format":{"type":"json_object"}})");
  CHECK(completion->status == 200);
  CHECK(engine.requests().back().has_constraint());
  const size_t before = engine.requests().size();
  const auto param = [&](const std::string& fields) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(fields + R"(,"stream":true)"));
    INFO(answer->body);
    CHECK(answer->status == 400);
    CHECK_FALSE(answer->streamed);
    return answer->Json().Find("error")->Find("param")->AsString();
  };
  CHECK(param(R"("response_format":{"type":"regex","pattern":"(a"})") == "response_format.pattern");
  CHECK(param(R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","propertyNames":{"format":"nonsense"},"not":{}}}})")
            .rfind("response_format.json_schema.schema", 0) == 0);
  CHECK(param(R"("tool_choice":"required","tools":[{"function":{"name":"f"}},{"function":{"name":"g","parameters":{"type":"object","properties":{"x":{"not":{}}}}}}])")
            .rfind("tools[1].function.parameters", 0) == 0);
  CHECK(engine.requests().size() == before);
}

TEST_CASE("tools and a form of the answer go together: calls, or a text of that form") {
  FakeEngine engine(ToolCard(), Says(kNow));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const auto both = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"response_format":{"type":"json_object"})"));
  CHECK(both->status == 200);
  CHECK(both->Finish() == "tool_calls");
  CHECK(engine.requests().back().has_constraint());
}

TEST_CASE("a model without a known format of calls serves tools as text, and cannot be made to call") {
  FakeEngine engine(TestCard(), Says("plain"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  CHECK(rig.Ask("POST", "/v1/chat/completions", Chat(kTools))->Text() == "plain");
  const auto refused = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"tool_choice":"required")"));
  CHECK(refused->status == 400);
  CHECK(refused->Json().Find("error")->Find("param")->AsString() == "tool_choice");
  CHECK(refused->body.find("--tool-call-parser") != std::string::npos);
}

TEST_CASE("the parsers can be named") {
  FakeEngine engine(TestCard(), Says("<think>t</think>" + kNow));
  engine.SetLimits(4096, 0);
  RigOptions options;
  options.parsers.tools = "hermes";
  options.parsers.reasoning = "think";
  Rig rig(&engine, options);
  const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(kTools));
  CHECK(answer->Calls().size() == 1);
  CHECK(answer->Reasoning() == "t");
  FakeEngine other(ToolCard(), Says("<think>t</think>" + kNow));
  options.parsers.tools = options.parsers.reasoning = "none";
  other.SetLimits(4096, 0);
  Rig bare(&other, options);
  const auto text = bare.Ask("POST", "/v1/chat/completions", Chat(kTools));
  CHECK(text->Calls().empty());
  CHECK(text->Text().find("<think>t</think>") == 0);
}

TEST_CASE("A-18 with one call allowed the answer ends behind it and the engine is told") {
  FakeEngine engine(ToolCard(), Says(kCall + "\n" + kNow + " and more text"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  for (const char* fields : {R"(,"parallel_tool_calls":false)", R"(,"parallel_tool_calls":false,"stream":true)"}) {
    const size_t cancels = engine.cancels();
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + fields));
    CHECK(answer->Calls().size() == 1);
    CHECK(answer->Text().empty());
    CHECK(answer->Finish() == "tool_calls");
    CHECK(rig.RunUntil([&] { return engine.running() == 0; }));
    CHECK(engine.cancels() >= cancels);
  }
}

TEST_CASE("A-59 B014 finish reasons: stop, length, tool_calls, and what is listed with them") {
  const size_t call_tokens = ToolAnswer(kCall).size() - 1;
  struct Case {
    std::string says, fields, finish, text;
    size_t calls;
  };
  const Case cases[] = {
      {"just text", "", "stop", "just text", 0},
      {"just text END more", R"(,"stop":"END")", "stop", "just text ", 0},
      {"just text", R"(,"max_tokens":4)", "length", "just", 0},
      {"abc", R"(,"max_tokens":4)", "stop", "abc", 0},                                             // its end is the last token allowed
      {kCall, "", "tool_calls", "", 1},
      {kCall, R"(,"max_tokens":)" + std::to_string(call_tokens - 8), "length", "", 1},             // cut inside the call
      {kCall + "following", R"(,"max_tokens":)" + std::to_string(call_tokens + 6), "length", "follow", 1},
      {"x END y", R"(,"tool_choice":"auto","stop":["END"])", "stop", "x ", 0},
  };
  for (const Case& one : cases) {
    FakeEngine engine(ToolCard(), Says(one.says));
    engine.SetLimits(4096, 0);
    Rig rig(&engine);
    for (const bool stream : {false, true}) {
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + one.fields + (stream ? R"(,"stream":true)" : "")));
      INFO(one.says << " " << one.fields << " " << answer->body);
      CHECK(answer->Finish() == one.finish);
      CHECK(answer->Text() == one.text);
      CHECK(answer->Calls().size() == one.calls);
    }
  }
}

TEST_CASE("stop strings look at the text alone: neither thoughts nor arguments are cut") {
  const std::string call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"END\"}}\n</tool_call>";
  FakeEngine engine(ToolCard(), Says("<think>END of it</think>EN" + call));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"stop":"END")" + stream));
    CHECK(answer->Reasoning() == "END of it");
    CHECK(answer->Text() == "EN");
    REQUIRE(answer->Calls().size() == 1);
    CHECK(text::ParseJson(answer->Calls()[0].arguments)->Find("city")->AsString() == "END");
    CHECK(answer->Finish() == "tool_calls");
  }
  FakeEngine stopped(ToolCard(), Says("<think>END of it</think>Now E EN END hidden" + call));
  stopped.SetLimits(4096, 0);
  Rig other(&stopped);
  const auto answer = other.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"stop":"END","stream":true)"));
  CHECK(answer->Text() == "Now E EN ");
  CHECK(answer->Finish() == "stop");
  CHECK(answer->Calls().empty());
}

TEST_CASE("thoughts: opened by the prompt, left in the text, hidden, and counted in any case") {
  FakeEngine engine(ToolCard(), Says("because\n</think>\n\nYes"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const std::string open = R"("chat_template_kwargs":{"open_thought":true})";
  const auto apart = rig.Ask("POST", "/v1/chat/completions", Chat(open));
  CHECK(apart->Reasoning() == "because");
  CHECK(apart->Text() == "Yes");
  const int64_t thought = UsageOf(*apart).Find("completion_tokens_details")->Find("reasoning_tokens")->AsInt();
  CHECK(thought >= 7);
  CHECK(thought < 12);
  const auto hidden = rig.Ask("POST", "/v1/chat/completions", Streamed(open + R"(,"include_reasoning":false)"));
  CHECK(hidden->Reasoning().empty());
  CHECK(hidden->Text() == "Yes");
  CHECK(UsageOf(*hidden).Find("completion_tokens_details")->Find("reasoning_tokens")->AsInt() == thought);
  const auto whole = rig.Ask("POST", "/v1/chat/completions", Chat(open + R"(,"separate_reasoning":false)"));
  CHECK(whole->Reasoning().empty());
  CHECK(whole->Text().find("because") == 0);
  CHECK(whole->Text().find("Yes") != std::string::npos);
}

TEST_CASE("log-probabilities are those of the text's tokens") {
  FakeEngine engine(ToolCard(), Says("<think>no</think>Caf\xC3\xA9 " + kNow));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  for (const bool stream : {false, true}) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"logprobs":true)" + (stream ? R"(,"stream":true)" : "")));
    std::string joined;
    const auto add = [&](const text::JsonValue& object) {
      for (const auto& choice : object.Find("choices")->AsArray()) {
        const text::JsonValue* logprobs = choice.Find("logprobs");
        if (!logprobs->is_object()) continue;
        for (const auto& entry : logprobs->Find("content")->AsArray()) {
          for (const auto& byte : entry.Find("bytes")->AsArray()) joined += static_cast<char>(byte.AsInt());
        }
      }
    };
    if (!stream) add(answer->Json());
    for (const std::string& event : stream ? answer->Events() : std::vector<std::string>()) {
      if (event != "[DONE]") add(*text::ParseJson(event));
    }
    CHECK(answer->Text() == "Caf\xC3\xA9");
    CHECK(joined == answer->Text());
  }
}

TEST_CASE("an answer that is lost at any token goes on as if nothing had happened, calls and thoughts included") {
  const std::string says = "<think>\nhm \xF0\x9F\x98\x80\n</think>\nText EN " + kCall + "\n" + kNow;
  const std::string fields = kTools + R"(,"stop":"END","logprobs":true)";
  FakeEngine engine(ToolCard(), Says(says));
  engine.SetLimits(4096, 0);
  RigOptions options;
  options.generation.resume_backoff = std::chrono::milliseconds(1);
  Rig rig(&engine, options);
  const auto told = [](const FakeExchange& answer) {
    std::string out = answer.Reasoning() + "|" + answer.Text() + "|" + answer.Finish();
    for (const auto& call : answer.Calls()) out += "|" + call.name + call.arguments;
    return out + "|" + UsageOf(answer).Dump();
  };
  const std::string undisturbed = told(*rig.Ask("POST", "/v1/chat/completions", Streamed(fields)));
  const auto tokens = static_cast<uint32_t>(ToolAnswer(says).size());
  for (uint32_t at = 1; at < tokens; at += 3) {
    engine.LoseAfter(at);
    const auto answer = rig.Ask("POST", "/v1/chat/completions", at % 2 ? Streamed(fields) : Chat(fields));
    INFO("lost at token " << at);
    CHECK(told(*answer) == undisturbed);
  }
}

TEST_CASE("choices have calls of their own") {
  FakeEngine engine(ToolCard(), [](const proto::GenerateRequest& request) {
    return ToolAnswer(request.sampling().choice() == 1 ? std::string("no call") : kNow + "\n" + kNow);
  });
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"n":3)" + stream));
    CHECK(answer->Finish(0) == "tool_calls");
    CHECK(answer->Finish(1) == "stop");
    CHECK(answer->Text(1) == "no call");
    std::set<std::string> ids;
    for (const uint32_t choice : {0u, 2u}) {
      for (const auto& call : answer->Calls(choice)) ids.insert(call.id);
    }
    CHECK(ids.size() == 4);
  }
}

TEST_CASE("B019 what is no well-formed call is text") {
  for (const std::string broken : {"<tool_call>\nnot json\n</tool_call>", "<tool_call>\n{\"name\": 5}\n</tool_call>",
                                   "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>"}) {
    FakeEngine engine(ToolCard(), Says(broken + " rest"));
    engine.SetLimits(4096, 0);
    Rig rig(&engine);
    const auto plain = rig.Ask("POST", "/v1/chat/completions", Chat(kTools));
    const auto streamed = rig.Ask("POST", "/v1/chat/completions", Chat(kTools + R"(,"stream":true)"));
    INFO(broken);
    CHECK(plain->status == 200);
    CHECK(plain->Calls().empty());
    CHECK(plain->Finish() == "stop");
    CHECK(plain->Text().find("rest") != std::string::npos);
    CHECK(streamed->Text() == plain->Text());
  }
}

TEST_CASE("A-34 calls, results and thoughts of the history reach the template") {
  FakeEngine engine(ToolCard(), Says("x"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const auto prompt = [&](const std::string& extra) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions",
                                R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null)" + extra +
                                    R"(,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"now","arguments":"{\"a\":1}"}}]},)"
                                    R"({"role":"tool","tool_call_id":"call_1","content":"12:00"}]})");
    INFO(answer->body);
    REQUIRE(answer->status == 200);
    const auto seen = engine.requests().back();
    return rig.state->model()->Decode({seen.tokens().begin(), seen.tokens().end()});
  };
  const std::string plain = prompt("");
  CHECK(plain.find(R"(<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>)") != std::string::npos);
  CHECK(plain.find("<|im_start|>tool\n12:00<|im_end|>") != std::string::npos);
  for (const char* key : {"reasoning_content", "reasoning"}) {
    CHECK(prompt(",\"" + std::string(key) + "\":\"thought\"").find("<think>thought</think>") != std::string::npos);
  }
}

}  // namespace
}  // namespace holdfast::testing

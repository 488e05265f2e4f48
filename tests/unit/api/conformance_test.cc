// What clients and their users ran into elsewhere, asked of the whole frontend: hostile bodies, histories that were cut, calls and stop strings
// at their edges, constraints that cannot be.
#include <algorithm>
#include <catch2/catch.hpp>
#include <ctime>

#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

FakeEngine::Script Says(std::string text) {
  return [text](const proto::GenerateRequest&) { return ToolAnswer(text); };
}

std::string Chat(const std::string& fields = "") {
  return R"({"messages":[{"role":"user","content":"Hi there"}])" + (fields.empty() ? "" : "," + fields) + "}";
}

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"set","parameters":{"type":"object","properties":{"target":{"type":"string"},"confirm":{"type":"boolean"}}}}},)"
    R"({"type":"function","function":{"name":"ping"}}])";

std::string Call(const std::string& name, const std::string& arguments) {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>";
}

std::string Nested(size_t depth, char open = '[', char close = ']') { return std::string(depth, open) + std::string(depth, close); }

// Both forms of an answer: a body and a stream.
const char* const kForms[] = {"", R"("stream":true)"};

std::string Joined(const std::string& a, const std::string& b) { return a.empty() ? b : b.empty() ? a : a + "," + b; }

TEST_CASE("A-60 every route refuses what is no JSON object") {
  FakeEngine engine(ToolCard(), Says("x"));
  Rig rig(&engine);
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"}) {
    for (const char* body : {"", "{", "{\"a\":", "null", "[]", "\"x\"", "{} {}", "{}x", "\xFF", "{\"a\":NaN}"}) {
      INFO(path << " " << body);
      const auto answer = rig.Ask("POST", path, body);
      CHECK(answer->status == 400);
      CHECK(answer->Json().Find("error")->Find("type")->AsString() == "invalid_request_error");
    }
  }
  CHECK(engine.requests().empty());
}

TEST_CASE("A-63 B120 deep and wide bodies are refused or ignored in bounded time, wherever the depth is") {
  FakeEngine engine(ToolCard(), Says("x"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const std::clock_t begin = std::clock();
  for (const size_t depth : {10u, 100u, 1000u, 3000u, 100'000u, 1'000'000u}) {
    const std::string deep = Nested(depth);
    for (const char* member : {"tools", "metadata", "logit_bias", "unknown", "response_format", "chat_template_kwargs", "stop"}) {
      INFO(member << " " << depth);
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat("\"" + std::string(member) + "\":" + deep));
      // What is not looked at may be as deep as the reader takes; what is looked at is of the wrong type.
      const bool ignored = std::string(member) == "metadata" || std::string(member) == "unknown";
      CHECK(answer->status == (ignored && depth <= 100 ? 200 : 400));
    }
    CHECK(rig.Ask("POST", "/v1/chat/completions", "{\"messages\":" + deep + "}")->status == 400);
    CHECK(rig.Ask("POST", "/v1/chat/completions", "{\"a\":" + std::string(depth, '['))->status == 400);
  }
  std::string keys = "\"k0\":0";
  for (int i = 1; i < 1'000'000; ++i) keys += ",\"k" + std::to_string(i) + "\":0";
  const int wide = rig.Ask("POST", "/v1/chat/completions", Chat(keys))->status;
  CHECK((wide == 200 || wide == 400));
  CHECK(rig.Ask("POST", "/v1/chat/completions", Chat("\"seed\":" + std::string(5'000'000, '9')))->status == 400);
  CHECK(rig.Ask("POST", "/v1/chat/completions", Chat("\"temperature\":0." + std::string(5'000'000, '3')))->status == 200);
  std::string escapes;
  for (int i = 0; i < 500'000; ++i) escapes += "\\u0041";
  CHECK(rig.Ask("POST", "/v1/chat/completions", Chat("\"user\":\"" + escapes + "\""))->status == 200);
  // Of processor time, all threads together; a sanitizer build has to make it too.
  CHECK(std::clock() - begin < 30 * CLOCKS_PER_SEC);
}

TEST_CASE("A-64 A-65 paths are exact, HEAD and OPTIONS are answered everywhere") {
  FakeEngine engine(ToolCard(), Says("x"));
  Rig rig(&engine);
  for (const char* path : {"/v1//chat/completions", "/V1/chat/completions", "/v1/chat/completions/more", "/v1/chat", "//"}) {
    INFO(path);
    const auto answer = rig.Ask("POST", path, Chat());
    CHECK(answer->status == 404);
    CHECK(answer->Json().Find("error")->Find("code")->AsString() == "not_found");
  }
  CHECK(rig.Ask("POST", "/v1/chat/completions?beta=true&x=%20", Chat())->status == 200);
  CHECK(rig.Ask("POST", "/v1/messages?beta=true", R"({"max_tokens":3,"messages":[{"role":"user","content":"Hi"}]})")->status == 200);
  for (const char* path : {"/health", "/v1/models", "/metrics"}) {
    INFO(path);
    const auto get = rig.Ask("GET", path), head = rig.Ask("HEAD", path);
    CHECK(head->status == 200);
    CHECK(head->content_type == get->content_type);
    const auto options = rig.Ask("OPTIONS", path);
    CHECK(options->status == 204);
    CHECK(options->Header("Allow") == "GET, HEAD, OPTIONS");
  }
}

TEST_CASE("A-08 B012 a history whose arguments were cut is taken, never a 5xx") {
  FakeEngine engine(ToolCard(), Says("ok"));
  engine.SetLimits(200'000, 0);
  Rig rig(&engine);
  const auto history = [&](const std::string& arguments) {
    return rig.Ask("POST", "/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function",)"
                   R"("function":{"name":"set","arguments":)" + arguments + R"(}}]},{"role":"tool","tool_call_id":"c","content":"r"},)"
                   R"({"role":"user","content":"go on"}],)" + kTools + "}");
  };
  for (const char* arguments : {R"("{\"service\":\"x\"")", R"("{")", R"("")", "null", R"("null")", R"("[]")", R"("\"x\"")", R"({"a":1})", R"("not json")"}) {
    INFO(arguments);
    const auto answer = history(arguments);
    CHECK(answer->status == 200);
    CHECK(answer->Text() == "ok");
  }
  CHECK(history("\"{\\\"a\\\":\\\"" + std::string(100'000, 'x') + "\"")->status == 200);
  const auto number = history("5");
  CHECK(number->status == 400);
  CHECK(number->Json().Find("error")->Find("param")->AsString() == "messages[1].tool_calls[0].function.arguments");
}

TEST_CASE("B005 B007 B021 calls keep their order, their arguments and their whole names") {
  const std::string name(60, 'n');
  const std::string tools = R"("tools":[{"function":{"name":"ping"}},{"function":{"name":"set"}},{"function":{"name":")" + name + R"("}}])";
  const std::string quotes = R"({"c": "head -100 \"x\" | wc", "d": "y"})";
  const std::vector<std::vector<std::pair<std::string, std::string>>> answers = {
      {{"ping", "{}"}, {"set", R"({"v": 1})"}},
      {{"set", R"({"v": 1})"}, {"ping", "{}"}},
      {{"ping", "{}"}, {"ping", "{}"}, {"ping", "{}"}},
      {{"set", quotes}},
      {{"set", R"({"path": "a"})"}, {"set", R"({"path": "</tool_call>"})"}},
      {{name, "{}"}, {name, "{}"}},
  };
  for (const auto& calls : answers) {
    std::string says;
    for (const auto& [called, arguments] : calls) says += Call(called, arguments) + "\n";
    // "</tool_call>" inside the argument is text: the model spells it, as the id of the tag would end the call.
    FakeEngine engine(ToolCard(), [says](const proto::GenerateRequest&) {
      std::vector<uint32_t> ids;
      size_t from = 0;
      if (const size_t inner = says.find("\"</tool_call>\""); inner != std::string::npos) {
        ids = ToolAnswer(says.substr(0, inner));
        ids.pop_back();
        const auto spelled = ByteIds("\"</tool_call>\"");
        ids.insert(ids.end(), spelled.begin(), spelled.end());
        from = inner + spelled.size();
      }
      const auto rest = ToolAnswer(says.substr(from));
      ids.insert(ids.end(), rest.begin(), rest.end());
      return ids;
    });
    engine.SetLimits(4096, 0);
    engine.SetTokensPerEvent(1);
    Rig rig(&engine);
    for (const char* form : kForms) {
      INFO(says << form);
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(Joined(tools, form)));
      const auto got = answer->Calls();
      REQUIRE(got.size() == calls.size());
      for (size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].name == calls[i].first);
        CHECK(got[i].arguments == calls[i].second);
      }
      CHECK(answer->Finish() == "tool_calls");
      CHECK(answer->Text().empty());
    }
  }
}

TEST_CASE("B015 a call cut at any token is visibly incomplete, in every form") {
  const std::string says = Call("set", R"({"target": "a}b", "confirm": true, "n": [1, {"x": 2}]})");
  const auto tokens = static_cast<uint32_t>(ToolAnswer(says).size() - 1);
  FakeEngine engine(ToolCard(), Says(says));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  for (uint32_t most = 1; most < tokens; ++most) {
    std::string arguments[2];
    for (size_t form = 0; form < 2; ++form) {
      INFO(most << kForms[form]);
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(Joined(kTools + R"(,"max_tokens":)" + std::to_string(most), kForms[form])));
      CHECK(answer->Finish() == "length");
      for (const auto& call : answer->Calls()) {
        arguments[form] += call.arguments;
        CHECK_FALSE(text::ParseJson(call.arguments).ok());
      }
      CHECK(answer->Text().find("true") == std::string::npos);
    }
    CHECK(arguments[0] == arguments[1]);
  }
}

TEST_CASE("B019 without tools a tag in prose is prose, byte for byte") {
  for (const std::string says : {"BEGIN <tool_call> AFTER END", "BEGIN <think> AFTER END", "in `<think>` and `</think>` and ```<tool_call>```"}) {
    FakeEngine engine(ToolCard(), Says(says));
    engine.SetLimits(4096, 0);
    engine.SetTokensPerEvent(1);
    Rig rig(&engine);
    for (const char* form : kForms) {
      INFO(says << form);
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(form));
      CHECK(answer->Text() == says);
      CHECK(answer->Reasoning().empty());
      CHECK(answer->Finish() == "stop");
    }
  }
}

TEST_CASE("B020 nothing of a thought is lost or sent twice at its edges") {
  struct Case {
    std::string says, fields, reasoning, text, finish;
    size_t calls;
  };
  const std::string open = R"("chat_template_kwargs":{"open_thought":true})";
  const Case cases[] = {
      {"<think>long thought</think>text", R"("max_tokens":12)", "long ", "", "length", 0},   // a tag is seven tokens here
      {"never closed", open, "never closed", "", "stop", 0},
      {"I call" + Call("ping", "{}"), Joined(open, kTools), "I call", "", "tool_calls", 1},
      {"<think>a</think>" + Call("ping", "{}"), kTools, "a", "", "tool_calls", 1},
  };
  for (const Case& one : cases) {
    FakeEngine engine(ToolCard(), Says(one.says));
    engine.SetLimits(4096, 0);
    engine.SetTokensPerEvent(1);
    Rig rig(&engine);
    for (const char* form : kForms) {
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(Joined(one.fields, form)));
      INFO(answer->body);
      CHECK(answer->Reasoning() == one.reasoning);
      CHECK(answer->Text() == one.text);
      CHECK(answer->Finish() == one.finish);
      CHECK(answer->Calls().size() == one.calls);
    }
  }
}

TEST_CASE("B040 stop at the first place, as the whole answer, and in the prompt alone") {
  FakeEngine engine(ToolCard(), Says("END of it"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  for (const char* form : kForms) {
    const auto ask = [&](const char* stop) { return rig.Ask("POST", "/v1/chat/completions", Chat(Joined("\"stop\":[\"" + std::string(stop) + "\"]", form))); };
    CHECK(ask("END")->Text().empty());
    CHECK(ask("END")->Finish() == "stop");
    CHECK(ask("END of it")->Text().empty());
    CHECK(ask("Hi there")->Text() == "END of it");
    CHECK(ask("it and more")->Text() == "END of it");
  }
}

TEST_CASE("B045 a budget that ends inside a character gives the same in both forms, and bytes that join to the text") {
  FakeEngine engine(ToolCard(), Says("ab\xF0\x9F\x98\x80z"));
  engine.SetTokensPerEvent(1);
  Rig rig(&engine);
  for (uint32_t most = 1; most <= 7; ++most) {
    std::string text[2];
    for (size_t form = 0; form < 2; ++form) {
      text[form] = rig.Ask("POST", "/v1/chat/completions", Chat(Joined("\"logprobs\":true,\"max_tokens\":" + std::to_string(most), kForms[form])))->Text();
    }
    INFO(most);
    CHECK(text[0] == text[1]);
    const std::string whole[] = {"a", "ab", "ab\xEF\xBF\xBD", "ab\xEF\xBF\xBD", "ab\xEF\xBF\xBD", "ab\xF0\x9F\x98\x80", "ab\xF0\x9F\x98\x80z"};
    CHECK(text[0] == whole[most - 1]);
  }
}

TEST_CASE("B115 a bad expression is a 400 that names its place, through every door") {
  FakeEngine engine(ToolCard(), Says("x"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const std::string deep = std::string(100'000, '('), nested = std::string(10'000, '(') + std::string(10'000, ')');
  for (const std::string& pattern : {std::string("foo**"), std::string("("), std::string("["), std::string("(?<=x)*"), std::string("a{2,1}"), std::string("\\\\"),
                                     std::string("*a"), deep, nested}) {
    INFO(pattern.substr(0, 20));
    const std::string schema = R"({"type":"object","properties":{"a":{"type":"string","pattern":")" + pattern + R"("}}})";
    const std::pair<std::string, const char*> doors[] = {
        {R"("response_format":{"type":"regex","pattern":")" + pattern + "\"}", "response_format.pattern"},
        {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema + "}}", "response_format.json_schema.schema"},
        {R"("tool_choice":"required","tools":[{"function":{"name":"f","parameters":)" + schema + "}}]", "tools[0].function.parameters"},
        {R"("guided_regex":")" + pattern + "\"", "guided_regex"},
    };
    for (const auto& [fields, param] : doors) {
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(fields));
      CHECK(answer->status == 400);
      CHECK(answer->Json().Find("error")->Find("param")->AsString().rfind(param, 0) == 0);
    }
  }
  CHECK(engine.requests().empty());
}

TEST_CASE("B117 B119 malformed and endless schemas of tools: ignored where they are advice, refused where they are rules") {
  FakeEngine engine(ToolCard(), Says("x"));
  engine.SetLimits(100'000, 0);
  Rig rig(&engine);
  std::string nested = R"({"type":"null"})";
  for (int i = 0; i < 60; ++i) nested = R"({"anyOf":[)" + nested + "]}";
  std::string cycle = R"({"$ref":"#/$defs/r0","$defs":{"r1000":{"$ref":"#/$defs/r0"})";
  for (int i = 0; i < 1000; ++i) cycle += ",\"r" + std::to_string(i) + R"(":{"$ref":"#/$defs/r)" + std::to_string(i + 1) + "\"}";
  cycle += "}}";
  for (const std::string& schema : {std::string(R"({"type":"hiccup"})"), std::string(R"({"type":123})"), std::string(R"({"properties":[]})"),
                                    std::string(R"({"type":"object","required":"x"})"), std::string(R"({"$ref":"#/x"})"), cycle}) {
    INFO(schema.substr(0, 40));
    const std::string tools = R"("tools":[{"function":{"name":"f","parameters":)" + schema + "}}]";
    const int advice = rig.Ask("POST", "/v1/chat/completions", Chat(tools))->status;
    CHECK((advice == 200 || advice == 400));
    const auto rule = rig.Ask("POST", "/v1/chat/completions", Chat(tools + R"(,"tool_choice":"required")"));
    CHECK(rule->status == 400);
    CHECK(rule->Json().Find("error")->Find("param")->AsString().rfind("tools[0].function.parameters", 0) == 0);
  }
  for (const char* parameters : {"null", "{}"}) {
    CHECK(rig.Ask("POST", "/v1/chat/completions", Chat(R"("tool_choice":"required","tools":[{"function":{"name":"f","parameters":)" + std::string(parameters) + "}}]"))->status == 200);
  }
  CHECK(rig.Ask("POST", "/v1/chat/completions", Chat(R"("tools":[{"function":{"name":"f","parameters":"text"}}])"))->status == 400);
  CHECK(rig.Ask("POST", "/v1/chat/completions", Chat(R"("tool_choice":"required","tools":[{"function":{"name":"f","parameters":)" + nested + "}}]"))->status == 400);
}

TEST_CASE("B121 the tool lists of real agents are taken, and their constraint is compiled once") {
  FakeEngine engine(ToolCard(), Says(Call("tool_7", R"({"text": "x"})")));
  engine.SetLimits(100'000, 0);
  Rig rig(&engine);
  std::string values = "\"v0\"", any = R"({"type":"null"})";
  for (int i = 1; i < 5000; ++i) values += ",\"v" + std::to_string(i) + "\"";
  for (int i = 0; i < 50; ++i) any += R"(,{"type":"object","properties":{"kind":{"const":"k)" + std::to_string(i) + R"("}},"required":["kind"]})";
  std::string tools;
  for (int i = 0; i < 60; ++i) {
    const std::string text = R"({"type":"string","maxLength":)" + std::string(i % 3 == 0 ? "2000" : i % 3 == 1 ? "10000" : "65536") + "}";
    tools += (i ? "," : "") + std::string(R"({"type":"function","function":{"name":"tool_)") + std::to_string(i) +
             R"(","description":"d","parameters":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"text":)" + text +
             R"(,"deep":{"type":"array","items":{"type":"object","properties":{"inner":)" + text + R"(}}})" +
             (i == 0 ? R"(,"pick":{"enum":[)" + values + R"(]},"shape":{"anyOf":[)" + any + "]}" : "") + R"(},"additionalProperties":false}}})";
  }
  std::string program;
  for (int round = 0; round < 2; ++round) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat("\"tools\":[" + tools + R"(],"tool_choice":"required")"));
    INFO(answer->body.substr(0, 500));
    REQUIRE(answer->status == 200);
    CHECK(answer->Finish() == "tool_calls");
    const std::string seen = engine.requests().back().constraint().program();
    CHECK_FALSE(seen.empty());
    if (round > 0) CHECK(seen == program);
    program = seen;
  }
}

TEST_CASE("B124 a stop string is honoured in JSON too") {
  FakeEngine engine(ToolCard(), Says(R"({"a": {"b": 1}})"));
  Rig rig(&engine);
  for (const char* form : kForms) {
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(Joined(R"("response_format":{"type":"json_object"},"stop":["}"])", form)));
    CHECK(answer->Text() == R"({"a": {"b": 1)");
    CHECK(answer->Finish() == "stop");
  }
}

TEST_CASE("B151 names of files in a request open nothing") {
  FakeEngine engine(ToolCard(), Says("x"));
  Rig rig(&engine);
  for (const char* name : {"file://../../etc/passwd", "/etc/passwd", "..%2e/%2e%2e/x", "a\\u0000b"}) {
    const std::string path(name);
    const auto image = rig.Ask("POST", "/v1/chat/completions",
                               R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":")" + path + R"("}}]}]})");
    CHECK(image->status == 400);
    CHECK(image->Json().Find("error")->Find("message")->AsString().find("no image input") != std::string::npos);
    const auto block = rig.Ask("POST", "/v1/messages", R"({"max_tokens":3,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":")" + path + R"("}}]}]})");
    CHECK(block->status == 400);
    // Fields of other servers that name files there are unknown here.
    CHECK(rig.Ask("POST", "/v1/chat/completions", Chat(R"("grammar_file":")" + path + R"(","lora":")" + path + R"(","cache_file":")" + path + "\""))->status == 200);
    const auto schema = rig.Ask("POST", "/v1/chat/completions",
                                Chat(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"$ref":")" + path + R"("}}})"));
    CHECK(schema->status == 400);
  }
}

}  // namespace
}  // namespace holdfast::testing

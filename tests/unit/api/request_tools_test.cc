// Tools, forms of the answer and thoughts in a chat request, row by row (A-11 ... A-19, A-27, A-33).
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "frontend/api/request.h"

namespace holdfast::api {
namespace {

using text::JsonValue;
using tools::Mode;
using FormatKind = grammar::ResponseFormat::Kind;

ParsedRequest Parse(const std::string& members) {
  const auto json = text::ParseJson(R"({"messages":[{"role":"user","content":"hi"}],)" + members + "}");
  INFO(members);
  REQUIRE(json.ok());
  RequestContext context;
  context.served_model = "served";
  return ParseChatRequest(*json, context);
}

ValidRequest Good(const std::string& members) {
  ParsedRequest r = Parse(members);
  INFO(members);
  if (const auto* e = std::get_if<ApiError>(&r)) FAIL("refused: " << e->message);
  return std::get<ValidRequest>(std::move(r));
}

ApiError Bad(const std::string& members) {
  ParsedRequest r = Parse(members);
  INFO(members);
  REQUIRE(std::holds_alternative<ApiError>(r));
  const ApiError& e = std::get<ApiError>(r);
  CHECK(e.status == 400);
  CHECK(e.type == "invalid_request_error");
  CHECK_FALSE(e.message.empty());
  return e;
}

struct Row {
  const char* members;
  const char* param;
};
void CheckRefused(std::initializer_list<Row> rows) {
  for (const Row& row : rows) {
    INFO(row.members);
    CHECK(Bad(row.members).param == row.param);
  }
}

const std::string kTwo =
    R"("tools":[{"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}},)"
    R"({"type":"function","function":{"name":"f","strict":true}}])";

TEST_CASE("A-11 no tools is as if there were none, and nothing can be required of them") {
  for (const char* fine : {R"("tools":[])", R"("tools":null)", R"("tools":[],"tool_choice":"auto")", R"("tools":null,"tool_choice":"none")",
                           R"("tool_choice":null)", R"("parallel_tool_calls":false)"}) {
    CHECK(Good(fine).tools.empty());
    CHECK(Good(fine).template_tools.is_null());
  }
  CheckRefused({{R"("tools":{})", "tools"},
                {R"("tools":"x")", "tools"},
                {R"("tool_choice":"required")", "tool_choice"},
                {R"("tools":[],"tool_choice":"required")", "tool_choice"},
                {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
                {R"("tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"f"}]})", "tool_choice"}});
}

TEST_CASE("A-12 tools as they may be, and as templates get them") {
  const ValidRequest r = Good(kTwo);
  REQUIRE(r.tools.size() == 2);
  CHECK(r.tools[0].name == "get_weather");
  CHECK(r.tools[0].parameters.Find("properties"));
  CHECK_FALSE(r.tools[0].strict);
  CHECK(r.tools[1].parameters.is_null());
  CHECK(r.tools[1].strict);
  CHECK(r.tool_paths[1] == "tools[1].function.parameters");
  CHECK(r.policy.mode == Mode::kAuto);
  CHECK(r.policy.parallel);
  CHECK(r.template_tools.AsArray()[0].Dump() ==
        R"({"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}})");
  CHECK(r.template_tools.AsArray()[1].Dump() == R"({"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}})");

  const auto tool = [](const std::string& function) { return R"("tools":[{"type":"function","function":)" + function + "}]"; };
  for (const char* parameters : {"null", "{}"}) CHECK(Good(tool(R"({"name":"f","parameters":)" + std::string(parameters) + "}")).tools[0].parameters.is_null());
  for (const std::string& name : {std::string(64, 'a'), std::string(128, 'a'), std::string("mcp.server/list-items:v2"), std::string("_x")}) {
    CHECK(Good(tool(R"({"name":")" + name + "\"}")).tools[0].name == name);
  }
  for (const std::string& name : {std::string(), std::string(129, 'a'), std::string("a b"), std::string("\xC3\xA9"), std::string("a{"), std::string("<x>")}) {
    CHECK(Bad(tool(R"({"name":")" + name + "\"}")).param == "tools[0].function.name");
  }
  Good(tool(R"({"name":"f","description":null,"strict":null})"));
  CheckRefused({{R"("tools":[5])", "tools[0]"},
                {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
                {R"("tools":[{"type":5,"function":{"name":"f"}}])", "tools[0].type"},
                {R"("tools":[{"type":"function"}])", "tools[0].function"},
                {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name"},
                {R"("tools":[{"function":{"name":"f","description":5}}])", "tools[0].function.description"},
                {R"("tools":[{"function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
                {R"("tools":[{"function":{"name":"f","parameters":"{}"}}])", "tools[0].function.parameters"},
                {R"("tools":[{"function":{"name":"f","strict":"yes"}}])", "tools[0].function.strict"}});
}

TEST_CASE("A-13 many tools are fine, two of one name are not") {
  std::string many;
  for (int i = 0; i < 200; ++i) many += (i ? "," : "") + (R"({"type":"function","function":{"name":"f)" + std::to_string(i) + "\"}}");
  CHECK(Good("\"tools\":[" + many + "]").tools.size() == 200);
  CHECK(Bad(R"("tools":[{"function":{"name":"f"}},{"function":{"name":"g"}},{"function":{"name":"f"}}])").param == "tools[2].function.name");
  std::string beyond = many;
  for (int i = 200; i <= 1024; ++i) beyond += R"(,{"function":{"name":"f)" + std::to_string(i) + "\"}}";
  CHECK(Bad("\"tools\":[" + beyond + "]").param == "tools[1024].function");
}

TEST_CASE("A-14 A-17 the words of tool_choice") {
  CHECK(Good(kTwo + R"(,"tool_choice":"auto")").policy.mode == Mode::kAuto);
  CHECK(Good(kTwo + R"(,"tool_choice":null)").policy.mode == Mode::kAuto);
  CHECK(Good(kTwo + R"(,"tool_choice":"required")").policy.mode == Mode::kRequired);
  const ValidRequest none = Good(kTwo + R"(,"tool_choice":"none")");
  CHECK(none.policy.mode == Mode::kNone);
  CHECK(none.template_tools.is_null());
  CheckRefused({{R"("tool_choice":"sometimes")", "tool_choice"},
                {R"("tool_choice":5)", "tool_choice"},
                {R"("tools":[{"function":{"name":"f"}}],"tool_choice":{})", "tool_choice"},
                {R"("tools":[{"function":{"name":"f"}}],"tool_choice":{"type":"tool"})", "tool_choice"}});
}

TEST_CASE("A-15 a named function is called, once") {
  for (const char* choice : {R"({"type":"function","function":{"name":"f"}})", R"({"type":"function","name":"f"})"}) {
    const ValidRequest r = Good(kTwo + ",\"tool_choice\":" + choice);
    CHECK(r.policy.mode == Mode::kRequired);
    CHECK(r.policy.allowed == std::vector<std::string>{"f"});
    CHECK_FALSE(r.policy.parallel);
    CHECK(r.template_tools.AsArray().size() == 2);
  }
  CHECK(Bad(kTwo + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})").param == "tool_choice.function.name");
  CHECK(Bad(kTwo + R"(,"tool_choice":{"type":"function","name":"g"})").param == "tool_choice.name");
  CHECK(Bad(kTwo + R"(,"tool_choice":{"type":"function"})").param == "tool_choice.function.name");
}

TEST_CASE("A-16 allowed_tools in both forms, the whole list stays in the prompt") {
  const std::string nested = R"({"type":"allowed_tools","allowed_tools":{"mode":"MODE","tools":[{"type":"function","function":{"name":"f"}}]}})";
  const std::string flat = R"({"type":"allowed_tools","mode":"MODE","tools":[{"type":"function","name":"f"},{"name":"f"}]})";
  for (std::string choice : {nested, flat}) {
    for (const std::string mode : {"auto", "required"}) {
      std::string one = choice;
      one.replace(one.find("MODE"), 4, mode);
      const ValidRequest r = Good(kTwo + ",\"tool_choice\":" + one);
      CHECK(r.policy.mode == (mode == "auto" ? Mode::kAuto : Mode::kRequired));
      CHECK(r.policy.allowed == std::vector<std::string>{"f"});
      CHECK(r.template_tools.AsArray().size() == 2);
    }
  }
  CHECK(Bad(kTwo + R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[]})").param == "tool_choice.tools");
  CHECK(Bad(kTwo + R"(,"tool_choice":{"type":"allowed_tools","mode":"x","tools":[{"name":"f"}]})").param == "tool_choice.mode");
  CHECK(Bad(kTwo + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"function":{"name":"g"}}]}})").param ==
        "tool_choice.allowed_tools.tools[0].function.name");
}

TEST_CASE("A-18 A-19 parallel calls and the fields of old") {
  CHECK_FALSE(Good(kTwo + R"(,"parallel_tool_calls":false)").policy.parallel);
  CHECK(Good(kTwo + R"(,"parallel_tool_calls":null)").policy.parallel);
  for (const char* fine : {R"("functions":null)", R"("functions":[])", R"("function_call":"none")", R"("function_call":"auto")"}) Good(fine);
  CheckRefused({{R"("parallel_tool_calls":"no")", "parallel_tool_calls"},
                {R"("functions":[{"name":"f"}])", "functions"},
                {R"("function_call":{"name":"f"})", "function_call"}});
  CHECK(Bad(R"("functions":[{"name":"f"}])").message.find("'tools'") != std::string::npos);
}

TEST_CASE("A-27 forms of the answer are kept or refused, never ignored") {
  CHECK(Good(R"("response_format":null)").response_format.kind == FormatKind::kText);
  CHECK(Good(R"("response_format":{"type":"text"})").response_format.kind == FormatKind::kText);
  CHECK(Good(R"("response_format":{"type":"json_object"})").response_format.kind == FormatKind::kJsonObject);
  const struct { const char* members; FormatKind kind; const char* path; } rows[] = {
      {R"("response_format":{"type":"json_object","schema":{"type":"object"}})", FormatKind::kJsonSchema, "response_format.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{},"strict":true}})", FormatKind::kJsonSchema,
       "response_format.json_schema.schema"},
      {R"("response_format":{"type":"regex","pattern":"a+"})", FormatKind::kRegex, "response_format.pattern"},
      {R"("guided_json":"{\"type\":\"object\"}")", FormatKind::kJsonSchema, "guided_json"},
      {R"("guided_json":{"type":"object"})", FormatKind::kJsonSchema, "guided_json"},
      {R"("guided_regex":"a+")", FormatKind::kRegex, "guided_regex"},
      {R"("structured_outputs":{"regex":"a+","json":null})", FormatKind::kRegex, "structured_outputs.regex"},
      {R"("structured_outputs":{"json":{}})", FormatKind::kJsonSchema, "structured_outputs.json"},
  };
  for (const auto& row : rows) {
    const ValidRequest r = Good(row.members);
    CHECK(r.response_format.kind == row.kind);
    CHECK(r.response_format.path == row.path);
  }
  CHECK(Good(R"x("guided_choice":["a.b","(c)"])x").response_format.pattern == R"x((?:a\.b|\(c\)))x");
  for (const char* body : {R"({"type":"xml"})", "{}", R"({"type":5})", "\"json\"", "[]", "true"}) {
    CHECK(Bad("\"response_format\":" + std::string(body)).param == "response_format");
  }
  CheckRefused({{R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
                {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})", "response_format.json_schema.schema"},
                {R"("response_format":{"type":"json_schema","json_schema":{"schema":[]}})", "response_format.json_schema.schema"},
                {R"("response_format":{"type":"regex"})", "response_format.pattern"},
                {R"("response_format":{"type":"regex","pattern":""})", "response_format.pattern"},
                {R"("guided_json":"{")", "guided_json"},
                {R"("guided_choice":[])", "guided_choice"},
                {R"("guided_choice":["a",5])", "guided_choice[1]"},
                {R"("guided_grammar":"root ::= x")", "guided_grammar"},
                {R"("structured_outputs":{"grammar":"x"})", "structured_outputs.grammar"},
                {R"("structured_outputs":5)", "structured_outputs"},
                {R"("response_format":{"type":"json_object"},"guided_regex":"a")", "guided_regex"}});
}

TEST_CASE("A-33 how thoughts are asked for and how they travel") {
  const auto kwargs = [](const std::string& members) { return Good(members).template_kwargs.Dump(); };
  CHECK(kwargs(R"("reasoning_effort":"high")") == R"({"reasoning_effort":"high","enable_thinking":true})");
  CHECK(kwargs(R"("reasoning_effort":"none")") == R"({"reasoning_effort":"none","enable_thinking":false})");
  CHECK(kwargs(R"("reasoning_effort":"minimal")") == R"({"reasoning_effort":"minimal"})");
  CHECK(kwargs(R"("reasoning_effort":"high","enable_thinking":false)") == R"({"enable_thinking":false,"reasoning_effort":"high"})");
  CHECK(kwargs(R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false})") == R"({"enable_thinking":false})");
  CHECK(Good(R"("temperature":0)").separate_reasoning);
  CHECK_FALSE(Good(R"("separate_reasoning":false)").separate_reasoning);
  CHECK_FALSE(Good(R"("reasoning_format":"none")").separate_reasoning);
  CHECK_FALSE(Good(R"("include_reasoning":false)").show_reasoning);
  CHECK_FALSE(Good(R"("reasoning_format":"hidden")").show_reasoning);
  CheckRefused({{R"("separate_reasoning":"no")", "separate_reasoning"},
                {R"("reasoning_format":"x")", "reasoning_format"},
                {R"("chat_template_kwargs":{"tools":[]})", "chat_template_kwargs"},
                {R"("reasoning_effort":5)", "reasoning_effort"}});
}

}  // namespace
}  // namespace holdfast::api

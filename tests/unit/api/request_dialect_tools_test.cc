// Tools, their choice and output formats of the Responses API and of Anthropic's Messages API.
#include <catch2/catch.hpp>
#include <string>

#include "frontend/api/request.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

RequestContext Context() {
  RequestContext context;
  context.served_model = "served";
  context.vocab_size = 1000;
  return context;
}

JsonValue Parsed(const std::string& json) {
  auto value = text::ParseJson(json);
  INFO(json);
  REQUIRE(value.ok());
  return *value;
}

using Mapper = ParsedRequest (*)(const JsonValue&, const RequestContext&);

ValidRequest Good(Mapper mapper, const std::string& json) {
  ParsedRequest parsed = mapper(Parsed(json), Context());
  if (const auto* error = std::get_if<ApiError>(&parsed)) FAIL(json << "\n" << error->message);
  return std::get<ValidRequest>(std::move(parsed));
}

ApiError Bad(Mapper mapper, const std::string& json) {
  ParsedRequest parsed = mapper(Parsed(json), Context());
  INFO(json);
  REQUIRE(std::holds_alternative<ApiError>(parsed));
  ApiError error = std::get<ApiError>(std::move(parsed));
  CHECK(error.status == 400);
  CHECK_FALSE(error.message.empty());
  return error;
}

ValidRequest Responses(const std::string& json) { return Good(ParseResponsesRequest, json); }
ValidRequest Messages(const std::string& json) { return Good(ParseMessagesRequest, json); }

TEST_CASE("responses: tools that only their own server could run are passed over") {
  const ValidRequest r = Responses(
      R"({"input":"x","tools":[{"type":"web_search"},{"type":"local_shell"},{"type":"custom","name":"apply_patch","format":{"type":"grammar"}},
          {"type":"function","name":"shell","description":"runs","strict":false,"parameters":{"type":"object","properties":{}}},
          {"type":"namespace","name":"n","tools":[]}],"tool_choice":"auto","parallel_tool_calls":false,
          "reasoning":{"effort":"low","summary":"auto"},"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","client_metadata":{"a":"b"}})");
  REQUIRE(r.tools.size() == 1);
  CHECK(r.tools[0].name == "shell");
  CHECK(r.tool_paths.at(0) == "tools[3].parameters");
  CHECK_FALSE(r.policy.parallel);
  CHECK_FALSE(r.sampling.logprobs);
  // The answer repeats what is in force.
  CHECK(r.mirror.Find("tools")->AsArray().size() == 1);
  CHECK(r.mirror.Find("parallel_tool_calls")->AsBool() == false);
  CHECK(r.mirror.Find("store")->AsBool() == false);
  CHECK(r.mirror.Find("reasoning")->Find("effort")->AsString() == "low");
  CHECK(r.mirror.Find("prompt_cache_key")->AsString() == "k");
  CHECK(r.mirror.Find("text")->Dump() == R"({"format":{"type":"text"}})");
}

TEST_CASE("responses: every form of tool_choice") {
  const std::string tools = R"("input":"x","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}],"tool_choice":)";
  const auto policy = [&](const std::string& choice) { return Responses("{" + tools + choice + "}").policy; };
  CHECK(policy(R"("required")").mode == tools::Mode::kRequired);
  CHECK(policy(R"("none")").mode == tools::Mode::kNone);
  CHECK(policy(R"({"type":"function","name":"g"})").allowed == std::vector<std::string>{"g"});
  CHECK(policy(R"({"type":"function","name":"g"})").mode == tools::Mode::kRequired);
  for (const char* allowed : {R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"},{"type":"web_search"}]})",
                              R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}})"}) {
    CHECK(policy(allowed).allowed == std::vector<std::string>{"f"});
    CHECK(policy(allowed).mode == tools::Mode::kRequired);
  }
  CHECK(Bad(ParseResponsesRequest, "{" + tools + R"({"type":"function","name":"none-such"}})").param.rfind("tool_choice", 0) == 0);
  CHECK(Bad(ParseResponsesRequest, "{" + tools + R"("sometimes"})").param == "tool_choice");
}

TEST_CASE("responses: text.format is the response format") {
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})";
  const ValidRequest r =
      Responses(R"({"input":"x","text":{"verbosity":"low","format":{"type":"json_schema","name":"n","strict":true,"schema":)" + schema + "}}}");
  CHECK(r.response_format.kind == grammar::ResponseFormat::Kind::kJsonSchema);
  CHECK(r.response_format.schema.Dump() == schema);
  CHECK(r.response_format.path == "text.format.schema");
  CHECK(Responses(R"({"input":"x","text":{"format":{"type":"json_object"}}})").response_format.kind == grammar::ResponseFormat::Kind::kJsonObject);
  CHECK(Responses(R"({"input":"x","text":{"format":{"type":"text"}}})").response_format.kind == grammar::ResponseFormat::Kind::kText);
}

TEST_CASE("messages: tools, their choice and thinking") {
  const std::string base =
      R"("max_tokens":5,"messages":[{"role":"user","content":"u"}],"tools":[{"type":"web_search_20250305","name":"web_search"},
         {"name":"f","description":"d","input_schema":{"type":"object","properties":{}},"cache_control":{"type":"ephemeral"}},
         {"type":"custom","name":"g","input_schema":{"type":"object"}}])";
  const auto with = [&](const std::string& more) { return Messages("{" + base + more + "}"); };
  REQUIRE(with("").tools.size() == 2);
  CHECK(with("").tools[0].name == "f");
  CHECK(with("").tool_paths.at(0) == "tools[1].input_schema");
  CHECK(with("").policy.mode == tools::Mode::kAuto);
  CHECK(with(R"(,"tool_choice":{"type":"any"})").policy.mode == tools::Mode::kRequired);
  CHECK(with(R"(,"tool_choice":{"type":"none"})").policy.mode == tools::Mode::kNone);
  CHECK(with(R"(,"tool_choice":{"type":"tool","name":"g"})").policy.allowed == std::vector<std::string>{"g"});
  CHECK_FALSE(with(R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})").policy.parallel);
  CHECK(with(R"(,"thinking":{"type":"enabled","budget_tokens":1024})").template_kwargs.Find("enable_thinking")->AsBool());
  CHECK_FALSE(with(R"(,"thinking":{"type":"disabled"})").template_kwargs.Find("enable_thinking")->AsBool());
  // Left to the model, as its template has it.
  for (const char* kind : {"adaptive", "between_tools"}) {
    CHECK(with(R"(,"thinking":{"type":")" + std::string(kind) + R"("})").template_kwargs.is_null());
  }
  const ValidRequest format =
      Messages(R"({"max_tokens":5,"messages":[{"role":"user","content":"u"}],"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}})");
  CHECK(format.response_format.kind == grammar::ResponseFormat::Kind::kJsonSchema);
  CHECK(format.response_format.path == "output_config.format.schema");
}

TEST_CASE("errors in tools and formats name the client's own fields") {
  const auto responses = [](const std::string& json) { return Bad(ParseResponsesRequest, json).param; };
  CHECK(responses(R"({"input":"x","tools":[{"type":"web_search"},{"type":"function","name":7}]})").rfind("tools[1]", 0) == 0);
  CHECK(responses(R"({"input":"x","text":{"format":{"type":"poem"}}})").rfind("text.format", 0) == 0);
  const std::string base = R"({"max_tokens":5,"messages":[{"role":"user","content":"u"}],)";
  CHECK(Bad(ParseMessagesRequest, base + R"("tools":[{"type":"bash_20250124","name":"bash"},{"name":7}]})").param.rfind("tools[1]", 0) == 0);
}

}  // namespace
}  // namespace holdfast::api

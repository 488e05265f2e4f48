// Tools, thoughts and stop sequences through /v1/responses and /v1/messages, against an engine whose answers are known.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

using text::JsonValue;

std::vector<uint32_t> Hello(const proto::GenerateRequest&) { return Answer("hello"); }
FakeEngine::Script Says(std::string text) {
  return [text](const proto::GenerateRequest&) { return ToolAnswer(text); };
}

struct Event {
  std::string name;
  JsonValue data;
};

std::vector<Event> Named(const FakeExchange& exchange) {
  CHECK(exchange.streamed);
  CHECK(exchange.content_type.rfind("text/event-stream", 0) == 0);
  std::vector<Event> out;
  std::string_view rest = exchange.body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    REQUIRE(end != std::string_view::npos);
    const std::string_view frame = rest.substr(0, end);
    rest.remove_prefix(end + 2);
    if (frame.front() == ':') continue;
    REQUIRE(frame.substr(0, 7) == "event: ");
    const size_t line = frame.find("\ndata: ");
    REQUIRE(line != std::string_view::npos);
    auto parsed = text::ParseJson(frame.substr(line + 7));
    REQUIRE(parsed.ok());
    out.push_back({std::string(frame.substr(7, line - 7)), *parsed});
  }
  return out;
}

const std::string kTools =
    R"("tools":[{"type":"function","name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}},)"
    R"({"type":"web_search"},{"type":"function","name":"now"}])";
const std::string kClientTools =
    R"("tools":[{"name":"weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}},)"
    R"({"name":"now","input_schema":{"type":"object"}}])";
const std::string kAnswer =
    "<think>\nFirst the weather.\n</think>\n\nLet me look. <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

TEST_CASE("messages say which stop sequence ended them, and when max_tokens did") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  const auto stopped =
      rig.Ask("POST", "/v1/messages", R"({"max_tokens":20,"stop_sequences":["zz","ll"],"messages":[{"role":"user","content":"Hi"}]})")->Json();
  CHECK(stopped.Find("stop_reason")->AsString() == "stop_sequence");
  CHECK(stopped.Find("stop_sequence")->AsString() == "ll");
  CHECK(stopped.Find("content")->AsArray()[0].Find("text")->AsString() == "he");
  const auto cut = rig.Ask("POST", "/v1/messages", R"({"max_tokens":2,"messages":[{"role":"user","content":"Hi"}]})")->Json();
  CHECK(cut.Find("stop_reason")->AsString() == "max_tokens");
}

TEST_CASE("responses: a thought, a text and two calls are items, and every portion of tokens gives the same") {
  FakeEngine engine(ToolCard(), Says(kAnswer));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const auto plain = rig.Ask("POST", "/v1/responses", R"({"input":"Hi",)" + kTools + "}");
  INFO(plain->body);
  REQUIRE(plain->status == 200);
  const JsonValue body = plain->Json();
  const JsonValue::Array& output = body.Find("output")->AsArray();
  REQUIRE(output.size() == 4);
  CHECK(output[0].Find("content")->AsArray()[0].Find("text")->AsString() == "First the weather.");
  CHECK(output[1].Find("content")->AsArray()[0].Find("text")->AsString() == "Let me look.");
  CHECK(output[2].Find("name")->AsString() == "weather");
  CHECK(text::ParseJson(output[2].Find("arguments")->AsString())->Dump() == R"({"city":"Oslo"})");
  CHECK(output[2].Find("call_id")->AsString().rfind("call_", 0) == 0);
  CHECK(output[3].Find("arguments")->AsString() == "{}");
  CHECK(body.Find("status")->AsString() == "completed");
  CHECK(body.Find("tools")->AsArray().size() == 2);
  CHECK(body.Find("usage")->Find("output_tokens_details")->Find("reasoning_tokens")->AsInt() > 0);
  for (const uint32_t portion : {1u, 3u, 1000u}) {
    engine.SetTokensPerEvent(portion);
    const auto stream = rig.Ask("POST", "/v1/responses", R"({"stream":true,"input":"Hi",)" + kTools + "}");
    const std::vector<Event> events = Named(*stream);
    CHECK(events.back().name == "response.completed");
    std::string arguments[4];
    for (const Event& event : events) {
      if (event.name == "response.function_call_arguments.delta") {
        arguments[event.data.Find("output_index")->AsInt()] += event.data.Find("delta")->AsString();
      }
    }
    const JsonValue::Array& streamed = events.back().data.Find("response")->Find("output")->AsArray();
    REQUIRE(streamed.size() == 4);
    for (size_t i = 2; i < 4; ++i) {
      CHECK(arguments[i] == output[i].Find("arguments")->AsString());
      CHECK(streamed[i].Find("arguments")->AsString() == arguments[i]);
    }
    for (size_t i = 0; i < 2; ++i) CHECK(streamed[i].Find("content")->Dump() == output[i].Find("content")->Dump());
  }
}

TEST_CASE("messages: a thought, a text and two calls are blocks, and every portion of tokens gives the same") {
  FakeEngine engine(ToolCard(), Says(kAnswer));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const std::string rest = R"("max_tokens":250,"messages":[{"role":"user","content":"Hi"}],)" + kClientTools + "}";
  const JsonValue body = rig.Ask("POST", "/v1/messages", "{" + rest)->Json();
  const JsonValue::Array& content = body.Find("content")->AsArray();
  REQUIRE(content.size() == 4);
  CHECK(content[0].Find("thinking")->AsString() == "First the weather.");
  CHECK(content[1].Find("text")->AsString() == "Let me look.");
  CHECK(content[2].Find("input")->Dump() == R"({"city":"Oslo"})");
  CHECK(content[2].Find("id")->AsString().rfind("toolu_", 0) == 0);
  CHECK(content[3].Find("name")->AsString() == "now");
  CHECK(body.Find("stop_reason")->AsString() == "tool_use");
  for (const uint32_t portion : {1u, 3u, 1000u}) {
    engine.SetTokensPerEvent(portion);
    const std::vector<Event> events = Named(*rig.Ask("POST", "/v1/messages", R"({"stream":true,)" + rest));
    std::vector<std::string> blocks;
    for (const Event& event : events) {
      if (event.name == "content_block_start") blocks.emplace_back();
      if (event.name != "content_block_delta") continue;
      for (const char* key : {"thinking", "text", "partial_json"}) {
        if (event.data.Find("delta")->Find(key)) blocks.back() += event.data.Find("delta")->Find(key)->AsString();
      }
    }
    REQUIRE(blocks.size() == 4);
    CHECK(blocks[0] == "First the weather.");
    CHECK(blocks[1] == "Let me look.");
    CHECK(text::ParseJson(blocks[2])->Dump() == R"({"city":"Oslo"})");
    CHECK(blocks[3] == "{}");
    CHECK(events[events.size() - 2].data.Find("delta")->Find("stop_reason")->AsString() == "tool_use");
  }
}

TEST_CASE("an answer that is cut inside a call says so in both dialects") {
  FakeEngine engine(ToolCard(), Says(kAnswer));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const JsonValue response = rig.Ask("POST", "/v1/responses", R"({"max_output_tokens":90,"input":"Hi",)" + kTools + "}")->Json();
  CHECK(response.Find("status")->AsString() == "incomplete");
  const JsonValue message =
      rig.Ask("POST", "/v1/messages", R"({"max_tokens":90,"messages":[{"role":"user","content":"Hi"}],)" + kClientTools + "}")->Json();
  CHECK(message.Find("stop_reason")->AsString() == "max_tokens");
}

TEST_CASE("A-83 count_tokens counts tools, calls and results as the message is charged") {
  FakeEngine engine(ToolCard(), Says("ok"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const std::string rest = R"("messages":[{"role":"user","content":"Hi"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"tool_use","id":"toolu_1","name":"now","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"noon"}]}],)" + kClientTools + "}";
  const auto count = rig.Ask("POST", "/v1/messages/count_tokens", "{" + rest);
  INFO(count->body);
  REQUIRE(count->status == 200);
  const JsonValue usage = *rig.Ask("POST", "/v1/messages", R"({"max_tokens":5,)" + rest)->Json().Find("usage");
  CHECK(count->Json().Find("input_tokens")->AsInt() == usage.Find("input_tokens")->AsInt() + usage.Find("cache_read_input_tokens")->AsInt());
  const auto bare = rig.Ask("POST", "/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"Hi"}]})");
  CHECK(bare->Json().Find("input_tokens")->AsInt() < count->Json().Find("input_tokens")->AsInt());
}

TEST_CASE("a schema that cannot be enforced is named as the client wrote it") {
  FakeEngine engine(ToolCard(), Says("ok"));
  engine.SetLimits(4096, 0);
  Rig rig(&engine);
  const auto format = rig.Ask("POST", "/v1/responses",
                              R"({"input":"Hi","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object","$dynamicRef":"#x"}}}})");
  CHECK(format->status == 400);
  CHECK(format->Json().Find("error")->Find("param")->AsString().rfind("text.format", 0) == 0);
}

}  // namespace
}  // namespace holdfast::testing

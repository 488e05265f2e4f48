// /v1/responses and /v1/messages against an engine that is a script: bodies and streams, errors in each dialect's shape, keep-alives, counting.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

using std::chrono::milliseconds;
using text::JsonValue;

std::vector<uint32_t> Hello(const proto::GenerateRequest&) { return Answer("hello"); }

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

std::string Names(const std::vector<Event>& events) {
  std::string out;
  for (const Event& event : events) out += event.name + " ";
  return out;
}

const char* const kMessage = R"({"max_tokens":20,"messages":[{"role":"user","content":"Hi"}]})";

TEST_CASE("A-81 responses answer as a body and as a stream, and both say the same") {
  FakeEngine engine(TestCard(), Hello);
  engine.SetCachedTokens(3);
  Rig rig(&engine);
  const auto plain = rig.Ask("POST", "/v1/responses", R"({"input":"Hi","instructions":"Be brief."})");
  CHECK(plain->status == 200);
  const JsonValue body = plain->Json();
  CHECK(body.Find("object")->AsString() == "response");
  CHECK(body.Find("id")->AsString().rfind("resp_", 0) == 0);
  CHECK(body.Find("status")->AsString() == "completed");
  CHECK(body.Find("model")->AsString() == "tiny-test");
  CHECK(body.Find("instructions")->AsString() == "Be brief.");
  CHECK(body.Find("output")->AsArray()[0].Find("content")->AsArray()[0].Find("text")->AsString() == "hello");
  CHECK(body.Find("usage")->Find("input_tokens_details")->Find("cached_tokens")->AsInt() == 3);

  const auto stream = rig.Ask("POST", "/v1/responses", R"({"input":"Hi","instructions":"Be brief.","stream":true})");
  CHECK(stream->status == 200);
  const std::vector<Event> events = Named(*stream);
  CHECK(Names(events).rfind("response.created response.in_progress response.output_item.added response.content_part.added ", 0) == 0);
  CHECK(events.back().name == "response.completed");
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    CHECK(events[i].data.Find("sequence_number")->AsInt() == static_cast<int64_t>(i));
    if (events[i].name == "response.output_text.delta") text += events[i].data.Find("delta")->AsString();
  }
  CHECK(text == "hello");
  const JsonValue& last = *events.back().data.Find("response");
  CHECK(last.Find("usage")->Dump() == body.Find("usage")->Dump());
  CHECK(last.Find("output")->AsArray()[0].Find("content")->Dump() == body.Find("output")->AsArray()[0].Find("content")->Dump());
}

TEST_CASE("A-81 responses take an agent's probe") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  const auto probe = rig.Ask("POST", "/v1/responses", R"({"model":"gpt-5","input":[],"max_output_tokens":1,"store":false})");
  CHECK(probe->status == 200);
  CHECK(probe->Json().Find("status")->AsString() == "incomplete");
  CHECK(probe->Json().Find("incomplete_details")->Find("reason")->AsString() == "max_output_tokens");
}

TEST_CASE("A-82 messages answer as a body and as a stream, and both say the same") {
  FakeEngine engine(TestCard(), Hello);
  engine.SetCachedTokens(3);
  Rig rig(&engine);
  const auto plain = rig.Ask("POST", "/v1/messages", kMessage, {{"anthropic-version", "2023-06-01"}, {"anthropic-beta", "x"}});
  CHECK(plain->status == 200);
  CHECK(plain->Header("request-id") == "test-request");
  const JsonValue body = plain->Json();
  CHECK(body.Find("type")->AsString() == "message");
  CHECK(body.Find("id")->AsString().rfind("msg_", 0) == 0);
  CHECK(body.Find("content")->Dump() == R"([{"type":"text","text":"hello"}])");
  CHECK(body.Find("stop_reason")->AsString() == "end_turn");
  CHECK(body.Find("stop_sequence")->is_null());
  CHECK(body.Find("timings") == nullptr);
  CHECK(body.Find("usage")->Find("cache_read_input_tokens")->AsInt() == 3);

  const auto stream =
      rig.Ask("POST", "/v1/messages", R"({"max_tokens":20,"stream":true,"messages":[{"role":"user","content":"Hi"}]})");
  CHECK(stream->Header("request-id") == "test-request");
  const std::vector<Event> events = Named(*stream);
  REQUIRE(events.size() >= 6);
  CHECK(events[0].name == "message_start");
  CHECK(events[0].data.Find("message")->Find("usage")->Find("input_tokens")->Dump() == body.Find("usage")->Find("input_tokens")->Dump());
  CHECK(events[1].name == "content_block_start");
  CHECK(events[events.size() - 3].name == "content_block_stop");
  CHECK(events[events.size() - 2].name == "message_delta");
  CHECK(events[events.size() - 2].data.Find("usage")->Dump() == body.Find("usage")->Dump());
  CHECK(events.back().name == "message_stop");
}

TEST_CASE("A-83 count_tokens gives what the message is charged") {
  FakeEngine engine(TestCard(), Hello);
  engine.SetCachedTokens(3);
  Rig rig(&engine);
  const std::string parts = R"("system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":"Hi there"},
      {"role":"assistant","content":[{"type":"text","text":"Yes"}]},{"role":"user","content":[{"type":"text","text":"So?"}]}]})";
  const auto count = rig.Ask("POST", "/v1/messages/count_tokens", "{" + parts);
  CHECK(count->status == 200);
  CHECK(count->Header("request-id") == "test-request");
  const auto usage = rig.Ask("POST", "/v1/messages", R"({"max_tokens":5,)" + parts)->Json();
  CHECK(count->Json().Find("input_tokens")->AsInt() ==
        usage.Find("usage")->Find("input_tokens")->AsInt() + usage.Find("usage")->Find("cache_read_input_tokens")->AsInt());
  const auto bad = rig.Ask("POST", "/v1/messages/count_tokens", R"({"messages":[]})");
  CHECK(bad->status == 400);
  CHECK(bad->Json().Find("type")->AsString() == "error");
}

TEST_CASE("A-75 A-82 errors come in the dialect of the route") {
  FakeEngine engine(TestCard(), Hello);
  RigOptions options;
  options.router.keys = std::make_shared<api::Keys>(std::vector<std::string>{"secret"});
  Rig rig(&engine, options);
  const auto shape = [](const FakeExchange& exchange, const char* type) {
    const JsonValue body = exchange.Json();
    CHECK(body.Find("type")->AsString() == "error");
    CHECK(body.Find("error")->Find("type")->AsString() == type);
    CHECK_FALSE(body.Find("error")->Find("message")->AsString().empty());
    CHECK(body.Find("request_id")->AsString() == "test-request");
    CHECK(exchange.Header("request-id") == "test-request");
  };
  const auto no_key = rig.Ask("POST", "/v1/messages", kMessage);
  CHECK(no_key->status == 401);
  shape(*no_key, "authentication_error");
  const std::vector<http::Header> key = {{"x-api-key", "secret"}};
  CHECK(rig.Ask("POST", "/v1/messages", kMessage, key)->status == 200);
  const auto method = rig.Ask("GET", "/v1/messages", "", key);
  CHECK(method->status == 405);
  shape(*method, "invalid_request_error");
  const auto bad = rig.Ask("POST", "/v1/messages", R"({"messages":[{"role":"user","content":"Hi"}]})", key);
  CHECK(bad->status == 400);
  shape(*bad, "invalid_request_error");
  const auto json = rig.Ask("POST", "/v1/messages", "{", key);
  CHECK(json->status == 400);
  shape(*json, "invalid_request_error");
  const auto plain = rig.Ask("POST", "/v1/responses", R"({"input":7})", key);
  CHECK(plain->status == 400);
  CHECK(plain->Json().Find("error")->Find("param")->AsString() == "input");

  engine.SetRefuse([](const proto::GenerateRequest&, proto::EngineError* error) {
    error->set_kind(proto::EngineError::OVERLOADED);
    error->set_retry_after_ms(2000);
    return true;
  });
  const auto full = rig.Ask("POST", "/v1/messages", R"({"max_tokens":5,"stream":true,"messages":[{"role":"user","content":"Hi"}]})", key);
  CHECK(full->status == 529);
  CHECK_FALSE(full->streamed);
  CHECK(full->Header("Retry-After") == "2");
  shape(*full, "overloaded_error");
  CHECK(rig.Ask("POST", "/v1/responses", R"({"input":"x","stream":true})", key)->status == 429);
  engine.SetRefuse(nullptr);
  engine.SetHealth(false, "loading");
  REQUIRE(rig.RunUntil([&] { return !rig.state->ready(); }));
  const auto away = rig.Ask("POST", "/v1/messages", kMessage, key);
  CHECK(away->status == 503);
  CHECK_FALSE(away->Header("Retry-After").empty());
  shape(*away, "api_error");
}

TEST_CASE("A-38 a prompt that is too long is told in the dialect, with both numbers") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  const std::string words(400, 'x');
  const auto message = rig.Ask("POST", "/v1/messages", R"({"max_tokens":5,"stream":true,"messages":[{"role":"user","content":")" + words + R"("}]})");
  CHECK(message->status == 400);
  CHECK(message->Json().Find("error")->Find("message")->AsString().find("maximum context length is 256 tokens") != std::string::npos);
  const auto response = rig.Ask("POST", "/v1/responses", R"({"stream":true,"input":")" + words + R"("})");
  CHECK(response->status == 400);
  CHECK(response->Json().Find("error")->Find("code")->AsString() == "context_length_exceeded");
  CHECK(response->Json().Find("error")->Find("param")->AsString() == "input");
}

TEST_CASE("A-50 A-81 A-82 a stream that fails ends with the dialect's own error event") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest&) { return Answer(std::string(200, 'a')); });
  RigOptions options;
  options.generation.resume_timeout = milliseconds(50);
  Rig rig(&engine, options);
  engine.SetStepMicros(5000);
  const auto response = rig.Post("/v1/responses", R"({"input":"x","stream":true})");
  const auto message = rig.Post("/v1/messages", R"({"max_tokens":210,"stream":true,"messages":[{"role":"user","content":"Hi"}]})");
  REQUIRE(rig.RunUntil([&] { return response->body.size() > 2000 && message->body.size() > 500; }));
  engine.Stop();
  REQUIRE(rig.RunUntil([&] { return response->ended && message->ended; }));
  const std::vector<Event> failed = Named(*response);
  CHECK(failed.back().name == "response.failed");
  CHECK(failed.back().data.Find("response")->Find("status")->AsString() == "failed");
  CHECK_FALSE(failed.back().data.Find("response")->Find("error")->Find("message")->AsString().empty());
  const std::vector<Event> error = Named(*message);
  CHECK(error.back().name == "error");
  CHECK(error.back().data.Find("error")->Find("type")->AsString() == "api_error");
  CHECK(error.back().data.Find("request_id")->AsString() == "test-request");
}

TEST_CASE("A-51 silent streams are kept alive, each in its way") {
  FakeEngine engine(TestCard(), Hello);
  RigOptions options;
  options.generation.keep_alive = milliseconds(30);
  Rig rig(&engine, options);
  engine.SetOpen(false);
  const auto response = rig.Post("/v1/responses", R"({"input":"x","stream":true})");
  const auto message = rig.Post("/v1/messages", R"({"max_tokens":20,"stream":true,"messages":[{"role":"user","content":"Hi"}]})");
  REQUIRE(rig.RunUntil([&] {
    return response->Comments() >= 2 && message->body.find("event: ping") != std::string::npos;
  }));
  engine.SetOpen(true);
  REQUIRE(rig.RunUntil([&] { return response->ended && message->ended; }));
  CHECK(Named(*message)[0].name == "message_start");
  CHECK(Named(*message).back().name == "message_stop");
  CHECK(Named(*response).back().name == "response.completed");
}

TEST_CASE("a client that leaves a dialect's stream cancels it") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest&) { return Answer(std::string(200, 'a')); });
  Rig rig(&engine);
  engine.SetOpen(false);
  const auto response = rig.Post("/v1/responses", R"({"input":"x","stream":true})");
  REQUIRE(rig.RunUntil([&] { return engine.running() == 1; }));
  response->Close();
  REQUIRE(rig.RunUntil([&] { return engine.cancels() == 1; }));
}

}  // namespace
}  // namespace holdfast::testing

// The generation through the HTTP routes, against an engine whose answers are known.
#include <algorithm>
#include <catch2/catch.hpp>

#include "frontend/generation_errors.h"
#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

using std::chrono::milliseconds;

const std::string kAnswer = "Hello \xF0\x9F\x98\x80 world, caf\xC3\xA9: the end of it.";

FakeEngine::Script Says(std::string text) {
  return [text](const proto::GenerateRequest&) { return Answer(text); };
}

// Choices differ by their index.
std::vector<uint32_t> ByChoice(const proto::GenerateRequest& request) {
  return Answer("choice " + std::to_string(request.sampling().choice()) + " speaks");
}

std::string Chat(const std::string& fields = "") {
  return R"({"messages":[{"role":"user","content":"Hi there"}])" + (fields.empty() ? "" : "," + fields) + "}";
}

text::JsonValue UsageOf(const FakeExchange& exchange) {
  if (!exchange.streamed) return *exchange.Json().Find("usage");
  const auto events = exchange.Events();
  auto parsed = text::ParseJson(events[events.size() - 2]);
  REQUIRE(parsed.ok());
  REQUIRE(parsed->Find("usage"));
  return *parsed->Find("usage");
}

TEST_CASE("A-48 A-49 A-52 a streamed answer is the plain answer in pieces") {
  FakeEngine engine(TestCard(), Says(kAnswer));
  Rig rig(&engine);
  const auto plain = rig.Ask("POST", "/v1/chat/completions", Chat());
  REQUIRE(plain->status == 200);
  CHECK(plain->Text() == kAnswer);
  CHECK(plain->Finish() == "stop");
  for (const uint32_t portion : {1u, 2u, 7u, 100u}) {
    engine.SetTokensPerEvent(portion);
    const auto streamed = rig.Ask("POST", "/v1/chat/completions", Chat(R"("stream":true,"stream_options":{"include_usage":true})"));
    CHECK(streamed->status == 200);
    CHECK(streamed->content_type.rfind("text/event-stream", 0) == 0);
    CHECK(streamed->Header("X-Accel-Buffering") == "no");
    CHECK(streamed->Text() == kAnswer);
    CHECK(streamed->Finish() == "stop");
    CHECK(streamed->Events().back() == "[DONE]");
    CHECK(UsageOf(*streamed).Dump() == UsageOf(*plain).Dump());
  }
}

TEST_CASE("A-41 A-42 A-43 A-44 A-45 A-46 A-47 B016 the chunks of a stream have the shape that SDKs check") {
  FakeEngine engine(TestCard(), Says("abc"));
  Rig rig(&engine);
  const auto with = rig.Ask("POST", "/v1/chat/completions", Chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  const auto without = rig.Ask("POST", "/v1/chat/completions", Chat(R"("stream":true)"));
  CHECK(with->Events().size() == without->Events().size() + 1);
  CHECK(with->Header("Cache-Control") == "no-cache");
  CHECK(with->Header("Content-Length").empty());
  std::string id;
  int64_t created = 0;
  size_t finished = 0;
  const auto events = with->Events();
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const auto chunk = *text::ParseJson(events[i]);
    CHECK(chunk.Find("object")->AsString() == "chat.completion.chunk");
    CHECK(chunk.Find("model")->AsString() == "tiny-test");
    if (id.empty()) {
      id = chunk.Find("id")->AsString();
      created = chunk.Find("created")->AsInt();
    }
    CHECK(id.rfind("chatcmpl-", 0) == 0);
    CHECK(chunk.Find("id")->AsString() == id);
    CHECK(chunk.Find("created")->AsInt() == created);
    const auto& choices = chunk.Find("choices")->AsArray();
    if (i + 2 == events.size()) {
      CHECK(choices.empty());
      CHECK(chunk.Find("usage")->is_object());
      continue;
    }
    CHECK(chunk.Find("usage")->is_null());
    REQUIRE(choices.size() == 1);
    const auto* delta = choices[0].Find("delta");
    CHECK((delta->Find("role") != nullptr) == (i == 0));
    if (i > 0 && delta->Find("content")) CHECK_FALSE(delta->Find("content")->AsString().empty());
    CHECK(delta->Find("tool_calls") == nullptr);
    REQUIRE(choices[0].Find("finish_reason"));
    CHECK(choices[0].Find("logprobs")->is_null());
    CHECK(choices[0].Find("index")->AsInt() == 0);
    if (choices[0].Find("finish_reason")->is_null()) continue;
    ++finished;
    CHECK(delta->AsObject().empty());
    CHECK(i + 3 == events.size());  // only the usage and the end come after it
  }
  CHECK(finished == 1);
  CHECK((*text::ParseJson(without->Events()[0])).Find("usage") == nullptr);
}

TEST_CASE("the prompt is the rendered conversation and carries anchors where messages part") {
  FakeEngine engine(TestCard(), Says("x"));
  Rig rig(&engine);
  rig.Ask("POST", "/v1/chat/completions",
          R"({"messages":[{"role":"system","content":"Be kind"},{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"},)"
          R"({"role":"user","content":"Bye"}],"seed":7,"temperature":0.5,"top_k":5,"max_tokens":9})");
  const auto seen = engine.requests();
  REQUIRE(seen.size() == 1);
  const proto::GenerateRequest& request = seen[0];
  CHECK(request.prompt_tokens() == static_cast<uint32_t>(request.tokens_size()));
  CHECK(request.trace_id() == "test-request");
  CHECK(request.max_tokens() == 9);
  CHECK(request.sampling().seed() == 7);
  CHECK(request.sampling().temperature() == 0.5f);
  CHECK(request.sampling().top_k() == 5);
  CHECK(request.fingerprint() != 0);
  CHECK(std::count(request.sampling().stop_tokens().begin(), request.sampling().stop_tokens().end(), EndOfTurn()) == 1);
  // Each message after the first begins at an anchor, and so does the turn to generate.
  const uint32_t start = EndOfTurn() - 1;
  CHECK(std::is_sorted(request.anchors().begin(), request.anchors().end()));
  int openers = 0;
  for (int i = 1; i < request.tokens_size(); ++i) {
    if (request.tokens(i) != start) continue;
    ++openers;
    CHECK(std::count(request.anchors().begin(), request.anchors().end(), static_cast<uint32_t>(i)) == 1);
  }
  CHECK(openers == 4);
}

TEST_CASE("a request without a seed draws one and choices share it") {
  FakeEngine engine(TestCard(), ByChoice);
  Rig rig(&engine);
  rig.Ask("POST", "/v1/chat/completions", Chat(R"("n":2)"));
  rig.Ask("POST", "/v1/chat/completions", Chat());
  const auto seen = engine.requests();
  REQUIRE(seen.size() == 3);
  CHECK(seen[0].sampling().seed() == seen[1].sampling().seed());
  CHECK(seen[0].sampling().choice() + seen[1].sampling().choice() == 1);
  CHECK(seen[0].sampling().seed() != seen[2].sampling().seed());
}

TEST_CASE("A-22 A-48 several choices each end once, and the prompt counts once") {
  FakeEngine engine(TestCard(), ByChoice);
  Rig rig(&engine);
  const auto plain = rig.Ask("POST", "/v1/chat/completions", Chat(R"("n":3)"));
  const auto streamed = rig.Ask("POST", "/v1/chat/completions", Chat(R"("n":3,"stream":true,"stream_options":{"include_usage":true})"));
  const auto one = rig.Ask("POST", "/v1/chat/completions", Chat());
  for (uint32_t i = 0; i < 3; ++i) {
    CHECK(plain->Text(i) == "choice " + std::to_string(i) + " speaks");
    CHECK(streamed->Text(i) == plain->Text(i));
    CHECK(streamed->Finish(i) == "stop");
  }
  CHECK(UsageOf(*plain).Find("prompt_tokens")->AsInt() == UsageOf(*one).Find("prompt_tokens")->AsInt());
  CHECK(UsageOf(*plain).Find("completion_tokens")->AsInt() == 3 * UsageOf(*one).Find("completion_tokens")->AsInt());
  CHECK(UsageOf(*streamed).Dump() == UsageOf(*plain).Dump());
}

TEST_CASE("B036 a stop string ends the answer, cancels the engine and counts what was generated") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest&) { return std::vector<uint32_t>(ByteIds(std::string(5, 'a') + "STOP" + std::string(4000, 'b'))); });
  Rig rig(&engine);
  const std::string fields = R"("stop":["STOP"],"max_tokens":200)";
  const auto plain = rig.Ask("POST", "/v1/chat/completions", Chat(fields));
  const auto streamed = rig.Ask("POST", "/v1/chat/completions", Chat(fields + R"(,"stream":true,"stream_options":{"include_usage":true})"));
  CHECK(plain->Text() == "aaaaa");
  CHECK(plain->Finish() == "stop");
  CHECK(streamed->Text() == "aaaaa");
  CHECK(UsageOf(*plain).Find("completion_tokens")->AsInt() == 9);
  CHECK(UsageOf(*streamed).Dump() == UsageOf(*plain).Dump());
  CHECK(rig.RunUntil([&] { return engine.cancels() == 2 && engine.running() == 0; }));
}

TEST_CASE("max_tokens ends with length, and an end token on the last place with stop") {
  FakeEngine engine(TestCard(), Says("abcdef"));
  Rig rig(&engine);
  const auto cut = rig.Ask("POST", "/v1/chat/completions", Chat(R"("max_tokens":3)"));
  CHECK(cut->Text() == "abc");
  CHECK(cut->Finish() == "length");
  const auto whole = rig.Ask("POST", "/v1/chat/completions", Chat(R"("max_tokens":7)"));
  CHECK(whole->Text() == "abcdef");
  CHECK(whole->Finish() == "stop");
}

// The heart of the promise: whatever is lost, wherever, the client's bytes are those of an undisturbed run.
TEST_CASE("an engine lost in mid-stream is resumed with the same bytes") {
  FakeEngine engine(TestCard(), Says(kAnswer));
  Rig rig(&engine);
  const std::string fields = R"("stop":["end of"],"logprobs":true,"top_logprobs":2,"seed":5)";
  const std::string streaming = fields + R"(,"stream":true,"stream_options":{"include_usage":true})";
  const auto strip = [](const FakeExchange& exchange) {
    // Everything of the answer but its id and time; chunk borders may differ.
    std::string logprobs;
    for (const std::string& event : exchange.Events()) {
      const auto json = text::ParseJson(event);
      if (!json.ok() || json->Find("choices")->AsArray().empty()) continue;
      const auto* lp = json->Find("choices")->AsArray()[0].Find("logprobs");
      if (lp->is_object()) {
        for (const auto& entry : lp->Find("content")->AsArray()) logprobs += entry.Dump();
      }
    }
    return exchange.Text() + "|" + exchange.Finish() + "|" + logprobs + "|" + UsageOf(exchange).Dump();
  };
  const auto undisturbed = rig.Ask("POST", "/v1/chat/completions", Chat(streaming));
  const std::string want = strip(*undisturbed);
  const size_t tokens = kAnswer.find("end of") + 6;
  for (const bool broken : {false, true}) {
    for (uint32_t at = 1; at <= tokens; at += 3) {
      INFO("lost after " << at << " tokens, " << (broken ? "stream broken" : "told so"));
      if (broken) engine.BreakAfter(at);
      else engine.LoseAfter(at);
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(streaming));
      CHECK(strip(*answer) == want);
      CHECK(answer->Events().back() == "[DONE]");
    }
  }
  const proto::GenerateRequest last = engine.requests().back();
  CHECK(last.resumes() >= 1);
  CHECK(rig.Metric("holdfast_resumes_total") > 10);
}

TEST_CASE("a plain answer with several choices survives losses too") {
  FakeEngine engine(TestCard(), ByChoice);
  Rig rig(&engine);
  for (const uint32_t at : {1u, 5u, 20u, 33u}) {
    engine.LoseAfter(at);
    const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(R"("n":3)"));
    REQUIRE(answer->status == 200);
    for (uint32_t i = 0; i < 3; ++i) CHECK(answer->Text(i) == "choice " + std::to_string(i) + " speaks");
  }
  const auto seen = engine.requests();
  const bool resumed_same = std::all_of(seen.begin(), seen.end(), [](const proto::GenerateRequest& r) {
    return r.resumes() == 0 || (r.prompt_tokens() <= static_cast<uint32_t>(r.tokens_size()) && r.prompt_tokens() > 0);
  });
  CHECK(resumed_same);
}

TEST_CASE("A-51 a supervisor that dies and comes back costs a pause, not the answer") {
  FakeEngine engine(TestCard(), Says(std::string(200, 'x') + "done"));
  engine.SetStepMicros(1000);
  RigOptions options;
  options.generation.keep_alive = milliseconds(50);
  Rig rig(&engine, options);
  const auto answer = rig.Post("/v1/chat/completions", Chat(R"("stream":true,"max_tokens":240)"));
  REQUIRE(rig.RunUntil([&] { return answer->body.size() > 2000; }));
  engine.Stop();
  rig.RunFor(milliseconds(400));
  CHECK_FALSE(answer->ended);
  CHECK(answer->Comments() >= 2);
  engine.Start();
  REQUIRE(rig.RunUntil([&] { return answer->ended; }));
  CHECK(answer->Text() == std::string(200, 'x') + "done");
  CHECK(answer->Finish() == "stop");
}

TEST_CASE("A-50 an engine that does not come back is an error after the bound") {
  FakeEngine engine(TestCard(), Says(std::string(200, 'x')));
  engine.SetStepMicros(1000);
  RigOptions options;
  options.generation.resume_timeout = milliseconds(300);
  Rig rig(&engine, options);
  const auto streamed = rig.Post("/v1/chat/completions", Chat(R"("stream":true)"));
  const auto plain = rig.Post("/v1/chat/completions", Chat());
  REQUIRE(rig.RunUntil([&] { return streamed->body.size() > 500; }));
  engine.Stop();
  REQUIRE(rig.RunUntil([&] { return streamed->ended && plain->ended; }));
  CHECK(streamed->status == 200);
  const auto error = *text::ParseJson(streamed->Events().back());
  CHECK(error.Find("error")->Find("type")->AsString() == "unavailable_error");
  CHECK(streamed->Finish().empty());
  CHECK(plain->status == 503);
  CHECK_FALSE(plain->Header("Retry-After").empty());
}

TEST_CASE("a client that closes cancels its choices, streamed or not, and nobody else's") {
  FakeEngine engine(TestCard(), Says(std::string(200, 'x')));
  engine.SetStepMicros(2000);
  Rig rig(&engine);
  for (const char* fields : {R"("stream":true,"n":2)", R"("n":2)"}) {
    const size_t before = engine.cancels();
    const auto other = rig.Post("/v1/chat/completions", Chat(R"("max_tokens":60)"));
    const auto gone = rig.Post("/v1/chat/completions", Chat(fields));
    REQUIRE(rig.RunUntil([&] { return engine.running() == 3; }));
    rig.RunFor(milliseconds(20));
    gone->Close();
    REQUIRE(rig.RunUntil([&] { return engine.cancels() == before + 2; }));
    REQUIRE(rig.RunUntil([&] { return other->ended; }));
    CHECK(other->Text() == std::string(60, 'x'));
    CHECK_FALSE(gone->ended);
  }
  CHECK(rig.RunUntil([&] { return engine.running() == 0; }));
  CHECK(rig.Metric("holdfast_requests_total{end=\"abort\"}") == 2);
  CHECK(rig.Metric("holdfast_active_requests") == 0);
}

TEST_CASE("a client that closes while its engine is lost is forgotten") {
  FakeEngine engine(TestCard(), Says(std::string(200, 'x')));
  Rig rig(&engine);
  engine.SetStepMicros(1000);
  const auto gone = rig.Post("/v1/chat/completions", Chat(R"("stream":true)"));
  REQUIRE(rig.RunUntil([&] { return gone->body.size() > 500; }));
  engine.Stop();
  rig.RunFor(milliseconds(50));
  gone->Close();
  const size_t seen = engine.requests().size();
  engine.Start();
  REQUIRE(rig.RunUntil([&] { return rig.state->ready() && rig.state->lease().connected(); }));
  rig.RunFor(milliseconds(200));
  CHECK(engine.requests().size() == seen);
  CHECK(rig.api->active() == 0);
}

TEST_CASE("A-75 A-38 refusals of the engine become the errors clients act on") {
  FakeEngine engine(TestCard(), Says("x"));
  Rig rig(&engine);
  struct Row {
    proto::EngineError::Kind kind;
    int status;
    const char* code;
    const char* header;
  };
  const Row rows[] = {{proto::EngineError::OVERLOADED, 429, "server_overloaded", "Retry-After"},
                      {proto::EngineError::UNAVAILABLE, 503, "engine_unavailable", "Retry-After"},
                      {proto::EngineError::DRAINING, 503, "server_draining", "Retry-After"},
                      {proto::EngineError::QUARANTINED, 500, "request_quarantined", "x-should-retry"},
                      {proto::EngineError::INTERNAL, 500, "internal_error", nullptr},
                      {proto::EngineError::TOO_LONG, 400, "context_length_exceeded", nullptr},
                      {proto::EngineError::INVALID, 400, nullptr, nullptr}};
  for (const Row& row : rows) {
    INFO(row.kind);
    engine.SetRefuse([&](const proto::GenerateRequest&, proto::EngineError* error) {
      error->set_kind(row.kind);
      error->set_retry_after_ms(3000);
      error->set_limit(99);
      return true;
    });
    for (const char* fields : {"", R"("stream":true)"}) {
      const auto answer = rig.Ask("POST", "/v1/chat/completions", Chat(fields));
      CHECK(answer->status == row.status);
      CHECK_FALSE(answer->streamed);
      const auto body = answer->Json();
      const auto* error = body.Find("error");
      for (const char* key : {"message", "type", "param", "code"}) CHECK(error->Find(key));
      CHECK_FALSE(error->Find("message")->AsString().empty());
      if (row.code) CHECK(error->Find("code")->AsString() == row.code);
      else CHECK(error->Find("code")->is_null());
      if (row.header) CHECK_FALSE(answer->Header(row.header).empty());
    }
  }
}

TEST_CASE("A-37 A-38 A-39 A-40 prompts at the edge of the context") {
  FakeEngine engine(TestCard(), Says(std::string(300, 'y')));
  Rig rig(&engine);
  // /v1/completions with ids: the prompt's length is exactly what is sent.
  const auto ask = [&](size_t length, const std::string& more = "") {
    std::string ids;
    for (size_t i = 0; i < length; ++i) ids += (i ? "," : "") + std::to_string(97);
    return rig.Ask("POST", "/v1/completions", "{\"prompt\":[" + ids + "],\"max_tokens\":100000" + more + "}");
  };
  const auto last = ask(255);
  REQUIRE(last->status == 200);
  CHECK(last->Text() == "y");
  CHECK(last->Finish() == "length");
  const auto clamped = ask(200);
  CHECK(clamped->Text() == std::string(56, 'y'));
  for (const size_t length : {256u, 257u, 1000u}) {
    for (const char* more : {"", ",\"stream\":true"}) {
      const auto over = ask(length, more);
      CHECK(over->status == 400);
      const auto body = over->Json();
      const auto* error = body.Find("error");
      CHECK(error->Find("code")->AsString() == "context_length_exceeded");
      CHECK(error->Find("type")->AsString() == "invalid_request_error");
      CHECK(error->Find("param")->AsString() == "prompt");
      CHECK(error->Find("message")->AsString().find("maximum context length is 256 tokens") != std::string::npos);
      CHECK(error->Find("n_prompt_tokens")->AsInt() == static_cast<int64_t>(length));
      CHECK(error->Find("n_ctx")->AsInt() == 256);
    }
  }
  // The cache is smaller than the context: the real limit is named at once.
  engine.SetLimits(256, 100);
  REQUIRE(rig.RunUntil([&] { return rig.state->lease().limits().max_request_tokens() == 100; }));
  const auto cache = ask(120);
  CHECK(cache->status == 400);
  CHECK(cache->Json().Find("error")->Find("n_ctx")->AsInt() == 100);
  CHECK(ask(60)->Text() == std::string(40, 'y'));
}

TEST_CASE("A-38 a chat prompt that is too long names messages") {
  FakeEngine engine(TestCard(), Says("x"));
  Rig rig(&engine);
  const auto over = rig.Ask("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + std::string(2000, 'q') + R"("}]})");
  CHECK(over->status == 400);
  CHECK(over->Json().Find("error")->Find("param")->AsString() == "messages");
  CHECK(over->Json().Find("error")->Find("code")->AsString() == "context_length_exceeded");
}

TEST_CASE("A-79 completions: several prompts times n are indexed prompt by prompt") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest& request) {
    return Answer(std::string(1, static_cast<char>(request.tokens(0))) + std::to_string(request.sampling().choice()));
  });
  Rig rig(&engine);
  const auto answer = rig.Ask("POST", "/v1/completions", R"({"prompt":["A","B"],"n":2,"max_tokens":9})");
  REQUIRE(answer->status == 200);
  CHECK(answer->Json().Find("object")->AsString() == "text_completion");
  CHECK(answer->Text(0) == "A0");
  CHECK(answer->Text(1) == "A1");
  CHECK(answer->Text(2) == "B0");
  CHECK(answer->Text(3) == "B1");
  const auto streamed = rig.Ask("POST", "/v1/completions", R"({"prompt":["A","B"],"n":2,"max_tokens":9,"stream":true})");
  for (uint32_t i = 0; i < 4; ++i) {
    CHECK(streamed->Text(i) == answer->Text(i));
    CHECK(streamed->Finish(i) == "stop");
  }
  for (const std::string& event : streamed->Events()) {
    if (event == "[DONE]") continue;
    const auto chunk = *text::ParseJson(event);
    CHECK(chunk.Find("object")->AsString() == "text_completion");
    for (const auto& choice : chunk.Find("choices")->AsArray()) {
      if (choice.Find("finish_reason")->is_string()) CHECK(choice.Find("text")->AsString().empty());
    }
  }
}

TEST_CASE("A-79 completions: echo and logprobs cover the prompt, with max_tokens 0 and 1") {
  FakeEngine engine(TestCard(), Says("zz"));
  Rig rig(&engine);
  const auto echo = rig.Ask("POST", "/v1/completions", R"({"prompt":"qrs","max_tokens":1,"echo":true,"logprobs":1})");
  REQUIRE(echo->status == 200);
  CHECK(echo->Text() == "qrsz");
  const auto body = echo->Json();
  const auto* lp = body.Find("choices")->AsArray()[0].Find("logprobs");
  REQUIRE(lp->Find("tokens")->AsArray().size() == 4);
  CHECK(lp->Find("token_logprobs")->AsArray()[0].is_null());
  CHECK(lp->Find("token_logprobs")->AsArray()[1].is_number());
  CHECK(lp->Find("text_offset")->AsArray()[3].AsInt() == 3);
  const auto none = rig.Ask("POST", "/v1/completions", R"({"prompt":"qrs","max_tokens":0,"echo":true,"logprobs":1})");
  REQUIRE(none->status == 200);
  CHECK(none->Text() == "qrs");
  CHECK(UsageOf(*none).Find("completion_tokens")->AsInt() == 0);
  const auto plain = rig.Ask("POST", "/v1/completions", R"({"prompt":"qrs","max_tokens":2,"echo":true})");
  CHECK(plain->Text() == "qrszz");
  engine.LoseAfter(1);
  const auto lost = rig.Ask("POST", "/v1/completions", R"({"prompt":"qrs","max_tokens":2,"echo":true,"logprobs":1})");
  CHECK(lost->Text() == "qrszz");
}

TEST_CASE("the counters equal the usage blocks") {
  FakeEngine engine(TestCard(), ByChoice);
  engine.SetCachedTokens(5);
  Rig rig(&engine);
  int64_t prompt = 0, completion = 0, cached = 0;
  for (int i = 0; i < 12; ++i) {
    if (i % 3 == 0) engine.LoseAfter(4 + static_cast<uint32_t>(i));
    const std::string n = R"("n":)" + std::to_string(1 + i % 3) + R"(,"max_tokens":)" + std::to_string(3 + i);
    const std::string fields = i % 2 ? n : n + R"(,"stream":true,"stream_options":{"include_usage":true})";
    const auto usage = UsageOf(*rig.Ask("POST", "/v1/chat/completions", Chat(fields)));
    prompt += usage.Find("prompt_tokens")->AsInt();
    completion += usage.Find("completion_tokens")->AsInt();
    cached += usage.Find("prompt_tokens_details")->Find("cached_tokens")->AsInt();
  }
  CHECK(cached == 12 * 5);
  CHECK(rig.Metric("holdfast_generated_tokens_total") == completion);
  CHECK(rig.Metric("holdfast_prompt_tokens_total{source=\"cached\"}") == cached);
  CHECK(rig.Metric("holdfast_prompt_tokens_total{source=\"computed\"}") == prompt - cached);
  CHECK(rig.Metric("holdfast_ttft_seconds_count") == 12);
}

TEST_CASE("drain: newcomers are refused, running requests end with an error event when time is up") {
  FakeEngine engine(TestCard(), Says(std::string(200, 'x')));
  engine.SetStepMicros(2000);
  Rig rig(&engine);
  const auto running = rig.Post("/v1/chat/completions", Chat(R"("stream":true)"));
  REQUIRE(rig.RunUntil([&] { return running->body.size() > 300; }));
  rig.api->BeginDrain();
  const auto late = rig.Ask("POST", "/v1/chat/completions", Chat());
  CHECK(late->status == 503);
  CHECK(late->Header("Connection") == "close");
  CHECK(rig.Ask("GET", "/readyz")->status == 503);
  CHECK(rig.Ask("GET", "/livez")->status == 200);
  CHECK(rig.api->active() == 1);
  rig.api->FailAll(api::Draining());
  REQUIRE(running->ended);
  CHECK((*text::ParseJson(running->Events().back())).Find("error")->Find("code")->AsString() == "server_draining");
  CHECK(rig.api->active() == 0);
  CHECK(rig.RunUntil([&] { return engine.running() == 0; }));
}

}  // namespace
}  // namespace holdfast::testing

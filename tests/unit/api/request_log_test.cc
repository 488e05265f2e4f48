// /v1/requests, /v1/stats and what they are made of; the list of models as Codex reads it; CORS for SDKs in a page.
#include <catch2/catch.hpp>
#include <string>

#include "frontend/api/request_log.h"
#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

using text::JsonValue;

std::vector<uint32_t> Hello(const proto::GenerateRequest&) { return Answer("hello"); }

api::RequestRecord Record(uint64_t duration_ms, std::string error = "") {
  api::RequestRecord record;
  record.duration_ms = duration_ms;
  record.error = std::move(error);
  record.usage.prompt_tokens = 10;
  record.usage.completion_tokens = 2;
  return record;
}

TEST_CASE("the log keeps the last requests, and its cursor counts all of them") {
  api::RequestLog log;
  CHECK(log.Since(0, 100).records.empty());
  for (uint64_t i = 0; i < api::RequestLog::kKept + 10; ++i) {
    log.Began();
    log.Ended(Record(i));
  }
  const auto page = log.Since(0, 5);
  REQUIRE(page.records.size() == 5);
  CHECK(page.records[0]->duration_ms == 10);
  CHECK(page.next_cursor == 15);
  CHECK(log.Since(page.next_cursor, 1).records[0]->duration_ms == 15);
  const auto last = log.Since(api::RequestLog::kKept + 9, 100);
  CHECK(last.records.size() == 1);
  CHECK(last.next_cursor == api::RequestLog::kKept + 10);
  CHECK(log.Since(last.next_cursor, 100).records.empty());
  CHECK(log.Since(last.next_cursor, 100).next_cursor == last.next_cursor);
  CHECK(log.Since(1'000'000, 1).records[0]->duration_ms == 10);  // a cursor of another life
}

TEST_CASE("totals count what was answered") {
  api::RequestLog log;
  CHECK_FALSE(log.Sum().p95_ms);
  for (uint64_t i = 1; i <= 100; ++i) {
    log.Began();
    log.Ended(Record(i));
  }
  log.Began();
  log.Ended(Record(9999, "gone"));
  log.Began();
  const api::RequestLog::Totals totals = log.Sum();
  CHECK(totals.active == 1);
  CHECK(totals.completed == 100);
  CHECK(totals.prompt_tokens == 1010);
  CHECK(totals.p95_ms == 95.0);
}

TEST_CASE("requests of every route are listed, with what became of them") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  rig.Ask("POST", "/v1/chat/completions", R"({"stream":true,"messages":[{"role":"user","content":"Hi"}]})");
  rig.Ask("POST", "/v1/completions", R"({"prompt":"Hi"})");
  rig.Ask("POST", "/v1/responses", R"({"input":"Hi"})");
  rig.Ask("POST", "/v1/messages", R"({"max_tokens":5,"messages":[{"role":"user","content":"Hi"}]})");
  engine.SetRefuse([](const proto::GenerateRequest&, proto::EngineError* error) {
    error->set_kind(proto::EngineError::OVERLOADED);
    return true;
  });
  rig.Ask("POST", "/v1/completions", R"({"prompt":"Hi"})");
  const JsonValue list = rig.Ask("GET", "/v1/requests")->Json();
  CHECK(list.Find("object")->AsString() == "list");
  CHECK(list.Find("next_cursor")->AsInt() == 5);
  const JsonValue::Array& entries = list.Find("entries")->AsArray();
  REQUIRE(entries.size() == 5);
  const char* const paths[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/completions"};
  for (size_t i = 0; i < 5; ++i) CHECK(entries[i].Find("path")->AsString() == paths[i]);
  CHECK(entries[0].Find("stream")->AsBool());
  CHECK(entries[0].Find("ttft_ms")->is_number());
  CHECK(entries[0].Find("prompt_tokens")->AsInt() > 0);
  CHECK(entries[0].Find("completion_tokens")->AsInt() == 6);
  CHECK(entries[0].Find("error")->is_null());
  CHECK(entries[1].Find("ttft_ms")->is_null());
  CHECK(entries[4].Find("status")->AsInt() == 429);
  CHECK(entries[4].Find("error")->is_string());
}

TEST_CASE("a page of the request log is asked for by its query") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  for (int i = 0; i < 3; ++i) rig.Ask("POST", "/v1/completions", R"({"prompt":"Hi"})");
  const auto page = rig.Ask("GET", "/v1/requests?since=1&limit=1")->Json();
  CHECK(page.Find("entries")->AsArray().size() == 1);
  CHECK(page.Find("next_cursor")->AsInt() == 2);
  CHECK(rig.Ask("GET", "/v1/requests?since=x")->status == 400);
  CHECK(rig.Ask("GET", "/v1/requests?since=1&limit=-1")->status == 400);
}

TEST_CASE("a client that left is in the log as one") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  engine.SetOpen(false);
  const auto request = rig.Post("/v1/completions", R"({"prompt":"Hi"})");
  REQUIRE(rig.RunUntil([&] { return engine.running() == 1; }));
  request->Close();
  REQUIRE(rig.RunUntil([&] { return rig.Ask("GET", "/v1/requests")->Json().Find("entries")->AsArray().size() == 1; }));
  CHECK(rig.Ask("GET", "/v1/requests")->Json().Find("entries")->AsArray()[0].Find("status")->AsInt() == 499);
}

TEST_CASE("stats say what runs, how fast, and what was answered") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  rig.Ask("POST", "/v1/completions", R"({"prompt":"Hi"})");
  const auto stats = rig.Ask("GET", "/v1/stats");
  CHECK(stats->status == 200);
  const JsonValue body = stats->Json();
  CHECK(body.Find("model")->Find("id")->AsString() == "tiny-test");
  CHECK(body.Find("mamba")->is_null());
  CHECK(body.Find("throughput")->Find("decode_tps")->is_number());
  CHECK(body.Find("requests")->Find("completed")->AsInt() == 1);
  CHECK(body.Find("requests")->Find("active")->AsInt() == 0);
  CHECK(body.Find("requests")->Find("completion_tokens_total")->AsInt() == 6);
  CHECK(body.Find("requests")->Find("p95_ms")->is_number());
}

TEST_CASE("A-80 the list of models is OpenAI's, with what Codex wants beside it") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  const JsonValue list = rig.Ask("GET", "/v1/models")->Json();
  const JsonValue& model = list.Find("data")->AsArray().at(0);
  CHECK(model.Find("id")->AsString() == "tiny-test");
  CHECK(model.Find("object")->AsString() == "model");
  CHECK(model.Find("created")->is_number());
  CHECK(model.Find("owned_by")->is_string());
  const JsonValue& codex = list.Find("models")->AsArray().at(0);
  CHECK(codex.Find("slug")->AsString() == "tiny-test");
  CHECK(codex.Find("context_window")->AsInt() == 256);
  // Every member that its decoder has no default for.
  for (const char* key : {"display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api", "priority", "base_instructions",
                          "supports_reasoning_summaries", "support_verbosity", "truncation_policy", "supports_parallel_tool_calls",
                          "experimental_supported_tools"}) {
    INFO(key);
    CHECK(codex.Find(key) != nullptr);
  }
  CHECK(rig.Ask("GET", "/v1")->status == 200);
}

TEST_CASE("a page may send the headers its SDK asks for, when they are names") {
  FakeEngine engine(TestCard(), Hello);
  RigOptions options;
  options.router.cors_origin = "https://page.example";
  options.router.keys = std::make_shared<api::Keys>(std::vector<std::string>{"secret"});
  Rig rig(&engine, options);
  const auto asked = rig.Ask("OPTIONS", "/v1/messages", "", {{"Access-Control-Request-Headers", "x-stainless-lang, anthropic-version"}});
  CHECK(asked->status == 204);
  CHECK(asked->Header("Access-Control-Allow-Headers") == "x-stainless-lang, anthropic-version");
  const auto odd = rig.Ask("OPTIONS", "/v1/messages", "", {{"Access-Control-Request-Headers", "a\"b"}});
  CHECK(odd->Header("Access-Control-Allow-Headers").rfind("Authorization", 0) == 0);
}

}  // namespace
}  // namespace holdfast::testing

// The routes around the generation: health, models, tokens, admin, metrics, and what the gate refuses.
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "frontend/api/keys.h"
#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

using std::chrono::milliseconds;

std::vector<uint32_t> Hello(const proto::GenerateRequest&) { return Answer("hello"); }

const char* const kChat = R"({"messages":[{"role":"user","content":"Hi"}]})";

TEST_CASE("A-76 A-85 health tells the process from the engine") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  for (const char* path : {"/livez", "/readyz", "/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"}) {
    CHECK(rig.Ask("GET", path)->status == 200);
    CHECK(rig.Ask("HEAD", path)->status == 200);
  }
  engine.SetHealth(false, "loading");
  REQUIRE(rig.RunUntil([&] { return !rig.state->ready(); }));
  CHECK(rig.Ask("GET", "/livez")->status == 200);
  const auto loading = rig.Ask("GET", "/health");
  CHECK(loading->status == 503);
  const auto body = loading->Json();
  CHECK(body.Find("error")->Find("message")->AsString() == "Loading model");
  CHECK(body.Find("error")->Find("type")->AsString() == "unavailable_error");
  CHECK(body.Find("state")->AsString() == "loading");
  const auto refused = rig.Ask("POST", "/v1/chat/completions", kChat);
  CHECK(refused->status == 503);
  CHECK_FALSE(refused->Header("Retry-After").empty());
  engine.SetHealth(true, "serving");
  REQUIRE(rig.RunUntil([&] { return rig.state->ready(); }));
  CHECK(rig.Ask("POST", "/v1/chat/completions", kChat)->Text() == "hello");
}

TEST_CASE("a supervisor that falls silent is not ready once its lease is over") {
  FakeEngine engine(TestCard(), Hello);
  engine.SetHealth(true, "serving", 200);
  Rig rig(&engine);
  CHECK(rig.Ask("GET", "/readyz")->status == 200);
  engine.SetSilent(true);
  REQUIRE(rig.RunUntil([&] { return !rig.state->ready(); }));
  CHECK(rig.Ask("GET", "/readyz")->status == 503);
  CHECK(rig.Ask("GET", "/livez")->status == 200);
  engine.SetSilent(false);
  REQUIRE(rig.RunUntil([&] { return rig.state->ready(); }));
  CHECK(rig.Ask("GET", "/readyz")->status == 200);
}

TEST_CASE("A-86 a frontend without a supervisor answers, and serves once there is one") {
  FakeEngine engine(TestCard(), Hello);
  engine.Stop();
  RigOptions options;
  options.wait_ready = false;
  Rig rig(&engine, options);
  rig.RunFor(milliseconds(150));
  CHECK(rig.Ask("GET", "/livez")->status == 200);
  CHECK(rig.Ask("GET", "/readyz")->status == 503);
  CHECK(rig.Ask("GET", "/v1/models")->Json().Find("data")->AsArray().empty());
  CHECK(rig.Ask("POST", "/v1/chat/completions", kChat)->status == 503);
  CHECK(rig.Ask("POST", "/tokenize", R"({"content":"x"})")->status == 503);
  CHECK(rig.Ask("GET", "/v1/cache/status")->status == 503);
  const auto metrics = rig.Ask("GET", "/metrics");
  CHECK(metrics->status == 200);
  CHECK(metrics->body.find("holdfast_engine_up 0\n") != std::string::npos);
  engine.Start();
  REQUIRE(rig.RunUntil([&] { return rig.state->ready(); }));
  CHECK(rig.Ask("POST", "/v1/chat/completions", kChat)->Text() == "hello");
}

TEST_CASE("A-80 models are listed and found, with slashes in the name too") {
  FakeEngine engine(TestCard(), Hello);
  RigOptions options;
  options.api.served_model_name = "org/tiny model";
  Rig rig(&engine, options);
  const auto list = rig.Ask("GET", "/v1/models")->Json();
  CHECK(list.Find("object")->AsString() == "list");
  CHECK(list.Find("data")->AsArray()[0].Find("id")->AsString() == "org/tiny model");
  CHECK(list.Find("data")->AsArray()[0].Find("max_model_len")->AsInt() == 256);
  CHECK(rig.Ask("GET", "/v1/models/org/tiny model")->Json().Find("object")->AsString() == "model");
  const auto missing = rig.Ask("GET", "/v1/models/none-such");
  CHECK(missing->status == 404);
  CHECK(missing->Json().Find("error")->Find("code")->AsString() == "model_not_found");
  const auto answer = rig.Ask("POST", "/v1/chat/completions", R"({"model":"gpt-4o","messages":[{"role":"user","content":"Hi"}]})");
  CHECK(answer->Json().Find("model")->AsString() == "org/tiny model");
}

TEST_CASE("A-32 a strict frontend refuses foreign model names") {
  FakeEngine engine(TestCard(), Hello);
  RigOptions options;
  options.api.strict_model = true;
  Rig rig(&engine, options);
  CHECK(rig.Ask("POST", "/v1/chat/completions", R"({"model":"gpt-4o","messages":[{"role":"user","content":"Hi"}]})")->status == 404);
  CHECK(rig.Ask("POST", "/v1/chat/completions", R"({"model":"tiny-test","messages":[{"role":"user","content":"Hi"}]})")->status == 200);
}

TEST_CASE("a model says whether it is shown tools") {
  const auto capabilities = [](const proto::ModelCard& card, const api::ParserNames& parsers) {
    FakeEngine engine(card, Hello);
    RigOptions options;
    options.parsers = parsers;
    Rig rig(&engine, options);
    return rig.Ask("GET", "/v1/models")->Json().Find("data")->AsArray()[0].Find("capabilities")->Dump();
  };
  CHECK(capabilities(TestCard(), {}) == R"(["completion"])");
  CHECK(capabilities(ToolCard(), {}) == R"(["completion","tools","thinking"])");
  CHECK(capabilities(ToolCard(), {"none", "none"}) == R"(["completion"])");
  // A parser makes no template show tools.
  CHECK(capabilities(TestCard(), {"hermes", "none"}) == R"(["completion"])");
}

TEST_CASE("A-84 tokenize and detokenize speak both dialects") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  const std::string text = "hello \xF0\x9F\x98\x80 caf\xC3\xA9 <|im_end|>";
  const auto llama = rig.Ask("POST", "/tokenize", R"({"content":")" + text + R"("})")->Json();
  CHECK(llama.Find("count") == nullptr);
  const auto vllm = rig.Ask("POST", "/tokenize", R"({"prompt":")" + text + R"("})")->Json();
  CHECK(vllm.Find("count")->AsInt() == static_cast<int64_t>(vllm.Find("tokens")->AsArray().size()));
  CHECK(vllm.Find("max_model_len")->AsInt() == 256);
  const auto back = rig.Ask("POST", "/detokenize", R"({"tokens":)" + llama.Find("tokens")->Dump() + "}")->Json();
  CHECK(back.Find("content")->AsString() == text);
  CHECK(back.Find("prompt")->AsString() == text);
  // "\xF0\x9F" is a token of its own in this vocabulary: no UTF-8, so bytes.
  const auto pieces = rig.Ask("POST", "/tokenize", "{\"content\":\"\xF0\x9F\x98\x80\",\"with_pieces\":true}")->Json();
  CHECK(pieces.Find("tokens")->AsArray()[0].Find("piece")->Dump() == "[240,159]");
  const auto chat = rig.Ask("POST", "/tokenize", kChat)->Json();
  const auto usage = rig.Ask("POST", "/v1/chat/completions", kChat)->Json();
  CHECK(chat.Find("count")->AsInt() == usage.Find("usage")->Find("prompt_tokens")->AsInt());
  for (const char* bad : {"{}", R"({"content":1})", R"({"content":"x","with_pieces":1})", R"({"content":"x","prompt":"y"})", "[", "3"}) {
    CHECK(rig.Ask("POST", "/tokenize", bad)->status == 400);
  }
  for (const char* bad : {"{}", R"({"tokens":"x"})", R"({"tokens":[-1]})", R"({"tokens":[1.5]})", R"({"tokens":[99999999]})"}) {
    CHECK(rig.Ask("POST", "/detokenize", bad)->status == 400);
  }
}

TEST_CASE("admin routes pass on what the supervisor says") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  rig.Ask("POST", "/v1/chat/completions", kChat);
  const auto cache = rig.Ask("GET", "/v1/cache/status")->Json();
  CHECK(cache.Find("pools")->AsArray()[0].Find("capacity")->AsInt() == 64);
  CHECK(cache.Find("backend")->AsString() == "fake");
  CHECK(rig.Ask("GET", "/v1/requests")->Json().Find("data")->AsArray()[0].Find("id")->AsString() == "test-request");
  CHECK(rig.Ask("GET", "/v1/incidents")->Json().Find("data")->AsArray()[0].Find("cause")->AsString() == "signal 9");
  CHECK(rig.Ask("POST", "/v1/cache/resize", R"({"full_pages":32})")->Json().Find("state")->AsString() == "done");
  const auto refused = rig.Ask("POST", "/v1/cache/resize", R"({"full_pages":4})");
  CHECK(refused->status == 400);
  CHECK(refused->Json().Find("error")->Find("message")->AsString().find("floor of 8") != std::string::npos);
  for (const char* bad : {"{}", R"({"full_pages":-1})", R"({"full_pages":"4"})", R"({"cancel":1})", R"({"full_pages":4,"wait_ms":1e9})", "[]", "{"}) {
    CHECK(rig.Ask("POST", "/v1/cache/resize", bad)->status == 400);
  }
}

TEST_CASE("A-86 metrics join both processes and describe each family once") {
  FakeEngine engine(TestCard(), Hello);
  engine.SetMetricsText("# HELP holdfast_resumes_total x\n# TYPE holdfast_resumes_total counter\nholdfast_resumes_total 77\nholdfast_pages{pool=\"full\"} 1\n");
  Rig rig(&engine);
  rig.Ask("POST", "/v1/chat/completions", kChat);
  for (int i = 0; i < 40; ++i) rig.Ask("GET", "/no/such/path/" + std::to_string(i));
  const auto metrics = rig.Ask("GET", "/metrics");
  CHECK(metrics->content_type.rfind("text/plain; version=0.0.4", 0) == 0);
  CHECK(metrics->body.find("holdfast_resumes_total 77") == std::string::npos);
  CHECK(metrics->body.find("holdfast_pages{pool=\"full\"} 1\n") != std::string::npos);
  CHECK(metrics->body.find("nan") == std::string::npos);
  size_t types = 0, routes = 0;
  for (size_t at = metrics->body.find("# TYPE holdfast_resumes_total"); at != std::string::npos;
       at = metrics->body.find("# TYPE holdfast_resumes_total", at + 1)) {
    ++types;
  }
  for (size_t at = metrics->body.find("holdfast_http_requests_total{"); at != std::string::npos;
       at = metrics->body.find("holdfast_http_requests_total{", at + 1)) {
    ++routes;
  }
  CHECK(types == 1);
  CHECK(routes <= 4);  // what clients ask for does not become a label
  CHECK(rig.Metric("holdfast_http_requests_total{code=\"404\",route=\"other\"}") == 40);
}

TEST_CASE("A-61 A-64 A-74 the gate refuses before a body is read") {
  FakeEngine engine(TestCard(), Hello);
  RigOptions options;
  options.router.keys = std::make_shared<api::Keys>(std::vector<std::string>{"secret-1", "secret-2"});
  Rig rig(&engine, options);
  const auto with = [&](std::vector<http::Header> headers) { return rig.Ask("POST", "/v1/chat/completions", kChat, std::move(headers)); };
  CHECK(with({})->status == 401);
  CHECK(with({{"Authorization", "Bearer secret-3"}})->status == 401);
  CHECK(with({{"Authorization", "Bearer "}})->status == 401);
  CHECK(with({{"Authorization", "Bearer secret-1x"}})->status == 401);
  CHECK(with({})->Json().Find("error")->Find("type")->AsString() == "authentication_error");
  CHECK(with({{"Authorization", "Bearer secret-2"}})->status == 200);
  CHECK(with({{"authorization", "bearer secret-1"}})->status == 200);
  CHECK(with({{"X-Api-Key", "secret-1"}})->status == 200);
  CHECK(rig.Ask("GET", "/health")->status == 200);
  CHECK(rig.Ask("GET", "/v1/models")->status == 401);
  const std::vector<http::Header> key = {{"Authorization", "Bearer secret-1"}};
  const auto wrong = rig.Ask("GET", "/v1/chat/completions", "", key);
  CHECK(wrong->status == 405);
  CHECK(wrong->Header("Allow").find("POST") != std::string::npos);
  CHECK(rig.Ask("GET", "/nothing", "", key)->status == 404);
  CHECK(rig.Ask("OPTIONS", "/v1/chat/completions")->status == 204);
  CHECK(with({{"X-Api-Key", "secret-1"}, {"Origin", "http://page.example"}})->status == 415);  // a page, and no type
  for (const auto& [type, status] : std::vector<std::pair<std::string, int>>{{"application/json", 200},
                                                                             {"application/json; charset=utf-8", 200},
                                                                             {"APPLICATION/JSON;charset=\"UTF-8\"", 200},
                                                                             {"application/json; charset=utf-16", 415},
                                                                             {"text/plain", 415},
                                                                             {"application/x-www-form-urlencoded", 415}}) {
    INFO(type);
    CHECK(rig.Ask("POST", "/v1/chat/completions", kChat, {{"Authorization", "Bearer secret-1"}, {"Content-Type", type}})->status == status);
  }
}

TEST_CASE("a key has its own number of requests at work, on every route that generates, and no other key feels it") {
  FakeEngine engine(TestCard(), Hello);
  RigOptions options;
  options.router.keys = std::make_shared<api::Keys>(std::vector<std::string>{"one", "two"}, 2);
  Rig rig(&engine, options);
  const auto bearer = [](const char* key) { return std::vector<http::Header>{{"Authorization", std::string("Bearer ") + key}}; };
  engine.SetOpen(false);
  const auto first = rig.Send("POST", "/v1/chat/completions", kChat, bearer("one"));
  const auto second = rig.Send("POST", "/v1/messages", R"({"max_tokens":9,"messages":[{"role":"user","content":"Hi"}]})", {{"x-api-key", "one"}});
  REQUIRE(rig.RunUntil([&] { return engine.running() == 2; }));
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses"}) {
    INFO(path);
    const auto full = rig.Ask("POST", path, kChat, bearer("one"));
    CHECK(full->status == 429);
    CHECK(full->Header("Retry-After") == "1");
    CHECK(full->Json().Find("error")->Find("code")->AsString() == "rate_limit_exceeded");
  }
  const auto dialect = rig.Ask("POST", "/v1/messages", "{}", bearer("one"));
  CHECK(dialect->status == 429);
  CHECK(dialect->Json().Find("error")->Find("type")->AsString() == "rate_limit_error");
  CHECK(rig.Ask("GET", "/v1/models", "", bearer("one"))->status == 200);
  const auto other = rig.Send("POST", "/v1/chat/completions", kChat, bearer("two"));
  REQUIRE(rig.RunUntil([&] { return engine.running() == 3; }));
  // A client that leaves gives its place back, and so does an answer, and a request that was refused never had one for long.
  first->Close();
  REQUIRE(rig.RunUntil([&] { return engine.running() == 2; }));
  CHECK(rig.RunUntil([&] { return rig.Ask("POST", "/v1/chat/completions", "{", bearer("one"))->status == 400; }));
  CHECK(rig.Ask("POST", "/v1/chat/completions", "{", bearer("one"))->status == 400);
  const auto third = rig.Send("POST", "/v1/chat/completions", kChat, bearer("one"));
  REQUIRE(rig.RunUntil([&] { return engine.running() == 3; }));
  CHECK(rig.Ask("POST", "/v1/chat/completions", kChat, bearer("one"))->status == 429);
  engine.SetOpen(true);
  REQUIRE(rig.RunUntil([&] { return second->ended && third->ended && other->ended; }));
  CHECK(third->Text() == "hello");
  REQUIRE(rig.RunUntil([&] { return options.router.keys->HasPlace("one"); }));
  for (int i = 0; i < 5; ++i) CHECK(rig.Ask("POST", "/v1/chat/completions", kChat, bearer("one"))->status == 200);
}

TEST_CASE("places of keys are counted exactly, from any thread") {
  api::Keys keys({"one", "two"}, 3);
  CHECK(keys.Admits("Bearer one"));
  CHECK(keys.Admits("bearer  two"));
  CHECK(keys.Admits("one"));
  for (const char* bad : {"", "Bearer ", "Bearer", "Bearer on", "Bearer onee", "three", "Basic one"}) CHECK_FALSE(keys.Admits(bad));
  CHECK(keys.Take("Bearer three") == nullptr);
  std::atomic<int> at_work = 0, most = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto place = keys.Take("Bearer one"), another = keys.Take("one");
        for (const auto& p : {place, another}) (p ? at_work : refused) += 1;
        for (int seen = most, now = at_work; now > seen && !most.compare_exchange_weak(seen, now);) {}
        at_work -= (place != nullptr) + (another != nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most >= 1);
  CHECK(most <= 3);
  CHECK(keys.HasPlace("one"));
  const auto a = keys.Take("one"), b = keys.Take("one"), c = keys.Take("one");
  CHECK(c);
  CHECK_FALSE(keys.HasPlace("one"));
  CHECK(keys.HasPlace("two"));
  api::Keys uncounted({"one"});
  CHECK(uncounted.HasPlace("one"));
  api::Keys nobody;
  CHECK(nobody.Admits(""));
  CHECK(nobody.Take(""));
}

TEST_CASE("A-65 pages of other origins get answers only when that was asked for") {
  FakeEngine engine(TestCard(), Hello);
  const std::vector<http::Header> page = {{"Origin", "http://page.example"}, {"Content-Type", "application/json"}};
  {
    Rig rig(&engine);
    const auto preflight = rig.Ask("OPTIONS", "/v1/chat/completions", "", page);
    CHECK(preflight->status == 204);
    CHECK(preflight->Header("Allow") == "POST, OPTIONS");
    for (const char* name : {"Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers"}) {
      CHECK(preflight->Header(name).empty());
      CHECK(rig.Ask("POST", "/v1/chat/completions", kChat, page)->Header(name).empty());
      CHECK(rig.Ask("POST", "/v1/chat/completions", "{", page)->Header(name).empty());
    }
  }
  RigOptions options;
  options.router.cors_origin = "http://page.example";
  Rig rig(&engine, options);
  CHECK(rig.Ask("OPTIONS", "/v1/chat/completions", "", page)->Header("Access-Control-Allow-Origin") == "http://page.example");
  CHECK(rig.Ask("POST", "/v1/chat/completions", kChat, page)->Header("Access-Control-Allow-Origin") == "http://page.example");
  CHECK(rig.Ask("POST", "/v1/chat/completions", "{", page)->Header("Access-Control-Allow-Origin") == "http://page.example");
  CHECK(rig.Ask("GET", "/metrics", "", page)->Header("Access-Control-Allow-Origin").empty());
  CHECK(rig.Ask("OPTIONS", "/metrics", "", page)->Header("Access-Control-Allow-Origin").empty());
}

TEST_CASE("a public listener knows nothing of admin routes") {
  FakeEngine engine(TestCard(), Hello);
  RigOptions options;
  options.listener = {true, false};
  Rig rig(&engine, options);
  for (const char* path : {"/metrics", "/v1/cache/status", "/v1/requests", "/v1/stats", "/v1/incidents"}) CHECK(rig.Ask("GET", path)->status == 404);
  CHECK(rig.Ask("GET", "/health")->status == 200);
  CHECK(rig.Ask("GET", "/")->body.find("/v1/chat/completions") != std::string::npos);
}

TEST_CASE("A-60 bad bodies are 400 in OpenAI's shape") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  for (const char* body : {"", "{", "null", "[]", "\"x\"", "{} {}", "{\"messages\":[]}", "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\"}]}"}) {
    INFO(body);
    const auto answer = rig.Ask("POST", "/v1/chat/completions", body);
    CHECK(answer->status == 400);
    const auto json = answer->Json();
    for (const char* key : {"message", "type", "param", "code"}) CHECK(json.Find("error")->Find(key));
  }
  CHECK(engine.requests().empty());
}

TEST_CASE("large bodies are read on the text pool, not on the loop") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  const std::string blanks(100'000, ' ');
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}) {
    INFO(path);
    const auto answer = rig.Post(path, "{" + blanks);
    CHECK_FALSE(answer->started());
    REQUIRE(rig.RunUntil([&] { return answer->ended; }));
    CHECK(answer->status == 400);
  }
  CHECK(rig.Ask("POST", "/v1/chat/completions", kChat + blanks)->Text() == "hello");
  // A client that leaves meanwhile costs the engine nothing.
  const size_t before = engine.requests().size();
  const auto gone = rig.Post("/v1/chat/completions", kChat + blanks);
  gone->Close();
  rig.RunFor(milliseconds(100));
  CHECK_FALSE(gone->started());
  CHECK(engine.requests().size() == before);
}

TEST_CASE("key files") {
  const std::string path = "/tmp/hf-keys-" + std::to_string(::getpid());
  std::ofstream(path) << "# comment\n\n  one \r\ntwo\n";
  const auto keys = api::ReadKeyFile(path);
  REQUIRE(keys.ok());
  CHECK(*keys == std::vector<std::string>{"one", "two"});
  std::ofstream(path) << "# none\n";
  CHECK_FALSE(api::ReadKeyFile(path).ok());
  ::unlink(path.c_str());
  CHECK_FALSE(api::ReadKeyFile(path).ok());
}

}  // namespace
}  // namespace holdfast::testing

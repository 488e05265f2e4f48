#include "tests/unit/api/rig.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "frontend/generation_errors.h"
#include "frontend/text/utf8.h"
#include "tests/support/tiny_cards.h"

namespace holdfast::testing {

void FakeExchange::Send(http::Response response) {
  CHECK_FALSE(started());
  status = response.status;
  headers = std::move(response.headers);
  content_type = std::move(response.content_type);
  body = std::move(response.body);
  ended = true;
}

void FakeExchange::StartStream(int code, std::vector<http::Header> fields, std::string type) {
  CHECK_FALSE(started());
  streamed = true;
  status = code;
  headers = std::move(fields);
  content_type = std::move(type);
}

void FakeExchange::Write(std::string_view bytes) {
  CHECK(streamed);
  CHECK_FALSE(ended);
  CHECK(text::IsValidUtf8(bytes));
  body += bytes;
}

void FakeExchange::EndStream() {
  CHECK(streamed);
  CHECK_FALSE(ended);
  ended = true;
}

void FakeExchange::Close() {
  closed_ = true;
  if (const auto callback = std::exchange(on_closed_, nullptr)) callback();
}

std::string FakeExchange::Header(std::string_view name) const {
  for (const http::Header& header : headers) {
    if (header.name == name) return header.value;
  }
  return {};
}

text::JsonValue FakeExchange::Json() const {
  auto parsed = text::ParseJson(body);
  INFO(body);
  REQUIRE(parsed.ok());
  return *parsed;
}

std::vector<std::string> FakeExchange::Events() const {
  std::vector<std::string> out;
  std::string_view rest = body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    REQUIRE(end != std::string_view::npos);
    const std::string_view event = rest.substr(0, end);
    rest.remove_prefix(end + 2);
    if (event.front() == ':') continue;
    REQUIRE(event.substr(0, 6) == "data: ");
    CHECK(event.find('\n') == std::string_view::npos);
    out.emplace_back(event.substr(6));
  }
  return out;
}

size_t FakeExchange::Comments() const {
  size_t n = body.rfind(':', 0) == 0 ? 1 : 0;
  for (size_t at = body.find("\n\n:"); at != std::string::npos; at = body.find("\n\n:", at + 1)) ++n;
  return n;
}

std::vector<text::JsonValue> FakeExchange::Objects() const {
  if (!streamed) return {Json()};
  std::vector<text::JsonValue> out;
  for (const std::string& event : Events()) {
    if (event == "[DONE]") continue;
    auto parsed = text::ParseJson(event);
    INFO(event);
    REQUIRE(parsed.ok());
    out.push_back(*parsed);
  }
  return out;
}

std::string FakeExchange::Text(uint32_t choice) const {
  std::string out;
  for (const text::JsonValue& object : Objects()) {
    const text::JsonValue* choices = object.Find("choices");
    if (!choices) continue;
    for (const text::JsonValue& one : choices->AsArray()) {
      if (one.Find("index")->AsInt() != choice) continue;
      const text::JsonValue* holder = one.Find("delta") ? one.Find("delta") : one.Find("message");
      const text::JsonValue* content = holder ? holder->Find("content") : one.Find("text");
      if (content && content->is_string()) out += content->AsString();
    }
  }
  return out;
}

std::string FakeExchange::Finish(uint32_t choice) const {
  std::string out;
  for (const text::JsonValue& object : Objects()) {
    const text::JsonValue* choices = object.Find("choices");
    if (!choices) continue;
    for (const text::JsonValue& one : choices->AsArray()) {
      if (one.Find("index")->AsInt() == choice && one.Find("finish_reason")->is_string()) out += one.Find("finish_reason")->AsString();
    }
  }
  return out;
}

std::string FakeExchange::Reasoning(uint32_t choice) const {
  std::string out;
  for (const text::JsonValue& object : Objects()) {
    const text::JsonValue* choices = object.Find("choices");
    for (size_t i = 0; choices && i < choices->AsArray().size(); ++i) {
      const text::JsonValue& one = choices->AsArray()[i];
      if (one.Find("index")->AsInt() != choice) continue;
      const text::JsonValue* holder = one.Find("delta") ? one.Find("delta") : one.Find("message");
      const text::JsonValue* reasoning = holder ? holder->Find("reasoning_content") : nullptr;
      if (reasoning) out += reasoning->AsString();
    }
  }
  return out;
}

std::vector<FakeExchange::Call> FakeExchange::Calls(uint32_t choice) const {
  std::vector<Call> out;
  for (const text::JsonValue& object : Objects()) {
    const text::JsonValue* choices = object.Find("choices");
    for (size_t i = 0; choices && i < choices->AsArray().size(); ++i) {
      const text::JsonValue& one = choices->AsArray()[i];
      if (one.Find("index")->AsInt() != choice) continue;
      const text::JsonValue* holder = one.Find("delta") ? one.Find("delta") : one.Find("message");
      const text::JsonValue* calls = holder ? holder->Find("tool_calls") : nullptr;
      if (!calls) continue;
      CHECK_FALSE(calls->AsArray().empty());
      for (const text::JsonValue& call : calls->AsArray()) {
        const text::JsonValue* function = call.Find("function");
        REQUIRE(function);
        REQUIRE(function->Find("arguments"));
        const std::string& arguments = function->Find("arguments")->AsString();
        if (!streamed) {
          CHECK(call.Find("index") == nullptr);
          CHECK(call.Find("type")->AsString() == "function");
          out.push_back({call.Find("id")->AsString(), function->Find("name")->AsString(), arguments});
          continue;
        }
        const auto index = static_cast<size_t>(call.Find("index")->AsInt());
        if (index == out.size()) {  // the first delta names it and has no arguments yet
          CHECK(call.Find("type")->AsString() == "function");
          CHECK(arguments.empty());
          out.push_back({call.Find("id")->AsString(), function->Find("name")->AsString(), ""});
          continue;
        }
        REQUIRE(index + 1 == out.size());
        CHECK(call.Find("id") == nullptr);
        CHECK(call.Find("type") == nullptr);
        CHECK(function->Find("name") == nullptr);
        CHECK_FALSE(arguments.empty());
        out.back().arguments += arguments;
      }
    }
  }
  return out;
}

Rig::Rig(FakeEngine* engine, RigOptions options)
    : registry(std::make_unique<prometheus::Registry>()), metrics(std::make_unique<api::FrontendMetrics>(*registry)), loop(api::MakeLoop(io)) {
  pool = std::make_unique<api::TextPool>(2, 64);
  state = std::make_unique<api::EngineState>(*loop, *pool, options.parsers);
  api::ChannelOptions channel;
  channel.target = options.target.empty() ? engine->target() : options.target;
  client = api::ConnectEngine(*loop, channel, [](bool) {});
  api::AdminEvents events;
  events.statement = [this](const proto::HealthStatement& statement) { state->OnStatement(statement); };
  events.disconnected = [this] { state->OnDisconnected(); };
  admin = api::ConnectAdmin(*loop, channel, std::move(events));
  state->UseCards(admin.get());
  api = std::make_unique<api::Api>(api::GenerationContext{*loop, *pool, *client, *state, *metrics, options.generation}, *admin, options.api);
  router = std::make_unique<api::Router>(options.router, metrics.get(), [this] { return api->RefuseNow(); });
  api->Install(router.get());
  gate_ = router->Gate(options.listener);
  handler_ = router->Dispatch(options.listener);
  if (options.wait_ready) REQUIRE(RunUntil([&] { return state->ready() && client->connected(); }));
}

Rig::~Rig() {
  api->FailAll(api::Draining());
  io.restart();
  io.poll();
  pool.reset();
  router.reset();
  api.reset();
  admin.reset();
  client.reset();
}

bool Rig::RunUntil(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    if (io.stopped()) io.restart();
    io.run_one_for(std::chrono::milliseconds(5));
  }
  return true;
}

void Rig::RunFor(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  RunUntil([&] { return std::chrono::steady_clock::now() >= end; });
}

std::shared_ptr<FakeExchange> Rig::Send(const std::string& method, const std::string& path, const std::string& body,
                                        std::vector<http::Header> headers) {
  http::Request request;
  request.method = method;
  const size_t mark = path.find('?');
  request.path = path.substr(0, mark);
  if (mark != std::string::npos) request.query = path.substr(mark + 1);
  request.body = body;
  request.headers = std::move(headers);
  request.request_id = "test-request";
  request.peer = "test";
  auto exchange = std::make_shared<FakeExchange>(request);
  if (auto refused = gate_(request)) exchange->Send(std::move(*refused));
  else handler_(exchange);
  return exchange;
}

std::shared_ptr<FakeExchange> Rig::Ask(const std::string& method, const std::string& path, const std::string& body,
                                       std::vector<http::Header> headers) {
  auto exchange = Send(method, path, body, std::move(headers));
  REQUIRE(RunUntil([&] { return exchange->ended; }));
  return exchange;
}

double Rig::Metric(const std::string& sample) {
  const auto answer = Ask("GET", "/metrics");
  const std::string& text = answer->body;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    if (text.compare(at, sample.size() + 1, sample + " ") == 0) return std::stod(text.substr(at + sample.size() + 1));
  }
  return 0;
}

proto::ModelCard TestCard() {
  proto::ModelCard card = TinyBpeCard();
  card.set_fingerprint("0123456789abcdef");
  card.set_name("tiny-test");
  card.set_architecture("llama");
  card.set_vocab_size(static_cast<uint32_t>(card.vocabulary().tokens_size()));
  card.set_context_length(512);
  proto::ChatTemplate& chatml = *card.add_chat_templates();
  chatml.set_source(
      "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
  return card;
}

proto::ModelCard ToolCard() {
  proto::ModelCard card = TestCard();
  card.mutable_chat_templates(0)->set_source(
      "{% if tools %}{{ '<|im_start|>system\n<tools>' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '</tools><|im_end|>\n' }}{% endif %}"
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
      "{% if m['reasoning_content'] %}{{ '<think>' + m['reasoning_content'] + '</think>' }}{% endif %}{{ m['content'] }}"
      "{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}{{ '<tool_call>' }}{{ c['function'] | tojson }}{{ '</tool_call>' }}{% endfor %}{% endif %}"
      "{{ '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if open_thought %}{{ '<think>\n' }}{% endif %}{% endif %}");
  return card;
}

std::vector<uint32_t> ToolAnswer(std::string_view text) {
  std::vector<uint32_t> ids;
  const std::pair<std::string_view, uint32_t> markers[] = {{"<tool_call>", EndOfTurn() + 1}, {"</tool_call>", EndOfTurn() + 2}};
  while (!text.empty()) {
    size_t size = 1;
    uint32_t id = static_cast<unsigned char>(text[0]);
    for (const auto& [marker, token] : markers) {
      if (text.substr(0, marker.size()) != marker) continue;
      size = marker.size();
      id = token;
    }
    ids.push_back(id);
    text.remove_prefix(size);
  }
  ids.push_back(EndOfTurn());
  return ids;
}

uint32_t EndOfTurn() {
  static const uint32_t id = TinyBpeCard().vocabulary().eot();
  return id;
}

std::vector<uint32_t> Answer(std::string_view text) {
  std::vector<uint32_t> ids = ByteIds(text);
  ids.push_back(EndOfTurn());
  return ids;
}

}  // namespace holdfast::testing

#pragma once
// The frontend without sockets of its own: the loop, the clients, the Api and its router against a FakeEngine, driven by the test's thread.
// A request goes through the gate and the handler as the HTTP server would send it.
#include <prometheus/registry.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "frontend/admin_client.h"
#include "frontend/api/handlers.h"
#include "frontend/api/metrics.h"
#include "frontend/api/router.h"
#include "frontend/engine_client.h"
#include "frontend/engine_state.h"
#include "frontend/http/server.h"
#include "frontend/loop.h"
#include "frontend/text/json_value.h"
#include "frontend/text_pool.h"
#include "tests/support/fake_engine.h"

namespace holdfast::testing {

// What a handler did with a request.
class FakeExchange final : public http::Exchange {
 public:
  explicit FakeExchange(http::Request request) : request_(std::move(request)) {}

  const http::Request& request() const override { return request_; }
  void Send(http::Response response) override;
  void StartStream(int status, std::vector<http::Header> headers, std::string content_type) override;
  void Write(std::string_view bytes) override;
  void EndStream() override;
  void Abort() override { aborted = ended = true; }
  bool started() const override { return status != 0; }
  bool closed() const override { return closed_; }
  size_t buffered_bytes() const override { return 0; }
  void OnClosed(std::function<void()> callback) override { on_closed_ = std::move(callback); }

  // The client goes away.
  void Close();

  std::string Header(std::string_view name) const;
  text::JsonValue Json() const;                       // of the body
  // SSE: every data event's text, "[DONE]" included; comments apart. Checks the framing.
  std::vector<std::string> Events() const;
  size_t Comments() const;
  // Concatenated content (chat) or text (completions) of a choice, streamed or not.
  std::string Text(uint32_t choice = 0) const;
  std::string Finish(uint32_t choice = 0) const;
  std::string Reasoning(uint32_t choice = 0) const;
  // The calls of a choice, streamed (fragments joined, their order and shape checked) or not.
  struct Call {
    std::string id, name, arguments;
  };
  std::vector<Call> Calls(uint32_t choice = 0) const;

  int status = 0;
  bool streamed = false, ended = false, aborted = false;
  std::string content_type, body;
  std::vector<http::Header> headers;

 private:
  std::vector<text::JsonValue> Objects() const;       // the body, or all events but [DONE]
  const http::Request request_;
  std::function<void()> on_closed_;
  bool closed_ = false;
};

struct RigOptions {
  api::GenerationOptions generation;
  api::ApiOptions api;
  api::RouterOptions router;
  api::Listener listener;
  bool wait_ready = true;
  std::string target;                                 // another engine, or none
  api::ParserNames parsers;
};

class Rig final {
 public:
  explicit Rig(FakeEngine* engine, RigOptions options = {});
  ~Rig();

  // Runs the loop until `done`, at most 20 s. False when that was not enough.
  bool RunUntil(const std::function<bool()>& done);
  void RunFor(std::chrono::milliseconds time);

  std::shared_ptr<FakeExchange> Send(const std::string& method, const std::string& path, const std::string& body = "",
                                     std::vector<http::Header> headers = {});
  std::shared_ptr<FakeExchange> Post(const std::string& path, const std::string& body) { return Send("POST", path, body); }
  // Sends and runs until there is a whole answer.
  std::shared_ptr<FakeExchange> Ask(const std::string& method, const std::string& path, const std::string& body = "",
                                    std::vector<http::Header> headers = {});

  // The value of a sample of /metrics, 0 when it is not there.
  double Metric(const std::string& sample);

  std::unique_ptr<prometheus::Registry> registry;
  std::unique_ptr<api::FrontendMetrics> metrics;
  boost::asio::io_context io;      // outlived by what its last handlers may touch
  std::unique_ptr<api::Loop> loop;
  std::unique_ptr<api::EngineState> state;
  std::unique_ptr<api::TextPool> pool;
  std::unique_ptr<api::EngineClient> client;
  std::unique_ptr<api::AdminClient> admin;
  std::unique_ptr<api::Api> api;
  std::unique_ptr<api::Router> router;

 private:
  http::HeaderGate gate_;
  http::Handler handler_;
};

// The card the tests serve: TinyBpeCard with a ChatML template.
proto::ModelCard TestCard();
// TestCard with a template that shows tools, calls and thoughts, as hermes and <think> write them.
proto::ModelCard ToolCard();
// Ids of the text, one a byte, with the token for <tool_call> and </tool_call>, and then the end of turn.
std::vector<uint32_t> ToolAnswer(std::string_view text);
// Ids of the text, one a byte, and then the end of turn.
std::vector<uint32_t> Answer(std::string_view text);
uint32_t EndOfTurn();

}  // namespace holdfast::testing

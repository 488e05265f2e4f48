#include "frontend/api/dialect_sinks.h"

#include <utility>

#include "frontend/api/anthropic_events.h"
#include "frontend/api/error.h"
#include "frontend/api/responses_events.h"

namespace holdfast::api {
namespace {

// What both have in common: when the stream begins, and where the text of events goes.
class DialectSink : public GenerationSink {
 public:
  DialectSink(std::shared_ptr<http::Exchange> exchange, bool stream) : exchange_(std::move(exchange)), stream_(stream) {}

  void OnPrompt(const Usage& usage) override { prompt_ = usage; }
  void OnDelta(uint32_t, ChoiceDelta delta) override {
    Start();
    Write(Delta(delta));
  }
  void OnFinish(uint32_t, const ChoiceEnd& end) override {
    Start();
    Write(End(end));
  }
  void OnDone(const Usage& usage) override {
    const std::string last = Done(usage);
    if (stream_) {
      Write(last);
      return exchange_->EndStream();
    }
    http::Response response;
    response.headers = Headers();
    response.body = Body();
    exchange_->Send(std::move(response));
  }
  void OnError(const ApiError& error) override {
    if (!begun_) return exchange_->Send(Refusal(error));
    Write(Fail(error));
    exchange_->EndStream();
  }
  void OnSilence() override {
    // Without the size of the prompt the first event cannot be written yet.
    if (!stream_ || prompt_.prompt_tokens == 0) return;
    Start();
    Write(Silence());
  }

 protected:
  virtual std::string Begin(const Usage& prompt) = 0;
  virtual std::string Delta(const ChoiceDelta& delta) = 0;
  virtual std::string End(const ChoiceEnd& end) = 0;
  virtual std::string Done(const Usage& usage) = 0;
  virtual std::string Fail(const ApiError& error) = 0;
  virtual std::string Silence() = 0;
  virtual std::string Body() const = 0;
  virtual http::Response Refusal(const ApiError& error) const = 0;
  virtual std::vector<http::Header> Headers() const { return {}; }
  const http::Request& request() const { return exchange_->request(); }

 private:
  void Start() {
    if (!stream_ || std::exchange(begun_, true)) return;
    std::vector<http::Header> headers = Headers();
    headers.push_back({"Cache-Control", "no-cache"});
    headers.push_back({"X-Accel-Buffering", "no"});
    exchange_->StartStream(200, std::move(headers), "text/event-stream; charset=utf-8");
    Write(Begin(prompt_));
  }
  void Write(const std::string& events) {
    if (!events.empty()) exchange_->Write(events);
  }

  const std::shared_ptr<http::Exchange> exchange_;
  const bool stream_;
  bool begun_ = false;
  Usage prompt_;
};

class ResponsesSink final : public DialectSink {
 public:
  ResponsesSink(std::shared_ptr<http::Exchange> exchange, const ValidRequest& request, ResponseHead head, std::function<int64_t()> unix_seconds)
      : DialectSink(std::move(exchange), request.stream), writer_(std::move(head), request.mirror, request.stream), now_(std::move(unix_seconds)) {}

 private:
  std::string Begin(const Usage&) override { return writer_.Begin(); }
  std::string Delta(const ChoiceDelta& delta) override { return writer_.Delta(delta); }
  std::string End(const ChoiceEnd& end) override { return writer_.End(end); }
  std::string Done(const Usage& usage) override { return writer_.Done(usage, now_()); }
  std::string Fail(const ApiError& error) override { return writer_.Fail(error); }
  std::string Silence() override { return writer_.Silence(); }
  std::string Body() const override { return writer_.Body(); }
  http::Response Refusal(const ApiError& error) const override { return ErrorResponse(error); }

  ResponsesWriter writer_;
  const std::function<int64_t()> now_;
};

class MessagesSink final : public DialectSink {
 public:
  MessagesSink(std::shared_ptr<http::Exchange> exchange, const ValidRequest& request, ResponseHead head)
      : DialectSink(std::move(exchange), request.stream), writer_(std::move(head), request.stream) {}

 private:
  std::string Begin(const Usage& prompt) override { return writer_.Begin(prompt); }
  std::string Delta(const ChoiceDelta& delta) override { return writer_.Delta(delta); }
  std::string End(const ChoiceEnd& end) override { return writer_.End(end); }
  std::string Done(const Usage& usage) override { return writer_.Done(usage); }
  std::string Fail(const ApiError& error) override { return writer_.Fail(error, request().request_id); }
  std::string Silence() override { return writer_.Silence(); }
  std::string Body() const override { return writer_.Body(); }
  http::Response Refusal(const ApiError& error) const override { return AnthropicErrorResponse(error, request().request_id); }
  std::vector<http::Header> Headers() const override { return {{"request-id", request().request_id}}; }

  AnthropicWriter writer_;
};

}  // namespace

std::unique_ptr<GenerationSink> MakeResponsesSink(std::shared_ptr<http::Exchange> exchange, const ValidRequest& request, ResponseHead head,
                                                  std::function<int64_t()> unix_seconds) {
  return std::make_unique<ResponsesSink>(std::move(exchange), request, std::move(head), std::move(unix_seconds));
}

std::unique_ptr<GenerationSink> MakeMessagesSink(std::shared_ptr<http::Exchange> exchange, const ValidRequest& request, ResponseHead head) {
  return std::make_unique<MessagesSink>(std::move(exchange), request, std::move(head));
}

}  // namespace holdfast::api

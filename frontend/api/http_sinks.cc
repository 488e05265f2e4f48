#include "frontend/api/http_sinks.h"

#include <utility>

#include "frontend/api/error.h"

namespace holdfast::api {
namespace {

class BodySink final : public GenerationSink {
 public:
  BodySink(std::shared_ptr<http::Exchange> exchange, ResponseHead head, uint32_t choices)
      : exchange_(std::move(exchange)), head_(std::move(head)), results_(choices) {}

  void OnDelta(uint32_t choice, ChoiceDelta delta) override { Append(std::move(delta), &results_[choice]); }
  void OnFinish(uint32_t choice, const ChoiceEnd& end) override { results_[choice].finish = end.reason; }
  void OnDone(const Usage& usage) override {
    http::Response response;
    response.body = ResponseBody(head_, results_, usage);
    exchange_->Send(std::move(response));
  }
  void OnError(const ApiError& error) override { exchange_->Send(ErrorResponse(error)); }
  void OnSilence() override {}

 private:
  const std::shared_ptr<http::Exchange> exchange_;
  const ResponseHead head_;
  std::vector<ChoiceResult> results_;
};

class StreamSink final : public GenerationSink {
 public:
  StreamSink(std::shared_ptr<http::Exchange> exchange, ResponseHead head, uint32_t choices, bool include_usage)
      : exchange_(std::move(exchange)), head_(std::move(head)), choices_(choices), include_usage_(include_usage) {}

  void OnDelta(uint32_t choice, ChoiceDelta delta) override {
    Begin();
    exchange_->Write(DeltaEvents(head_, choice, delta));
  }
  void OnFinish(uint32_t choice, const ChoiceEnd& end) override {
    Begin();
    exchange_->Write(SseEvent(FinishChunk(head_, choice, end.reason)));
  }
  void OnDone(const Usage& usage) override {
    std::string tail;
    if (include_usage_) tail = SseEvent(UsageChunk(head_, usage));
    tail += kSseDone;
    exchange_->Write(tail);
    exchange_->EndStream();
  }
  void OnError(const ApiError& error) override {
    if (!begun_) return exchange_->Send(ErrorResponse(error));
    exchange_->Write(SseEvent(ErrorBody(error)));
    exchange_->EndStream();
  }
  void OnSilence() override {
    Begin();
    exchange_->Write(kSseComment);
  }

 private:
  void Begin() {
    if (std::exchange(begun_, true)) return;
    exchange_->StartStream(200, {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}, "text/event-stream; charset=utf-8");
    if (head_.route != Route::kChat) return;
    std::string roles;
    for (uint32_t i = 0; i < choices_; ++i) roles += SseEvent(RoleChunk(head_, i));
    exchange_->Write(roles);
  }

  const std::shared_ptr<http::Exchange> exchange_;
  const ResponseHead head_;
  const uint32_t choices_;
  const bool include_usage_;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<GenerationSink> MakeBodySink(std::shared_ptr<http::Exchange> exchange, ResponseHead head, uint32_t choices) {
  return std::make_unique<BodySink>(std::move(exchange), std::move(head), choices);
}

std::unique_ptr<GenerationSink> MakeStreamSink(std::shared_ptr<http::Exchange> exchange, ResponseHead head, uint32_t choices,
                                               bool include_usage) {
  return std::make_unique<StreamSink>(std::move(exchange), std::move(head), choices, include_usage);
}

}  // namespace holdfast::api

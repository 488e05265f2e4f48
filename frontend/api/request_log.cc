#include "frontend/api/request_log.h"

#include <algorithm>
#include <utility>

#include "frontend/api/json_out.h"
#include "proto/base/clock.h"

namespace holdfast::api {
namespace {

class LoggedSink final : public GenerationSink {
 public:
  LoggedSink(std::unique_ptr<GenerationSink> inner, std::shared_ptr<RequestLog> log, int64_t unix_ms, std::string id, const ValidRequest& request)
      : inner_(std::move(inner)), log_(std::move(log)), began_(Clock::Real().Now()) {
    record_.unix_ms = unix_ms;
    record_.id = std::move(id);
    record_.path = PathOf(request.route);
    record_.stream = request.stream;
    log_->Began();
  }
  ~LoggedSink() override { End(499, "the client left"); }

  void OnPrompt(const Usage& usage) override {
    record_.usage = usage;
    inner_->OnPrompt(usage);
  }
  void OnDelta(uint32_t choice, ChoiceDelta delta) override {
    if (!record_.ttft_ms) record_.ttft_ms = ToMillis(Clock::Real().Now() - began_);
    inner_->OnDelta(choice, std::move(delta));
  }
  void OnFinish(uint32_t choice, const ChoiceEnd& end) override { inner_->OnFinish(choice, end); }
  void OnDone(const Usage& usage) override {
    record_.usage = usage;
    End(200, "");
    inner_->OnDone(usage);
  }
  void OnError(const ApiError& error) override {
    End(error.status, error.message);
    inner_->OnError(error);
  }
  void OnSilence() override { inner_->OnSilence(); }

 private:
  void End(int status, std::string error) {
    if (std::exchange(ended_, true)) return;
    record_.status = status;
    record_.error = std::move(error);
    record_.duration_ms = ToMillis(Clock::Real().Now() - began_);
    log_->Ended(std::move(record_));
  }

  const std::unique_ptr<GenerationSink> inner_;
  const std::shared_ptr<RequestLog> log_;
  const Instant began_;
  RequestRecord record_;
  bool ended_ = false;
};

}  // namespace

void RequestLog::Ended(RequestRecord record) {
  --active_;
  ++ever_;
  if (record.error.empty()) ++completed_;
  prompt_tokens_ += record.usage.prompt_tokens;
  completion_tokens_ += record.usage.completion_tokens;
  ring_.push_back(std::move(record));
  if (ring_.size() > kKept) ring_.pop_front();
}

RequestLog::Page RequestLog::Since(uint64_t since, size_t limit) const {
  Page page;
  const uint64_t first = ever_ - ring_.size();
  // A cursor from before a restart of this process lies ahead of everything: begin anew.
  const uint64_t from = since > ever_ ? first : std::max(since, first);
  const uint64_t to = std::min<uint64_t>(ever_, from + limit);
  for (uint64_t i = from; i < to; ++i) page.records.push_back(&ring_[i - first]);
  page.next_cursor = to;
  return page;
}

RequestLog::Totals RequestLog::Sum() const {
  Totals out;
  out.active = active_;
  out.completed = completed_;
  out.prompt_tokens = prompt_tokens_;
  out.completion_tokens = completion_tokens_;
  std::vector<uint64_t> durations;
  double ttft = 0;
  size_t with_ttft = 0;
  for (const RequestRecord& record : ring_) {
    if (!record.error.empty()) continue;
    durations.push_back(record.duration_ms);
    if (!record.ttft_ms) continue;
    ttft += static_cast<double>(*record.ttft_ms);
    ++with_ttft;
  }
  if (!durations.empty()) {
    const auto at = durations.begin() + static_cast<ptrdiff_t>((durations.size() * 95 + 99) / 100 - 1);
    std::nth_element(durations.begin(), at, durations.end());
    out.p95_ms = static_cast<double>(*at);
  }
  if (with_ttft > 0) out.ttft_mean_ms = ttft / static_cast<double>(with_ttft);
  return out;
}

std::unique_ptr<GenerationSink> MakeLoggedSink(std::unique_ptr<GenerationSink> inner, std::shared_ptr<RequestLog> log, int64_t unix_ms,
                                               std::string id, const ValidRequest& request) {
  return std::make_unique<LoggedSink>(std::move(inner), std::move(log), unix_ms, std::move(id), request);
}

const char* PathOf(Route route) {
  switch (route) {
    case Route::kChat:
      return "/v1/chat/completions";
    case Route::kCompletions:
      return "/v1/completions";
    case Route::kResponses:
      return "/v1/responses";
    case Route::kMessages:
      return "/v1/messages";
  }
  return "";
}

std::string RequestEntries(const RequestLog::Page& page, const std::string& model) {
  JsonOut out;
  out.Key("entries").Begin('[');
  for (const RequestRecord* record : page.records) {
    out.Begin('{')
        .Member("ts", static_cast<double>(record->unix_ms) / 1000)
        .Member("id", record->id)
        .Member("method", "POST")
        .Member("path", record->path)
        .Member("status", record->status)
        .Member("model", model)
        .Member("duration_ms", record->duration_ms)
        .Key("ttft_ms");
    if (record->ttft_ms && record->stream) out.Value(*record->ttft_ms);
    else out.Null();
    out.Member("prompt_tokens", record->usage.prompt_tokens)
        .Member("completion_tokens", record->usage.completion_tokens)
        .Member("cached_tokens", record->usage.cached_tokens)
        .Member("stream", record->stream)
        .Key("error");
    if (record->error.empty()) out.Null();
    else out.Value(record->error);
    out.End('}');
  }
  out.End(']').Member("next_cursor", page.next_cursor);
  return out.Take();
}

}  // namespace holdfast::api

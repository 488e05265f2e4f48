#include "frontend/generation_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/engine.pb.h"

namespace holdfast::api {
namespace {

ApiError Make(int status, std::string message, const char* type, const char* code, uint32_t retry_after_seconds = 0) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.type = type;
  error.code = code;
  if (retry_after_seconds > 0) error.headers.emplace_back("Retry-After", fmt::format("{}", std::clamp<uint32_t>(retry_after_seconds, 1, 30)));
  return error;
}

}  // namespace

ApiError NotReady(const std::string& state, const std::string& reason, uint32_t retry_after_seconds) {
  const bool loading = state == "loading" || state == "warming" || state == "spawning";
  return Make(503, reason.empty() ? "The engine is not ready" : reason, "unavailable_error", loading ? "model_loading" : "engine_unavailable",
              std::max<uint32_t>(retry_after_seconds, 1));
}

ApiError Unavailable(std::string message, uint32_t retry_after_seconds) {
  return Make(503, std::move(message), "unavailable_error", "engine_unavailable", std::max<uint32_t>(retry_after_seconds, 1));
}

ApiError Overloaded(std::string message, uint32_t retry_after_seconds) {
  return Make(429, std::move(message), "overloaded_error", "server_overloaded", std::max<uint32_t>(retry_after_seconds, 1));
}

ApiError KeyBusy(uint32_t max_running) {
  return Make(429, fmt::format("This key has {} request{} at work, as many as it may have", max_running, max_running == 1 ? "" : "s"),
              "rate_limit_error", "rate_limit_exceeded", 1);
}

ApiError Internal(std::string message) { return Make(500, std::move(message), "server_error", "internal_error"); }

ApiError Refused(std::string message, std::string param) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

ApiError PromptTooLong(uint64_t prompt_tokens, uint64_t context, std::string param) {
  ApiError error = Refused(fmt::format("This model's maximum context length is {} tokens, but you requested {} tokens ({} in the {} and at "
                                       "least 1 for the answer). Please reduce the length of the {}.",
                                       context, prompt_tokens + 1, prompt_tokens, param, param),
                           param);
  error.code = "context_length_exceeded";
  error.extra = {{"n_prompt_tokens", static_cast<int64_t>(prompt_tokens)}, {"n_ctx", static_cast<int64_t>(context)}};
  return error;
}

ApiError PromptBeyondCache(uint64_t prompt_tokens, uint64_t limit, std::string param) {
  ApiError error = Refused(fmt::format("The engine's cache holds at most {} tokens of one request, so its maximum context length is {} tokens, "
                                       "but you requested {} tokens ({} in the {} and at least 1 for the answer). Please reduce the length of "
                                       "the {}, or enlarge the cache.",
                                       limit, limit, prompt_tokens + 1, prompt_tokens, param, param),
                           param);
  error.code = "context_length_exceeded";
  error.extra = {{"n_prompt_tokens", static_cast<int64_t>(prompt_tokens)}, {"n_ctx", static_cast<int64_t>(limit)}};
  return error;
}

ApiError Draining() {
  ApiError error = Make(503, "The server is shutting down", "unavailable_error", "server_draining", 1);
  error.headers.emplace_back("Connection", "close");
  return error;
}

ApiError Drained(const std::string& reason, uint32_t retry_after_seconds) {
  return Make(503, reason.empty() ? "The engine takes no new requests now" : reason, "unavailable_error", "server_draining",
              std::max<uint32_t>(retry_after_seconds, 1));
}

ApiError FromEngine(const proto::EngineError& error, uint64_t prompt_tokens, std::string param) {
  const std::string& message = error.message();
  const uint32_t retry = (error.retry_after_ms() + 999) / 1000;
  const auto or_else = [&](const char* text) { return message.empty() ? std::string(text) : message; };
  switch (error.kind()) {
    case proto::EngineError::INVALID:
      return Refused(or_else("The engine refused the request"), "");
    case proto::EngineError::OVERLOADED:
      return Overloaded(or_else("The engine's queue is full"), retry);
    case proto::EngineError::UNAVAILABLE:
      return Unavailable(or_else("The engine is not serving"), retry);
    case proto::EngineError::DRAINING:
      return Drained(message, retry);
    case proto::EngineError::TOO_LONG:
      return PromptBeyondCache(prompt_tokens, error.limit(), param);
    case proto::EngineError::QUARANTINED: {
      ApiError out = Make(500, or_else("This request was being computed when the engine failed, twice; it is not tried again"), "server_error",
                          "request_quarantined");
      out.headers.emplace_back("x-should-retry", "false");
      return out;
    }
    default:
      return Internal(or_else("The engine failed"));
  }
}

}  // namespace holdfast::api

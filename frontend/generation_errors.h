#pragma once
// The errors a request can end with after it was parsed, in OpenAI's words where clients read them (context_length_exceeded), with the
// numbers and what would work.
#include <cstdint>
#include <string>

#include "frontend/api/valid_request.h"

namespace holdfast::proto {
class EngineError;
}

namespace holdfast::api {

// 503 while the engine loads, restarts or is unknown: type unavailable_error, Retry-After.
ApiError NotReady(const std::string& state, const std::string& reason, uint32_t retry_after_seconds);
ApiError Unavailable(std::string message, uint32_t retry_after_seconds);
// 429, Retry-After.
ApiError Overloaded(std::string message, uint32_t retry_after_seconds);
// 429, Retry-After: not the server's limit, but that of the client's key.
ApiError KeyBusy(uint32_t max_running);
// 500 that retrying may help.
ApiError Internal(std::string message);
// 400.
ApiError Refused(std::string message, std::string param);
// 400 context_length_exceeded: the prompt leaves no room for one token in the context, or in the engine's cache.
ApiError PromptTooLong(uint64_t prompt_tokens, uint64_t context, std::string param);
ApiError PromptBeyondCache(uint64_t prompt_tokens, uint64_t limit, std::string param);
// 503: the server is going away.
ApiError Draining();
// The engine was drained by an operator; this process stays.
ApiError Drained(const std::string& reason, uint32_t retry_after_seconds);
ApiError FromEngine(const proto::EngineError& error, uint64_t prompt_tokens, std::string param);

}  // namespace holdfast::api

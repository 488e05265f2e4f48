#pragma once
// Untrusted JSON to a ValidRequest, or the 4xx that says what is wrong, where (param holds the path) and what would work. Pure: no state, no
// I/O; any thread. Linear in the size of the body.
//
// Policy, where clients differ: an unknown field is ignored; a known one with a wrong type or out of range is 400, never coerced (a number
// like 5.0 counts as the integer 5); null means absent. Ranges are OpenAI's; extensions (top_k, min_p, repetition_penalty, ignore_eos,
// cache_prompt, cache_salt, chat_template_kwargs, continue_final_message) are vLLM's or llama.cpp's.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "frontend/api/valid_request.h"
#include "frontend/text/json_value.h"

namespace holdfast::api {

struct RequestContext {
  std::string served_model;                // what answers say, whatever the request named
  std::vector<std::string> aliases;        // other names that are fine in strict mode
  bool strict_model = false;               // a missing name is 400, an unknown one 404
  uint32_t vocab_size = 0;                 // bounds token ids; 0 = not known yet, ids are only checked to be 32-bit
  uint32_t max_n = 128;
  uint32_t max_prompts = 1024;             // completions: prompts in one request
  uint32_t max_messages = 100'000;
  uint32_t max_stop = 4;                   // strings
  uint32_t max_stop_bytes = 4096;          // each
  uint32_t max_logit_bias = 4096;          // entries
  uint32_t max_top_logprobs = 20;
  uint32_t default_completion_tokens = 16; // OpenAI's default for /v1/completions
  Sampling defaults;                       // of the fields a request leaves out
};

using ParsedRequest = std::variant<ValidRequest, ApiError>;

// Parts of text in a message are joined by a newline. An assistant message at the end starts a new turn unless continue_final_message is true.
ParsedRequest ParseChatRequest(const text::JsonValue& body, const RequestContext& context);
ParsedRequest ParseCompletionsRequest(const text::JsonValue& body, const RequestContext& context);
// OpenAI's Responses API, stateless. Instructions and system messages become the one system message that leads; calls, thoughts and texts of
// one turn become one assistant message; types of items and tools that only their own server could serve are passed over.
ParsedRequest ParseResponsesRequest(const text::JsonValue& body, const RequestContext& context);
// Anthropic's Messages API. Words of the assistant's at the end are continued.
ParsedRequest ParseMessagesRequest(const text::JsonValue& body, const RequestContext& context);
// The same without max_tokens, for counting.
ParsedRequest ParseCountTokensRequest(const text::JsonValue& body, const RequestContext& context);

}  // namespace holdfast::api

#pragma once
// Parsed, not validated: what api/request makes of untrusted JSON. Nothing downstream re-checks a field; values are in range, defaults are
// filled in, and what was not supported never got here.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontend/text/json_value.h"

namespace holdfast::api {

struct Sampling {
  double temperature = 1.0;
  double top_p = 1.0;
  uint32_t top_k = 0;                // 0 = off
  double min_p = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::pair<uint32_t, float>> logit_bias;
  std::optional<uint64_t> seed;      // absent: the server draws one
  bool logprobs = false;
  uint32_t top_logprobs = 0;
};

enum class Route : uint8_t { kChat, kCompletions };

struct ValidRequest {
  Route route = Route::kChat;
  std::string model;                         // the served id, not what the client wrote
  Sampling sampling;
  uint32_t n = 1;
  std::optional<uint32_t> max_tokens;        // absent: to the end of the context
  std::vector<std::string> stop;
  bool stream = false;
  bool include_usage = false;
  bool ignore_eos = false;                   // extension, as in vLLM
  bool no_cache = false;                     // extension: cache_prompt false
  std::string cache_salt;

  // Chat: the messages exactly as they go to the template (role developer became system, null content became absent ...).
  text::JsonValue messages;                  // array
  text::JsonValue tools;                     // array or null
  text::JsonValue template_kwargs;           // object or null: chat_template_kwargs, enable_thinking, reasoning_effort
  bool add_generation_prompt = true;
  bool continue_final_message = false;

  // Completions: one entry a prompt, either text or ids.
  struct Prompt {
    std::string text;
    std::vector<uint32_t> tokens;
    bool is_tokens = false;
  };
  std::vector<Prompt> prompts;
  bool echo = false;
};

// An answer that is no 200. Serialised as {"error":{"message","type","param","code", ...extra}}.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;                         // "" = null
  std::string code;                          // "" = null
  std::vector<std::pair<std::string, int64_t>> extra;   // n_prompt_tokens, n_ctx
  std::vector<std::pair<std::string, std::string>> headers;   // Retry-After, Allow, x-should-retry
};

}  // namespace holdfast::api

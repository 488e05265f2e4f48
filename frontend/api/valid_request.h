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

#include "frontend/grammar/response_format.h"
#include "frontend/text/json_value.h"
#include "frontend/tools/format.h"

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

// Whose dialect the answer speaks. All but kCompletions are conversations: `messages` go through the chat template.
enum class Route : uint8_t { kChat, kCompletions, kResponses, kMessages };

// A request, whatever its dialect. Another route is another mapper from its JSON to this, and another GenerationSink for its answer; the
// way between (template, tokens, constraint, engine, parsing of calls and thoughts, resume) is the same for all and reads only this.
struct ValidRequest {
  Route route = Route::kChat;
  std::string input_param = "messages";      // how errors call what the prompt is made of: "messages", "prompt", "input"
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
  text::JsonValue messages;                  // array, in the form that api/request_messages.h describes
  text::JsonValue template_tools;            // array of {"type":"function","function":{name,description,parameters}}, or null: none in the prompt
  text::JsonValue template_kwargs;           // object or null: chat_template_kwargs, enable_thinking, reasoning_effort
  // Conversations: what may be called. `tools` is every tool of the request, in its order, with distinct names; with policy.mode kNone calls
  // are not looked for, and the mapper leaves template_tools null as well. kRequired is enforced by the grammar of the model's format, and so
  // are the schemas of strict tools in kAuto.
  std::vector<::holdfast::tools::Tool> tools;
  std::vector<std::string> tool_paths;       // of each tool's schema in the request, for errors: "tools[0].function.parameters"
  ::holdfast::tools::CallPolicy policy;
  // What the text of an answer has to be; enforced while it is generated (a thought before it is free). With tools and kAuto the answer is
  // either calls or such a text; with kRequired it has no effect, there being no text.
  grammar::ResponseFormat response_format;
  bool separate_reasoning = true;            // false: thoughts stay in the text, as the model wrote them
  bool show_reasoning = true;                // false: thoughts are left out of the answer (they are counted)
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

  // What the answer repeats of the request, for the route's own sink (/v1/responses: instructions, metadata, ...). Not read here.
  text::JsonValue mirror;

  bool is_conversation() const { return route != Route::kCompletions; }
  uint32_t choices() const { return n * (is_conversation() ? 1 : static_cast<uint32_t>(prompts.size())); }
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

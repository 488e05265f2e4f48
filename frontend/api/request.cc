#include "frontend/api/request.h"

#include <fmt/format.h>

#include <cstdint>

#include "frontend/api/request_common.h"
#include "frontend/api/request_messages.h"
#include "frontend/api/request_tools.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

// What the server sets itself; a client may not replace it.
bool ReservedVariable(std::string_view name) {
  for (std::string_view reserved : {"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token", "unk_token",
                                    "pad_token", "raise_exception", "strftime_now", "chat_template", "tokenize"}) {
    if (name == reserved) return true;
  }
  return false;
}

void ReadTemplateVariables(FieldReader* in, ValidRequest* out) {
  JsonValue::Object variables;
  if (const JsonValue* given = in->Get("chat_template_kwargs")) {
    if (!given->is_object()) {
      return in->Fail("chat_template_kwargs", fmt::format("'chat_template_kwargs' must be an object, not {}", KindName(*given)));
    }
    if (given->AsObject().size() > 64) return in->Fail("chat_template_kwargs", "'chat_template_kwargs' has more than 64 members");
    for (const auto& [name, value] : given->AsObject()) {
      if (ReservedVariable(name)) {
        return in->Fail("chat_template_kwargs", fmt::format("'chat_template_kwargs' may not set '{}': the server does", name));
      }
      variables.emplace_back(name, value);
    }
  }
  const auto add = [&](const char* name, JsonValue value) {  // chat_template_kwargs, being more specific, wins
    if (!JsonValue(variables).Find(name)) variables.emplace_back(name, std::move(value));
  };
  if (in->Get("enable_thinking")) {
    bool thinking = true;
    in->Bool("enable_thinking", &thinking);
    add("enable_thinking", thinking);
  }
  if (in->Get("reasoning_effort")) {
    std::string effort;
    in->String("reasoning_effort", 64, &effort);
    add("reasoning_effort", effort);
    // Templates with a switch instead of degrees.
    if (effort == "none") add("enable_thinking", false);
    else if (effort != "minimal") add("enable_thinking", true);
  }
  if (!variables.empty()) out->template_kwargs = std::move(variables);
}

void ReadContinuation(FieldReader* in, ValidRequest* out) {
  in->Bool("continue_final_message", &out->continue_final_message);
  out->add_generation_prompt = !out->continue_final_message;
  in->Bool("add_generation_prompt", &out->add_generation_prompt);
  if (in->failed() || !out->continue_final_message) return;
  if (out->add_generation_prompt) {
    return in->Fail("continue_final_message", "'continue_final_message' and 'add_generation_prompt' exclude each other");
  }
  const JsonValue* role = out->messages.AsArray().back().Find("role");
  if (role->AsString() != "assistant") {
    in->Fail("continue_final_message", "'continue_final_message' needs a last message of role assistant");
  }
}

void ReadMaxTokens(FieldReader* in, ValidRequest* out) {
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {  // the second, newer one wins
    if (!in->Get(key)) continue;
    int64_t value = 1;
    in->Integer(key, 1, INT32_MAX, true, &value);
    out->max_tokens = static_cast<uint32_t>(value);
  }
}

void ReadLogprobs(FieldReader* in, const RequestContext& context, Sampling* out) {
  in->Bool("logprobs", &out->logprobs);
  int64_t top = 0;
  in->Integer("top_logprobs", 0, context.max_top_logprobs, false, &top);
  if (top > 0 && !out->logprobs) in->Fail("top_logprobs", "'top_logprobs' needs \"logprobs\": true");
  out->top_logprobs = static_cast<uint32_t>(top);
}

}  // namespace

ParsedRequest ParseChatRequest(const JsonValue& body, const RequestContext& context) {
  if (!body.is_object()) return InvalidRequest(fmt::format("The body must be a JSON object, not {}", KindName(body)), "");
  ValidRequest out;
  out.route = Route::kChat;
  FieldReader in(body);
  ReadMessages(&in, context, &out);
  if (in.failed()) return in.TakeError();
  ReadCommon(&in, context, &out);
  ReadLogprobs(&in, context, &out.sampling);
  ReadMaxTokens(&in, &out);
  ReadTools(&in, &out);
  ReadReasoning(&in, &out);
  if (in.failed()) return in.TakeError();
  ReadTemplateVariables(&in, &out);
  ReadContinuation(&in, &out);
  if (in.failed()) return in.TakeError();
  return out;
}

}  // namespace holdfast::api

#include "frontend/api/grpc_chat_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "frontend/generation_errors.h"
#include "frontend/text/json_value.h"
#include "proto/base/status_wire.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

void Set(JsonValue::Object* object, std::string key, JsonValue value) {
  const auto found = std::find_if(object->begin(), object->end(), [&](const JsonValue::Member& member) { return member.first == key; });
  if (found != object->end()) found->second = std::move(value);
  else object->emplace_back(std::move(key), std::move(value));
}

}  // namespace

std::variant<std::string, ApiError> ToJsonBody(const proto::ChatRequest& request, bool stream) {
  JsonValue::Object body;
  if (!request.model().empty()) Set(&body, "model", request.model());
  JsonValue::Array messages;
  for (const proto::ChatMessage& one : request.messages()) {
    JsonValue::Object message;
    message.emplace_back("role", one.role());
    message.emplace_back("content", one.content());
    if (!one.name().empty()) message.emplace_back("name", one.name());
    if (!one.tool_call_id().empty()) message.emplace_back("tool_call_id", one.tool_call_id());
    if (!one.reasoning_content().empty()) message.emplace_back("reasoning_content", one.reasoning_content());
    if (!one.tool_calls_json().empty()) {
      auto calls = text::ParseJson(one.tool_calls_json());
      if (!calls.ok() || !calls->is_array()) {
        return Refused("tool_calls_json must be a JSON array", fmt::format("messages[{}].tool_calls_json", messages.size()));
      }
      message.emplace_back("tool_calls", *std::move(calls));
    }
    messages.emplace_back(std::move(message));
  }
  Set(&body, "messages", std::move(messages));
  if (request.has_max_tokens()) Set(&body, "max_tokens", static_cast<int64_t>(request.max_tokens()));
  if (request.has_temperature()) Set(&body, "temperature", request.temperature());
  if (request.has_top_p()) Set(&body, "top_p", request.top_p());
  if (request.has_top_k()) Set(&body, "top_k", static_cast<int64_t>(request.top_k()));
  if (request.has_min_p()) Set(&body, "min_p", request.min_p());
  if (request.has_presence_penalty()) Set(&body, "presence_penalty", request.presence_penalty());
  if (request.has_frequency_penalty()) Set(&body, "frequency_penalty", request.frequency_penalty());
  if (request.has_repetition_penalty()) Set(&body, "repetition_penalty", request.repetition_penalty());
  if (request.has_seed()) Set(&body, "seed", static_cast<int64_t>(request.seed()));
  if (request.stop_size() > 0) Set(&body, "stop", JsonValue::Array(request.stop().begin(), request.stop().end()));
  if (request.has_n()) Set(&body, "n", static_cast<int64_t>(request.n()));
  if (request.has_logprobs()) Set(&body, "logprobs", request.logprobs());
  if (request.has_top_logprobs()) Set(&body, "top_logprobs", static_cast<int64_t>(request.top_logprobs()));
  if (request.logit_bias_size() > 0) {
    const std::map<std::string, double> sorted(request.logit_bias().begin(), request.logit_bias().end());
    JsonValue::Object bias;
    for (const auto& [token, value] : sorted) bias.emplace_back(token, value);
    Set(&body, "logit_bias", std::move(bias));
  }
  for (const auto& [key, field, text] : {std::tuple{"tools", "tools_json", &request.tools_json()},
                                         std::tuple{"tool_choice", "tool_choice_json", &request.tool_choice_json()},
                                         std::tuple{"response_format", "response_format_json", &request.response_format_json()}}) {
    if (text->empty()) continue;
    auto value = text::ParseJson(*text);
    if (!value.ok()) return Refused(fmt::format("{}: {}", field, MessageOf(value.status())), field);
    Set(&body, key, *std::move(value));
  }
  if (request.has_parallel_tool_calls()) Set(&body, "parallel_tool_calls", request.parallel_tool_calls());
  if (!request.reasoning_effort().empty()) Set(&body, "reasoning_effort", request.reasoning_effort());
  if (!request.extra_json().empty()) {
    const auto extra = text::ParseJson(request.extra_json());
    if (!extra.ok()) return Refused("extra_json: " + std::string(MessageOf(extra.status())), "extra_json");
    if (!extra->is_object()) return Refused("extra_json must be a JSON object", "extra_json");
    for (const auto& [key, value] : extra->AsObject()) Set(&body, key, value);
  }
  // How the answer travels is the method's business.
  Set(&body, "stream", stream);
  body.erase(std::remove_if(body.begin(), body.end(), [](const JsonValue::Member& member) { return member.first == "stream_options"; }),
             body.end());
  return JsonValue(std::move(body)).Dump();
}

void FillUsage(const Usage& usage, proto::Usage* out) {
  out->set_prompt_tokens(static_cast<uint32_t>(usage.prompt_tokens));
  out->set_completion_tokens(static_cast<uint32_t>(usage.completion_tokens));
  out->set_total_tokens(static_cast<uint32_t>(usage.prompt_tokens + usage.completion_tokens));
  out->set_cached_tokens(static_cast<uint32_t>(usage.cached_tokens));
  out->set_reasoning_tokens(static_cast<uint32_t>(usage.reasoning_tokens));
}

void FillReply(const ResponseHead& head, const std::vector<ChoiceResult>& choices, const Usage& usage, proto::ChatReply* out) {
  out->set_id(head.id);
  out->set_model(head.model);
  for (uint32_t i = 0; i < choices.size(); ++i) {
    proto::ChatChoice& choice = *out->add_choices();
    choice.set_index(i);
    choice.mutable_message()->set_role("assistant");
    choice.mutable_message()->set_content(choices[i].text);
    choice.mutable_message()->set_reasoning_content(choices[i].reasoning);
    if (!choices[i].tool_calls.empty()) choice.mutable_message()->set_tool_calls_json(ToolCallsJson(choices[i].tool_calls, true));
    choice.set_finish_reason(std::string(FinishReasonName(choices[i].finish)));
    if (head.logprobs) choice.set_logprobs_json(LogprobsJson(head, choices[i].logprobs));
  }
  FillUsage(usage, out->mutable_usage());
}

proto::ChatChunk NewChunk(const ResponseHead& head, uint32_t choice) {
  proto::ChatChunk chunk;
  chunk.set_id(head.id);
  chunk.set_model(head.model);
  chunk.set_index(choice);
  return chunk;
}

}  // namespace holdfast::api

#include "frontend/api/response.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <utility>

#include "frontend/api/json_out.h"
#include "frontend/text/utf8.h"
#include "proto/base/random.h"

namespace holdfast::api {
namespace {

// OpenAI's documented floor; also what a probability of zero becomes.
float ClampLogprob(float logprob) { return std::isfinite(logprob) ? std::max(logprob, -9999.0f) : -9999.0f; }

void Bytes(const std::string& bytes, JsonOut* out) {
  out->Begin('[');
  for (const char c : bytes) out->Value(static_cast<unsigned>(static_cast<unsigned char>(c)));
  out->End(']');
}

void ChatLogprobs(const ResponseHead& head, const std::vector<TokenInfo>& entries, JsonOut* out) {
  out->Begin('{').Key("content").Begin('[');
  for (const TokenInfo& entry : entries) {
    out->Begin('{').Member("token", entry.bytes).Member("logprob", ClampLogprob(entry.logprob.value_or(0))).Key("bytes");
    Bytes(entry.bytes, out);
    out->Key("top_logprobs").Begin('[');
    for (size_t i = 0; i < entry.top.size() && i < head.top_logprobs; ++i) {
      out->Begin('{').Member("token", entry.top[i].bytes).Member("logprob", ClampLogprob(entry.top[i].logprob)).Key("bytes");
      Bytes(entry.top[i].bytes, out);
      out->End('}');
    }
    out->End(']').End('}');
  }
  out->End(']').Key("refusal").Null().End('}');
}

// A token of completions' logprobs is a JSON string and a key: one that is no UTF-8 by itself is spelled "bytes:\xe2\x82", so that it can
// be told from others.
std::string TokenText(const std::string& bytes) {
  if (text::IsValidUtf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

void CompletionLogprobs(const ResponseHead& head, const std::vector<TokenInfo>& entries, JsonOut* out) {
  out->Begin('{').Key("tokens").Begin('[');
  for (const TokenInfo& entry : entries) out->Value(TokenText(entry.bytes));
  out->End(']').Key("token_logprobs").Begin('[');
  for (const TokenInfo& entry : entries) {
    if (entry.logprob) out->Value(ClampLogprob(*entry.logprob));
    else out->Null();
  }
  out->End(']').Key("top_logprobs").Begin('[');
  for (const TokenInfo& entry : entries) {
    if (!entry.logprob) {
      out->Null();
      continue;
    }
    out->Begin('{');
    bool has_own = false;
    std::vector<std::string> seen;
    for (size_t i = 0; i < entry.top.size() && i < head.top_logprobs; ++i) {
      std::string token = TokenText(entry.top[i].bytes);
      if (std::find(seen.begin(), seen.end(), token) != seen.end()) continue;  // two ids of one text: the likelier stays
      has_own |= entry.top[i].bytes == entry.bytes;
      out->Member(token, ClampLogprob(entry.top[i].logprob));
      seen.push_back(std::move(token));
    }
    if (!has_own) out->Member(TokenText(entry.bytes), ClampLogprob(*entry.logprob));
    out->End('}');
  }
  out->End(']').Key("text_offset").Begin('[');
  for (const TokenInfo& entry : entries) out->Value(entry.text_offset);
  out->End(']').End('}');
}

void Logprobs(const ResponseHead& head, const std::vector<TokenInfo>& entries, JsonOut* out) {
  if (head.route == Route::kChat) ChatLogprobs(head, entries, out);
  else CompletionLogprobs(head, entries, out);
}

void ToolCall(const ToolCallDelta& call, bool whole, JsonOut* out) {
  out->Begin('{');
  if (!whole) out->Member("index", call.index);
  if (!call.id.empty()) out->Member("id", call.id).Member("type", "function");
  out->Key("function").Begin('{');
  if (!call.name.empty()) out->Member("name", call.name);
  if (whole || !call.name.empty() || !call.arguments.empty()) out->Member("arguments", call.arguments);
  out->End('}').End('}');
}

void Message(const ChoiceResult& choice, JsonOut* out) {
  out->Begin('{').Member("role", "assistant").Key("content");
  if (choice.text.empty() && !choice.tool_calls.empty()) out->Null();
  else out->Value(choice.text);
  if (!choice.reasoning.empty()) out->Member("reasoning_content", choice.reasoning);
  out->Key("refusal").Null();
  if (!choice.tool_calls.empty()) out->Key("tool_calls").Raw(ToolCallsJson(choice.tool_calls, true));
  out->End('}');
}

void UsageObject(const Usage& usage, JsonOut* out) {
  out->Begin('{')
      .Member("prompt_tokens", usage.prompt_tokens)
      .Member("completion_tokens", usage.completion_tokens)
      .Member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  out->Key("prompt_tokens_details").Begin('{').Member("cached_tokens", usage.cached_tokens).End('}');
  out->Key("completion_tokens_details").Begin('{').Member("reasoning_tokens", usage.reasoning_tokens).End('}').End('}');
}

void Head(const ResponseHead& head, const char* object, JsonOut* out) {
  out->Begin('{')
      .Member("id", head.id)
      .Member("object", object)
      .Member("created", head.created)
      .Member("model", head.model)
      .Member("system_fingerprint", head.fingerprint);
}

const char* ChunkObject(const ResponseHead& head) {
  return head.route == Route::kChat ? "chat.completion.chunk" : "text_completion";
}

// One chunk with one choice; `content` writes the delta or text member.
template <class F>
std::string Chunk(const ResponseHead& head, uint32_t choice, const std::vector<TokenInfo>* logprobs, const FinishReason* finish, F content) {
  JsonOut out;
  Head(head, ChunkObject(head), &out);
  out.Key("choices").Begin('[').Begin('{').Member("index", choice);
  content(&out);
  out.Key("logprobs");
  if (logprobs) Logprobs(head, *logprobs, &out);
  else out.Null();
  out.Key("finish_reason");
  if (finish) out.Value(FinishReasonName(*finish));
  else out.Null();
  out.End('}').End(']');
  if (head.usage_chunk) out.Key("usage").Null();
  out.End('}');
  return out.Take();
}

}  // namespace

std::string NewResponseId(Route route) {
  static constexpr char kDigits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  static std::atomic<uint64_t> counter{EntropySeed()};
  std::string id;
  switch (route) {
    case Route::kChat: id = "chatcmpl-"; break;
    case Route::kCompletions: id = "cmpl-"; break;
    case Route::kResponses: id = "resp_"; break;
    case Route::kMessages: id = "msg_"; break;
  }
  uint64_t a = Mix64(EntropySeed() ^ counter.fetch_add(1)), b = Mix64(a ^ EntropySeed());
  for (int i = 0; i < 12; ++i, a /= 36) id.push_back(kDigits[a % 36]);
  for (int i = 0; i < 12; ++i, b /= 36) id.push_back(kDigits[b % 36]);
  return id;
}

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kToolCalls: return "tool_calls";
  }
  return "stop";
}

std::string ResponseBody(const ResponseHead& head, const std::vector<ChoiceResult>& choices, const Usage& usage) {
  const bool chat = head.route == Route::kChat;
  JsonOut out;
  Head(head, chat ? "chat.completion" : "text_completion", &out);
  out.Key("choices").Begin('[');
  for (uint32_t i = 0; i < choices.size(); ++i) {
    out.Begin('{').Member("index", i);
    if (chat) Message(choices[i], &out.Key("message"));
    else out.Member("text", choices[i].text);
    out.Key("logprobs");
    if (head.logprobs) Logprobs(head, choices[i].logprobs, &out);
    else out.Null();
    out.Member("finish_reason", FinishReasonName(choices[i].finish)).End('}');
  }
  out.End(']').Key("usage");
  UsageObject(usage, &out);
  out.End('}');
  return out.Take();
}

std::string RoleChunk(const ResponseHead& head, uint32_t choice) {
  return Chunk(head, choice, nullptr, nullptr, [](JsonOut* out) {
    out->Key("delta").Begin('{').Member("role", "assistant").Member("content", "").End('}');
  });
}

std::string DeltaEvents(const ResponseHead& head, uint32_t choice, const ChoiceDelta& delta) {
  if (head.route == Route::kCompletions) {
    return SseEvent(Chunk(head, choice, head.logprobs ? &delta.logprobs : nullptr, nullptr, [&](JsonOut* out) { out->Member("text", delta.text); }));
  }
  std::string events;
  const auto add = [&](const std::vector<TokenInfo>* logprobs, auto members) {
    events += SseEvent(Chunk(head, choice, logprobs, nullptr, [&](JsonOut* out) {
      out->Key("delta").Begin('{');
      members(out);
      out->End('}');
    }));
  };
  if (!delta.reasoning.empty()) add(nullptr, [&](JsonOut* out) { out->Member("reasoning_content", delta.reasoning); });
  if (!delta.text.empty() || !delta.logprobs.empty()) {
    add(head.logprobs ? &delta.logprobs : nullptr, [&](JsonOut* out) {
      if (!delta.text.empty()) out->Member("content", delta.text);
    });
  }
  for (const ToolCallDelta& call : delta.tool_calls) {
    const auto add_call = [&](const ToolCallDelta& part) {
      add(nullptr, [&](JsonOut* out) { out->Key("tool_calls").Raw(ToolCallsJson({part}, false)); });
    };
    if (!call.id.empty()) add_call({call.index, call.id, call.name, "", false});
    if (!call.arguments.empty()) add_call({call.index, "", "", call.arguments, call.complete});
  }
  return events;
}

std::string FinishChunk(const ResponseHead& head, uint32_t choice, FinishReason reason) {
  return Chunk(head, choice, nullptr, &reason, [&](JsonOut* out) {
    if (head.route == Route::kCompletions) out->Member("text", "");
    else out->Key("delta").Begin('{').End('}');
  });
}

std::string UsageChunk(const ResponseHead& head, const Usage& usage) {
  JsonOut out;
  Head(head, ChunkObject(head), &out);
  out.Key("choices").Begin('[').End(']').Key("usage");
  UsageObject(usage, &out);
  out.End('}');
  return out.Take();
}

void Append(ChoiceDelta delta, ChoiceResult* result) {
  result->reasoning += delta.reasoning;
  result->text += delta.text;
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(result->logprobs));
  for (ToolCallDelta& call : delta.tool_calls) {
    if (call.index >= result->tool_calls.size()) {
      result->tool_calls.push_back(std::move(call));
      continue;
    }
    ToolCallDelta& known = result->tool_calls[call.index];
    known.arguments += call.arguments;
    known.complete |= call.complete;
  }
}

std::string ToolCallsJson(const std::vector<ToolCallDelta>& calls, bool whole) {
  JsonOut out;
  out.Begin('[');
  for (const ToolCallDelta& call : calls) ToolCall(call, whole, &out);
  out.End(']');
  return out.Take();
}

std::string LogprobsJson(const ResponseHead& head, const std::vector<TokenInfo>& logprobs) {
  JsonOut out;
  Logprobs(head, logprobs, &out);
  return out.Take();
}

std::string SseEvent(std::string_view json) {
  std::string out;
  out.reserve(json.size() + 8);
  out += "data: ";
  out += json;
  out += "\n\n";
  return out;
}

}  // namespace holdfast::api

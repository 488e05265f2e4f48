#include "frontend/api/response.h"

#include <algorithm>
#include <atomic>
#include <cmath>

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

void UsageObject(const Usage& usage, JsonOut* out) {
  out->Begin('{')
      .Member("prompt_tokens", usage.prompt_tokens)
      .Member("completion_tokens", usage.completion_tokens)
      .Member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  out->Key("prompt_tokens_details").Begin('{').Member("cached_tokens", usage.cached_tokens).End('}').End('}');
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
    if (chat) {
      out.Key("message").Begin('{').Member("role", "assistant").Member("content", choices[i].text).Key("refusal").Null().End('}');
    } else {
      out.Member("text", choices[i].text);
    }
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

std::string DeltaChunk(const ResponseHead& head, uint32_t choice, const ChoiceDelta& delta) {
  return Chunk(head, choice, head.logprobs ? &delta.logprobs : nullptr, nullptr, [&](JsonOut* out) {
    if (head.route == Route::kCompletions) {
      out->Member("text", delta.text);
      return;
    }
    out->Key("delta").Begin('{');
    if (!delta.text.empty()) out->Member("content", delta.text);
    out->End('}');
  });
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

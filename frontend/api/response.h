#pragma once
// OpenAI's JSON, exactly: bodies, stream chunks, logprobs and usage, and the SSE frames they travel in. Text in,
// text out; no state.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/api/valid_request.h"
#include "frontend/generation.h"

namespace holdfast::api {

// What every chunk of an answer repeats.
struct ResponseHead {
  Route route = Route::kChat;
  std::string id;                    // "chatcmpl-...", "cmpl-...", "resp_..." or "msg_..."
  int64_t created = 0;               // unix seconds
  std::string model;
  std::string fingerprint;           // system_fingerprint
  bool logprobs = false;             // the request asked for them
  uint32_t top_logprobs = 0;
  bool usage_chunk = false;          // stream_options.include_usage: other chunks carry "usage":null
};

// A new id: prefix + 24 random lower-case letters and digits.
std::string NewResponseId(Route route);

struct ChoiceResult {
  std::string reasoning, text;
  std::vector<TokenInfo> logprobs;
  std::vector<ToolCallDelta> tool_calls;   // whole, as far as they came
  FinishReason finish = FinishReason::kStop;
};
// Adds what is new.
void Append(ChoiceDelta delta, ChoiceResult* result);

std::string_view FinishReasonName(FinishReason reason);

// The body of an answer that is not streamed.
std::string ResponseBody(const ResponseHead& head, const std::vector<ChoiceResult>& choices, const Usage& usage);

// Chunks of a stream, without framing.
std::string RoleChunk(const ResponseHead& head, uint32_t choice);    // chat only: {"role":"assistant","content":""}
// The events of a delta, framed, in this order: reasoning_content, content with its logprobs, and for each call one that names it (id, type,
// name, arguments "") and one with arguments only.
std::string DeltaEvents(const ResponseHead& head, uint32_t choice, const ChoiceDelta& delta);
std::string FinishChunk(const ResponseHead& head, uint32_t choice, FinishReason reason);
std::string UsageChunk(const ResponseHead& head, const Usage& usage);

// [{"index","id","type","function":{"name","arguments"}}, ...]: fragments (members only where they are new), or with `whole` the calls of a
// message, which have no index.
std::string ToolCallsJson(const std::vector<ToolCallDelta>& calls, bool whole);

// {"content":[...],"refusal":null} or {"tokens":[...],...}, for gRPC.
std::string LogprobsJson(const ResponseHead& head, const std::vector<TokenInfo>& logprobs);

// "data: " + json + blank line. The JSON has no line break (they are escaped in it).
std::string SseEvent(std::string_view json);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseComment = ": keep-alive\n\n";

}  // namespace holdfast::api

#include "frontend/api/responses_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "proto/base/check.h"

namespace holdfast::api {
namespace {

// One silence is about ten seconds long.
constexpr uint32_t kSilencesAnEvent = 6;

void LogprobEntry(std::string_view bytes, float logprob, JsonOut* out) {
  out->Begin('{').Member("token", bytes).Member("logprob", std::isfinite(logprob) ? std::max(logprob, -9999.0f) : -9999.0f).Key("bytes").Begin('[');
  for (const char c : bytes) out->Value(static_cast<unsigned>(static_cast<unsigned char>(c)));
  out->End(']');
}

// The elements of a logprobs array.
std::string LogprobElements(const ResponseHead& head, const std::vector<TokenInfo>& entries) {
  JsonOut out;
  for (const TokenInfo& entry : entries) {
    LogprobEntry(entry.bytes, entry.logprob.value_or(0), &out);
    out.Key("top_logprobs").Begin('[');
    for (size_t i = 0; i < entry.top.size() && i < head.top_logprobs; ++i) {
      LogprobEntry(entry.top[i].bytes, entry.top[i].logprob, &out);
      out.End('}');
    }
    out.End(']').End('}');
  }
  return out.Take();
}

std::string Quote(std::string_view text) { return JsonOut().Value(text).text(); }

std::string ErrorJson(const ApiError& error) {
  std::string code = error.code;
  if (code.empty()) code = error.status == 429 ? "rate_limit_exceeded" : error.status < 500 ? "invalid_prompt" : "server_error";
  JsonOut out;
  out.Begin('{').Member("code", code).Member("message", error.message).End('}');
  return out.Take();
}

}  // namespace

std::string NamedSseEvent(std::string_view name, std::string_view json) { return fmt::format("event: {}\ndata: {}\n\n", name, json); }

ResponsesWriter::ResponsesWriter(ResponseHead head, const text::JsonValue& mirror, bool stream) : head_(std::move(head)), stream_(stream) {
  token_ = head_.id.substr(head_.id.find('_') + 1);
  for (const auto& [key, value] : mirror.AsObject()) {
    mirror_ += ',' + Quote(key) + ':';
    value.DumpTo(&mirror_);
  }
}

void ResponsesWriter::Event(std::string_view type, const std::string& members, std::string* out) {
  if (!stream_) return;
  *out += NamedSseEvent(type, fmt::format(R"({{"type":"{}","sequence_number":{}{}}})", type, sequence_++, members));
}

std::string ResponsesWriter::PartJson(const Item& item, bool begun) const {
  const std::string text = begun ? std::string(R"("")") : Quote(item.text);
  if (item.kind == Kind::kReasoning) return fmt::format(R"({{"type":"reasoning_text","text":{}}})", text);
  return fmt::format(R"({{"type":"output_text","text":{},"annotations":[],"logprobs":[{}]}})", text, begun ? "" : item.logprobs);
}

std::string ResponsesWriter::ItemJson(const Item& item, bool begun) const {
  const char* const status = begun ? "in_progress" : item.cut ? "incomplete" : "completed";
  const std::string part = begun ? "" : PartJson(item, false);
  switch (item.kind) {
    case Kind::kReasoning:
      return fmt::format(R"({{"id":"{}","type":"reasoning","summary":[],"content":[{}],"encrypted_content":null,"status":"{}"}})", item.id, part,
                         status);
    case Kind::kMessage:
      return fmt::format(R"({{"id":"{}","type":"message","status":"{}","role":"assistant","content":[{}]}})", item.id, status, part);
    case Kind::kCall:
      return fmt::format(R"({{"id":"{}","type":"function_call","status":"{}","arguments":{},"call_id":{},"name":{}}})", item.id, status,
                         begun ? std::string(R"("")") : Quote(item.text), Quote(item.call_id), Quote(item.name));
  }
  return {};
}

std::string ResponsesWriter::Response(std::string_view status) const {
  if (over_ && error_.empty()) status = incomplete_ ? "incomplete" : "completed";
  std::string output;
  for (const Item& item : items_) {
    if (!output.empty()) output += ',';
    output += ItemJson(item, false);
  }
  return fmt::format(
      R"({{"id":"{}","object":"response","created_at":{},"completed_at":{},"status":"{}","error":{},"incomplete_details":{},"model":{},"output":[{}],"usage":{}{}}})",
      head_.id, head_.created, status == "completed" && over_ ? fmt::format("{}", completed_at_) : "null", status, error_.empty() ? "null" : error_,
      incomplete_ ? R"({"reason":"max_output_tokens"})" : "null", Quote(head_.model), output, usage_.empty() ? "null" : usage_, mirror_);
}

std::string ResponsesWriter::Begin() {
  std::string out;
  Event("response.created", ",\"response\":" + Response("in_progress"), &out);
  Event("response.in_progress", ",\"response\":" + Response("in_progress"), &out);
  return out;
}

std::string ResponsesWriter::Silence() {
  std::string out;
  if (++silences_ % kSilencesAnEvent == 0) Event("response.in_progress", ",\"response\":" + Response("in_progress"), &out);
  else if (stream_) out = kSseComment;
  return out;
}

ResponsesWriter::Item& ResponsesWriter::Open(Kind kind, std::string* out) {
  if (!items_.empty() && items_.back().open && items_.back().kind == kind && kind != Kind::kCall) return items_.back();
  Close(false, out);
  Item item;
  item.kind = kind;
  const char* const prefix = kind == Kind::kReasoning ? "rs" : kind == Kind::kMessage ? "msg" : "fc";
  item.id = fmt::format("{}_{}{:02x}", prefix, token_, items_.size());
  items_.push_back(std::move(item));
  return items_.back();
}

void ResponsesWriter::Close(bool cut, std::string* out) {
  if (items_.empty() || !items_.back().open) return;
  Item& item = items_.back();
  item.open = false;
  item.cut = cut;
  // A call that was cut off is never told as done: there are agents that run it then.
  if (item.kind == Kind::kCall && !item.whole) {
    item.cut = true;
    return;
  }
  const std::string at = fmt::format(R"(,"item_id":"{}","output_index":{})", item.id, items_.size() - 1);
  const std::string item_event = fmt::format(R"(,"output_index":{},"item":{})", items_.size() - 1, ItemJson(item, false));
  switch (item.kind) {
    case Kind::kReasoning:
      Event("response.reasoning_text.done", fmt::format(R"({},"content_index":0,"text":{})", at, Quote(item.text)), out);
      Event("response.content_part.done", fmt::format(R"({},"content_index":0,"part":{})", at, PartJson(item, false)), out);
      break;
    case Kind::kMessage:
      Event("response.output_text.done",
            fmt::format(R"({},"content_index":0,"text":{},"logprobs":[{}])", at, Quote(item.text), item.logprobs), out);
      Event("response.content_part.done", fmt::format(R"({},"content_index":0,"part":{})", at, PartJson(item, false)), out);
      break;
    case Kind::kCall:
      Event("response.function_call_arguments.done",
            fmt::format(R"({},"name":{},"arguments":{})", at, Quote(item.name), Quote(item.text)), out);
      break;
  }
  Event("response.output_item.done", item_event, out);
}

std::string ResponsesWriter::Delta(const ChoiceDelta& delta) {
  std::string out;
  const auto add = [&](Kind kind, std::string_view text, const std::vector<TokenInfo>* logprobs) {
    const size_t before = items_.size();
    Item& item = Open(kind, &out);
    const std::string index = fmt::format(R"("output_index":{})", items_.size() - 1);
    const std::string at = fmt::format(R"(,"item_id":"{}",{},"content_index":0)", item.id, index);
    if (items_.size() > before) {
      Event("response.output_item.added", fmt::format(R"(,{},"item":{})", index, ItemJson(item, true)), &out);
      Event("response.content_part.added", fmt::format(R"({},"part":{})", at, PartJson(item, true)), &out);
    }
    item.text += text;
    if (kind == Kind::kReasoning) {
      Event("response.reasoning_text.delta", fmt::format(R"({},"delta":{})", at, Quote(text)), &out);
      return;
    }
    const std::string entries = logprobs && head_.logprobs ? LogprobElements(head_, *logprobs) : std::string();
    if (!entries.empty()) item.logprobs += (item.logprobs.empty() ? "" : ",") + entries;
    Event("response.output_text.delta", fmt::format(R"({},"delta":{},"logprobs":[{}])", at, Quote(text), entries), &out);
  };
  if (!delta.reasoning.empty()) add(Kind::kReasoning, delta.reasoning, nullptr);
  if (!delta.text.empty() || (head_.logprobs && !delta.logprobs.empty())) add(Kind::kMessage, delta.text, &delta.logprobs);
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.id.empty()) {
      Item& item = Open(Kind::kCall, &out);
      item.call_id = call.id;
      item.name = call.name;
      Event("response.output_item.added", fmt::format(R"(,"output_index":{},"item":{})", items_.size() - 1, ItemJson(item, true)), &out);
    }
    HF_CHECK(!items_.empty() && items_.back().kind == Kind::kCall && items_.back().open);
    Item& item = items_.back();
    if (!call.arguments.empty()) {
      item.text += call.arguments;
      Event("response.function_call_arguments.delta",
            fmt::format(R"(,"item_id":"{}","output_index":{},"delta":{})", item.id, items_.size() - 1, Quote(call.arguments)), &out);
    }
    if (call.complete) {
      item.whole = true;
      Close(false, &out);
    }
  }
  return out;
}

std::string ResponsesWriter::End(const ChoiceEnd& end) {
  std::string out;
  incomplete_ = end.reason == FinishReason::kLength;
  Close(incomplete_, &out);
  return out;
}

std::string ResponsesWriter::Done(const Usage& usage, int64_t unix_seconds) {
  over_ = true;
  completed_at_ = std::max(unix_seconds, head_.created);
  usage_ = fmt::format(
      R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
      usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens, usage.prompt_tokens + usage.completion_tokens);
  std::string out;
  Event(incomplete_ ? "response.incomplete" : "response.completed", ",\"response\":" + Body(), &out);
  return out;
}

std::string ResponsesWriter::Fail(const ApiError& error) {
  over_ = true;
  error_ = ErrorJson(error);
  for (Item& item : items_) {
    if (std::exchange(item.open, false)) item.cut = true;
  }
  std::string out;
  Event("response.failed", ",\"response\":" + Response("failed"), &out);
  return out;
}

}  // namespace holdfast::api

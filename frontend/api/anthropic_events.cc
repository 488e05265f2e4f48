#include "frontend/api/anthropic_events.h"

#include <fmt/format.h>

#include <utility>

#include "frontend/api/json_out.h"
#include "frontend/api/responses_events.h"
#include "frontend/text/json_value.h"
#include "proto/base/check.h"
#include "proto/base/random.h"

namespace holdfast::api {
namespace {

std::string Quote(std::string_view text) { return JsonOut().Value(text).text(); }

// Clients drop a thought without a signature instead of sending it back; nothing here reads it.
std::string Signature(std::string_view thought) {
  uint64_t h = Mix64(thought.size());
  for (const char c : thought) h = Mix64(h ^ static_cast<unsigned char>(c));
  return fmt::format("{:016x}", h);
}

// "call_x" -> "toolu_x".
std::string ToolUseId(std::string_view call_id) {
  constexpr std::string_view kPrefix = "call_";
  if (call_id.substr(0, kPrefix.size()) == kPrefix) call_id.remove_prefix(kPrefix.size());
  return "toolu_" + std::string(call_id);
}

const char* ErrorType(int status) {
  switch (status) {
    case 400:
    case 405:
    case 415:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 529:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

int StatusOf(const ApiError& error) { return error.status == 429 && error.type == "overloaded_error" ? 529 : error.status; }

}  // namespace

std::string AnthropicErrorBody(const ApiError& error, std::string_view request_id) {
  JsonOut out;
  out.Begin('{').Member("type", "error").Key("error").Begin('{').Member("type", ErrorType(StatusOf(error))).Member("message", error.message).End('}');
  out.Member("request_id", request_id).End('}');
  return out.Take();
}

http::Response AnthropicErrorResponse(const ApiError& error, std::string_view request_id) {
  http::Response response;
  response.status = StatusOf(error);
  for (const auto& [name, value] : error.headers) response.headers.push_back({name, value});
  response.headers.push_back({"request-id", std::string(request_id)});
  response.body = AnthropicErrorBody(error, request_id);
  return response;
}

AnthropicWriter::AnthropicWriter(ResponseHead head, bool stream) : head_(std::move(head)), stream_(stream) {}

void AnthropicWriter::Event(std::string_view type, std::string_view members, std::string* out) const {
  if (stream_) *out += NamedSseEvent(type, fmt::format(R"({{"type":"{}"{}}})", type, members));
}

std::string AnthropicWriter::UsageJson(const Usage& usage) const {
  const std::string thoughts =
      usage.reasoning_tokens > 0 ? fmt::format(R"(,"output_tokens_details":{{"thinking_tokens":{}}})", usage.reasoning_tokens) : std::string();
  return fmt::format(R"({{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{}{}}})",
                     usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens, thoughts);
}

std::string AnthropicWriter::Begin(const Usage& prompt) {
  std::string out;
  Event("message_start",
        fmt::format(
            R"(,"message":{{"id":"{}","type":"message","role":"assistant","model":{},"content":[],"stop_reason":null,"stop_sequence":null,"usage":{}}})",
            head_.id, Quote(head_.model), UsageJson(prompt)),
        &out);
  return out;
}

std::string AnthropicWriter::Silence() const {
  std::string out;
  Event("ping", "", &out);
  return out;
}

AnthropicWriter::Block& AnthropicWriter::Open(Kind kind, std::string* out) {
  if (!blocks_.empty() && blocks_.back().open && blocks_.back().kind == kind && kind != Kind::kToolUse) return blocks_.back();
  Close(out);
  Block block;
  block.kind = kind;
  blocks_.push_back(std::move(block));
  return blocks_.back();
}

void AnthropicWriter::Close(std::string* out) {
  if (blocks_.empty() || !blocks_.back().open) return;
  Block& block = blocks_.back();
  block.open = false;
  const size_t index = blocks_.size() - 1;
  if (block.kind == Kind::kThinking) {
    Event("content_block_delta",
          fmt::format(R"(,"index":{},"delta":{{"type":"signature_delta","signature":"{}"}})", index, Signature(block.text)), out);
  }
  Event("content_block_stop", fmt::format(R"(,"index":{})", index), out);
}

std::string AnthropicWriter::Delta(const ChoiceDelta& delta) {
  std::string out;
  const auto add = [&](Kind kind, const std::string& text) {
    if (text.empty()) return;
    const size_t before = blocks_.size();
    Block& block = Open(kind, &out);
    const size_t index = blocks_.size() - 1;
    const bool thinking = kind == Kind::kThinking;
    if (blocks_.size() > before) {
      Event("content_block_start",
            fmt::format(R"(,"index":{},"content_block":{})", index,
                        thinking ? R"({"type":"thinking","thinking":"","signature":""})" : R"({"type":"text","text":""})"),
            &out);
    }
    block.text += text;
    Event("content_block_delta",
          fmt::format(R"(,"index":{},"delta":{{"type":"{}","{}":{}}})", index, thinking ? "thinking_delta" : "text_delta",
                      thinking ? "thinking" : "text", Quote(text)),
          &out);
  };
  add(Kind::kThinking, delta.reasoning);
  add(Kind::kText, delta.text);
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.id.empty()) {
      Block& block = Open(Kind::kToolUse, &out);
      block.id = ToolUseId(call.id);
      block.name = call.name;
      block.whole = false;
      Event("content_block_start",
            fmt::format(R"(,"index":{},"content_block":{{"type":"tool_use","id":{},"name":{},"input":{{}}}})", blocks_.size() - 1, Quote(block.id),
                        Quote(block.name)),
            &out);
    }
    HF_CHECK(!blocks_.empty() && blocks_.back().kind == Kind::kToolUse && blocks_.back().open);
    Block& block = blocks_.back();
    if (!call.arguments.empty()) {
      block.text += call.arguments;
      Event("content_block_delta",
            fmt::format(R"(,"index":{},"delta":{{"type":"input_json_delta","partial_json":{}}})", blocks_.size() - 1, Quote(call.arguments)), &out);
    }
    if (call.complete) {
      block.whole = true;
      Close(&out);
    }
  }
  return out;
}

std::string AnthropicWriter::End(const ChoiceEnd& end) {
  end_ = end;
  std::string out;
  Close(&out);
  return out;
}

std::string AnthropicWriter::EndMembers() const {
  const char* reason = "end_turn";
  if (end_.reason == FinishReason::kLength) reason = "max_tokens";
  else if (end_.reason == FinishReason::kToolCalls) reason = "tool_use";
  else if (!end_.stop.empty()) reason = "stop_sequence";
  const bool named = std::string_view(reason) == "stop_sequence";
  return fmt::format(R"("stop_reason":"{}","stop_sequence":{})", reason, named ? Quote(end_.stop) : "null");
}

std::string AnthropicWriter::Done(const Usage& usage) {
  usage_ = usage;
  std::string out;
  Event("message_delta", fmt::format(R"(,"delta":{{{}}},"usage":{})", EndMembers(), UsageJson(usage)), &out);
  Event("message_stop", "", &out);
  return out;
}

std::string AnthropicWriter::Fail(const ApiError& error, std::string_view request_id) const {
  return NamedSseEvent("error", AnthropicErrorBody(error, request_id));
}

std::string AnthropicWriter::Body() const {
  std::string content;
  for (const Block& block : blocks_) {
    if (!content.empty()) content += ',';
    switch (block.kind) {
      case Kind::kThinking:
        content += fmt::format(R"({{"type":"thinking","thinking":{},"signature":"{}"}})", Quote(block.text), Signature(block.text));
        break;
      case Kind::kText:
        content += fmt::format(R"({{"type":"text","text":{}}})", Quote(block.text));
        break;
      case Kind::kToolUse: {
        // An input that was cut off is no object, and half of one must not pass for the whole: stop_reason says max_tokens.
        const auto input = text::ParseJson(block.text);
        const bool whole = block.whole && input.ok() && input->is_object();
        content += fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{}}})", Quote(block.id), Quote(block.name),
                               whole ? input->Dump() : std::string("{}"));
      }
    }
  }
  return fmt::format(R"({{"id":"{}","type":"message","role":"assistant","model":{},"content":[{}],{},"usage":{}}})", head_.id, Quote(head_.model),
                     content, EndMembers(), UsageJson(usage_));
}

}  // namespace holdfast::api

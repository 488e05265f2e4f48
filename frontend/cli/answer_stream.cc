#include "frontend/cli/answer_stream.h"

#include <utility>

namespace holdfast::cli {

using text::JsonValue;

namespace {

std::string_view StringIn(const JsonValue* object, std::string_view key) {
  const JsonValue* value = object != nullptr ? object->Find(key) : nullptr;
  return value != nullptr && value->is_string() ? std::string_view(value->AsString()) : std::string_view();
}

}  // namespace

void AnswerStream::Take(std::string_view bytes) {
  pending_.append(bytes);
  size_t from = 0;
  for (size_t end; (end = pending_.find('\n', from)) != std::string::npos; from = end + 1) {
    TakeLine(std::string_view(pending_).substr(from, end - from));
  }
  pending_.erase(0, from);
}

const std::vector<ToolCall>& AnswerStream::calls() const {
  static const std::vector<ToolCall> kNone;
  return finish_ == "tool_calls" ? calls_ : kNone;
}

JsonValue AnswerStream::Message() const {
  JsonValue::Object message{{"role", "assistant"}, {"content", text_}};
  if (!calls().empty()) {
    JsonValue::Array list;
    for (const ToolCall& call : calls()) {
      list.push_back(JsonValue(JsonValue::Object{
          {"id", call.id}, {"type", "function"}, {"function", JsonValue(JsonValue::Object{{"name", call.name}, {"arguments", call.arguments}})}}));
    }
    message.emplace_back("tool_calls", std::move(list));
  }
  return JsonValue(std::move(message));
}

void AnswerStream::TakeLine(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (line.substr(0, 5) != "data:" || line == "data: [DONE]") return;
  const auto event = text::ParseJson(line.substr(5));
  if (!event.ok()) return;
  if (const JsonValue* error = event->Find("error")) {
    error_ = StringIn(error, "message");
    if (error_.empty()) error_ = error->Dump();
    return;
  }
  if (const JsonValue* usage = event->Find("usage")) {
    const JsonValue* tokens = usage->Find("completion_tokens");
    if (tokens != nullptr && tokens->kind() == JsonValue::Kind::kInt && tokens->AsInt() >= 0) completion_tokens_ = static_cast<uint64_t>(tokens->AsInt());
  }
  const JsonValue* choices = event->Find("choices");
  if (choices == nullptr || !choices->is_array() || choices->AsArray().empty()) return;
  const JsonValue& choice = choices->AsArray()[0];
  if (const std::string_view finish = StringIn(&choice, "finish_reason"); !finish.empty()) finish_ = finish;
  const JsonValue* delta = choice.Find("delta");
  if (delta == nullptr) return;
  if (const std::string_view thought = StringIn(delta, "reasoning_content"); !thought.empty()) sink_.OnThought(thought);
  if (const std::string_view content = StringIn(delta, "content"); !content.empty()) {
    text_ += content;
    sink_.OnText(content);
  }
  if (const JsonValue* parts = delta->Find("tool_calls"); parts != nullptr && parts->is_array()) {
    for (const JsonValue& part : parts->AsArray()) TakeCall(part);
  }
}

// Calls come one behind the other: a part is of the last call or begins the next.
void AnswerStream::TakeCall(const JsonValue& part) {
  const JsonValue* index = part.Find("index");
  const JsonValue* function = part.Find("function");
  const bool known = index != nullptr && index->kind() == JsonValue::Kind::kInt && index->AsInt() + 1 == static_cast<int64_t>(calls_.size());
  if (!known) {
    const std::string_view name = StringIn(function, "name");
    if (name.empty()) return;
    calls_.push_back({std::string(StringIn(&part, "id")), std::string(name), ""});
    sink_.OnCall(calls_.back().name);
  }
  if (const std::string_view arguments = StringIn(function, "arguments"); !arguments.empty()) {
    calls_.back().arguments += arguments;
    sink_.OnArguments(arguments);
  }
}

}  // namespace holdfast::cli

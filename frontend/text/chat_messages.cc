#include "frontend/text/chat_messages.h"

#include <algorithm>
#include <cstdint>

#include "proto/base/status_wire.h"

namespace holdfast::text {
namespace {

constexpr std::string_view kReserved[] = {
    "add_generation_prompt", "bos_token", "caller",  "chat_template", "continue_final_message", "dict",  "eos_token", "kwargs",       "loop",
    "messages",              "namespace", "pad_token", "raise_exception", "range", "strftime_now", "tokenize", "tools", "unk_token", "varargs"};

absl::Status Invalid(const std::string& path, const std::string& what) { return absl::InvalidArgumentError(path + ": " + what); }

// Text parts as one string; null when a part is no text.
const JsonValue* TextOfPart(const JsonValue& part) {
  if (part.is_string()) return &part;
  const JsonValue* type = part.Find("type");
  const JsonValue* text = part.Find("text");
  const bool is_text = type == nullptr || (type->is_string() && (type->AsString() == "text" || type->AsString() == "input_text"));
  return is_text && text != nullptr && text->is_string() ? text : nullptr;
}

absl::StatusOr<JsonValue> JoinParts(const JsonValue& parts, const std::string& path) {
  std::string joined;
  size_t index = 0;
  for (const JsonValue& part : parts.AsArray()) {
    const JsonValue* text = TextOfPart(part);
    if (text == nullptr) return Invalid(path + "[" + std::to_string(index) + "]", "this model takes parts of type text only");
    if (index++ > 0) joined += '\n';
    joined += text->AsString();
  }
  return JsonValue(std::move(joined));
}

JsonValue ConvertArguments(const JsonValue& arguments, bool as_object) {
  if (!as_object) return arguments.is_string() ? arguments : arguments.is_null() ? JsonValue("{}") : JsonValue(arguments.Dump());
  if (arguments.is_null()) return JsonValue(JsonValue::Object());
  if (!arguments.is_string()) return arguments;
  const std::string& text = arguments.AsString();
  if (std::all_of(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; })) {
    return JsonValue(JsonValue::Object());
  }
  auto parsed = ParseJson(text);
  // What is no JSON object stays the text the client sent.
  return parsed.ok() && parsed->is_object() ? *std::move(parsed) : arguments;
}

// Nine letters and digits, the same for the same id.
JsonValue ShortId(const JsonValue& id) {
  if (!id.is_string()) return id;
  const std::string& text = id.AsString();
  const auto plain = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (text.size() == 9 && std::all_of(text.begin(), text.end(), plain)) return id;
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  std::string out;
  for (int i = 0; i < 9; ++i, hash /= 62) {
    out.push_back("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[hash % 62]);
  }
  return JsonValue(std::move(out));
}

absl::StatusOr<JsonValue> ConvertToolCalls(const JsonValue& calls, const std::string& path, const ChatTemplate::Needs& needs, const MessageForm& form) {
  if (!calls.is_array()) return Invalid(path, "must be an array");
  JsonValue::Array out;
  for (size_t i = 0; i < calls.AsArray().size(); ++i) {
    const JsonValue& call = calls.AsArray()[i];
    const std::string at = path + "[" + std::to_string(i) + "]";
    if (!call.is_object()) return Invalid(at, "must be an object");
    const JsonValue* function = call.Find("function");
    if (function == nullptr) {  // {name, arguments} without the wrapper, as Hugging Face's own histories have it
      out.push_back(WithMember(call, "arguments", ConvertArguments(call.Find("arguments") ? *call.Find("arguments") : JsonValue(), form.object_arguments)));
      continue;
    }
    if (!function->is_object()) return Invalid(at + ".function", "must be an object");
    const JsonValue* arguments = function->Find("arguments");
    JsonValue converted = WithMember(*function, "arguments", ConvertArguments(arguments != nullptr ? *arguments : JsonValue(), form.object_arguments));
    JsonValue whole = WithMember(call, "function", std::move(converted));
    const JsonValue* id = whole.Find("id");
    out.push_back(needs.short_call_ids && id != nullptr ? WithMember(whole, "id", ShortId(*id)) : std::move(whole));
  }
  return JsonValue(std::move(out));
}

absl::StatusOr<JsonValue> ConvertMessage(const JsonValue& message, const std::string& path, const ChatTemplate::Needs& needs, const MessageForm& form) {
  if (!message.is_object()) return Invalid(path, "must be an object");
  const JsonValue* role = message.Find("role");
  if (role == nullptr || !role->is_string()) return Invalid(path + ".role", "must be a string");
  JsonValue::Object out;
  for (const auto& [key, value] : message.AsObject()) {
    const std::string at = path + "." + key;
    if (key == "role" && value.AsString() == "developer" && !needs.developer_role) {
      out.emplace_back(key, JsonValue("system"));
    } else if (key == "content" && value.is_null()) {
      if (!form.drop_null_content) out.emplace_back(key, JsonValue(""));
    } else if (key == "content" && value.is_array() && !needs.text_parts) {
      HF_ASSIGN_OR_RETURN(JsonValue joined, JoinParts(value, at));
      out.emplace_back(key, std::move(joined));
    } else if (key == "tool_calls") {
      if (value.is_null() || (value.is_array() && value.AsArray().empty())) continue;
      HF_ASSIGN_OR_RETURN(JsonValue calls, ConvertToolCalls(value, at, needs, form));
      out.emplace_back(key, std::move(calls));
    } else if (key == "tool_call_id" && needs.short_call_ids) {
      out.emplace_back(key, ShortId(value));
    } else {
      out.emplace_back(key, value);
    }
  }
  if (message.Find("content") == nullptr && !form.drop_null_content) out.emplace_back("content", JsonValue(""));
  return JsonValue(std::move(out));
}

std::string ToolName(const JsonValue& assistant, const JsonValue& result) {
  const JsonValue* id = result.Find("tool_call_id");
  const JsonValue* calls = assistant.Find("tool_calls");
  if (id != nullptr && id->is_string() && calls != nullptr) {
    for (const JsonValue& call : calls->AsArray()) {
      const JsonValue* call_id = call.Find("id");
      const JsonValue* function = call.Find("function");
      const JsonValue* name = function != nullptr ? function->Find("name") : nullptr;
      if (call_id != nullptr && call_id->is_string() && call_id->AsString() == id->AsString() && name != nullptr && name->is_string()) {
        return name->AsString();
      }
    }
  }
  const JsonValue* name = result.Find("name");
  return name != nullptr && name->is_string() ? name->AsString() : "unknown";
}

// Moves each run of tool messages into `tool_responses` of the assistant message before it.
JsonValue FoldToolResults(const JsonValue::Array& messages) {
  JsonValue::Array out;
  JsonValue::Array responses;
  const auto flush = [&] {
    if (!responses.empty()) out.back() = WithMember(out.back(), "tool_responses", JsonValue(std::exchange(responses, {})));
  };
  for (const JsonValue& message : messages) {
    const bool foldable = message.Find("role")->AsString() == "tool" && !out.empty() && out.back().Find("tool_calls") != nullptr;
    if (!foldable) {
      flush();
      out.push_back(message);
      continue;
    }
    const JsonValue* content = message.Find("content");
    JsonValue body = content != nullptr ? *content : JsonValue("");
    if (body.is_string()) {
      if (auto parsed = ParseJson(body.AsString()); parsed.ok() && parsed->is_object()) body = *std::move(parsed);
    }
    responses.push_back(JsonValue(JsonValue::Object{{"name", JsonValue(ToolName(out.back(), message))}, {"response", std::move(body)}}));
  }
  flush();
  return JsonValue(std::move(out));
}

}  // namespace

absl::StatusOr<JsonValue> ConvertMessages(const JsonValue& messages, const ChatTemplate::Needs& needs, const MessageForm& form) {
  if (!messages.is_array() || messages.AsArray().empty()) return Invalid("messages", "must be an array with at least one message");
  JsonValue::Array out;
  for (size_t i = 0; i < messages.AsArray().size(); ++i) {
    HF_ASSIGN_OR_RETURN(JsonValue message, ConvertMessage(messages.AsArray()[i], "messages[" + std::to_string(i) + "]", needs, form));
    out.push_back(std::move(message));
  }
  return needs.fold_tool_results ? FoldToolResults(out) : JsonValue(std::move(out));
}

JsonValue WithMember(const JsonValue& object, std::string_view name, JsonValue value) {
  JsonValue::Object out = object.AsObject();
  for (auto& [key, old] : out) {
    if (key == name) {
      old = std::move(value);
      return JsonValue(std::move(out));
    }
  }
  out.emplace_back(std::string(name), std::move(value));
  return JsonValue(std::move(out));
}

JsonValue WithoutMember(const JsonValue& object, std::string_view name) {
  JsonValue::Object out;
  for (const auto& member : object.AsObject()) {
    if (member.first != name) out.push_back(member);
  }
  return JsonValue(std::move(out));
}

bool IsReservedVariable(std::string_view name) { return std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved); }

}  // namespace holdfast::text

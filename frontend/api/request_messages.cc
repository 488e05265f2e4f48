#include "frontend/api/request_messages.h"

#include <fmt/format.h>

#include <utility>

namespace holdfast::api {
namespace {

using text::JsonValue;

// The modality of a content part that is no text; "" when the type is unknown.
std::string_view Modality(std::string_view type) {
  if (type == "image_url" || type == "input_image" || type == "image" || type == "image_file") return "image";
  if (type == "input_audio" || type == "audio" || type == "audio_url") return "audio";
  if (type == "video" || type == "video_url" || type == "input_video") return "video";
  if (type == "file" || type == "input_file") return "file";
  return "";
}

class MessageReader final {
 public:
  MessageReader(FieldReader* in, std::string path) : in_(in), path_(std::move(path)) {}

  JsonValue Read(const JsonValue& message);

 private:
  void Fail(std::string_view member, std::string_view problem) {
    const std::string at = member.empty() ? path_ : fmt::format("{}.{}", path_, member);
    in_->Fail(InvalidRequest(fmt::format("'{}' {}", at, problem), at));
  }
  std::string ReadRole(const JsonValue& message);
  // False when there is no content (absent, null or an empty array).
  bool ReadContent(const JsonValue& message, const std::string& role, std::string* text);
  void AddPart(const JsonValue& part, size_t index, std::string* text);
  JsonValue::Array ReadToolCalls(const JsonValue& calls);
  JsonValue ReadToolCall(const JsonValue& call, const std::string& at);
  // A string member of the message into `out`; other kinds are 400 when strict, else dropped.
  void Copy(const JsonValue& message, const char* key, bool strict, JsonValue::Object* out);

  FieldReader* in_;
  const std::string path_;
};

std::string MessageReader::ReadRole(const JsonValue& message) {
  const JsonValue* role = message.Find("role");
  if (!role || !role->is_string()) {
    Fail("role", "must be a string: system, developer, user, assistant or tool");
    return "";
  }
  const std::string& name = role->AsString();
  if (name == "developer") return "system";
  if (name == "system" || name == "user" || name == "assistant" || name == "tool") return name;
  Fail("role", name == "function" ? std::string("is 'function', which was replaced by 'tool': send role 'tool' with a tool_call_id")
                                  : fmt::format("is '{}'; system, developer, user, assistant and tool exist", Quoted(name)));
  return "";
}

void MessageReader::AddPart(const JsonValue& part, size_t index, std::string* text) {
  const std::string at = fmt::format("content[{}]", index);
  const JsonValue* type = part.Find("type");
  if (!type || !type->is_string()) return Fail(at, "must be an object with a string 'type', as {\"type\": \"text\", \"text\": \"...\"}");
  const std::string& name = type->AsString();
  const bool refusal = name == "refusal";
  if (name == "text" || name == "input_text" || name == "output_text" || refusal) {
    const char* key = refusal ? "refusal" : "text";
    const JsonValue* value = part.Find(key);
    if (!value || !value->is_string()) return Fail(fmt::format("{}.{}", at, key), "must be a string");
    if (index > 0) *text += '\n';
    *text += value->AsString();
    return;
  }
  const std::string_view modality = Modality(name);
  if (!modality.empty()) {
    return Fail(at, fmt::format("is of type '{}': this model takes text, no {} input", name, modality));
  }
  Fail(at, fmt::format("has the unknown type '{}'; text is supported", Quoted(name)));
}

bool MessageReader::ReadContent(const JsonValue& message, const std::string& role, std::string* text) {
  const JsonValue* content = message.Find("content");
  if (content && content->is_string()) {
    *text = content->AsString();
    return true;
  }
  if (content && content->is_array() && !content->AsArray().empty()) {
    const JsonValue::Array& parts = content->AsArray();
    for (size_t i = 0; i < parts.size() && !in_->failed(); ++i) AddPart(parts[i], i, text);
    return true;
  }
  const bool missing = !content || content->is_null() || content->is_array();
  if (!missing) {
    Fail("content", fmt::format("must be a string or an array of parts, not {}", KindName(*content)));
  } else if (role != "assistant") {
    Fail("content", content && content->is_array() ? std::string("must hold at least one part")
                                                   : fmt::format("is required in a message of role '{}'", role));
  }
  return false;
}

JsonValue MessageReader::ReadToolCall(const JsonValue& call, const std::string& at) {
  if (!call.is_object()) {
    Fail(at, fmt::format("must be an object, not {}", KindName(call)));
    return {};
  }
  const JsonValue* type = call.Find("type");
  if (type && !type->is_null() && !(type->is_string() && type->AsString() == "function")) {
    Fail(at + ".type", "must be \"function\"");
    return {};
  }
  const JsonValue* function = call.Find("function");
  const JsonValue* name = function ? function->Find("name") : nullptr;
  if (!name || !name->is_string() || name->AsString().empty()) {
    Fail(at + ".function", "must be an object with a name and arguments");
    return {};
  }
  const JsonValue* arguments = function->Find("arguments");
  JsonValue normal = JsonValue::Object{};
  if (arguments && arguments->is_object()) {
    normal = *arguments;
  } else if (arguments && arguments->is_string()) {
    const std::string& raw = arguments->AsString();
    if (raw.find_first_not_of(" \t\r\n") != std::string::npos) {
      auto parsed = text::ParseJson(raw);
      normal = parsed.ok() && parsed->is_object() ? *std::move(parsed) : *arguments;
    }
  } else if (arguments && !arguments->is_null()) {
    Fail(at + ".function.arguments", fmt::format("must be a string or an object, not {}", KindName(*arguments)));
    return {};
  }
  JsonValue::Object out;
  const JsonValue* id = call.Find("id");
  if (id && id->is_string()) {
    out.emplace_back("id", *id);
  } else if (id && !id->is_null()) {
    Fail(at + ".id", "must be a string");
  }
  out.emplace_back("type", "function");
  out.emplace_back("function", JsonValue::Object{{"name", *name}, {"arguments", std::move(normal)}});
  return out;
}

JsonValue::Array MessageReader::ReadToolCalls(const JsonValue& calls) {
  JsonValue::Array out;
  const JsonValue::Array& all = calls.AsArray();
  out.reserve(all.size());
  for (size_t i = 0; i < all.size() && !in_->failed(); ++i) out.push_back(ReadToolCall(all[i], fmt::format("tool_calls[{}]", i)));
  return out;
}

void MessageReader::Copy(const JsonValue& message, const char* key, bool strict, JsonValue::Object* out) {
  const JsonValue* value = message.Find(key);
  if (!value || value->is_null()) return;
  if (value->is_string()) {
    out->emplace_back(key, *value);
  } else if (strict) {
    Fail(key, fmt::format("must be a string, not {}", KindName(*value)));
  }
}

JsonValue MessageReader::Read(const JsonValue& message) {
  if (!message.is_object()) {
    Fail("", fmt::format("must be an object with role and content, not {}", KindName(message)));
    return {};
  }
  JsonValue::Object out;
  const std::string role = ReadRole(message);
  if (in_->failed()) return {};
  out.emplace_back("role", role);

  std::string text;
  bool has_content = ReadContent(message, role, &text);
  const JsonValue* calls = message.Find("tool_calls");
  const bool has_calls = role == "assistant" && calls && calls->is_array() && !calls->AsArray().empty();
  if (role == "assistant") {
    if (calls && !calls->is_null() && !calls->is_array()) Fail("tool_calls", fmt::format("must be an array, not {}", KindName(*calls)));
    const JsonValue* refusal = message.Find("refusal");
    if (!has_content && refusal && refusal->is_string()) {
      text = refusal->AsString();
      has_content = true;
    }
    if (!has_content && !has_calls) has_content = true;  // templates concatenate it
  }
  if (has_content) out.emplace_back("content", std::move(text));
  if (role == "tool") {
    Copy(message, "name", true, &out);
    Copy(message, "tool_call_id", true, &out);
  }
  if (role == "assistant") {
    Copy(message, "reasoning_content", true, &out);
    // The name others use for the same; templates know reasoning_content, and a few of them one of these.
    const JsonValue* reasoning = message.Find("reasoning");
    if (reasoning && reasoning->is_string()) {
      if (!JsonValue(out).Find("reasoning_content")) out.emplace_back("reasoning_content", *reasoning);
      out.emplace_back("reasoning", *reasoning);
    }
    Copy(message, "thinking", false, &out);
    if (has_calls) out.emplace_back("tool_calls", ReadToolCalls(*calls));
  }
  return out;
}

}  // namespace

void ReadMessages(FieldReader* in, const RequestContext& context, ValidRequest* out) {
  const JsonValue* messages = in->Get("messages");
  if (!messages || !messages->is_array()) {
    return in->Fail("messages", messages ? fmt::format("'messages' must be an array, not {}", KindName(*messages))
                                         : std::string("'messages' is required: an array of at least one message"));
  }
  const JsonValue::Array& all = messages->AsArray();
  if (all.empty()) return in->Fail("messages", "'messages' must hold at least one message");
  if (all.size() > context.max_messages) {
    return in->Fail("messages", fmt::format("'messages' has {} entries, the limit is {}", all.size(), context.max_messages));
  }
  JsonValue::Array normal;
  normal.reserve(all.size());
  for (size_t i = 0; i < all.size() && !in->failed(); ++i) {
    MessageReader reader(in, fmt::format("messages[{}]", i));
    normal.push_back(reader.Read(all[i]));
  }
  out->messages = std::move(normal);
}

}  // namespace holdfast::api

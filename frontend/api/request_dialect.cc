#include "frontend/api/request_dialect.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::api {

using text::JsonValue;

void ChatRewrite::Set(std::string key, JsonValue value, std::string from) {
  if (!from.empty() && from != key) Rename(key, std::move(from));
  body_.emplace_back(std::move(key), std::move(value));
}

void ChatRewrite::Copy(const JsonValue& body, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const JsonValue* value = body.Find(key);
    if (value && !value->is_null()) body_.emplace_back(key, *value);
  }
}

void ChatRewrite::AddMessage(JsonValue::Object message, const std::string& from) {
  origins_.push_back(from);
  messages_.emplace_back(std::move(message));
}

void ChatRewrite::AddSystem(std::string_view text) {
  if (text.empty()) return;
  if (!system_.empty()) system_ += "\n\n";
  system_ += text;
}

void ChatRewrite::AddThought(std::string_view text) {
  if (has_turn()) EndTurn();  // what is thought after a text or a call belongs to the next message
  if (!thought_.empty() && !text.empty()) thought_ += "\n\n";
  thought_ += text;
}

void ChatRewrite::AddAssistantText(std::string text, const std::string& from) {
  if (has_turn()) EndTurn();
  text_ = std::move(text);
  has_text_ = true;
  turn_from_ = from;
}

void ChatRewrite::AddCall(std::string id, std::string name, JsonValue arguments, const std::string& from) {
  if (!has_turn()) turn_from_ = from;
  names_[id] = name;
  calls_.emplace_back(JsonValue::Object{{"id", std::move(id)},
                                        {"type", "function"},
                                        {"function", JsonValue::Object{{"name", std::move(name)}, {"arguments", std::move(arguments)}}}});
}

void ChatRewrite::EndTurn() {
  if (has_turn()) {
    JsonValue::Object message{{"role", "assistant"}};
    if (has_text_) message.emplace_back("content", std::move(text_));
    if (!thought_.empty()) message.emplace_back("reasoning_content", std::move(thought_));
    if (!calls_.empty()) message.emplace_back("tool_calls", std::move(calls_));
    AddMessage(std::move(message), turn_from_);
  }
  text_.clear();
  thought_.clear();
  calls_.clear();
  has_text_ = false;
}

void ChatRewrite::AddToolResult(const std::string& call_id, std::string text, const std::string& from) {
  EndTurn();
  JsonValue::Object message{{"role", "tool"}, {"tool_call_id", call_id}, {"content", std::move(text)}};
  if (const auto call = names_.find(call_id); call != names_.end()) message.emplace_back("name", call->second);
  AddMessage(std::move(message), from);
}

bool ChatRewrite::ends_in_answer() const {
  if (messages_.empty()) return false;
  const JsonValue& last = messages_.back();
  return last.Find("role")->AsString() == "assistant" && last.Find("content") && !last.Find("tool_calls");
}

void ChatRewrite::Rename(std::string chat_path, std::string own_path) { renames_.emplace_back(std::move(chat_path), std::move(own_path)); }

std::string ChatRewrite::Renamed(std::string_view path) const {
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& one : renames_) {
    const std::string& from = one.first;
    if (path.substr(0, from.size()) != from) continue;
    if (path.size() > from.size() && path[from.size()] != '.' && path[from.size()] != '[') continue;
    if (!best || from.size() > best->first.size()) best = &one;
  }
  return best ? best->second + std::string(path.substr(best->first.size())) : std::string(path);
}

std::string ChatRewrite::RenamedText(std::string_view message) const {
  std::string out;
  while (true) {
    const size_t open = message.find('\'');
    const size_t close = open == std::string_view::npos ? open : message.find('\'', open + 1);
    if (close == std::string_view::npos) return out + std::string(message);
    out += message.substr(0, open + 1);
    const std::string_view quoted = message.substr(open + 1, close - open - 1);
    const std::string renamed = Renamed(quoted);
    out += renamed;
    // An apostrophe in a word opens nothing: the closing mark may be the next opening one.
    const bool is_path = renamed != quoted;
    if (is_path) out += '\'';
    message.remove_prefix(is_path ? close + 1 : close);
  }
}

ParsedRequest ChatRewrite::Parse(const RequestContext& context, std::string param) {
  EndTurn();
  JsonValue::Array messages;
  messages.reserve(messages_.size() + 1);
  const size_t before = system_.empty() ? 0 : 1;
  if (before == 1) messages.emplace_back(JsonValue::Object{{"role", "system"}, {"content", std::move(system_)}});
  std::move(messages_.begin(), messages_.end(), std::back_inserter(messages));
  body_.emplace_back("messages", std::move(messages));
  ParsedRequest parsed = ParseChatRequest(JsonValue(std::move(body_)), context);
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    Rename("messages", param);
    for (size_t i = 0; i < origins_.size(); ++i) Rename(fmt::format("messages[{}]", i + before), origins_[i]);
    error->message = RenamedText(error->message);
    error->param = Renamed(error->param);
    return parsed;
  }
  ValidRequest& request = std::get<ValidRequest>(parsed);
  request.input_param = std::move(param);
  request.response_format.path = Renamed(request.response_format.path);
  for (std::string& path : request.tool_paths) path = Renamed(path);
  return parsed;
}

std::string_view ModalityOfPart(std::string_view type) {
  if (type == "image" || type == "input_image" || type == "image_url" || type == "computer_screenshot") return "image";
  if (type == "input_audio" || type == "audio") return "audio";
  if (type == "video" || type == "input_video") return "video";
  if (type == "file" || type == "input_file" || type == "document") return "file";
  return "";
}

namespace {

bool Among(std::initializer_list<std::string_view> all, std::string_view one) { return std::find(all.begin(), all.end(), one) != all.end(); }

}  // namespace

std::string ReadContentText(FieldReader* in, const JsonValue& content, const std::string& path,
                            std::initializer_list<std::string_view> text_types, std::initializer_list<std::string_view> skipped) {
  if (content.is_string()) return content.AsString();
  const auto fail = [&](const std::string& at, std::string_view problem) {
    in->Fail(InvalidRequest(fmt::format("'{}' {}", at, problem), at));
    return std::string();
  };
  if (!content.is_array()) return fail(path, fmt::format("must be a string or an array of parts, not {}", KindName(content)));
  std::string out;
  bool first = true;
  for (size_t i = 0; i < content.AsArray().size(); ++i) {
    const JsonValue& part = content.AsArray()[i];
    const std::string at = fmt::format("{}[{}]", path, i);
    const JsonValue* type = part.Find("type");
    if (!type || !type->is_string()) {
      return fail(at, fmt::format("must be an object with a string 'type', as {{\"type\": \"{}\", \"text\": \"...\"}}", *text_types.begin()));
    }
    const std::string& name = type->AsString();
    if (Among(skipped, name)) continue;
    if (Among(text_types, name) || name == "refusal") {
      const char* key = name == "refusal" ? "refusal" : "text";
      const JsonValue* value = part.Find(key);
      if (!value || !value->is_string()) return fail(fmt::format("{}.{}", at, key), "must be a string");
      if (!std::exchange(first, false)) out += '\n';
      out += value->AsString();
      continue;
    }
    const std::string_view modality = ModalityOfPart(name);
    if (!modality.empty()) return fail(at, fmt::format("is of type '{}': this model takes text, no {} input", name, modality));
    return fail(at, fmt::format("has the unknown type '{}'; {} is supported", Quoted(name), *text_types.begin()));
  }
  return out;
}

std::string RequireString(FieldReader* in, const JsonValue& item, std::string_view key, const std::string& path) {
  const JsonValue* value = item.Find(key);
  if (value && value->is_string()) return value->AsString();
  const std::string at = fmt::format("{}.{}", path, key);
  in->Fail(InvalidRequest(value && !value->is_null() ? fmt::format("'{}' must be a string, not {}", at, KindName(*value))
                                                     : fmt::format("'{}' is required: a string", at),
                          at));
  return "";
}

}  // namespace holdfast::api

// POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API to a chat request.
#include <fmt/format.h>

#include "frontend/api/request.h"
#include "frontend/api/request_dialect.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

constexpr uint32_t kMaxStopSequences = 64;

// A block of transport data that one agent puts before its system prompt. It differs from request to request, so that, read as a prompt, no
// prefix of a conversation would ever be found in the cache again; and it is not meant for the model.
bool IsBillingHeader(const JsonValue& block) {
  const JsonValue* text = block.Find("text");
  return text && text->is_string() && text->AsString().rfind("x-anthropic-billing-header:", 0) == 0;
}

void ReadSystem(FieldReader* in, const JsonValue& system, const std::string& path, ChatRewrite* out) {
  if (!system.is_array()) return out->AddSystem(ReadContentText(in, system, path, {"text"}));
  JsonValue::Array blocks;
  for (const JsonValue& block : system.AsArray()) {
    if (!IsBillingHeader(block)) blocks.push_back(block);
  }
  out->AddSystem(ReadContentText(in, JsonValue(std::move(blocks)), path, {"text"}));
}

class TurnReader final {
 public:
  TurnReader(FieldReader* in, ChatRewrite* out) : in_(in), out_(out) {}

  void Read(const JsonValue& message, const std::string& path) {
    if (!message.is_object()) return Fail(path, fmt::format("must be an object with role and content, not {}", KindName(message)));
    role_ = RequireString(in_, message, "role", path);
    if (in_->failed()) return;
    if (role_ != "user" && role_ != "assistant" && role_ != "system") {
      return Fail(path + ".role", fmt::format("is '{}'; user and assistant exist, and 'system' is a field of its own", Quoted(role_)));
    }
    const JsonValue* content = message.Find("content");
    path_ = path + ".content";
    if (!content || content->is_null()) return Fail(path_, "is required: a string or an array of blocks");
    if (role_ == "system") return ReadSystem(in_, *content, path_, out_);
    from_ = path;
    out_->EndTurn();
    if (content->is_string()) {
      text_ = content->AsString();
      has_text_ = true;
    } else if (content->is_array()) {
      if (content->AsArray().empty()) return Fail(path_, "must hold at least one block");
      for (size_t i = 0; i < content->AsArray().size() && !in_->failed(); ++i) Block(content->AsArray()[i], fmt::format("{}[{}]", path_, i));
    } else {
      return Fail(path_, fmt::format("must be a string or an array of blocks, not {}", KindName(*content)));
    }
    Flush();
    out_->EndTurn();
  }

 private:
  void Fail(const std::string& at, std::string_view problem) { in_->Fail(InvalidRequest(fmt::format("'{}' {}", at, problem), at)); }

  void Block(const JsonValue& block, const std::string& path) {
    const std::string type = block.is_object() ? RequireString(in_, block, "type", path) : "";
    if (!block.is_object()) return Fail(path, fmt::format("must be an object with a 'type', not {}", KindName(block)));
    if (in_->failed()) return;
    if (type == "text") {
      const std::string text = RequireString(in_, block, "text", path);
      if (has_text_) text_ += '\n';
      text_ += text;
      has_text_ = true;
      return;
    }
    if (type == "tool_use" && role_ == "assistant") return ToolUse(block, path);
    if (type == "tool_result" && role_ == "user") return ToolResult(block, path);
    if (type == "thinking" && role_ == "assistant") {
      thought_ += (thought_.empty() ? "" : "\n\n") + RequireString(in_, block, "thinking", path);
      return;
    }
    if (type == "redacted_thinking" && role_ == "assistant") return;  // nobody but its author can read it
    const std::string_view modality = ModalityOfPart(type);
    if (!modality.empty()) return Fail(path, fmt::format("is of type '{}': this model takes text, no {} input", type, modality));
    Fail(path, fmt::format("of role '{}' has the type '{}', which is not supported; {} are", role_, Quoted(type),
                           role_ == "user" ? "text and tool_result" : "text, thinking and tool_use"));
  }

  void ToolUse(const JsonValue& block, const std::string& path) {
    std::string id = RequireString(in_, block, "id", path);
    std::string name = RequireString(in_, block, "name", path);
    const JsonValue* input = block.Find("input");
    if (in_->failed()) return;
    if (name.empty()) return Fail(path + ".name", "must not be empty");
    if (input && !input->is_null() && !input->is_object()) return Fail(path + ".input", fmt::format("must be an object, not {}", KindName(*input)));
    Flush();
    out_->AddCall(std::move(id), std::move(name), input && input->is_object() ? *input : JsonValue(JsonValue::Object{}), from_);
  }

  void ToolResult(const JsonValue& block, const std::string& path) {
    const std::string id = RequireString(in_, block, "tool_use_id", path);
    const JsonValue* content = block.Find("content");
    const JsonValue* is_error = block.Find("is_error");
    if (is_error && !is_error->is_null() && !is_error->is_bool()) {
      return Fail(path + ".is_error", fmt::format("must be true or false, not {}", KindName(*is_error)));
    }
    std::string text;
    if (content && !content->is_null()) text = ReadContentText(in_, *content, path + ".content", {"text"});
    if (in_->failed()) return;
    // Templates know no failed result: the text has to say it.
    if (is_error && is_error->is_bool() && is_error->AsBool()) text = text.empty() ? "Error" : "Error: " + text;
    Flush();
    out_->AddToolResult(id, std::move(text), path);
  }

  // What was gathered becomes a message, so that the order of blocks stays.
  void Flush() {
    if (!thought_.empty()) out_->AddThought(std::exchange(thought_, {}));
    if (!std::exchange(has_text_, false)) return;
    std::string text = std::exchange(text_, {});
    if (role_ == "assistant") return out_->AddAssistantText(std::move(text), from_);
    out_->AddMessage({{"role", "user"}, {"content", std::move(text)}}, from_);
  }

  FieldReader* const in_;
  ChatRewrite* const out_;
  std::string role_, path_, from_;     // of the message at hand
  std::string text_, thought_;
  bool has_text_ = false;
};

// Client tools; those that Anthropic runs or defines itself (their type is not "custom") are passed over.
void ReadTools(FieldReader* in, ChatRewrite* out) {
  const JsonValue* tools = in->Get("tools");
  if (!tools) return;
  if (!tools->is_array()) return in->Fail("tools", fmt::format("'tools' must be an array, not {}", KindName(*tools)));
  JsonValue::Array chat;
  for (size_t i = 0; i < tools->AsArray().size(); ++i) {
    const JsonValue& tool = tools->AsArray()[i];
    const std::string path = fmt::format("tools[{}]", i);
    if (!tool.is_object()) return in->Fail(path, fmt::format("'{}' must be an object, not {}", path, KindName(tool)));
    const JsonValue* type = tool.Find("type");
    if (type && type->is_string() && type->AsString() != "custom") continue;
    const std::string chat_path = fmt::format("tools[{}]", chat.size());
    out->Rename(chat_path + ".function", path);
    out->Rename(chat_path + ".function.parameters", path + ".input_schema");
    out->Rename(chat_path, path);
    JsonValue::Object function;
    for (const auto& [from, to] : {std::pair{"name", "name"}, std::pair{"description", "description"}, std::pair{"input_schema", "parameters"},
                                   std::pair{"strict", "strict"}}) {
      const JsonValue* value = tool.Find(from);
      if (value && !value->is_null()) function.emplace_back(to, *value);
    }
    chat.emplace_back(JsonValue::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  if (!chat.empty()) out->Set("tools", std::move(chat));
}

void ReadToolChoice(FieldReader* in, ChatRewrite* out) {
  const JsonValue* choice = in->Get("tool_choice");
  if (!choice) return;
  constexpr std::string_view kForms = R"(must be {"type": "auto"}, {"type": "any"}, {"type": "none"} or {"type": "tool", "name": "..."})";
  const JsonValue* type = choice->Find("type");
  if (!type || !type->is_string()) return in->Fail("tool_choice", fmt::format("'tool_choice' {}", kForms));
  const std::string& kind = type->AsString();
  if (kind == "auto" || kind == "none") {
    out->Set("tool_choice", kind);
  } else if (kind == "any") {
    out->Set("tool_choice", "required");
  } else if (kind == "tool") {
    const std::string name = RequireString(in, *choice, "name", "tool_choice");
    out->Rename("tool_choice.function", "tool_choice");
    out->Set("tool_choice", JsonValue::Object{{"type", "function"}, {"function", JsonValue::Object{{"name", name}}}});
  } else {
    return in->Fail("tool_choice.type", fmt::format("'tool_choice.type' is '{}'; 'tool_choice' {}", Quoted(kind), kForms));
  }
  FieldReader inner(*choice, "tool_choice.");
  bool single = false;
  inner.Bool("disable_parallel_tool_use", &single);
  if (inner.failed()) return in->Fail(inner.TakeError());
  if (single) out->Set("parallel_tool_calls", false);
}

void ReadThinking(FieldReader* in, ChatRewrite* out) {
  const JsonValue* thinking = in->Get("thinking");
  if (!thinking) return;
  const JsonValue* type = thinking->Find("type");
  const std::string kind = type && type->is_string() ? type->AsString() : "";
  if (kind == "enabled" || kind == "disabled") return out->Set("enable_thinking", kind == "enabled");
  // Both leave it to the model.
  if (kind == "adaptive" || kind == "between_tools") return;
  in->Fail("thinking", R"('thinking' must be {"type": "enabled"}, {"type": "disabled"}, {"type": "adaptive"} or {"type": "between_tools"})");
}

// Structured output: output_config.format, and output_format as its beta was called.
void ReadOutput(FieldReader* in, ChatRewrite* out) {
  const JsonValue* config = in->Get("output_config");
  if (config && !config->is_object()) return in->Fail("output_config", fmt::format("'output_config' must be an object, not {}", KindName(*config)));
  std::string path = "output_config.format";
  const JsonValue* format = config ? config->Find("format") : nullptr;
  if (!format || format->is_null()) {
    format = in->Get("output_format");
    path = "output_format";
  }
  if (format && !format->is_null()) {
    const JsonValue* type = format->Find("type");
    const JsonValue* schema = format->Find("schema");
    if (!type || !type->is_string() || type->AsString() != "json_schema" || !schema || !schema->is_object()) {
      return in->Fail(path, fmt::format(R"('{}' must be {{"type": "json_schema", "schema": {{...}}}})", path));
    }
    out->Rename("response_format.json_schema", path);
    out->Set("response_format",
             JsonValue::Object{{"type", "json_schema"}, {"json_schema", JsonValue::Object{{"name", "output"}, {"schema", *schema}, {"strict", true}}}},
             path);
  }
  const JsonValue* effort = config ? config->Find("effort") : nullptr;
  if (effort && !effort->is_null()) out->Set("reasoning_effort", *effort, "output_config.effort");
}

ParsedRequest Parse(const JsonValue& body, const RequestContext& base, bool counting) {
  if (!body.is_object()) return InvalidRequest(fmt::format("The body must be a JSON object, not {}", KindName(body)), "");
  FieldReader in(body);
  ChatRewrite chat;
  if (const JsonValue* system = in.Get("system")) ReadSystem(&in, *system, "system", &chat);
  const JsonValue* messages = in.Get("messages");
  if (!messages || !messages->is_array() || messages->AsArray().empty()) {
    in.Fail("messages", messages && !messages->is_array() ? fmt::format("'messages' must be an array, not {}", KindName(*messages))
                                                          : std::string("'messages' is required: an array of at least one message"));
    return in.TakeError();
  }
  TurnReader reader(&in, &chat);
  for (size_t i = 0; i < messages->AsArray().size() && !in.failed(); ++i) reader.Read(messages->AsArray()[i], fmt::format("messages[{}]", i));
  ReadTools(&in, &chat);
  ReadToolChoice(&in, &chat);
  ReadThinking(&in, &chat);
  ReadOutput(&in, &chat);
  const JsonValue* most = in.Get("max_tokens");
  if (!most && !counting) in.Fail("max_tokens", "'max_tokens' is required: how many tokens the answer may have at most");
  if (in.failed()) return in.TakeError();
  if (!chat.has_messages()) return InvalidRequest("'messages' holds no message with content", "messages");
  // Words of the assistant's at the end: the answer goes on from there.
  if (chat.ends_in_answer()) chat.Set("continue_final_message", true);
  if (const JsonValue* stop = in.Get("stop_sequences")) {
    if (!stop->is_array()) return InvalidRequest(fmt::format("'stop_sequences' must be an array of strings, not {}", KindName(*stop)), "stop_sequences");
    chat.Set("stop", *stop, "stop_sequences");
  }
  chat.Copy(body, {"model", "temperature", "top_p", "top_k",
                   // Extensions, as in chat.
                   "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "logit_bias", "chat_template_kwargs",
                   "ignore_eos", "cache_prompt", "cache_salt", "separate_reasoning", "include_reasoning", "guided_json", "guided_regex",
                   "guided_choice", "structured_outputs"});
  if (!counting) {
    chat.Set("max_tokens", *most);
    chat.Copy(body, {"stream"});
  }
  RequestContext context = base;
  context.max_stop = kMaxStopSequences;
  ParsedRequest parsed = chat.Parse(context, "messages");
  if (auto* request = std::get_if<ValidRequest>(&parsed)) request->route = Route::kMessages;
  return parsed;
}

}  // namespace

ParsedRequest ParseMessagesRequest(const JsonValue& body, const RequestContext& context) { return Parse(body, context, false); }
ParsedRequest ParseCountTokensRequest(const JsonValue& body, const RequestContext& context) { return Parse(body, context, true); }

}  // namespace holdfast::api

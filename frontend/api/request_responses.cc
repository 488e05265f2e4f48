// POST /v1/responses: OpenAI's Responses API to a chat request. Nothing is stored, so what would need a store is refused.
#include <fmt/format.h>

#include "frontend/api/request.h"
#include "frontend/api/request_dialect.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

class ItemReader final {
 public:
  ItemReader(FieldReader* in, ChatRewrite* out) : in_(in), out_(out) {}

  void Read(const JsonValue& item, const std::string& path) {
    if (!item.is_object()) return Fail(path, fmt::format("must be an object, not {}", KindName(item)));
    const JsonValue* type = item.Find("type");
    if (type && !type->is_null() && !type->is_string()) return Fail(path + ".type", fmt::format("must be a string, not {}", KindName(*type)));
    if (!type || type->is_null()) {
      if (item.Find("role")) return Message(item, path);
      return Fail(path + ".type", "is required, as {\"type\": \"message\", \"role\": \"user\", \"content\": \"...\"}");
    }
    const std::string& name = type->AsString();
    if (name == "message") return Message(item, path);
    if (name == "reasoning") return Reasoning(item, path);
    if (name == "function_call") return Call(item, path, "arguments");
    if (name == "custom_tool_call") return Call(item, path, "input");
    if (name == "function_call_output" || name == "custom_tool_call_output") return Output(item, path);
    if (name == "item_reference") {
      return Fail(path, "refers to a stored item, and this server stores none: send the item itself");
    }
    const std::string_view modality = ModalityOfPart(name);
    if (!modality.empty()) Fail(path, fmt::format("is of type '{}': this model takes text, no {} input", name, modality));
    // Traces of tools that other servers run (web searches, compactions ...) mean nothing here.
  }

 private:
  void Fail(const std::string& at, std::string_view problem) { in_->Fail(InvalidRequest(fmt::format("'{}' {}", at, problem), at)); }

  void Message(const JsonValue& item, const std::string& path) {
    const std::string role = RequireString(in_, item, "role", path);
    if (in_->failed()) return;
    const JsonValue* content = item.Find("content");
    if (!content || content->is_null()) return Fail(path + ".content", "is required: a string or an array of parts");
    std::string text = ReadContentText(in_, *content, path + ".content", {"input_text", "output_text", "text"});
    if (in_->failed()) return;
    if (role == "assistant") return out_->AddAssistantText(std::move(text), path);
    if (role == "system" || role == "developer") return out_->AddSystem(text);
    if (role != "user") return Fail(path + ".role", fmt::format("is '{}'; user, assistant, system and developer exist", Quoted(role)));
    out_->EndTurn();
    out_->AddMessage({{"role", "user"}, {"content", std::move(text)}}, path);
  }

  // Only thoughts in clear text can go back to the model; summaries and encrypted ones are passed over.
  void Reasoning(const JsonValue& item, const std::string& path) {
    const JsonValue* content = item.Find("content");
    if (!content || content->is_null()) return;
    out_->AddThought(ReadContentText(in_, *content, path + ".content", {"reasoning_text", "text"}));
  }

  void Call(const JsonValue& item, const std::string& path, const char* key) {
    std::string id = RequireString(in_, item, "call_id", path);
    std::string name = RequireString(in_, item, "name", path);
    std::string input = RequireString(in_, item, key, path);
    if (in_->failed()) return;
    if (name.empty()) return Fail(path + ".name", "must not be empty");
    const bool custom = std::string_view(key) == "input";
    JsonValue arguments = custom ? JsonValue(JsonValue::Object{{"input", std::move(input)}}) : JsonValue(std::move(input));
    out_->AddCall(std::move(id), std::move(name), std::move(arguments), path);
  }

  void Output(const JsonValue& item, const std::string& path) {
    const std::string id = RequireString(in_, item, "call_id", path);
    const JsonValue* output = item.Find("output");
    if (!output || output->is_null()) return Fail(path + ".output", "is required: a string or an array of parts");
    std::string text = ReadContentText(in_, *output, path + ".output", {"input_text", "output_text", "text"});
    if (!in_->failed()) out_->AddToolResult(id, std::move(text), path);
  }

  FieldReader* const in_;
  ChatRewrite* const out_;
};

void ReadInput(FieldReader* in, ChatRewrite* out) {
  std::string instructions;
  in->String("instructions", SIZE_MAX, &instructions);
  out->AddSystem(instructions);
  const JsonValue* input = in->Get("input");
  if (!input) return in->Fail("input", "'input' is required: a string or an array of items");
  if (input->is_string()) {
    out->AddMessage({{"role", "user"}, {"content", *input}}, "input");
    return;
  }
  if (!input->is_array()) return in->Fail("input", fmt::format("'input' must be a string or an array of items, not {}", KindName(*input)));
  ItemReader reader(in, out);
  for (size_t i = 0; i < input->AsArray().size() && !in->failed(); ++i) reader.Read(input->AsArray()[i], fmt::format("input[{}]", i));
  // Agents probe a server with no input at all and one token of output: that is a turn in which the user said nothing.
  if (!out->has_messages()) out->AddMessage({{"role", "user"}, {"content", ""}}, "input");
}

// What would need a store, or another server's machinery.
void RefuseState(FieldReader* in) {
  const auto given = [&](const char* key) {
    const JsonValue* value = in->Get(key);
    return value && !(value->is_string() && value->AsString().empty());
  };
  if (given("previous_response_id")) {
    return in->Fail(InvalidRequest("'previous_response_id' is not supported: this server stores no responses; send the whole conversation in 'input'",
                                   "previous_response_id", "unsupported_parameter"));
  }
  if (given("conversation")) {
    return in->Fail(InvalidRequest("'conversation' is not supported: this server stores no conversations; send the whole conversation in 'input'",
                                   "conversation", "unsupported_parameter"));
  }
  if (given("prompt")) {
    return in->Fail(InvalidRequest("'prompt' is not supported: this server stores no prompts; send its text in 'instructions' or 'input'", "prompt",
                                   "unsupported_parameter"));
  }
  bool background = false;
  in->Bool("background", &background);
  if (background) {
    in->Fail(InvalidRequest("'background' is not supported: an answer lives as long as its connection", "background", "unsupported_parameter"));
  }
}

// Function tools, flat as here or nested as in chat; every other type belongs to another server and is passed over. Gives what the answer
// repeats of them.
JsonValue ReadFlatTools(FieldReader* in, ChatRewrite* out) {
  JsonValue::Array mirror, chat;
  const JsonValue* tools = in->Get("tools");
  if (!tools) return mirror;
  if (!tools->is_array()) {
    in->Fail("tools", fmt::format("'tools' must be an array, not {}", KindName(*tools)));
    return mirror;
  }
  for (size_t i = 0; i < tools->AsArray().size(); ++i) {
    const JsonValue& tool = tools->AsArray()[i];
    const std::string path = fmt::format("tools[{}]", i);
    const JsonValue* type = tool.Find("type");
    if (!tool.is_object() || !type || !type->is_string()) {
      in->Fail(InvalidRequest(fmt::format("'{}' must be an object with a string 'type'", path), path));
      return mirror;
    }
    if (type->AsString() != "function") continue;
    const JsonValue* nested = tool.Find("function");
    const bool is_nested = nested && nested->is_object();
    const JsonValue& source = is_nested ? *nested : tool;
    JsonValue::Object function;
    for (const char* key : {"name", "description", "parameters", "strict"}) {
      const JsonValue* value = source.Find(key);
      if (value && !value->is_null()) function.emplace_back(key, *value);
    }
    const std::string chat_path = fmt::format("tools[{}]", chat.size());
    out->Rename(chat_path, path);
    out->Rename(chat_path + ".function", is_nested ? path + ".function" : path);
    const JsonValue view(function);
    const auto or_null = [&](const char* key) { return view.Find(key) ? *view.Find(key) : JsonValue(); };
    mirror.emplace_back(JsonValue::Object{{"type", "function"},
                                          {"name", or_null("name")},
                                          {"description", or_null("description")},
                                          {"parameters", or_null("parameters")},
                                          {"strict", view.Find("strict") ? *view.Find("strict") : JsonValue(false)}});
    chat.emplace_back(JsonValue::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  if (!chat.empty()) out->Set("tools", std::move(chat));
  return mirror;
}

JsonValue NestedFunction(const JsonValue& name) {
  return JsonValue::Object{{"type", "function"}, {"function", JsonValue::Object{{"name", name}}}};
}

void ReadFlatToolChoice(FieldReader* in, ChatRewrite* out) {
  const JsonValue* choice = in->Get("tool_choice");
  if (!choice) return;
  const JsonValue* type = choice->Find("type");
  const std::string kind = type && type->is_string() ? type->AsString() : "";
  out->Rename("tool_choice.function", "tool_choice");
  if (kind == "function" && choice->Find("name")) return out->Set("tool_choice", NestedFunction(*choice->Find("name")));
  if (kind == "allowed_tools" && !choice->Find("allowed_tools")) {
    JsonValue::Array tools;
    const JsonValue* listed = choice->Find("tools");
    if (!listed || !listed->is_array()) return in->Fail("tool_choice.tools", "'tool_choice.tools' must be an array of tools");
    for (size_t i = 0; i < listed->AsArray().size(); ++i) {
      const JsonValue& one = listed->AsArray()[i];
      const std::string path = fmt::format("tool_choice.tools[{}]", i);
      const std::string type_name = RequireString(in, one, "type", path);
      if (in->failed()) return;
      if (type_name != "function") continue;
      const JsonValue* name = one.Find("name");
      tools.push_back(name ? NestedFunction(*name) : one);
    }
    const JsonValue* mode = choice->Find("mode");
    out->Rename("tool_choice.allowed_tools", "tool_choice");
    return out->Set("tool_choice",
                    JsonValue::Object{{"type", "allowed_tools"},
                                      {"allowed_tools", JsonValue::Object{{"mode", mode ? *mode : JsonValue("auto")}, {"tools", std::move(tools)}}}});
  }
  out->Set("tool_choice", *choice);
}

// text.format is response_format in other clothes.
void ReadText(FieldReader* in, ChatRewrite* out) {
  const JsonValue* text = in->Get("text");
  if (!text) return;
  if (!text->is_object()) return in->Fail("text", fmt::format("'text' must be an object, not {}", KindName(*text)));
  const JsonValue* format = text->Find("format");
  if (!format || format->is_null()) return;
  if (!format->is_object()) return in->Fail("text.format", fmt::format("'text.format' must be an object, not {}", KindName(*format)));
  const JsonValue* type = format->Find("type");
  if (type && type->is_string() && type->AsString() == "json_schema" && !format->Find("json_schema")) {
    JsonValue::Object schema;
    for (const auto& [key, value] : format->AsObject()) {
      if (key != "type") schema.emplace_back(key, value);
    }
    out->Rename("response_format.json_schema", "text.format");
    return out->Set("response_format", JsonValue::Object{{"type", "json_schema"}, {"json_schema", std::move(schema)}}, "text.format");
  }
  out->Set("response_format", *format, "text.format");
}

void ReadReasoning(FieldReader* in, ChatRewrite* out) {
  const JsonValue* reasoning = in->Get("reasoning");
  if (!reasoning) return;
  if (!reasoning->is_object()) return in->Fail("reasoning", fmt::format("'reasoning' must be an object, not {}", KindName(*reasoning)));
  const JsonValue* effort = reasoning->Find("effort");
  if (effort && !effort->is_null()) out->Set("reasoning_effort", *effort, "reasoning.effort");
}

// Token probabilities are asked for by a count, or by naming them among what the answer shall include.
void ReadLogprobs(FieldReader* in, ChatRewrite* out) {
  bool wanted = false;
  if (const JsonValue* include = in->Get("include")) {
    if (!include->is_array()) return in->Fail("include", fmt::format("'include' must be an array of strings, not {}", KindName(*include)));
    for (const JsonValue& one : include->AsArray()) wanted |= one.is_string() && one.AsString() == "message.output_text.logprobs";
  }
  const JsonValue* top = in->Get("top_logprobs");
  int64_t count = 0;
  if (top && AsInteger(*top, &count) && count == 0) top = nullptr;
  if (!wanted && !top) return;
  out->Set("logprobs", true);
  if (top) out->Set("top_logprobs", *top);
}

JsonValue Mirror(const JsonValue& body, JsonValue tools, const ValidRequest& request) {
  const auto field = [&](std::string_view key, JsonValue otherwise) {
    const JsonValue* value = body.Find(key);
    return value && !value->is_null() ? *value : otherwise;
  };
  const JsonValue* effort = body.Find("reasoning") ? body.Find("reasoning")->Find("effort") : nullptr;
  JsonValue text = field("text", JsonValue::Object{});
  if (!text.Find("format") || text.Find("format")->is_null()) {
    JsonValue::Object with{{"format", JsonValue::Object{{"type", "text"}}}};
    for (const auto& [key, value] : text.AsObject()) {
      if (key != "format") with.emplace_back(key, value);
    }
    text = std::move(with);
  }
  return JsonValue::Object{
      {"background", false},
      {"instructions", field("instructions", nullptr)},
      {"max_output_tokens", field("max_output_tokens", nullptr)},
      {"max_tool_calls", field("max_tool_calls", nullptr)},
      {"metadata", field("metadata", JsonValue::Object{})},
      {"parallel_tool_calls", field("parallel_tool_calls", true)},
      {"previous_response_id", nullptr},
      {"prompt_cache_key", field("prompt_cache_key", nullptr)},
      {"reasoning", JsonValue::Object{{"effort", effort ? *effort : JsonValue()}, {"summary", nullptr}}},
      {"safety_identifier", field("safety_identifier", nullptr)},
      {"service_tier", "default"},
      {"store", false},
      {"temperature", request.sampling.temperature},
      {"text", std::move(text)},
      {"tool_choice", field("tool_choice", "auto")},
      {"tools", std::move(tools)},
      {"top_logprobs", static_cast<int64_t>(request.sampling.top_logprobs)},
      {"top_p", request.sampling.top_p},
      {"truncation", "disabled"},
      {"user", field("user", nullptr)},
  };
}

}  // namespace

ParsedRequest ParseResponsesRequest(const JsonValue& body, const RequestContext& context) {
  if (!body.is_object()) return InvalidRequest(fmt::format("The body must be a JSON object, not {}", KindName(body)), "");
  FieldReader in(body);
  ChatRewrite chat;
  RefuseState(&in);
  ReadInput(&in, &chat);
  if (in.failed()) return in.TakeError();
  JsonValue tools = ReadFlatTools(&in, &chat);
  ReadFlatToolChoice(&in, &chat);
  ReadText(&in, &chat);
  ReadReasoning(&in, &chat);
  ReadLogprobs(&in, &chat);
  if (const JsonValue* metadata = in.Get("metadata"); metadata && !metadata->is_object()) {
    in.Fail("metadata", fmt::format("'metadata' must be an object, not {}", KindName(*metadata)));
  }
  if (in.failed()) return in.TakeError();
  if (const JsonValue* most = in.Get("max_output_tokens")) chat.Set("max_completion_tokens", *most, "max_output_tokens");
  chat.Copy(body, {"model", "stream", "temperature", "top_p", "parallel_tool_calls",
                   // Extensions, as in chat.
                   "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "logit_bias", "stop",
                   "chat_template_kwargs", "enable_thinking", "ignore_eos", "cache_prompt", "cache_salt", "separate_reasoning", "include_reasoning",
                   "guided_json", "guided_regex", "guided_choice", "structured_outputs"});
  ParsedRequest parsed = chat.Parse(context, "input");
  if (auto* request = std::get_if<ValidRequest>(&parsed)) {
    request->route = Route::kResponses;
    request->mirror = Mirror(body, std::move(tools), *request);
  }
  return parsed;
}

}  // namespace holdfast::api

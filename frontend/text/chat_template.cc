#include "frontend/text/chat_template.h"

#include <algorithm>
#include <optional>

#include "frontend/text/chat_messages.h"
#include "proto/base/status_wire.h"

namespace holdfast::text {
namespace {

using Object = JsonValue::Object;
using Array = JsonValue::Array;

constexpr std::string_view kProbeKey = "hf_probe_key";
constexpr std::string_view kProbeValue = "hf_probe_value";
constexpr std::string_view kProbeText = "hf_probe_text";

JsonValue Message(const char* role, JsonValue content) { return JsonValue(Object{{"role", JsonValue(role)}, {"content", std::move(content)}}); }

// Mistral's templates insist on ids of nine letters and digits.
constexpr const char* kShortId = "call00001";

JsonValue ProbeConversation(JsonValue arguments, const char* id = kShortId) {
  JsonValue function(Object{{"name", JsonValue("probe")}, {"arguments", std::move(arguments)}});
  JsonValue call(Object{{"id", JsonValue(id)}, {"type", JsonValue("function")}, {"function", std::move(function)}});
  JsonValue assistant = WithMember(Message("assistant", JsonValue("")), "tool_calls", JsonValue(Array{std::move(call)}));
  JsonValue result = WithMember(Message("tool", JsonValue("1")), "tool_call_id", JsonValue(id));
  return JsonValue(Array{Message("user", JsonValue("hello")), std::move(assistant), std::move(result)});
}

bool Has(std::string_view text, std::string_view what) { return text.find(what) != std::string_view::npos; }

bool IsLastAssistantWithCalls(const JsonValue& messages) {
  const JsonValue& last = messages.AsArray().back();
  return last.Find("role")->AsString() == "assistant" && last.Find("tool_calls") != nullptr;
}

// Where the text of the last message ends: a marker goes behind its content and is looked for in the output.
struct Continuation {
  JsonValue messages;
  std::string marker;
};

absl::StatusOr<Continuation> MarkFinalMessage(const JsonValue& messages) {
  const Array& all = messages.AsArray();
  const size_t last = all.size() - 1;
  const JsonValue* content = all[last].Find("content");
  const std::string path = "messages[" + std::to_string(last) + "].content";
  if (content == nullptr || !content->is_string()) {
    return absl::InvalidArgumentError(path + ": only a message with text content can be continued");
  }
  Continuation out;
  out.marker = "HF_CONTINUE_HERE";
  while (Has(content->AsString(), out.marker)) out.marker += "_";
  Array marked = all;
  marked[last] = WithMember(all[last], "content", JsonValue(content->AsString() + out.marker + " "));
  out.messages = JsonValue(std::move(marked));
  return out;
}

absl::Status CutAtMarker(const std::string& marker, jinja::RenderOutput* output) {
  const std::string& text = output->text.str();
  const size_t at = text.rfind(marker);
  if (at == std::string::npos) return absl::InvalidArgumentError("the template does not show the final message's content, so it cannot be continued");
  size_t end = at;
  // The blank behind the marker is gone when the template trims: then blanks before it would have been trimmed as well.
  if (text.compare(at + marker.size(), 1, " ") != 0) {
    while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == '\n' || text[end - 1] == '\t' || text[end - 1] == '\r')) --end;
  }
  output->text.Truncate(end);
  return absl::OkStatus();
}

}  // namespace

std::string RenderedPrompt::Text() const {
  std::string out;
  for (const Span& span : spans) out += span.text;
  return out;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Create(std::string_view source, std::string_view name, SpecialTokenTexts tokens) {
  HF_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source, name));
  ChatTemplate out(std::move(parsed), std::move(tokens));
  out.Probe(source);
  return out;
}

void ChatTemplate::Probe(std::string_view source) {
  needs_.developer_role = Has(source, "developer");
  needs_.tools = template_.Mentions("tools");
  needs_.gemma4 = Has(source, "<|tool_call>call:");
  needs_.fold_tool_results = needs_.gemma4 && Has(source, "tool_responses") && !Has(source, "OpenAI Chat Completions:");
  const auto text_of = [this](JsonValue messages) -> std::optional<std::string> {
    RenderInput input;
    jinja::RenderOptions options = Options(input, std::move(messages));
    options.limits.max_steps = 1'000'000;  // a hostile template must not delay the start
    auto output = template_.Render(options);
    if (!output.ok()) return std::nullopt;
    return output->text.str();
  };
  const JsonValue plain(Array{Message("user", JsonValue("hello"))});
  if (needs_.tools && !text_of(plain)) {
    needs_.undefined_tools = true;
    needs_.undefined_tools = text_of(plain).has_value();
  }
  const std::string key(kProbeKey);
  const std::string value(kProbeValue);
  const auto as_object = text_of(ProbeConversation(JsonValue(Object{{key, JsonValue(value)}})));
  const std::string json = "{\"" + key + "\": \"" + value + "\"}";
  const auto as_text = text_of(ProbeConversation(JsonValue(json)));
  const bool object_works = as_object && Has(*as_object, kProbeKey) && Has(*as_object, kProbeValue) && !Has(*as_object, "{'" + key + "'");
  needs_.object_arguments = object_works || !(as_text && Has(*as_text, json));
  if (as_object || as_text) {
    const JsonValue arguments = as_object ? JsonValue(Object{{key, JsonValue(value)}}) : JsonValue(json);
    needs_.short_call_ids = !text_of(ProbeConversation(arguments, "call_00000000000000000001"));
  }
  const auto parts = text_of(JsonValue(Array{Message("user", JsonValue(Array{JsonValue(
      Object{{"type", JsonValue("text")}, {"text", JsonValue(std::string(kProbeText))}})}))}));
  needs_.text_parts = parts && Has(*parts, kProbeText) && !Has(*parts, "'text'") && !Has(*parts, "\"text\"");
}

jinja::RenderOptions ChatTemplate::Options(const RenderInput& input, JsonValue messages) const {
  jinja::RenderOptions options;
  options.now = input.now;
  options.limits.max_output_bytes = input.max_output_bytes;
  options.variables.push_back({"messages", std::move(messages), false, true});
  // As Hugging Face's apply_chat_template: without tools the variable is there and none.
  const bool tools = input.tools.is_array() && !input.tools.AsArray().empty();
  options.variables.push_back({"documents", JsonValue(), false, false});
  if (tools || !needs_.undefined_tools) options.variables.push_back({"tools", tools ? input.tools : JsonValue(), false, false});
  options.variables.push_back({"add_generation_prompt", JsonValue(input.add_generation_prompt && !input.continue_final_message), false, false});
  const std::pair<const char*, const std::string*> tokens[] = {
      {"bos_token", &tokens_.bos}, {"eos_token", &tokens_.eos}, {"unk_token", &tokens_.unk}, {"pad_token", &tokens_.pad}};
  for (const auto& [name, text] : tokens) options.variables.push_back({name, JsonValue(*text), true, false});
  if (input.kwargs.is_object()) {
    for (const auto& [name, value] : input.kwargs.AsObject()) {
      if (name == "documents") options.variables[1].json = value;
      if (name != "documents") options.variables.push_back({name, value, false, false});
    }
  }
  // gemma-4's template prints nulls inside arguments and schemas; the model knows JSON's word for them.
  if (needs_.gemma4) options.none_text = "null";
  return options;
}

// Tries the form the template was found to need, then the others; the first failure is the one reported.
absl::StatusOr<jinja::RenderOutput> ChatTemplate::RenderMessages(const RenderInput& input, JsonValue* rendered) const {
  const MessageForm forms[] = {{needs_.object_arguments, false}, {needs_.object_arguments, true}, {!needs_.object_arguments, false}};
  std::optional<absl::Status> first;
  std::string previous;
  for (const MessageForm& form : forms) {
    HF_ASSIGN_OR_RETURN(JsonValue messages, ConvertMessages(input.messages, needs_, form));
    *rendered = messages;
    std::string marker;
    if (input.continue_final_message) {
      HF_ASSIGN_OR_RETURN(Continuation continuation, MarkFinalMessage(messages));
      messages = std::move(continuation.messages);
      marker = std::move(continuation.marker);
    }
    jinja::RenderOutput output;
    jinja::RenderError error;
    if (template_.Render(Options(input, messages), &output, &error)) {
      if (!marker.empty()) HF_RETURN_IF_ERROR(CutAtMarker(marker, &output));
      return output;
    }
    if (!first) first = jinja::ToStatus(error, name());
    // What the template itself refuses, or what is too big, no other form makes right.
    const bool form_matters = error.kind == jinja::RenderError::Kind::kType || error.kind == jinja::RenderError::Kind::kUndefined ||
                              error.kind == jinja::RenderError::Kind::kRaised;
    if (!form_matters) break;
    bool has_calls = false;
    for (const JsonValue& message : messages.AsArray()) has_calls = has_calls || message.Find("tool_calls") != nullptr;
    if (!has_calls) break;
  }
  return *first;
}

absl::StatusOr<RenderedPrompt> ChatTemplate::Render(const RenderInput& input) const {
  if (!input.kwargs.is_null() && !input.kwargs.is_object()) return absl::InvalidArgumentError("chat_template_kwargs: must be an object");
  if (input.kwargs.is_object()) {
    for (const auto& [name, value] : input.kwargs.AsObject()) {
      if (IsReservedVariable(name)) return absl::InvalidArgumentError("chat_template_kwargs." + name + ": this name is reserved");
    }
  }
  if (input.continue_final_message && input.add_generation_prompt) {
    return absl::InvalidArgumentError("continue_final_message and add_generation_prompt exclude each other");
  }
  if (!input.tools.is_null() && !input.tools.is_array()) return absl::InvalidArgumentError("tools: must be an array");
  JsonValue messages;
  HF_ASSIGN_OR_RETURN(jinja::RenderOutput output, RenderMessages(input, &messages));
  if (needs_.gemma4 && input.add_generation_prompt) {
    const bool results = messages.AsArray().back().Find("tool_responses") != nullptr;
    if (IsLastAssistantWithCalls(messages) && !results) {
      return absl::InvalidArgumentError("messages: the conversation ends with a tool call; append the tool's result");
    }
    // After content and results of one turn the template closes the turn and opens no new one.
    if (output.text.str().ends_with("<turn|>\n")) output.text.Append("<|turn>model\n", true);
  }
  RenderedPrompt prompt;
  prompt.anchors = Anchors(input, messages, output);
  size_t begin = 0;
  for (const auto& run : output.text.runs()) {
    prompt.spans.push_back({output.text.str().substr(begin, run.end - begin), run.trusted});
    begin = run.end;
  }
  return prompt;
}

std::vector<size_t> ChatTemplate::Anchors(const RenderInput& input, const JsonValue& messages, const jinja::RenderOutput& output) const {
  std::vector<size_t> anchors;
  const Array& all = messages.AsArray();
  const auto is_system = [&](size_t i) {
    const std::string& role = all[i].Find("role")->AsString();
    return role == "system" || role == "developer";
  };
  for (const auto& mark : output.marks) {
    // Text before the first message that is no system message is the system-and-tools block.
    if (anchors.empty() && !is_system(mark.index)) anchors.push_back(mark.begin);
    anchors.push_back(mark.end);
  }
  if (output.marks.empty() && all.size() > 1) {
    // The template goes over its messages in a way that left no marks: compare with renderings of shorter conversations.
    RenderInput shorter = input;
    shorter.add_generation_prompt = false;
    shorter.continue_final_message = false;
    for (const size_t count : {is_system(0) ? size_t{1} : size_t{0}, all.size() - 1}) {
      if (count == 0) continue;
      const Array prefix(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
      auto part = template_.Render(Options(shorter, JsonValue(prefix)));
      if (!part.ok()) continue;
      const auto& a = part->text.str();
      const auto& b = output.text.str();
      anchors.push_back(static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin()));
    }
  }
  if (input.add_generation_prompt && output.generation_offset > 0) anchors.push_back(static_cast<size_t>(output.generation_offset));
  for (size_t& anchor : anchors) {  // comparing may have stopped inside a character
    while (anchor > 0 && anchor < output.text.size() && (static_cast<unsigned char>(output.text.str()[anchor]) & 0xC0) == 0x80) --anchor;
  }
  std::sort(anchors.begin(), anchors.end());
  anchors.erase(std::unique(anchors.begin(), anchors.end()), anchors.end());
  const size_t size = output.text.size();
  anchors.erase(std::remove_if(anchors.begin(), anchors.end(), [size](size_t a) { return a == 0 || a > size; }), anchors.end());
  return anchors;
}

}  // namespace holdfast::text

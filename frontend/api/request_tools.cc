#include "frontend/api/request_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace holdfast::api {
namespace {

using text::JsonValue;

bool NameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || std::string_view("_-.:/").find(c) != std::string_view::npos;
}

void ReadToolChoice(FieldReader* in, ValidRequest* out) {
  const JsonValue* choice = in->Get("tool_choice");
  if (!choice || in->failed()) return;
  const bool none = out->tools.empty();
  if (choice->is_string()) {
    const std::string& word = choice->AsString();
    if (word == "auto") return;
    if (word == "none") {
      out->policy.mode = tools::Mode::kNone;
      return;
    }
    if (word != "required") {
      return in->Fail("tool_choice", fmt::format("'tool_choice' is '{}'; none, auto, required or an object exist", Quoted(word)));
    }
    if (none) return in->Fail("tool_choice", "'tool_choice' asks for a tool call, but 'tools' is empty");
    out->policy.mode = tools::Mode::kRequired;
    return;
  }
  const JsonValue* type = choice->Find("type");
  if (!choice->is_object() || !type || !type->is_string()) {
    return in->Fail("tool_choice", choice->is_object() ? std::string("'tool_choice' must have a string 'type': function or allowed_tools")
                                                       : fmt::format("'tool_choice' must be a string or an object, not {}", KindName(*choice)));
  }
  const std::string& kind = type->AsString();
  if (kind != "function" && kind != "allowed_tools") {
    return in->Fail("tool_choice", fmt::format("'tool_choice' is of type '{}'; function and allowed_tools exist", Quoted(kind)));
  }
  if (none) return in->Fail("tool_choice", "'tool_choice' names tools, but 'tools' is empty");
  if (kind == "allowed_tools") {
    const JsonValue* inner = choice->Find("allowed_tools");
    if (inner) return ReadAllowedTools(in, *inner, "tool_choice.allowed_tools", out);
    return ReadAllowedTools(in, *choice, "tool_choice", out);
  }
  const JsonValue* function = choice->Find("function");
  std::string name;
  const bool flat = !function && choice->Find("name");
  if (!ReadToolName(in, flat ? choice->Find("name") : function ? function->Find("name") : nullptr,
                    flat ? "tool_choice.name" : "tool_choice.function.name", *out, &name)) {
    return;
  }
  out->policy.mode = tools::Mode::kRequired;
  out->policy.allowed = {std::move(name)};
  out->policy.parallel = false;  // a named function is called once
}

void RefuseLegacy(FieldReader* in) {
  const JsonValue* functions = in->Get("functions");
  if (functions && !(functions->is_array() && functions->AsArray().empty())) {
    return in->Fail("functions", "'functions' was replaced by 'tools': send {\"type\": \"function\", \"function\": {...}} for each of them");
  }
  const JsonValue* call = in->Get("function_call");
  if (call && !(call->is_string() && (call->AsString() == "none" || call->AsString() == "auto"))) {
    in->Fail("function_call", "'function_call' was replaced by 'tool_choice': send {\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
}

}  // namespace

void AddFunction(FieldReader* in, const FunctionFields& fields, ValidRequest* out) {
  if (in->failed()) return;
  if (out->tools.size() >= kMaxTools) return FailAt(in, fields.at, fmt::format("is one too many: at most {} tools", kMaxTools));
  const JsonValue* name = Present(fields.name);
  if (!name || !name->is_string() || name->AsString().empty()) return FailAt(in, fields.at + ".name", "must be a string that is not empty");
  const std::string& text = name->AsString();
  if (text.size() > kMaxToolName || !std::all_of(text.begin(), text.end(), NameCharacter)) {
    return FailAt(in, fields.at + ".name",
                  fmt::format("is '{}'; a name has at most {} letters, digits, '_', '-', '.', ':' and '/'", Quoted(text), kMaxToolName));
  }
  for (const tools::Tool& other : out->tools) {
    if (other.name == text) return FailAt(in, fields.at + ".name", fmt::format("is '{}' a second time; each tool needs a name of its own", text));
  }
  const JsonValue* description = Present(fields.description);
  if (description && !description->is_string()) return FailAt(in, fields.at + ".description", fmt::format("must be a string, not {}", KindName(*description)));
  const JsonValue* parameters = Present(fields.parameters);
  if (parameters && !parameters->is_object()) {
    return FailAt(in, fields.parameters_path, fmt::format("must be an object (a JSON Schema), not {}", KindName(*parameters)));
  }
  if (parameters && parameters->AsObject().empty()) parameters = nullptr;
  const JsonValue* strict = Present(fields.strict);
  if (strict && !strict->is_bool()) return FailAt(in, fields.at + ".strict", fmt::format("must be true or false, not {}", KindName(*strict)));

  JsonValue::Object function{{"name", *name}};
  if (description) function.emplace_back("description", *description);
  // Templates go over the members of the properties: there are some, if none.
  function.emplace_back("parameters", parameters ? *parameters
                                                 : JsonValue(JsonValue::Object{{"type", "object"}, {"properties", JsonValue(JsonValue::Object{})}}));
  JsonValue::Array all = out->template_tools.is_array() ? out->template_tools.AsArray() : JsonValue::Array{};
  all.push_back(JsonValue(JsonValue::Object{{"type", "function"}, {"function", JsonValue(std::move(function))}}));
  out->template_tools = JsonValue(std::move(all));

  tools::Tool tool;
  tool.name = text;
  if (parameters) tool.parameters = *parameters;
  tool.strict = strict && strict->AsBool();
  out->tools.push_back(std::move(tool));
  out->tool_paths.push_back(fields.parameters_path);
}

void FinishTools(ValidRequest* out) {
  if (out->policy.mode == tools::Mode::kNone) out->template_tools = JsonValue();
}

bool ReadToolName(FieldReader* in, const JsonValue* name, const std::string& path, const ValidRequest& request, std::string* out) {
  if (!name || !name->is_string()) {
    FailAt(in, path, "must be the name of a tool");
    return false;
  }
  const bool known = std::any_of(request.tools.begin(), request.tools.end(), [&](const tools::Tool& tool) { return tool.name == name->AsString(); });
  if (!known) {
    FailAt(in, path, fmt::format("is '{}', which is not in 'tools'", Quoted(name->AsString())));
    return false;
  }
  *out = name->AsString();
  return true;
}

void ReadAllowedTools(FieldReader* in, const JsonValue& allowed, const std::string& path, ValidRequest* out) {
  const JsonValue* mode = Present(allowed.Find("mode"));
  if (mode && !(mode->is_string() && (mode->AsString() == "auto" || mode->AsString() == "required"))) {
    return FailAt(in, path + ".mode", "must be \"auto\" or \"required\"");
  }
  const JsonValue* list = allowed.Find("tools");
  if (!list || !list->is_array() || list->AsArray().empty()) return FailAt(in, path + ".tools", "must be an array of at least one tool");
  for (size_t i = 0; i < list->AsArray().size(); ++i) {
    const JsonValue& one = list->AsArray()[i];
    const std::string at = fmt::format("{}.tools[{}]", path, i);
    const JsonValue* function = one.Find("function");
    std::string name;
    if (!ReadToolName(in, function ? function->Find("name") : one.Find("name"), function ? at + ".function.name" : at + ".name", *out, &name)) return;
    if (std::find(out->policy.allowed.begin(), out->policy.allowed.end(), name) == out->policy.allowed.end()) {
      out->policy.allowed.push_back(std::move(name));
    }
  }
  if (mode && mode->AsString() == "required") out->policy.mode = tools::Mode::kRequired;
}

void ReadTools(FieldReader* in, ValidRequest* out) {
  const JsonValue* list = in->Get("tools");
  if (list && !list->is_array()) return in->Fail("tools", fmt::format("'tools' must be an array, not {}", KindName(*list)));
  for (size_t i = 0; list && i < list->AsArray().size() && !in->failed(); ++i) {
    const JsonValue& tool = list->AsArray()[i];
    const std::string at = fmt::format("tools[{}]", i);
    if (!tool.is_object()) return FailAt(in, at, fmt::format("must be an object, not {}", KindName(tool)));
    const JsonValue* type = Present(tool.Find("type"));
    if (type && !(type->is_string() && type->AsString() == "function")) {
      return FailAt(in, at + ".type", type->is_string() ? fmt::format("is '{}'; only functions can be offered", Quoted(type->AsString()))
                                                        : std::string("must be \"function\""));
    }
    const JsonValue* function = Present(tool.Find("function"));
    if (!function || !function->is_object()) return FailAt(in, at + ".function", "must be an object with a name and parameters");
    FunctionFields fields;
    fields.at = at + ".function";
    fields.parameters_path = fields.at + ".parameters";
    fields.name = function->Find("name");
    fields.description = function->Find("description");
    fields.parameters = function->Find("parameters");
    fields.strict = Present(function->Find("strict")) ? function->Find("strict") : tool.Find("strict");
    AddFunction(in, fields, out);
  }
  bool parallel = true;
  in->Bool("parallel_tool_calls", &parallel);
  ReadToolChoice(in, out);
  out->policy.parallel = out->policy.parallel && parallel;
  RefuseLegacy(in);
  FinishTools(out);
}

}  // namespace holdfast::api

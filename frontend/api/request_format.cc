// response_format and its relatives, and how thoughts travel.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/api/request_tools.h"

namespace holdfast::api {
namespace {

using text::JsonValue;
using Kind = grammar::ResponseFormat::Kind;

constexpr size_t kMaxPattern = 64 << 10;

void Take(FieldReader* in, grammar::ResponseFormat format, ValidRequest* out) {
  if (out->response_format.kind != Kind::kText) {
    return FailAt(in, format.path, fmt::format("asks for a form of the answer, and so does '{}': one of them can be kept", out->response_format.path));
  }
  out->response_format = std::move(format);
}

void TakeSchema(FieldReader* in, const JsonValue* schema, const std::string& path, ValidRequest* out) {
  grammar::ResponseFormat format;
  format.kind = Kind::kJsonSchema;
  format.path = path;
  if (schema && schema->is_string()) {  // vLLM takes a schema as text as well
    auto parsed = text::ParseJson(schema->AsString());
    if (!parsed.ok()) return FailAt(in, path, "is a string that is no JSON; it must be a JSON Schema");
    format.schema = *std::move(parsed);
  } else if (schema) {
    format.schema = *schema;
  }
  if (!format.schema.is_object() && !format.schema.is_bool()) {
    return FailAt(in, path, fmt::format("must be an object (a JSON Schema){}", schema ? fmt::format(", not {}", KindName(*schema)) : std::string()));
  }
  Take(in, std::move(format), out);
}

void TakePattern(FieldReader* in, const JsonValue* pattern, const std::string& path, ValidRequest* out) {
  if (!pattern || !pattern->is_string() || pattern->AsString().empty()) return FailAt(in, path, "must be a regular expression, as a string that is not empty");
  if (pattern->AsString().size() > kMaxPattern) {
    return FailAt(in, path, fmt::format("has {} bytes, the limit of a regular expression is {}", pattern->AsString().size(), kMaxPattern));
  }
  grammar::ResponseFormat format;
  format.kind = Kind::kRegex;
  format.path = path;
  format.pattern = pattern->AsString();
  Take(in, std::move(format), out);
}

// One of these strings, as a regular expression.
void TakeChoices(FieldReader* in, const JsonValue* choices, const std::string& path, ValidRequest* out) {
  if (!choices || !choices->is_array() || choices->AsArray().empty()) return FailAt(in, path, "must be an array of at least one string");
  std::string pattern;
  for (size_t i = 0; i < choices->AsArray().size(); ++i) {
    const JsonValue& one = choices->AsArray()[i];
    if (!one.is_string() || one.AsString().empty()) return FailAt(in, fmt::format("{}[{}]", path, i), "must be a string that is not empty");
    pattern += i == 0 ? "(?:" : "|";
    for (const char c : one.AsString()) {
      if (std::string_view("\\^$.|?*+()[]{}/").find(c) != std::string_view::npos) pattern += '\\';
      pattern += c;
    }
  }
  const JsonValue whole(pattern + ")");
  TakePattern(in, &whole, path, out);
}

}  // namespace

void ReadFormatObject(FieldReader* in, const JsonValue& format, const std::string& path, ValidRequest* out) {
  const JsonValue* type = format.Find("type");
  if (!type || !type->is_string()) {
    return FailAt(in, path, "must be an object with a string 'type': text, json_object, json_schema or regex");
  }
  const std::string& name = type->AsString();
  if (name == "text") return;
  if (name == "json_object") {
    if (const JsonValue* schema = Present(format.Find("schema"))) return TakeSchema(in, schema, path + ".schema", out);
    grammar::ResponseFormat any;
    any.kind = Kind::kJsonObject;
    any.path = path;
    return Take(in, std::move(any), out);
  }
  if (name == "json_schema") {
    const JsonValue* inner = Present(format.Find("json_schema"));
    if (!inner && format.Find("schema")) return TakeSchema(in, Present(format.Find("schema")), path + ".schema", out);
    if (!inner || !inner->is_object()) return FailAt(in, path + ".json_schema", "must be an object with a name and a schema");
    return TakeSchema(in, Present(inner->Find("schema")), path + ".json_schema.schema", out);
  }
  if (name == "regex") return TakePattern(in, Present(format.Find("pattern")), path + ".pattern", out);
  FailAt(in, path, fmt::format("has the unknown type '{}'; text, json_object, json_schema and regex exist", Quoted(name)));
}

void ReadResponseFormat(FieldReader* in, ValidRequest* out) {
  if (in->failed()) return;
  if (const JsonValue* format = in->Get("response_format")) ReadFormatObject(in, *format, "response_format", out);
  if (const JsonValue* schema = in->Get("guided_json")) TakeSchema(in, schema, "guided_json", out);
  if (const JsonValue* pattern = in->Get("guided_regex")) TakePattern(in, pattern, "guided_regex", out);
  if (const JsonValue* choices = in->Get("guided_choice")) TakeChoices(in, choices, "guided_choice", out);
  if (in->Get("guided_grammar")) in->Fail(NotYetSupported("guided_grammar", "guided_json and guided_regex are"));
  const JsonValue* structured = in->Get("structured_outputs");
  if (!structured || in->failed()) return;
  if (!structured->is_object()) return in->Fail("structured_outputs", fmt::format("'structured_outputs' must be an object, not {}", KindName(*structured)));
  for (const auto& [key, value] : structured->AsObject()) {
    if (value.is_null() || in->failed()) continue;
    const std::string path = "structured_outputs." + key;
    if (key == "json") TakeSchema(in, &value, path, out);
    else if (key == "regex") TakePattern(in, &value, path, out);
    else if (key == "choice") TakeChoices(in, &value, path, out);
    else if (key == "json_object" && value.is_bool() && value.AsBool()) {
      grammar::ResponseFormat any;
      any.kind = Kind::kJsonObject;
      any.path = path;
      Take(in, std::move(any), out);
    } else if (key == "grammar" || key == "structural_tag") {
      in->Fail(NotYetSupported(path, "json, regex, choice and json_object are"));
    }
  }
}

void ReadReasoning(FieldReader* in, ValidRequest* out) {
  in->Bool("separate_reasoning", &out->separate_reasoning);
  in->Bool("include_reasoning", &out->show_reasoning);
  std::string format;
  in->String("reasoning_format", 64, &format);
  if (in->failed() || format.empty() || format == "auto" || format == "deepseek" || format == "parsed") return;
  if (format == "none" || format == "raw") out->separate_reasoning = false;
  else if (format == "hidden") out->show_reasoning = false;
  else in->Fail("reasoning_format", fmt::format("'reasoning_format' is '{}'; auto, deepseek, parsed, none, raw and hidden exist", Quoted(format)));
}

}  // namespace holdfast::api

#pragma once
// What may be called, how thoughts travel and what the answer has to look like: the fields that tools and structured output need, as
// requests spell them. The Add* functions are what every dialect maps to.
#include <string>
#include <string_view>

#include "frontend/api/request_fields.h"
#include "frontend/api/valid_request.h"
#include "frontend/text/json_value.h"

namespace holdfast::api {

inline constexpr size_t kMaxTools = 1024;
inline constexpr size_t kMaxToolName = 128;

// A function as a dialect describes it. `at` is its path ("tools[3].function"), `parameters_path` that of its schema. Names are letters,
// digits, '_', '-', '.', ':' and '/', at most kMaxToolName, each once; parameters an object (a JSON Schema) or null, as {} any object.
// The template gets {"type":"function","function":{name, description?, parameters}}.
struct FunctionFields {
  const text::JsonValue* name = nullptr;
  const text::JsonValue* description = nullptr;   // a string or null
  const text::JsonValue* parameters = nullptr;
  const text::JsonValue* strict = nullptr;        // a boolean or null
  std::string at;
  std::string parameters_path;
};
void AddFunction(FieldReader* in, const FunctionFields& fields, ValidRequest* out);

// After the last AddFunction: with calls forbidden the tools stay out of the prompt.
void FinishTools(ValidRequest* out);

// {"name": ...} of a tool that has to be one of the request's. Sets *name; false after an error.
bool ReadToolName(FieldReader* in, const text::JsonValue* name, const std::string& path, const ValidRequest& request, std::string* out);

// {"mode","tools":[...]} of allowed_tools, whose entries are {"type":"function","function":{"name"}} or {"type":"function","name"}.
void ReadAllowedTools(FieldReader* in, const text::JsonValue& allowed, const std::string& path, ValidRequest* out);

// Chat: tools, tool_choice (auto, none, required, a function, allowed_tools in both forms), parallel_tool_calls; functions and function_call
// are refused with what replaced them.
void ReadTools(FieldReader* in, ValidRequest* out);

// response_format {"type": "text" | "json_object" | "json_schema" | "regex"}, vLLM's guided_json, guided_regex, guided_choice and
// structured_outputs {json, regex, choice}. At most one of them may ask for a form.
void ReadResponseFormat(FieldReader* in, ValidRequest* out);
// One of its objects at `path` (also the Responses' text.format, whose json_schema is flat).
void ReadFormatObject(FieldReader* in, const text::JsonValue& format, const std::string& path, ValidRequest* out);

// separate_reasoning, include_reasoning, reasoning_format (none, auto, deepseek, parsed, raw, hidden).
void ReadReasoning(FieldReader* in, ValidRequest* out);

}  // namespace holdfast::api

#pragma once
// Turns OpenAI messages into what one template expects. Pure functions on JSON.
#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "frontend/text/chat_template.h"
#include "frontend/text/json_value.h"

namespace holdfast::text {

// How null content next to tool calls is shown, and how arguments are.
struct MessageForm {
  bool object_arguments = true;
  bool drop_null_content = false;  // leave the key out instead of ""
};

// Checks and converts: roles are strings; tool_calls [] and null are dropped; null content becomes "" or is dropped; arguments become
// objects (or text); text parts are joined with newlines unless the template takes parts; developer becomes system unless it is known;
// call ids become nine letters and digits where the template insists on them (the same for the same id);
// tool results are folded into the assistant's message where the template needs that. kInvalidArgument names the path.
absl::StatusOr<JsonValue> ConvertMessages(const JsonValue& messages, const ChatTemplate::Needs& needs, const MessageForm& form);

// The members of object with one replaced or added at the end.
JsonValue WithMember(const JsonValue& object, std::string_view name, JsonValue value);
JsonValue WithoutMember(const JsonValue& object, std::string_view name);

// Names that chat_template_kwargs may not set.
bool IsReservedVariable(std::string_view name);

}  // namespace holdfast::text

#pragma once
// What an answer is held to: the grammar of the calls that tool_choice asks for, of strict tools, and of response_format, put together in
// the model's own format and compiled. Text pool: a large schema takes a while; compiled ones are kept by the model's view.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "frontend/api/valid_request.h"

namespace holdfast::proto {
class Constraint;
}

namespace holdfast::api {

class ModelView;

using ConstraintPtr = std::shared_ptr<const proto::Constraint>;

// Null when nothing has to be enforced:
//   kRequired                               calls, nothing but calls (behind a thought)
//   kAuto, a strict tool or allowed_tools   text in which every call is a valid one; the other tools' arguments are any object
//   response_format, no calls possible      a text of that form (behind a thought)
//   response_format and kAuto               such a text, or calls
// Calls of kAuto without strict tools are free, as the model writes them. The error is a 400 whose param is the path of what cannot be
// enforced. prompt_tail as in tools::ParserOptions.
std::variant<ConstraintPtr, ApiError> MakeConstraint(const ValidRequest& request, const ModelView& view, std::string_view prompt_tail);

}  // namespace holdfast::api

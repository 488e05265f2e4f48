#pragma once
// The part of a request that takes long, done on the text pool: the conversation rendered, the prompts tokenised, the constraint compiled.
#include <cstdint>
#include <variant>
#include <vector>

#include "frontend/api/valid_request.h"
#include "frontend/constraint.h"
#include "frontend/model_view.h"

namespace holdfast::api {

struct Prepared {
  std::vector<PreparedPrompt> prompts;   // at least one; none is empty
  ConstraintPtr constraint;              // of every prompt's answers; null: none
};
using PreparedOrError = std::variant<Prepared, ApiError>;

// The error is a 400. `unix_seconds` is what templates take for now.
PreparedOrError Prepare(const ValidRequest& request, const ModelView& view, int64_t unix_seconds);

}  // namespace holdfast::api

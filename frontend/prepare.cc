#include "frontend/prepare.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "frontend/generation_errors.h"
#include "proto/base/status_wire.h"

namespace holdfast::api {

PreparedOrError Prepare(const ValidRequest& request, const ModelView& view, int64_t unix_seconds) {
  Prepared out;
  if (request.is_conversation()) {
    auto prompt = view.EncodeChat(request, unix_seconds);
    if (!prompt.ok()) return Refused(std::string(MessageOf(prompt.status())), request.input_param);
    out.prompts.push_back(*std::move(prompt));
  }
  for (const ValidRequest::Prompt& one : request.prompts) {
    if (!one.is_tokens) {
      out.prompts.push_back(view.EncodeText(one.text));
      continue;
    }
    for (const uint32_t id : one.tokens) {
      if (id < view.vocab_size()) continue;
      return Refused(fmt::format("Token id {} is not in the vocabulary of {} tokens", id, view.vocab_size()), request.input_param);
    }
    out.prompts.push_back(view.FromIds(one.tokens));
  }
  for (const PreparedPrompt& prompt : out.prompts) {
    if (prompt.tokens.empty()) return Refused("The prompt is empty: there is nothing to continue", request.input_param);
  }
  auto constraint = MakeConstraint(request, view, out.prompts.front().tail);
  if (auto* error = std::get_if<ApiError>(&constraint)) return std::move(*error);
  out.constraint = std::get<ConstraintPtr>(std::move(constraint));
  return out;
}

}  // namespace holdfast::api

#include "frontend/constraint.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/generation_errors.h"
#include "frontend/model_view.h"
#include "proto/base/status_wire.h"
#include "proto/engine.pb.h"

namespace holdfast::api {
namespace {

using grammar::Builder;
using grammar::Node;
using FormatKind = grammar::ResponseFormat::Kind;

// Whether calls have to keep a grammar.
bool HoldsCalls(const ValidRequest& request) {
  if (request.tools.empty() || request.policy.mode == tools::Mode::kNone) return false;
  if (request.policy.mode == tools::Mode::kRequired || !request.policy.allowed.empty()) return true;
  return std::any_of(request.tools.begin(), request.tools.end(), [](const tools::Tool& tool) { return tool.strict; });
}

absl::StatusOr<Node> Answer(const ValidRequest& request, const tools::Format* format, bool calls, bool text, std::string_view tail,
                            Builder& builder) {
  if (!text) return format->Grammar(builder, request.tools, request.policy, tail);
  HF_ASSIGN_OR_RETURN(Node answer, grammar::AnswerNode(builder, request.response_format));
  // In raw completions the model is not led to think, and there is no tail to tell.
  if (format && request.is_conversation()) answer = format->WithReasoning(builder, answer, tail);
  if (!calls) return answer;
  tools::CallPolicy only_calls = request.policy;
  only_calls.mode = tools::Mode::kRequired;
  HF_ASSIGN_OR_RETURN(const Node called, format->Grammar(builder, request.tools, only_calls, tail));
  return builder.Choice({answer, called});
}

std::string Key(const ValidRequest& request, bool calls, bool text, std::string_view tail) {
  std::string key = fmt::format("{}|{}|", request.is_conversation(), tail);
  if (text) key += grammar::CacheKey(request.response_format);
  if (!calls) return key;
  key += fmt::format("|{}|{}", static_cast<int>(request.policy.mode), request.policy.parallel);
  for (const std::string& name : request.policy.allowed) key += "|" + name;
  for (const tools::Tool& tool : request.tools) {
    key += fmt::format("|{}|{}|", tool.name, tool.strict);
    tool.parameters.DumpTo(&key);
  }
  return key;
}

// The path that a message begins with: "tools[1].function.parameters.properties.x: ..." as the client wrote it.
ApiError Refuse(const ValidRequest& request, std::string message) {
  for (size_t i = 0; i < request.tool_paths.size(); ++i) {
    const std::string generic = fmt::format("tools[{}].function.parameters", i);
    if (message.rfind(generic, 0) != 0) continue;
    message.replace(0, generic.size(), request.tool_paths[i]);
    break;
  }
  std::string param = message.substr(0, message.find_first_of(": "));
  const auto is_path = [&](const std::string& path) { return !path.empty() && param.rfind(path, 0) == 0; };
  const bool known = is_path(request.response_format.path) || std::any_of(request.tool_paths.begin(), request.tool_paths.end(), is_path);
  if (!known) param = request.response_format.kind != FormatKind::kText ? request.response_format.path : std::string("tools");
  return Refused(std::move(message), std::move(param));
}

}  // namespace

std::variant<ConstraintPtr, ApiError> MakeConstraint(const ValidRequest& request, const ModelView& view, std::string_view prompt_tail) {
  const bool text = request.response_format.kind != FormatKind::kText && request.policy.mode != tools::Mode::kRequired;
  bool calls = HoldsCalls(request);
  if (text && !request.tools.empty() && request.policy.mode == tools::Mode::kAuto) calls = true;
  if (!text && !calls) return ConstraintPtr();
  const tools::Format* const format = view.format();
  if (calls && !view.has_tool_format()) {
    if (request.policy.mode == tools::Mode::kRequired) {
      return Refused(view.format_error().empty()
                         ? std::string("This model's chat template writes no format of tool calls that is known, so a call cannot be enforced; "
                                       "--tool-call-parser names one")
                         : view.format_error(),
                     "tool_choice");
    }
    calls = false;  // what such a model writes is never taken for a call
    if (!text) return ConstraintPtr();
  }
  auto made = view.constraints().Get(Key(request, calls, text, prompt_tail), [&]() -> absl::StatusOr<proto::Constraint> {
    Builder builder;
    HF_ASSIGN_OR_RETURN(const Node root, Answer(request, format, calls, text, prompt_tail, builder));
    return builder.Build(root);
  });
  if (!made.ok()) return Refuse(request, std::string(MessageOf(made.status())));
  return *std::move(made);
}

}  // namespace holdfast::api

#include "frontend/tools/answer_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/tools/object_reader.h"

namespace holdfast::tools {

using grammar::Builder;
using grammar::Node;
using text::JsonValue;

Node Spell(Builder& builder, const Tags& tags, char symbol) {
  return tags.IsSpelled(symbol) ? builder.Literal(tags.text(symbol)) : builder.Special(tags.token(symbol));
}

absl::StatusOr<Node> ArgumentsGrammar(Builder& builder, const CallableTool& tool, const grammar::SchemaStyle& style) {
  const JsonValue& schema = tool.tool->parameters;
  if (!tool.enforce) return builder.AnyObject(style);
  JsonValue::Object object = schema.is_object() ? schema.AsObject() : JsonValue::Object();
  if (!schema.is_object() && !schema.is_null()) {
    return absl::InvalidArgumentError(fmt::format("{} must be a JSON Schema of an object", tool.path));
  }
  if (schema.is_null()) object.emplace_back("additionalProperties", JsonValue(false));
  if (const JsonValue* type = schema.Find("type"); type != nullptr) {
    if (!type->is_string() || type->AsString() != "object") {
      return absl::InvalidArgumentError(fmt::format("{}.type must be \"object\": arguments are always one", tool.path));
    }
  } else {
    object.insert(object.begin(), {"type", JsonValue("object")});
  }
  return builder.Schema(JsonValue(std::move(object)), style, tool.path);
}

absl::StatusOr<Node> JsonCallsGrammar(Builder& builder, std::span<const CallableTool> tools, std::string_view key) {
  std::vector<Node> calls;
  for (const CallableTool& tool : tools) {
    const auto arguments = ArgumentsGrammar(builder, tool, {});
    if (!arguments.ok()) return arguments.status();
    std::string head = "{\"name\": \"";
    AppendJsonEscaped(tool.tool->name, &head);
    head.append(fmt::format("\", \"{}\": ", key));
    calls.push_back(builder.Seq({builder.Literal(head), *arguments, builder.Literal("}")}));
  }
  return builder.Choice(calls);
}

absl::StatusOr<std::vector<CallableTool>> CallableTools(std::span<const Tool> tools, const CallPolicy& policy) {
  std::vector<CallableTool> out;
  for (size_t i = 0; i < tools.size() && policy.mode != Mode::kNone; ++i) {
    if (!policy.allowed.empty() && std::find(policy.allowed.begin(), policy.allowed.end(), tools[i].name) == policy.allowed.end()) continue;
    out.push_back({&tools[i], fmt::format("tools[{}].function.parameters", i), policy.mode == Mode::kRequired || tools[i].strict});
  }
  if (out.empty() && policy.mode == Mode::kRequired) {
    return absl::InvalidArgumentError("a tool call is required, but none of the tools may be called");
  }
  return out;
}

AnswerFormat::AnswerFormat(std::string name, std::unique_ptr<Tags> tags, const ThoughtSyntax& thoughts, std::unique_ptr<CallSyntax> calls)
    : name_(std::move(name)), tags_(std::move(tags)), thoughts_(thoughts), calls_(std::move(calls)) {}

std::unique_ptr<OutputParser> AnswerFormat::NewParser(const ParserOptions& options) const {
  return std::make_unique<AnswerParser>(*tags_, thoughts_, calls_.get(), options);
}

// Text in which nothing begins or ends that the parser would see. `may_call`: a call might stand in its place.
Node AnswerFormat::Text(Builder& builder, bool may_call) const {
  std::vector<std::string> forbidden;
  const auto forbid = [&](char symbol) {
    if (symbol != kNoSymbol && tags_->IsSpelled(symbol)) forbidden.emplace_back(tags_->text(symbol));
  };
  if (calls_ != nullptr) {
    for (const char c : calls_->openers()) forbid(c);
  }
  forbid(thoughts_.open);
  forbid(thoughts_.close);
  const Node text = builder.TextWithout(forbidden);
  if (!may_call || !calls_->OpensWithBrace()) return text;
  const std::pair<uint32_t, uint32_t> first[] = {{'{', '{'}, {' ', ' '}, {'\t', '\t'}, {'\n', '\n'}, {'\r', '\r'}, {'<', '<'}};
  return builder.Optional(builder.Seq({builder.CodePoints(first, true), text}));
}

Node AnswerFormat::CloseThought(Builder& builder) const {
  const Node close = Spell(builder, *tags_, thoughts_.close);
  return thoughts_.header.empty() ? builder.Seq({close, builder.Optional(builder.Literal("\n\n"))}) : close;
}

bool AnswerFormat::OpenThought(Builder& builder, std::string_view prompt_tail, Node* rest) const {
  if (thoughts_.open == kNoSymbol) return false;
  const std::string tail = tags_->FromPrompt(prompt_tail);
  const size_t open = tail.rfind(thoughts_.open), close = tail.rfind(thoughts_.close);
  if (open == std::string::npos || (close != std::string::npos && close > open)) return false;
  const std::string_view begun = std::string_view(tail).substr(open + 1);
  const bool in_header = thoughts_.header.starts_with(begun);
  const std::string_view missing = in_header ? thoughts_.header.substr(begun.size()) : std::string_view();
  *rest = builder.Seq({builder.Literal(missing), Text(builder, false), CloseThought(builder)});
  return true;
}

Node AnswerFormat::WithReasoning(Builder& builder, Node answer, std::string_view prompt_tail) const {
  Node rest;
  if (OpenThought(builder, prompt_tail, &rest)) return builder.Seq({rest, answer});
  // A thought that the prompt has closed is the template's way to switch thinking off.
  const bool closed = tags_->FromPrompt(prompt_tail).find(thoughts_.close) != std::string::npos;
  if (thoughts_.open == kNoSymbol || closed) return answer;
  const Node thought = builder.Seq({Spell(builder, *tags_, thoughts_.open), builder.Literal(thoughts_.header), Text(builder, false),
                                    CloseThought(builder)});
  return builder.Seq({builder.Optional(thought), answer});
}

absl::StatusOr<Node> AnswerFormat::Grammar(Builder& builder, std::span<const Tool> tools, const CallPolicy& policy,
                                           std::string_view prompt_tail) const {
  auto callable = CallableTools(tools, policy);
  if (!callable.ok()) return callable.status();
  if (callable->empty()) return WithReasoning(builder, Text(builder, false), prompt_tail);
  if (calls_ == nullptr) {
    return absl::InvalidArgumentError("the model's chat template writes no known format of tool calls; --tool-call-parser names one");
  }
  const auto calls = calls_->CallsGrammar(builder, *callable, policy.parallel);
  if (!calls.ok()) return calls.status();
  if (policy.mode == Mode::kAuto) {
    const Node text = Text(builder, true);
    // Where a brace opens a call, it does so only at the beginning.
    const Node answer = calls_->OpensWithBrace() ? builder.Choice({text, *calls}) : builder.Seq({text, builder.Optional(*calls)});
    return WithReasoning(builder, answer, prompt_tail);
  }
  Node rest;
  if (!OpenThought(builder, prompt_tail, &rest)) return *calls;
  return builder.Seq({rest, *calls});
}

}  // namespace holdfast::tools

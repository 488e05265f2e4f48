#pragma once
// A format made of a thought syntax and a call syntax, and the pieces that their grammars share.
#include <memory>
#include <string>
#include <string_view>

#include "frontend/tools/answer_parser.h"
#include "frontend/tools/format.h"
#include "frontend/tools/tags.h"

namespace holdfast::tools {

// A tag as a grammar: its special token or its characters.
grammar::Node Spell(grammar::Builder& builder, const Tags& tags, char symbol);
// The arguments of a tool as one value: by its schema, or any object. A tool without a schema takes none.
absl::StatusOr<grammar::Node> ArgumentsGrammar(grammar::Builder& builder, const CallableTool& tool, const grammar::SchemaStyle& style);
// {"name": NAME, KEY: ARGUMENTS} for one of the tools.
absl::StatusOr<grammar::Node> JsonCallsGrammar(grammar::Builder& builder, std::span<const CallableTool> tools, std::string_view key);
// The tools that the policy allows. kInvalidArgument when calls are required and none is allowed.
absl::StatusOr<std::vector<CallableTool>> CallableTools(std::span<const Tool> tools, const CallPolicy& policy);

class AnswerFormat final : public Format {
 public:
  // `calls` may be null. The tags were made for the syntaxes.
  AnswerFormat(std::string name, std::unique_ptr<Tags> tags, const ThoughtSyntax& thoughts, std::unique_ptr<CallSyntax> calls);

  std::string_view name() const override { return name_; }
  std::span<const TokenId> markers() const override { return tags_->markers(); }
  std::unique_ptr<OutputParser> NewParser(const ParserOptions& options) const override;
  absl::StatusOr<grammar::Node> Grammar(grammar::Builder& builder, std::span<const Tool> tools, const CallPolicy& policy,
                                        std::string_view prompt_tail) const override;
  grammar::Node WithReasoning(grammar::Builder& builder, grammar::Node answer, std::string_view prompt_tail) const override;

 private:
  grammar::Node Text(grammar::Builder& builder, bool may_call) const;
  // The rest of the thought that the tail left open; false when it left none open.
  bool OpenThought(grammar::Builder& builder, std::string_view prompt_tail, grammar::Node* rest) const;
  grammar::Node CloseThought(grammar::Builder& builder) const;

  std::string name_;
  std::unique_ptr<Tags> tags_;
  ThoughtSyntax thoughts_;
  std::unique_ptr<CallSyntax> calls_;
};

}  // namespace holdfast::tools

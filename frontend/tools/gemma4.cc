#include <fmt/format.h>

#include <utility>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/formats.h"
#include "frontend/tools/object_reader.h"

namespace holdfast::tools {
namespace {

struct Gemma4Symbols {
  char open, close, quote;
};

// call:NAME{key:value,...} up to the closing tag.
class Gemma4Reader final : public CallReader {
 public:
  Gemma4Reader(const Tags* tags, const Gemma4Symbols& symbols, const ToolSet* tools, CallSink* sink)
      : tags_(tags), symbols_(symbols), tools_(tools), sink_(sink) {}

  Verdict Feed(char c) override {
    if (state_ == State::kHead) return Head(c);
    if (state_ == State::kArguments) {
      std::string fragment;
      const bool done = c == symbols_.close ? arguments_->Close(&fragment) : arguments_->Feed(c, &fragment);
      sink_->Arguments(fragment);
      if (!done) return Verdict::kMore;
      state_ = State::kAfter;
      if (c != symbols_.close) return Verdict::kMore;
    }
    if (c == symbols_.close) {
      Complete();
      return Verdict::kEnd;
    }
    // One brace too many is the commonest slip.
    if (IsBlank(c) || c == '}' || c == ']' || c == ')') return Verdict::kMore;
    Complete();
    return Verdict::kEndBefore;
  }

  bool Finish(bool cut) override {
    if (state_ == State::kHead) return true;
    if (state_ == State::kAfter && !cut) Complete();
    return false;
  }

 private:
  enum class State : uint8_t { kHead, kArguments, kAfter };

  Verdict Head(char c) {
    if (c != '{' && c != '(') {
      if (Tags::IsSymbol(c) || head_.size() > kMaxNameBytes) return Verdict::kReject;
      head_.push_back(c);
      return Verdict::kMore;
    }
    const std::string_view name = TrimBlanks(head_);
    std::string_view bare = name;
    if (bare.starts_with("call")) bare = TrimBlanks(bare.substr(4));
    const bool colon = bare.starts_with(":");
    if (colon) bare = TrimBlanks(bare.substr(1));
    // Behind "call:" first: a tool may be called "call:x" itself. Without the colon, "callback" is a name.
    const Tool* tool = tools_->Find(colon ? bare : name);
    if (tool == nullptr) tool = tools_->Find(colon ? name : bare);
    if (tool == nullptr) return Verdict::kReject;
    sink_->BeginCall(tool->name);
    arguments_.emplace(ObjectReader::Style::kGemma4, tags_, symbols_.quote, &tool->parameters);
    std::string fragment;
    arguments_->Begin(c, &fragment);
    sink_->Arguments(fragment);
    state_ = State::kArguments;
    return Verdict::kMore;
  }

  void Complete() {
    sink_->Arguments("}");
    sink_->EndCall();
  }

  const Tags* tags_;
  const Gemma4Symbols symbols_;
  const ToolSet* tools_;
  CallSink* sink_;
  State state_ = State::kHead;
  std::string head_;
  std::optional<ObjectReader> arguments_;
};

class Gemma4 final : public CallSyntax {
 public:
  explicit Gemma4(Tags* tags) : tags_(*tags) {
    symbols_.open = tags->Add("<|tool_call>");
    symbols_.close = tags->Add("<tool_call|>");
    symbols_.quote = tags->Add("<|\"|>");
  }
  bool Opens(char c, bool) const override { return c == symbols_.open; }
  std::string_view openers() const override { return {&symbols_.open, 1}; }
  std::unique_ptr<CallReader> NewReader(char, const ToolSet& tools, CallSink* sink) const override {
    return std::make_unique<Gemma4Reader>(&tags_, symbols_, &tools, sink);
  }

  absl::StatusOr<grammar::Node> CallsGrammar(grammar::Builder& builder, std::span<const CallableTool> tools, bool parallel) const override {
    if (tags_.IsSpelled(symbols_.quote)) {
      return absl::InvalidArgumentError("the model's vocabulary has no token <|\"|>, so that its tool calls cannot be constrained");
    }
    grammar::SchemaStyle style;
    style.style = grammar::ValueStyle::kGemma4;
    style.quote = tags_.token(symbols_.quote);
    std::vector<grammar::Node> calls;
    for (const CallableTool& tool : tools) {
      const auto arguments = ArgumentsGrammar(builder, tool, style);
      if (!arguments.ok()) return arguments.status();
      calls.push_back(builder.Seq({builder.Literal("call:" + tool.tool->name), *arguments}));
    }
    const grammar::Node call =
        builder.Seq({Spell(builder, tags_, symbols_.open), builder.Choice(calls), Spell(builder, tags_, symbols_.close)});
    return builder.Repeat(call, 1, parallel ? grammar::Builder::kNoLimit : 1);
  }

 private:
  const Tags& tags_;
  Gemma4Symbols symbols_{};
};

}  // namespace

std::unique_ptr<CallSyntax> NewGemma4(Tags* tags) { return std::make_unique<Gemma4>(tags); }

ThoughtSyntax Gemma4Thoughts(Tags* tags) {
  ThoughtSyntax thoughts;
  thoughts.open = tags->Add("<|channel>");
  thoughts.close = tags->Add("<channel|>");
  thoughts.header = "thought\n";
  thoughts.anywhere = true;
  return thoughts;
}

}  // namespace holdfast::tools

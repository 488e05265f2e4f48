#include <optional>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/formats.h"
#include "frontend/tools/json_call.h"

namespace holdfast::tools {
namespace {

struct MistralSymbols {
  char calls, id, arguments;
};

// Behind [TOOL_CALLS]: an array of JSON calls, or NAME[ARGS]{...}, with [CALL_ID]ID between the two in some versions. Both are read whatever
// the template writes. A call ends with its object.
class MistralReader final : public CallReader {
 public:
  MistralReader(const Tags* tags, const MistralSymbols& symbols, const ToolSet* tools, CallSink* sink)
      : tags_(tags), symbols_(symbols), tools_(tools), sink_(sink) {}

  Verdict Feed(char c) override {
    switch (state_) {
      case State::kStart:
        if (IsBlank(c)) return Verdict::kMore;
        if (c == '[') {
          state_ = State::kArray;
          return Verdict::kMore;
        }
        head_.clear();
        state_ = State::kName;
        return Name(c);
      case State::kArray: return Array(c);
      case State::kName: return Name(c);
      case State::kId:
        if (c == symbols_.arguments) {
          state_ = State::kBeforeArguments;
        } else if (c == '{') {
          Begin();
        } else if (Tags::IsSymbol(c) || ++id_size_ > kMaxNameBytes) {
          return Verdict::kReject;
        }
        return Verdict::kMore;
      case State::kBeforeArguments:
        if (IsBlank(c)) return Verdict::kMore;
        if (c != '{') return Verdict::kReject;
        Begin();
        return Verdict::kMore;
      case State::kArguments: return Arguments(c);
      case State::kBetween:
        if (IsBlank(c)) return Verdict::kMore;
        return Verdict::kEndBefore;
    }
    return Verdict::kReject;
  }

  bool Finish(bool) override {
    if (state_ == State::kArguments || state_ == State::kBetween) return false;
    if (state_ == State::kArray) return call_ ? !call_->begun() : !had_call_;
    return true;
  }

 private:
  enum class State : uint8_t { kStart, kArray, kName, kId, kBeforeArguments, kArguments, kBetween };

  Verdict Array(char c) {
    if (call_) {
      const JsonCall::Result result = call_->Feed(c);
      if (result == JsonCall::Result::kMore) return Verdict::kMore;
      if (result == JsonCall::Result::kReject) return Verdict::kReject;
      call_->Complete();
      call_.reset();
      had_call_ = true;
      if (result == JsonCall::Result::kDone) return Verdict::kMore;
    }
    if (IsBlank(c) || (had_call_ && c == ',')) return Verdict::kMore;
    if (c == '{') {
      call_.emplace(tags_, kNoSymbol, tools_, sink_);
      return Verdict::kMore;
    }
    if (!had_call_) return Verdict::kReject;
    return c == ']' ? Verdict::kEnd : Verdict::kEndBefore;
  }

  Verdict Name(char c) {
    const bool ends = c == symbols_.id || c == symbols_.arguments || c == '{';
    if (!ends) {
      if (Tags::IsSymbol(c) || head_.size() > kMaxNameBytes) return Verdict::kReject;
      head_.push_back(c);
      return Verdict::kMore;
    }
    tool_ = tools_->Find(TrimBlanks(head_));
    if (tool_ == nullptr) return Verdict::kReject;
    if (c == '{') {
      Begin();
    } else {
      state_ = c == symbols_.id ? State::kId : State::kBeforeArguments;
    }
    return Verdict::kMore;
  }

  void Begin() {
    sink_->BeginCall(tool_->name);
    arguments_.emplace(ObjectReader::Style::kJson, tags_, kNoSymbol, nullptr);
    std::string fragment;
    arguments_->Begin('{', &fragment);
    sink_->Arguments(fragment);
    state_ = State::kArguments;
  }

  Verdict Arguments(char c) {
    std::string fragment;
    const bool next = c == symbols_.calls && arguments_->Close(&fragment);
    const bool done = next || arguments_->Feed(c, &fragment);
    sink_->Arguments(fragment);
    if (!done) return Verdict::kMore;
    sink_->Arguments("}");
    sink_->EndCall();
    state_ = State::kBetween;
    return next ? Verdict::kEndBefore : Verdict::kMore;
  }

  const Tags* tags_;
  const MistralSymbols symbols_;
  const ToolSet* tools_;
  CallSink* sink_;
  State state_ = State::kStart;
  std::string head_;
  size_t id_size_ = 0;
  const Tool* tool_ = nullptr;
  std::optional<ObjectReader> arguments_;
  std::optional<JsonCall> call_;
  bool had_call_ = false;
};

class Mistral final : public CallSyntax {
 public:
  Mistral(Tags* tags, bool array) : tags_(*tags), array_(array) {
    symbols_ = {tags->Add("[TOOL_CALLS]"), tags->Add("[CALL_ID]"), tags->Add("[ARGS]")};
  }
  bool Opens(char c, bool) const override { return c == symbols_.calls; }
  std::string_view openers() const override { return {&symbols_.calls, 1}; }
  std::unique_ptr<CallReader> NewReader(char, const ToolSet& tools, CallSink* sink) const override {
    return std::make_unique<MistralReader>(&tags_, symbols_, &tools, sink);
  }

  absl::StatusOr<grammar::Node> CallsGrammar(grammar::Builder& builder, std::span<const CallableTool> tools, bool parallel) const override {
    const grammar::Node open = Spell(builder, tags_, symbols_.calls);
    constexpr uint32_t kNoLimit = grammar::Builder::kNoLimit;
    if (array_) {
      const auto object = JsonCallsGrammar(builder, tools, "arguments");
      if (!object.ok()) return object.status();
      const grammar::Node more = builder.Repeat(builder.Seq({builder.Literal(", "), *object}), 0, parallel ? kNoLimit : 0);
      return builder.Seq({open, builder.Literal("["), *object, more, builder.Literal("]")});
    }
    std::vector<grammar::Node> calls;
    for (const CallableTool& tool : tools) {
      const auto arguments = ArgumentsGrammar(builder, tool, {});
      if (!arguments.ok()) return arguments.status();
      calls.push_back(builder.Seq({builder.Literal(tool.tool->name), Spell(builder, tags_, symbols_.arguments), *arguments}));
    }
    return builder.Repeat(builder.Seq({open, builder.Choice(calls)}), 1, parallel ? kNoLimit : 1);
  }

 private:
  const Tags& tags_;
  const bool array_;
  MistralSymbols symbols_{};
};

}  // namespace

std::unique_ptr<CallSyntax> NewMistral(Tags* tags) { return std::make_unique<Mistral>(tags, true); }
std::unique_ptr<CallSyntax> NewMistralV11(Tags* tags) { return std::make_unique<Mistral>(tags, false); }

}  // namespace holdfast::tools

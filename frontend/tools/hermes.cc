#include <optional>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/formats.h"
#include "frontend/tools/json_call.h"

namespace holdfast::tools {
namespace {

// A JSON call, or several behind each other, up to the closing tag.
class HermesReader final : public CallReader {
 public:
  HermesReader(const Tags* tags, char close, const ToolSet* tools, CallSink* sink) : tags_(tags), close_(close), tools_(tools), sink_(sink) {}

  Verdict Feed(char c) override {
    if (state_ == State::kBefore) {
      if (IsBlank(c)) return Verdict::kMore;
      if (c == close_ && had_call_) return Verdict::kEnd;
      if (c != '{') return Verdict::kReject;
      call_.emplace(tags_, close_, tools_, sink_);
      state_ = State::kObject;
      return Verdict::kMore;
    }
    if (state_ == State::kObject) {
      switch (call_->Feed(c)) {
        case JsonCall::Result::kMore: return Verdict::kMore;
        case JsonCall::Result::kReject: return Verdict::kReject;
        case JsonCall::Result::kDone: state_ = State::kAfter; return Verdict::kMore;
        case JsonCall::Result::kDoneBefore: state_ = State::kAfter; break;
      }
    }
    if (IsBlank(c)) return Verdict::kMore;
    call_->Complete();
    had_call_ = true;
    if (c == close_) return Verdict::kEnd;
    if (c != '{') return Verdict::kEndBefore;
    state_ = State::kBefore;
    return Feed(c);
  }

  bool Finish(bool cut) override {
    if (state_ == State::kAfter && !cut) call_->Complete();
    return state_ == State::kBefore ? !had_call_ : !call_->begun();
  }

 private:
  enum class State : uint8_t { kBefore, kObject, kAfter };
  const Tags* tags_;
  const char close_;
  const ToolSet* tools_;
  CallSink* sink_;
  State state_ = State::kBefore;
  std::optional<JsonCall> call_;
  bool had_call_ = false;
};

class Hermes final : public CallSyntax {
 public:
  explicit Hermes(Tags* tags) : tags_(*tags), open_(tags->Add("<tool_call>")), close_(tags->Add("</tool_call>")) {}
  bool Opens(char c, bool) const override { return c == open_; }
  std::string_view openers() const override { return {&open_, 1}; }
  std::unique_ptr<CallReader> NewReader(char, const ToolSet& tools, CallSink* sink) const override {
    return std::make_unique<HermesReader>(&tags_, close_, &tools, sink);
  }

  absl::StatusOr<grammar::Node> CallsGrammar(grammar::Builder& builder, std::span<const CallableTool> tools, bool parallel) const override {
    const auto object = JsonCallsGrammar(builder, tools, "arguments");
    if (!object.ok()) return object.status();
    const grammar::Node call = builder.Seq({Spell(builder, tags_, open_), builder.Literal("\n"), *object, builder.Literal("\n"),
                                            Spell(builder, tags_, close_)});
    if (!parallel) return call;
    return builder.Seq({call, builder.Repeat(builder.Seq({builder.Literal("\n"), call}), 0, grammar::Builder::kNoLimit)});
  }

 private:
  const Tags& tags_;
  const char open_, close_;
};

}  // namespace

std::unique_ptr<CallSyntax> NewHermes(Tags* tags) { return std::make_unique<Hermes>(tags); }

}  // namespace holdfast::tools

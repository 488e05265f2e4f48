#include <optional>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/formats.h"
#include "frontend/tools/json_call.h"

namespace holdfast::tools {
namespace {

// JSON calls behind each other, with ';' or blanks between them. A call ends with its object: there is no closing tag.
class Llama3Reader final : public CallReader {
 public:
  Llama3Reader(const Tags* tags, char python_tag, char opener, const ToolSet* tools, CallSink* sink)
      : tags_(tags), python_tag_(python_tag), tools_(tools), sink_(sink) {
    if (opener == '{') call_.emplace(tags_, kNoSymbol, tools_, sink_);
  }

  Verdict Feed(char c) override {
    if (call_) {
      const JsonCall::Result result = call_->Feed(c);
      if (result == JsonCall::Result::kMore) return Verdict::kMore;
      if (result == JsonCall::Result::kReject) return Verdict::kReject;
      call_->Complete();
      call_.reset();
      had_call_ = true;
      if (result == JsonCall::Result::kDone) return Verdict::kMore;
    }
    if (IsBlank(c) || (had_call_ && (c == ';' || c == ',' || c == python_tag_))) return Verdict::kMore;
    if (c != '{') return had_call_ ? Verdict::kEndBefore : Verdict::kReject;
    call_.emplace(tags_, kNoSymbol, tools_, sink_);
    return Verdict::kMore;
  }

  bool Finish(bool) override { return call_ ? !call_->begun() : !had_call_; }

 private:
  const Tags* tags_;
  const char python_tag_;
  const ToolSet* tools_;
  CallSink* sink_;
  std::optional<JsonCall> call_;
  bool had_call_ = false;
};

class Llama3 final : public CallSyntax {
 public:
  explicit Llama3(Tags* tags) : tags_(*tags), python_tag_(tags->Add("<|python_tag|>")) {}
  bool Opens(char c, bool fresh) const override { return c == python_tag_ || (fresh && c == '{'); }
  std::string_view openers() const override { return {&python_tag_, 1}; }
  bool OpensWithBrace() const override { return true; }
  std::unique_ptr<CallReader> NewReader(char opener, const ToolSet& tools, CallSink* sink) const override {
    return std::make_unique<Llama3Reader>(&tags_, python_tag_, opener, &tools, sink);
  }

  absl::StatusOr<grammar::Node> CallsGrammar(grammar::Builder& builder, std::span<const CallableTool> tools, bool parallel) const override {
    const auto object = JsonCallsGrammar(builder, tools, "parameters");
    if (!object.ok() || !parallel) return object;
    return builder.Seq({*object, builder.Repeat(builder.Seq({builder.Literal("; "), *object}), 0, grammar::Builder::kNoLimit)});
  }

 private:
  const Tags& tags_;
  const char python_tag_;
};

}  // namespace

std::unique_ptr<CallSyntax> NewLlama3(Tags* tags) { return std::make_unique<Llama3>(tags); }

}  // namespace holdfast::tools

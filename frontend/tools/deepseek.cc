// DeepSeek V3 and V3.1, and Kimi K2, which frames its calls alike.
#include <algorithm>
#include <optional>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/formats.h"
#include "frontend/tools/object_reader.h"

namespace holdfast::tools {
namespace {

struct SectionSymbols {
  char open, close;             // all calls
  char call, call_end;          // one call
  char separator;               // between its name and its arguments
};
enum class SectionStyle : uint8_t { kV3, kV31, kKimi };

// open (call NAME separator {...} call_end)+ close. V3 writes `function` separator NAME and the arguments in a ```json block; V3.1 and Kimi
// write them plainly, Kimi's name as functions.NAME:INDEX.
class SectionReader final : public CallReader {
 public:
  SectionReader(const Tags* tags, const SectionSymbols* symbols, SectionStyle style, char opener, const ToolSet* tools, CallSink* sink)
      : tags_(tags), symbols_(*symbols), style_(style), tools_(tools), sink_(sink), state_(opener == symbols->call ? State::kHead : State::kBetween) {}

  Verdict Feed(char c) override {
    switch (state_) {
      case State::kBetween:
        if (IsBlank(c)) return Verdict::kMore;
        if (c == symbols_.call) {
          head_.clear();
          state_ = State::kHead;
          return Verdict::kMore;
        }
        if (!had_call_) return Verdict::kReject;
        return c == symbols_.close ? Verdict::kEnd : Verdict::kEndBefore;
      case State::kHead:
        if (c == symbols_.separator) return Separator();
        return Head(c);
      case State::kName:
        if (c != '\n' && c != '{' && c != '`') return Head(c);
        if (c == '\n' && TrimBlanks(head_).empty()) return Verdict::kMore;
        tool_ = tools_->Find(TrimBlanks(head_));
        if (tool_ == nullptr) return Verdict::kReject;
        state_ = State::kFence;
        return Feed(c);
      case State::kFence:
        if (c == '{') {
          Begin();
          return Verdict::kMore;
        }
        return IsBlank(c) || std::string_view("`json").find(c) != std::string_view::npos ? Verdict::kMore : Verdict::kReject;
      case State::kArguments: return Arguments(c);
      case State::kAfter: return After(c);
    }
    return Verdict::kReject;
  }

  bool Finish(bool cut) override {
    if (state_ == State::kAfter && !cut) Complete();
    if (state_ == State::kBetween) return !had_call_;
    return state_ == State::kHead || state_ == State::kName || state_ == State::kFence;
  }

 private:
  enum class State : uint8_t { kBetween, kHead, kName, kFence, kArguments, kAfter };

  Verdict Head(char c) {
    if (Tags::IsSymbol(c) || head_.size() > kMaxNameBytes) return Verdict::kReject;
    head_.push_back(c);
    return Verdict::kMore;
  }

  Verdict Separator() {
    // The way this format writes names comes first: a tool may be called "function", or "functions.x:0".
    const std::string_view name = TrimBlanks(head_);
    std::string_view bare = name;
    if (bare.starts_with("functions.")) bare.remove_prefix(10);
    if (const size_t colon = bare.rfind(':'); colon != std::string_view::npos) bare = bare.substr(0, colon);
    const bool framed = name == "function";
    tool_ = nullptr;
    if (!(framed && style_ == SectionStyle::kV3)) {
      const bool kimi = style_ == SectionStyle::kKimi;
      tool_ = tools_->Find(kimi ? bare : name);
      if (tool_ == nullptr && !framed) tool_ = tools_->Find(kimi ? name : bare);
    }
    if (tool_ == nullptr && framed) {
      head_.clear();
      state_ = State::kName;
      return Verdict::kMore;
    }
    if (tool_ == nullptr) return Verdict::kReject;
    state_ = State::kFence;
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
    const bool ends = c == symbols_.call_end && arguments_->Close(&fragment);
    const bool done = ends || arguments_->Feed(c, &fragment);
    sink_->Arguments(fragment);
    if (!done) return Verdict::kMore;
    state_ = State::kAfter;
    return ends ? After(c) : Verdict::kMore;
  }

  Verdict After(char c) {
    if (IsBlank(c) || c == '`') return Verdict::kMore;
    Complete();
    had_call_ = true;
    state_ = State::kBetween;
    if (c == symbols_.call_end) return Verdict::kMore;
    return Feed(c);
  }

  void Complete() {
    sink_->Arguments("}");
    sink_->EndCall();
  }

  const Tags* tags_;
  const SectionSymbols& symbols_;
  const SectionStyle style_;
  const ToolSet* tools_;
  CallSink* sink_;
  State state_;
  std::string head_;
  const Tool* tool_ = nullptr;
  std::optional<ObjectReader> arguments_;
  bool had_call_ = false;
};

class Section final : public CallSyntax {
 public:
  Section(Tags* tags, SectionStyle style) : tags_(*tags), style_(style) {
    if (style == SectionStyle::kKimi) {
      symbols_ = {tags->Add("<|tool_calls_section_begin|>"), tags->Add("<|tool_calls_section_end|>"), tags->Add("<|tool_call_begin|>"),
                  tags->Add("<|tool_call_end|>"), tags->Add("<|tool_call_argument_begin|>")};
    } else {
      const auto add = [tags](std::string_view words) {  // with U+FF5C and U+2581
        std::string tag = "<\xEF\xBD\x9C";
        for (const char c : words) tag += c == ' ' ? std::string("\xE2\x96\x81") : std::string(1, c);
        return tags->Add(tag + "\xEF\xBD\x9C>");
      };
      symbols_ = {add("tool calls begin"), add("tool calls end"), add("tool call begin"), add("tool call end"), add("tool sep")};
    }
    openers_ = {symbols_.open, symbols_.call};
  }
  bool Opens(char c, bool) const override { return c == symbols_.open || c == symbols_.call; }
  std::string_view openers() const override { return openers_; }
  std::unique_ptr<CallReader> NewReader(char opener, const ToolSet& tools, CallSink* sink) const override {
    return std::make_unique<SectionReader>(&tags_, &symbols_, style_, opener, &tools, sink);
  }

  absl::StatusOr<grammar::Node> CallsGrammar(grammar::Builder& builder, std::span<const CallableTool> tools, bool parallel) const override {
    const auto spell = [&](char symbol) { return Spell(builder, tags_, symbol); };
    std::vector<grammar::Node> calls;
    for (const CallableTool& tool : tools) {
      const auto arguments = ArgumentsGrammar(builder, tool, {});
      if (!arguments.ok()) return arguments.status();
      const std::string& name = tool.tool->name;
      if (style_ == SectionStyle::kV3) {
        calls.push_back(builder.Seq({builder.Literal("function"), spell(symbols_.separator), builder.Literal(name + "\n```json\n"), *arguments,
                                     builder.Literal("\n```")}));
      } else if (style_ == SectionStyle::kV31) {
        calls.push_back(builder.Seq({builder.Literal(name), spell(symbols_.separator), *arguments}));
      } else {
        const std::pair<uint32_t, uint32_t> digits[] = {{'0', '9'}};
        calls.push_back(builder.Seq({builder.Literal("functions." + name + ":"), builder.Repeat(builder.CodePoints(digits), 1, 3),
                                     spell(symbols_.separator), *arguments}));
      }
    }
    const grammar::Node call = builder.Seq({spell(symbols_.call), builder.Choice(calls), spell(symbols_.call_end)});
    const grammar::Node blank = style_ == SectionStyle::kV3 ? builder.Literal("\n") : builder.Empty();
    const grammar::Node more = builder.Repeat(builder.Seq({blank, call}), 0, parallel ? grammar::Builder::kNoLimit : 0);
    return builder.Seq({spell(symbols_.open), call, more, spell(symbols_.close)});
  }

 private:
  const Tags& tags_;
  const SectionStyle style_;
  SectionSymbols symbols_{};
  std::string openers_;
};

}  // namespace

std::unique_ptr<CallSyntax> NewDeepSeekV3(Tags* tags) { return std::make_unique<Section>(tags, SectionStyle::kV3); }
std::unique_ptr<CallSyntax> NewDeepSeekV31(Tags* tags) { return std::make_unique<Section>(tags, SectionStyle::kV31); }
std::unique_ptr<CallSyntax> NewKimiK2(Tags* tags) { return std::make_unique<Section>(tags, SectionStyle::kKimi); }

}  // namespace holdfast::tools

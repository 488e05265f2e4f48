#include "frontend/tools/harmony.h"

#include <optional>
#include <utility>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/call_reader.h"
#include "frontend/tools/object_reader.h"

namespace holdfast::tools {
namespace {

constexpr size_t kMaxHeaderBytes = 512;
constexpr std::string_view kRole = "assistant", kRecipient = "to=";

struct HarmonySymbols {
  char start, end, message, channel, constrain, ret, call;
  bool Ends(char c) const { return c == end || c == ret || c == call; }
};

class HarmonyParser final : public OutputParser {
 public:
  HarmonyParser(const Tags& tags, const HarmonySymbols& symbols, const ParserOptions& options, bool calls, bool separate)
      : tags_(tags), symbols_(symbols), tools_(options.tools, options.policy), parallel_(options.policy.parallel), calls_(calls),
        separate_(separate && options.separate_reasoning) {
    // The prompt's last message is where the answer goes on.
    const std::string tail = tags_.FromPrompt(options.prompt_tail);
    const size_t start = tail.rfind(symbols_.start);
    std::vector<OutputEvent> ignored;
    out_ = &ignored;
    for (const char c : std::string_view(tail).substr(start == std::string::npos ? tail.size() : start)) Symbol(c);
    raw_.clear();
    out_ = nullptr;
  }

  void Push(const Piece& piece, std::vector<OutputEvent>* out) override {
    out_ = out;
    out_begin_ = out->size();
    tags_.Push(piece, &held_tag_, [this](char c) { Symbol(c); });
  }

  void Finish(bool cut, std::vector<OutputEvent>* out) override {
    out_ = out;
    out_begin_ = out->size();
    tags_.Flush(&held_tag_, [this](char c) { Symbol(c); });
    if (complete_) return;
    if (state_ == State::kAfterCall && !cut) Complete();
    // A header without a message is frame; anything else that waits is text.
    if (state_ == State::kHeader && !IsHeader()) Content(raw_);
    if (state_ == State::kBeforeArguments) Content(raw_);
  }

  bool complete() const override { return complete_; }

 private:
  enum class State : uint8_t { kHeader, kReasoning, kContent, kBeforeArguments, kArguments, kAfterCall, kOutside };

  void Symbol(char c) {
    if (complete_) return;
    switch (state_) {
      case State::kHeader: Header(c); break;
      case State::kReasoning:
      case State::kContent: Body(c); break;
      case State::kBeforeArguments:
        if (c == '{') {
          BeginArguments();
        } else if (IsBlank(c)) {
          raw_.push_back(c);
        } else {
          Content(std::exchange(raw_, {}));
          state_ = State::kContent;
          Body(c);
        }
        break;
      case State::kArguments: Arguments(c); break;
      case State::kAfterCall:
        if (IsBlank(c)) break;
        Complete();
        state_ = State::kOutside;
        if (!complete_ && !symbols_.Ends(c)) Outside(c);
        break;
      case State::kOutside: Outside(c); break;
    }
  }

  // header_: what stands between <|start|> and <|message|>; raw_: the same with its tags, for when it turns out to be text.
  void Header(char c) {
    if (c == symbols_.start) {
      header_.clear();
      raw_.assign(1, c);
      return;
    }
    if (c == symbols_.message && IsHeader()) {
      raw_.push_back(c);
      OpenBody();
      return;
    }
    header_.push_back(c);
    raw_.push_back(c);
    if (symbols_.Ends(c) || c == symbols_.message || header_.size() > kMaxHeaderBytes || !MayBeHeader()) {
      const bool ends = symbols_.Ends(c);
      if (ends) raw_.pop_back();
      Content(std::exchange(raw_, {}));
      header_.clear();
      state_ = ends ? State::kOutside : State::kContent;
    }
  }

  // The header without its role.
  std::string_view Rest() const {
    std::string_view h = TrimBlanks(header_);
    if (h.starts_with(kRole)) h = TrimBlanks(h.substr(kRole.size()));
    return h;
  }
  bool IsHeader() const {
    const std::string_view rest = Rest();
    return rest.empty() || rest[0] == symbols_.channel || rest.starts_with(kRecipient);
  }
  bool MayBeHeader() const {
    return IsHeader() || kRole.starts_with(TrimBlanks(header_)) || kRecipient.starts_with(Rest());
  }

  std::string_view Word(size_t at) const {
    size_t end = at;
    while (end < header_.size() && !IsBlank(header_[end]) && !Tags::IsSymbol(header_[end])) ++end;
    return std::string_view(header_).substr(at, end - at);
  }

  void OpenBody() {
    const size_t channel_at = header_.find(symbols_.channel), to = header_.find(kRecipient);
    const std::string channel(channel_at == std::string::npos ? std::string_view() : Word(channel_at + 1));
    std::string_view recipient = to == std::string::npos ? std::string_view() : Word(to + kRecipient.size());
    tool_ = nullptr;
    if (!recipient.empty() && calls_) {
      if (recipient.starts_with("functions.")) recipient.remove_prefix(10);
      tool_ = tools_.Find(recipient);
    }
    const bool thought = channel == "analysis" && to == std::string::npos;
    header_.clear();
    if (tool_ != nullptr) {
      state_ = State::kBeforeArguments;
      return;
    }
    state_ = thought && separate_ ? State::kReasoning : State::kContent;
    // Thoughts that are not separated, and messages to somebody that is not known, keep their tags.
    verbatim_ = (thought && !separate_) || to != std::string::npos;
    const std::string raw = std::exchange(raw_, {});
    if (verbatim_) Content(raw);
  }

  void Body(char c) {
    if (symbols_.Ends(c)) {
      if (std::exchange(verbatim_, false)) Content(std::string_view(&c, 1));
      state_ = State::kOutside;
      return;
    }
    if (c == symbols_.start || c == symbols_.channel) {  // the end of a message is missing
      verbatim_ = false;
      state_ = State::kOutside;
      Outside(c);
      return;
    }
    Emit(state_ == State::kReasoning ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent, std::string_view(&c, 1));
  }

  void Outside(char c) {
    if (IsBlank(c) || symbols_.Ends(c)) return;
    if (c == symbols_.start || c == symbols_.channel) {
      state_ = State::kHeader;
      header_.clear();
      raw_.clear();
      Header(c);
      return;
    }
    state_ = State::kContent;
    Body(c);
  }

  void BeginArguments() {
    raw_.clear();
    out_->push_back({OutputEvent::Kind::kCallBegin, tool_->name});
    arguments_.emplace(ObjectReader::Style::kJson, &tags_, kNoSymbol, nullptr);
    std::string fragment;
    arguments_->Begin('{', &fragment);
    ArgumentsText(fragment);
    state_ = State::kArguments;
  }

  void Arguments(char c) {
    std::string fragment;
    const bool ends = (symbols_.Ends(c) || c == symbols_.start) && arguments_->Close(&fragment);
    const bool done = ends || arguments_->Feed(c, &fragment);
    ArgumentsText(fragment);
    if (!done) return;
    state_ = State::kAfterCall;
    if (ends) Symbol(c);
  }

  void Complete() {
    ArgumentsText("}");
    out_->push_back({OutputEvent::Kind::kCallEnd, {}});
    if (!parallel_) complete_ = true;
  }

  void ArgumentsText(std::string_view text) {
    if (text.empty()) return;
    const bool extends = out_->size() > out_begin_ && out_->back().kind == OutputEvent::Kind::kArguments;
    if (!extends) out_->push_back({OutputEvent::Kind::kArguments, {}});
    out_->back().text.append(text);
  }
  void Content(std::string_view symbols) { Emit(OutputEvent::Kind::kContent, symbols); }
  void Emit(OutputEvent::Kind kind, std::string_view symbols) {
    if (symbols.empty()) return;
    const bool extends = out_->size() > out_begin_ && out_->back().kind == kind;
    if (!extends) out_->push_back({kind, {}});
    tags_.Expand(symbols, &out_->back().text);
  }

  const Tags& tags_;
  const HarmonySymbols symbols_;
  const ToolSet tools_;
  const bool parallel_, calls_, separate_;
  State state_ = State::kHeader;
  std::string held_tag_, header_, raw_;
  const Tool* tool_ = nullptr;
  std::optional<ObjectReader> arguments_;
  bool verbatim_ = false;
  bool complete_ = false;
  std::vector<OutputEvent>* out_ = nullptr;
  size_t out_begin_ = 0;
};

class Harmony final : public Format {
 public:
  Harmony(std::unique_ptr<Tags> tags, bool calls, bool separate) : tags_(std::move(tags)), calls_(calls), separate_(separate) {
    symbols_ = {tags_->Add("<|start|>"),   tags_->Add("<|end|>"),    tags_->Add("<|message|>"), tags_->Add("<|channel|>"),
                tags_->Add("<|constrain|>"), tags_->Add("<|return|>"), tags_->Add("<|call|>")};
  }
  std::string_view name() const override { return "harmony"; }
  std::span<const TokenId> markers() const override { return tags_->markers(); }
  std::unique_ptr<OutputParser> NewParser(const ParserOptions& options) const override {
    return std::make_unique<HarmonyParser>(*tags_, symbols_, options, calls_, separate_);
  }

  absl::StatusOr<grammar::Node> Grammar(grammar::Builder& b, std::span<const Tool> tools, const CallPolicy& policy,
                                        std::string_view prompt_tail) const override {
    auto callable = CallableTools(tools, policy);
    if (!callable.ok()) return callable.status();
    const grammar::Node text = Final(b, Text(b));
    if (callable->empty() || !calls_) {
      if (policy.mode == Mode::kRequired) return absl::InvalidArgumentError("the tool call format of harmony is switched off");
      return Framed(b, text, prompt_tail, true);
    }
    std::vector<grammar::Node> calls;
    for (const CallableTool& tool : *callable) {
      const auto arguments = ArgumentsGrammar(b, tool, {});
      if (!arguments.ok()) return arguments.status();
      calls.push_back(b.Seq({Spell(b, *tags_, symbols_.channel), b.Literal("commentary to=functions." + tool.tool->name + " "),
                             Spell(b, *tags_, symbols_.constrain), b.Literal("json"), Spell(b, *tags_, symbols_.message), *arguments}));
    }
    // One call an answer: the token behind it ends the generation.
    if (policy.mode == Mode::kRequired) return Framed(b, b.Choice(calls), prompt_tail, false);
    calls.push_back(text);
    return Framed(b, b.Choice(calls), prompt_tail, true);
  }

  grammar::Node WithReasoning(grammar::Builder& b, grammar::Node answer, std::string_view prompt_tail) const override {
    return Framed(b, Final(b, answer), prompt_tail, true);
  }

 private:
  grammar::Node Text(grammar::Builder& b) const {
    std::vector<std::string> forbidden;
    for (const char c : {symbols_.start, symbols_.end, symbols_.message, symbols_.channel, symbols_.ret, symbols_.call}) {
      if (tags_->IsSpelled(c)) forbidden.emplace_back(tags_->text(c));
    }
    return b.TextWithout(forbidden);
  }
  grammar::Node Final(grammar::Builder& b, grammar::Node answer) const {
    return b.Seq({Spell(b, *tags_, symbols_.channel), b.Literal("final"), Spell(b, *tags_, symbols_.message), answer});
  }
  // The rest of an analysis, its end, and the beginning of the next message.
  grammar::Node Rest(grammar::Builder& b) const {
    return b.Seq({Text(b), Spell(b, *tags_, symbols_.end), Spell(b, *tags_, symbols_.start), b.Literal("assistant")});
  }
  // `message` behind what the prompt left open, or, where it left nothing open and it may, behind an analysis.
  grammar::Node Framed(grammar::Builder& b, grammar::Node message, std::string_view prompt_tail, bool may_think) const {
    const std::string tail = tags_->FromPrompt(prompt_tail);
    const size_t start = tail.rfind(symbols_.start);
    if (start != std::string::npos && tail.find(symbols_.message, start) != std::string::npos) return b.Seq({Rest(b), message});
    if (!may_think) return message;
    const grammar::Node analysis = b.Seq({Spell(b, *tags_, symbols_.channel), b.Literal("analysis"), Spell(b, *tags_, symbols_.message), Rest(b)});
    return b.Seq({b.Optional(analysis), message});
  }

  std::unique_ptr<Tags> tags_;
  HarmonySymbols symbols_{};
  const bool calls_, separate_;
};

}  // namespace

std::shared_ptr<const Format> NewHarmony(std::unique_ptr<Tags> tags, bool calls, bool separate) {
  return std::make_shared<const Harmony>(std::move(tags), calls, separate);
}

}  // namespace holdfast::tools

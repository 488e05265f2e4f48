#include "frontend/tools/answer_parser.h"

#include <algorithm>
#include <utility>

namespace holdfast::tools {

ToolSet::ToolSet(std::span<const Tool> tools, const CallPolicy& policy) {
  if (policy.mode == Mode::kNone) return;
  for (const Tool& tool : tools) {
    if (policy.allowed.empty() || std::find(policy.allowed.begin(), policy.allowed.end(), tool.name) != policy.allowed.end()) {
      tools_.push_back(&tool);
    }
  }
}

const Tool* ToolSet::Find(std::string_view name) const {
  for (const Tool* tool : tools_) {
    if (tool->name == name) return tool;
  }
  return nullptr;
}

std::string_view TrimBlanks(std::string_view s) {
  while (!s.empty() && IsBlank(s.front())) s.remove_prefix(1);
  while (!s.empty() && IsBlank(s.back())) s.remove_suffix(1);
  return s;
}

AnswerParser::AnswerParser(const Tags& tags, const ThoughtSyntax& thoughts, const CallSyntax* calls, const ParserOptions& options)
    : tags_(tags), thoughts_(thoughts), calls_(calls), tools_(options.tools, options.policy), parallel_(options.policy.parallel),
      separate_(options.separate_reasoning) {
  if (!has_thoughts()) return;
  const std::string tail = tags_.FromPrompt(options.prompt_tail);
  const size_t open = tail.rfind(thoughts_.open), close = tail.rfind(thoughts_.close);
  if (open == std::string::npos || (close != std::string::npos && close > open)) return;
  mode_ = Mode::kThought;
  fresh_ = false;
  if (!separate_) return;
  // The tail's own part of the thought decides how far its header and its first blanks have come.
  in_header_ = !thoughts_.header.empty();
  for (const char c : std::string_view(tail).substr(open + 1)) {
    if (in_header_ && thoughts_.header.starts_with(header_ + c)) {
      header_.push_back(c);
      in_header_ = header_.size() < thoughts_.header.size();
    } else {
      in_header_ = false;
      if (!IsBlank(c)) thought_fresh_ = false;
    }
  }
  if (!in_header_) header_.clear();
}

void AnswerParser::Push(const Piece& piece, std::vector<OutputEvent>* out) {
  out_ = out;
  out_begin_ = out->size();
  tags_.Push(piece, &held_tag_, [this](char c) { Symbol(c); });
}

void AnswerParser::Finish(bool cut, std::vector<OutputEvent>* out) {
  out_ = out;
  out_begin_ = out->size();
  // What may be the beginning of a closing tag is no part of an argument; it would be taken back if the answer went on.
  if (cut && in_call_) held_tag_.clear();
  tags_.Flush(&held_tag_, [this](char c) { Symbol(c); });
  if (complete_) return;
  if (mode_ == Mode::kCalls) {
    const bool text = reader_->Finish(cut);
    if (text && !in_call_) {
      RejectCalls();
    } else {
      return;
    }
  }
  if (mode_ == Mode::kThought) {
    if (cut) Emit(OutputEvent::Kind::kReasoning, blanks_);
    return;
  }
  TextSymbols(std::exchange(lead_, {}));
  if (!after_call_) Emit(OutputEvent::Kind::kContent, blanks_);
}

void AnswerParser::Emit(OutputEvent::Kind kind, std::string_view symbols) {
  if (symbols.empty()) return;
  const bool extends = out_->size() > out_begin_ && out_->back().kind == kind;
  if (!extends) out_->push_back({kind, {}});
  tags_.Expand(symbols, &out_->back().text);
}

void AnswerParser::Symbol(char c) {
  if (complete_) return;
  switch (mode_) {
    case Mode::kText: Text(c); break;
    case Mode::kThought: Thought(c); break;
    case Mode::kCalls: Calls(c); break;
  }
}

void AnswerParser::TextSymbols(std::string_view symbols) {
  for (const char c : symbols) {
    if (IsBlank(c)) {
      if (!drop_blanks_) blanks_.push_back(c);
      continue;
    }
    Emit(OutputEvent::Kind::kContent, std::exchange(blanks_, {}));
    Emit(OutputEvent::Kind::kContent, std::string_view(&c, 1));
    fresh_ = text_fresh_ = drop_blanks_ = after_call_ = false;
  }
}

void AnswerParser::Text(char c) {
  // A thought whose opening tag is missing: its header, then its closing tag, before anything else.
  if (fresh_ && separate_ && !thoughts_.header.empty() && blanks_.empty()) {
    if (c == thoughts_.close && lead_ == thoughts_.header) {
      lead_.clear();
      fresh_ = false;
      drop_blanks_ = true;
      return;
    }
    if (lead_.size() < thoughts_.header.size() && thoughts_.header[lead_.size()] == c) {
      lead_.push_back(c);
      return;
    }
  }
  if (!lead_.empty()) TextSymbols(std::exchange(lead_, {}));

  if (calls_ != nullptr && !tools_.empty() && calls_->Opens(c, text_fresh_)) {
    OpenCalls(c);
  } else if (has_thoughts() && c == thoughts_.open && (thoughts_.anywhere || fresh_)) {
    OpenThought(c);
  } else if (has_thoughts() && c == thoughts_.close && separate_ && (thoughts_.anywhere || fresh_)) {
    drop_blanks_ = drop_blanks_ || fresh_;
  } else {
    TextSymbols(std::string_view(&c, 1));
  }
}

void AnswerParser::OpenThought(char c) {
  mode_ = Mode::kThought;
  thought_fresh_ = true;
  header_.clear();
  in_header_ = separate_ && !thoughts_.header.empty();
  if (fresh_ && separate_) blanks_.clear();
  // Blanks before a thought that stands behind text are still the text's.
  if (!separate_) {
    Emit(OutputEvent::Kind::kContent, std::exchange(blanks_, {}));
    Emit(OutputEvent::Kind::kContent, std::string_view(&c, 1));
  } else {
    text_blanks_ = std::exchange(blanks_, {});
  }
  fresh_ = false;
}

void AnswerParser::Thought(char c) {
  if (calls_ != nullptr && !tools_.empty() && calls_->Opens(c, false)) {
    OpenCalls(c);
    return;
  }
  if (!separate_) {
    Emit(OutputEvent::Kind::kContent, std::exchange(blanks_, {}));
    Emit(OutputEvent::Kind::kContent, std::string_view(&c, 1));
    if (c == thoughts_.close) {
      mode_ = Mode::kText;
      text_fresh_ = true;
    }
    return;
  }
  if (in_header_ && c != thoughts_.close) {
    ThoughtHeader(c);
    return;
  }
  if (c == thoughts_.close) {
    // "thought" without its line end is the header of an empty thought.
    if (in_header_ && header_.size() + 1 != thoughts_.header.size()) Emit(OutputEvent::Kind::kReasoning, header_);
    in_header_ = false;
    header_.clear();
    mode_ = Mode::kText;
    blanks_ = std::exchange(text_blanks_, {});
    drop_blanks_ = text_fresh_ = true;
    return;
  }
  if (c == thoughts_.open && (thoughts_.anywhere || thought_fresh_)) {
    in_header_ = !thoughts_.header.empty();
    header_.clear();
    return;
  }
  ThoughtText(c);
}

void AnswerParser::ThoughtHeader(char c) {
  if (c == thoughts_.open) {  // the tag came twice
    header_.clear();
    return;
  }
  header_.push_back(c);
  if (thoughts_.header == header_) {
    in_header_ = false;
    header_.clear();
  } else if (!thoughts_.header.starts_with(header_)) {
    in_header_ = false;
    for (const char h : std::exchange(header_, {})) ThoughtText(h);
  }
}

void AnswerParser::ThoughtText(char c) {
  if (IsBlank(c)) {
    if (!thought_fresh_) blanks_.push_back(c);
    return;
  }
  thought_fresh_ = false;
  Emit(OutputEvent::Kind::kReasoning, std::exchange(blanks_, {}));
  Emit(OutputEvent::Kind::kReasoning, std::string_view(&c, 1));
}

void AnswerParser::OpenCalls(char c) {
  before_calls_ = mode_;
  mode_ = Mode::kCalls;
  raw_.assign(1, c);
  reader_ = calls_->NewReader(c, tools_, this);
}

void AnswerParser::RejectCalls() {
  mode_ = before_calls_;
  reader_.reset();
  const std::string raw = std::exchange(raw_, {});
  if (mode_ == Mode::kText) {
    TextSymbols(raw);
  } else if (separate_) {
    for (const char c : raw) ThoughtText(c);
  } else {
    Emit(OutputEvent::Kind::kContent, std::exchange(blanks_, {}));
    Emit(OutputEvent::Kind::kContent, raw);
  }
}

void AnswerParser::Calls(char c) {
  const CallReader::Verdict verdict = reader_->Feed(c);
  switch (verdict) {
    case CallReader::Verdict::kMore:
      if (!in_call_) raw_.push_back(c);
      break;
    case CallReader::Verdict::kEnd:
    case CallReader::Verdict::kEndBefore:
      raw_.clear();
      reader_.reset();
      mode_ = Mode::kText;
      if (verdict == CallReader::Verdict::kEndBefore) Symbol(c);
      break;
    case CallReader::Verdict::kReject:
      RejectCalls();
      Symbol(c);
      break;
  }
}

void AnswerParser::BeginCall(std::string_view name) {
  in_call_ = true;
  raw_.clear();
  blanks_.clear();
  text_blanks_.clear();
  in_header_ = false;
  header_.clear();
  fresh_ = false;
  before_calls_ = Mode::kText;  // a call ends a thought
  out_->push_back({OutputEvent::Kind::kCallBegin, std::string(name)});
}

void AnswerParser::Arguments(std::string_view fragment) {
  if (fragment.empty()) return;
  const bool extends = out_->size() > out_begin_ && out_->back().kind == OutputEvent::Kind::kArguments;
  if (!extends) out_->push_back({OutputEvent::Kind::kArguments, {}});
  out_->back().text.append(fragment);
}

void AnswerParser::EndCall() {
  in_call_ = false;
  raw_.clear();
  after_call_ = true;
  drop_blanks_ = false;
  text_fresh_ = true;
  out_->push_back({OutputEvent::Kind::kCallEnd, {}});
  if (!parallel_) complete_ = true;
}

}  // namespace holdfast::tools

#include "frontend/tools/object_reader.h"

#include <cmath>
#include <cstdlib>

#include "frontend/tools/call_reader.h"

namespace holdfast::tools {
namespace {

constexpr size_t kMaxDepth = 100;  // below what JSON readers take; deeper brackets are characters of a bare word

bool IsHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// The JSON spelling of a literal, "" when it is none.
std::string_view Literal(std::string_view s) {
  if (s == "true" || s == "True") return "true";
  if (s == "false" || s == "False") return "false";
  if (s == "null" || s == "None" || s == "none") return "null";
  return "";
}

unsigned HexValue(std::string_view four) { return static_cast<unsigned>(std::strtoul(std::string(four).c_str(), nullptr, 16)); }

}  // namespace

void AppendJsonEscaped(std::string_view s, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : s) {
    switch (c) {
      case '"': out->append("\\\""); break;
      case '\\': out->append("\\\\"); break;
      case '\n': out->append("\\n"); break;
      case '\r': out->append("\\r"); break;
      case '\t': out->append("\\t"); break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out->append("\\u00").append(1, kHex[(c >> 4) & 15]).append(1, kHex[c & 15]);
        } else {
          out->push_back(c);
        }
    }
  }
}

bool IsJsonNumber(std::string_view s) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t from = i;
    while (i < s.size() && s[i] >= '0' && s[i] <= '9') ++i;
    return i - from;
  };
  if (i < s.size() && s[i] == '-') ++i;
  const size_t first = i;
  const size_t whole = digits();
  if (whole == 0 || (whole > 1 && s[first] == '0')) return false;
  if (i < s.size() && s[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < s.size() && (s[i] == 'e' || s[i] == 'E')) {
    ++i;
    if (i < s.size() && (s[i] == '+' || s[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == s.size() && std::isfinite(std::strtod(std::string(s).c_str(), nullptr));
}

ObjectReader::ObjectReader(Style style, const Tags* tags, char quote, const text::JsonValue* schema)
    : style_(style), tags_(tags), quote_(quote), schema_(schema) {}

void ObjectReader::Begin(char bracket, std::string* out) {
  levels_.push_back({bracket});
  out->push_back('{');
}

bool ObjectReader::Feed(char c, std::string* out) {
  switch (state_) {
    case State::kKey: StartKey(c, out); break;
    case State::kBareKey: BareKey(c, out); break;
    case State::kColon: Colon(c, out); break;
    case State::kValue: StartValue(c, out); break;
    case State::kBareValue: BareValue(c, out); break;
    case State::kString: String(c, out); break;
    case State::kMaybeClosed: MaybeClosed(c, out); break;
    case State::kRawString: RawString(c, out); break;
    case State::kAfterValue: AfterValue(c, out); break;
  }
  return done_;
}

void ObjectReader::WriteBlanks(std::string* out) {
  for (const char c : blanks_) {
    if (c != ',') out->push_back(c);
  }
  blanks_.clear();
  comma_ = false;
}

void ObjectReader::StartElement(std::string* out) {
  Level& level = levels_.back();
  if (level.any && comma_) {
    out->append(style_ == Style::kJson ? blanks_ : ",");
    blanks_.clear();
    comma_ = false;
  } else {
    if (level.any) out->push_back(',');
    WriteBlanks(out);
  }
  level.any = true;
}

void ObjectReader::StartKey(char c, std::string* out) {
  if (IsBlank(c)) {
    if (style_ == Style::kJson) blanks_.push_back(c);
  } else if (c == ',') {
    if (!comma_ && style_ == Style::kJson) blanks_.push_back(c);
    comma_ = true;
  } else if (IsCloser(c)) {
    CloseBracket(c, out);
  } else if (c == quote_ && style_ == Style::kGemma4) {
    StartElement(out);
    out->push_back('"');
    string_is_key_ = true;
    state_ = State::kRawString;
  } else if (c == '"' || c == '\'') {
    StartElement(out);
    out->push_back('"');
    string_is_key_ = true;
    string_quote_ = c;
    strict_string_ = c == '"';
    state_ = State::kString;
  } else {
    held_.clear();
    state_ = State::kBareKey;
    BareKey(c, out);
  }
}

bool ObjectReader::IsKnownKey(std::string_view key) const {
  const text::JsonValue* properties = schema_ ? schema_->Find("properties") : nullptr;
  return levels_.size() == 1 && properties != nullptr && properties->Find(key) != nullptr;
}

void ObjectReader::EndBareKey(std::string* out) {
  StartElement(out);
  std::string text;
  tags_->Expand(TrimBlanks(held_), &text);
  held_.clear();
  out->push_back('"');
  AppendJsonEscaped(text, out);
  out->push_back('"');
  state_ = State::kColon;
}

void ObjectReader::BareKey(char c, std::string* out) {
  if (c == ':' || (c == '=' && (levels_.front().open == '(' || IsKnownKey(TrimBlanks(held_))))) {
    EndBareKey(out);
    out->push_back(':');
    state_ = State::kValue;
  } else if (c == ',' || IsCloser(c)) {
    EndBareKey(out);
    Colon(c, out);
  } else {
    held_.push_back(c);
  }
}

// Behind a key.
void ObjectReader::Colon(char c, std::string* out) {
  if (IsBlank(c)) {
    if (style_ == Style::kJson) blanks_.push_back(c);
    return;
  }
  WriteBlanks(out);
  out->push_back(':');
  state_ = State::kValue;
  if (c != ':' && (c != '=' || style_ == Style::kJson)) StartValue(c, out);
}

void ObjectReader::StartValue(char c, std::string* out) {
  if (IsBlank(c)) {
    if (style_ == Style::kJson) blanks_.push_back(c);
    return;
  }
  if (InObject()) {
    if (c == ',' || IsCloser(c)) {  // a key without a value
      WriteBlanks(out);
      out->append("null");
      AfterElement();
      AfterValue(c, out);
      return;
    }
    WriteBlanks(out);
  } else {
    if (c == ',') {
      if (!comma_ && style_ == Style::kJson) blanks_.push_back(c);
      comma_ = true;
      return;
    }
    if (IsCloser(c)) {
      CloseBracket(c, out);
      return;
    }
    StartElement(out);
  }
  if ((c == '{' || c == '[') && levels_.size() < kMaxDepth) {
    levels_.push_back({c});
    out->push_back(c);
    state_ = c == '{' ? State::kKey : State::kValue;
  } else if (c == quote_ && style_ == Style::kGemma4) {
    out->push_back('"');
    string_is_key_ = false;
    held_.clear();
    state_ = State::kRawString;
  } else if (c == '"' || c == '\'') {
    out->push_back('"');
    string_is_key_ = false;
    string_quote_ = c;
    strict_string_ = c == '"' && style_ == Style::kJson;
    state_ = State::kString;
  } else {
    held_.assign(1, c);
    state_ = State::kBareValue;
  }
}

void ObjectReader::EndBareValue(std::string* out) {
  const std::string_view word = TrimBlanks(held_);
  const std::string_view literal = Literal(word);
  if (!literal.empty()) {
    out->append(literal);
  } else if (IsJsonNumber(word)) {
    out->append(word);
  } else {
    std::string text;
    tags_->Expand(word, &text);
    out->push_back('"');
    AppendJsonEscaped(text, out);
    out->push_back('"');
  }
  held_.clear();
  AfterElement();
}

void ObjectReader::BareValue(char c, std::string* out) {
  if (c == ',' || IsCloser(c)) {
    // The blanks behind a number belong to the text, as those behind a string do.
    std::string tail;
    if (style_ == Style::kJson) {
      const size_t end = held_.find_last_not_of(" \t\n\r");
      tail = held_.substr(end + 1);
    }
    EndBareValue(out);
    blanks_ = std::move(tail);
    AfterValue(c, out);
  } else if (c == quote_ && style_ == Style::kGemma4) {  // a string that lacks its first quote
    std::string text;
    tags_->Expand(held_, &text);
    held_.clear();
    out->push_back('"');
    AppendJsonEscaped(text, out);
    out->push_back('"');
    AfterElement();
  } else if (c == '"' && style_ == Style::kJson && (!Literal(TrimBlanks(held_)).empty() || IsJsonNumber(TrimBlanks(held_)))) {  // a missing comma
    EndBareValue(out);
    AfterValue(c, out);
  } else {
    held_.push_back(c);
  }
}

void ObjectReader::StringText(char c, std::string* out) {
  if (Tags::IsSymbol(c)) {
    AppendJsonEscaped(tags_->text(c), out);
  } else {
    AppendJsonEscaped(std::string_view(&c, 1), out);
  }
}

void ObjectReader::String(char c, std::string* out) {
  if (!escape_.empty()) {
    Escape(c, out);
    return;
  }
  if (c == '\\') {
    escape_ = "\\";
    return;
  }
  if (!high_.empty()) {
    high_.clear();
    out->append("\\ufffd");
  }
  if (c == string_quote_) {
    if (strict_string_) {
      EndString(out);
    } else {
      held_.assign(1, c);
      state_ = State::kMaybeClosed;
    }
  } else {
    StringText(c, out);
  }
}

// escape_ holds a backslash and what followed it so far.
void ObjectReader::Escape(char c, std::string* out) {
  constexpr std::string_view kSimple = "\"\\/bfnrt";
  const bool unicode = escape_.size() >= 2;
  if (!unicode && c != 'u') {
    escape_.clear();
    if (!high_.empty()) out->append("\\ufffd");
    high_.clear();
    if (kSimple.find(c) != std::string_view::npos) {
      out->append(1, '\\').append(1, c);
    } else if (c == '\'') {
      out->push_back('\'');
    } else {
      out->append("\\\\");
      String(c, out);
    }
    return;
  }
  if (unicode && !IsHex(c)) {
    FlushEscape(out);
    String(c, out);
    return;
  }
  escape_.push_back(c);
  if (escape_.size() < 6) return;
  const unsigned unit = HexValue(std::string_view(escape_).substr(2));
  const std::string whole = std::move(escape_);
  escape_.clear();
  if (unit >= 0xDC00 && unit <= 0xDFFF) {
    out->append(high_.empty() ? "\\ufffd" : high_ + whole);
    high_.clear();
    return;
  }
  if (!high_.empty()) out->append("\\ufffd");
  high_.clear();
  if (unit >= 0xD800 && unit <= 0xDBFF) {
    high_ = whole;
  } else {
    out->append(whole);
  }
}

// An escape that cannot be completed is text.
void ObjectReader::FlushEscape(std::string* out) {
  if (!high_.empty()) out->append("\\ufffd");
  high_.clear();
  AppendJsonEscaped(escape_, out);
  escape_.clear();
}

void ObjectReader::EndString(std::string* out) {
  FlushEscape(out);
  out->push_back('"');
  held_.clear();
  if (string_is_key_) {
    state_ = State::kColon;
  } else {
    AfterElement();
  }
}

void ObjectReader::MaybeClosed(char c, std::string* out) {
  if (IsBlank(c)) {
    held_.push_back(c);
    return;
  }
  const bool closed = string_is_key_ ? c == ':' || c == '=' : c == ',' || IsCloser(c);
  if (closed) {
    EndString(out);
    Feed(c, out);
    return;
  }
  // The last quote may still be the end.
  AppendJsonEscaped(held_, out);
  held_.clear();
  state_ = State::kString;
  String(c, out);
}

void ObjectReader::RawString(char c, std::string* out) {
  if (c == quote_) {
    AppendJsonEscaped(held_, out);
    held_.clear();
    out->push_back('"');
    if (string_is_key_) {
      state_ = State::kColon;
    } else {
      AfterElement();
    }
    return;
  }
  // A run of closing brackets at the end of the text is the end of the object when the last quote is missing.
  if (IsCloser(c) || (IsBlank(c) && !held_.empty())) {
    held_.push_back(c);
    return;
  }
  AppendJsonEscaped(held_, out);
  held_.clear();
  StringText(c, out);
}

void ObjectReader::AfterValue(char c, std::string* out) {
  if (IsBlank(c)) {
    if (style_ == Style::kJson) blanks_.push_back(c);
  } else if (IsCloser(c)) {
    CloseBracket(c, out);
  } else {
    state_ = InObject() ? State::kKey : State::kValue;
    Feed(c, out);
  }
}

void ObjectReader::CloseBracket(char c, std::string* out) {
  const auto closes = [c](char open) { return open == '{' ? c == '}' : open == '[' ? c == ']' : c == ')' || c == '}'; };
  size_t at = levels_.size();
  while (at > 0 && !closes(levels_[at - 1].open)) --at;
  if (at == 0) return;  // closes nothing
  WriteBlanks(out);
  while (levels_.size() >= at) {
    const char open = levels_.back().open;
    levels_.pop_back();
    if (levels_.empty()) {
      done_ = true;
      return;
    }
    out->push_back(open == '[' ? ']' : '}');
  }
  AfterElement();
}

bool ObjectReader::Close(std::string* out) {
  if (done_) return true;
  if (state_ == State::kString && strict_string_ && style_ == Style::kJson) return false;
  ForceClose(out);
  return true;
}

void ObjectReader::ForceClose(std::string* out) {
  if (done_) return;
  if (state_ == State::kString || state_ == State::kMaybeClosed) EndString(out);
  if (state_ == State::kRawString) {
    const std::string rest = std::move(held_);
    held_.clear();
    RawString(quote_, out);
    for (const char c : rest) {
      if (Feed(c, out)) return;
    }
  }
  if (state_ == State::kBareKey) EndBareKey(out);
  if (state_ == State::kColon) {
    out->push_back(':');
    state_ = State::kValue;
  }
  if (state_ == State::kValue && InObject()) {
    out->append("null");
    AfterElement();
  }
  if (state_ == State::kBareValue) EndBareValue(out);
  while (levels_.size() > 1) {
    out->push_back(levels_.back().open == '[' ? ']' : '}');
    levels_.pop_back();
  }
  done_ = true;
}

}  // namespace holdfast::tools

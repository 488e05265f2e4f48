#include "frontend/text/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja {
namespace {

bool IsDigitChar(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80; }
bool IsNameChar(char c) { return IsNameStart(c) || IsDigitChar(c); }

std::string Normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::vector<Token>* tokens, SyntaxError* error) : src_(Normalize(source)), s_(src_), tokens_(tokens), error_(error) {}

  bool Run() {
    while (pos_ < s_.size()) {
      if (!Root()) return false;
    }
    Add(TokenKind::kEnd, pos_, {});
    return true;
  }

 private:
  char At(size_t i) const { return i < s_.size() ? s_[i] : '\0'; }
  bool StartsWith(size_t at, std::string_view what) const { return s_.substr(std::min(at, s_.size()), what.size()) == what; }

  void Locate(size_t offset, uint32_t* line, uint32_t* column) {
    // Tokens come in order, so counting goes on from the last place; an error may lie before it.
    if (offset < counted_) {
      counted_ = 0;
      line_ = 1;
      line_start_ = 0;
    }
    for (; counted_ < offset; ++counted_) {
      if (s_[counted_] == '\n') {
        ++line_;
        line_start_ = counted_ + 1;
      }
    }
    *line = line_;
    *column = static_cast<uint32_t>(offset - line_start_ + 1);
  }

  void Add(TokenKind kind, size_t offset, std::string text) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    Locate(offset, &token.line, &token.column);
    tokens_->push_back(std::move(token));
  }

  bool Fail(size_t offset, std::string message) {
    error_->message = std::move(message);
    Locate(offset, &error_->line, &error_->column);
    return false;
  }

  size_t SkipSpace(size_t at) const {
    while (at < s_.size()) {
      size_t next = at;
      if (!IsSpace(NextCodePoint(s_, &next))) break;
      at = next;
    }
    return at;
  }

  // Emits [pos_, tag) after the strip that the tag's sign asks for.
  void Data(size_t tag, char sign, bool lstrip) {
    size_t end = tag;
    if (sign == '-') {
      while (end > pos_) {
        size_t before = end;
        if (!IsSpace(PreviousCodePoint(s_, &before)) || before < pos_) break;
        end = before;
      }
    } else if (sign != '+' && lstrip) {
      const std::string_view text = s_.substr(pos_, tag - pos_);
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && SkipSpaceUpTo(pos_ + line, tag) == tag) end = pos_ + line;
    }
    if (end > pos_) Add(TokenKind::kData, pos_, std::string(s_.substr(pos_, end - pos_)));
  }

  size_t SkipSpaceUpTo(size_t at, size_t limit) const {
    while (at < limit) {
      size_t next = at;
      if (!IsSpace(NextCodePoint(s_, &next))) break;
      at = next;
    }
    return at;
  }

  // The end of a raw tag ("{%- raw -%}", word = "raw") that starts at `at`, or nullopt. block_end: whether +%} and the newline rule apply.
  std::optional<size_t> RawTag(size_t at, std::string_view word, bool block_end, char* sign) const {
    if (!StartsWith(at, "{%")) return std::nullopt;
    at += 2;
    *sign = '\0';
    if (At(at) == '-' || At(at) == '+') *sign = s_[at++];
    at = SkipSpace(at);
    if (!StartsWith(at, word)) return std::nullopt;
    at = SkipSpace(at + word.size());
    if (StartsWith(at, "-%}")) return SkipSpace(at + 3);
    if (block_end && StartsWith(at, "+%}")) return at + 3;
    if (!StartsWith(at, "%}")) return std::nullopt;
    at += 2;
    return block_end && At(at) == '\n' ? at + 1 : at;
  }

  void MoveTo(size_t at) {
    line_starting_ = at > 0 && s_[at - 1] == '\n';
    pos_ = at;
  }

  bool Root() {
    size_t tag = pos_;
    while (true) {
      tag = s_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= s_.size()) {
        Add(TokenKind::kData, pos_, std::string(s_.substr(pos_)));
        pos_ = s_.size();
        return true;
      }
      const char c = s_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
      ++tag;
    }
    char sign = '\0';
    if (const auto end = RawTag(tag, "raw", false, &sign)) return Raw(tag, *end, sign);
    sign = At(tag + 2) == '-' || At(tag + 2) == '+' ? s_[tag + 2] : '\0';
    const char c = s_[tag + 1];
    Data(tag, sign, c != '{');
    const size_t body = tag + 2 + (sign != '\0' ? 1 : 0);
    if (c == '#') return Comment(tag, body);
    Add(c == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, tag, {});
    pos_ = body;
    return Tag(tag, c == '{');
  }

  bool Raw(size_t tag, size_t body, char sign) {
    Data(tag, sign, true);
    MoveTo(body);
    for (size_t end = body; (end = s_.find("{%", end)) != std::string_view::npos; ++end) {
      char end_sign = '\0';
      if (const auto after = RawTag(end, "endraw", true, &end_sign)) {
        Data(end, end_sign, true);
        MoveTo(*after);
        return true;
      }
    }
    return Fail(tag, "this raw block has no {% endraw %}");
  }

  bool Comment(size_t tag, size_t body) {
    const size_t end = s_.find("#}", body);
    if (end == std::string_view::npos) return Fail(tag, "this comment has no #}");
    const char before = end > body ? s_[end - 1] : '\0';
    size_t after = end + 2;
    if (before == '-') {
      after = SkipSpace(after);
    } else if (before != '+' && At(after) == '\n') {
      ++after;
    }
    MoveTo(after);
    return true;
  }

  // Tokens up to the tag's end.
  bool Tag(size_t tag, bool variable) {
    std::string open;
    while (true) {
      pos_ = SkipSpace(pos_);
      if (pos_ >= s_.size()) return Fail(tag, variable ? "this {{ has no }}" : "this {% has no %}");
      if (open.empty()) {
        const std::string_view end = variable ? "}}" : "%}";
        if (StartsWith(pos_, end)) {
          Add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, pos_, {});
          size_t after = pos_ + 2;
          if (!variable && At(after) == '\n') ++after;
          MoveTo(after);
          return true;
        }
        if ((s_[pos_] == '-' || (s_[pos_] == '+' && !variable)) && StartsWith(pos_ + 1, end)) {
          Add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, pos_, {});
          MoveTo(s_[pos_] == '-' ? SkipSpace(pos_ + 3) : pos_ + 3);
          return true;
        }
      }
      const char c = s_[pos_];
      if (IsDigitChar(c)) {
        if (!Number()) return false;
      } else if (IsNameStart(c)) {
        const size_t begin = pos_;
        while (pos_ < s_.size() && IsNameChar(s_[pos_])) ++pos_;
        Add(TokenKind::kName, begin, std::string(s_.substr(begin, pos_ - begin)));
      } else if (c == '"' || c == '\'') {
        if (!String()) return false;
      } else if (!Operator(&open)) {
        return false;
      }
    }
  }

  size_t Digits(size_t at) const {  // d(_?d)*
    while (IsDigitChar(At(at)) || (At(at) == '_' && IsDigitChar(At(at + 1)))) ++at;
    return at;
  }

  bool Number() {
    const size_t begin = pos_;
    size_t end = Digits(begin);
    const bool after_dot = !tokens_->empty() && tokens_->back().kind == TokenKind::kOperator && tokens_->back().text == "." && begin > 0 &&
                           s_[begin - 1] == '.';
    bool is_float = false;
    if (!after_dot) {
      if (At(end) == '.' && IsDigitChar(At(end + 1))) {
        end = Digits(end + 1);
        is_float = true;
      }
      if (At(end) == 'e' || At(end) == 'E') {
        const size_t exponent = end + 1 + (At(end + 1) == '+' || At(end + 1) == '-' ? 1 : 0);
        if (IsDigitChar(At(exponent))) {
          end = Digits(exponent);
          is_float = true;
        }
      }
    }
    if (!is_float && s_[begin] == '0') {
      const char p = static_cast<char>(At(begin + 1) | 0x20);
      const std::string_view digits = p == 'x' ? "0123456789abcdefABCDEF_" : p == 'o' ? "01234567_" : p == 'b' ? "01_" : "";
      if (!digits.empty() && At(begin + 2) != '\0' && digits.find(At(begin + 2)) != std::string_view::npos) {
        end = begin + 2;
        while (At(end) != '\0' && digits.find(At(end)) != std::string_view::npos) ++end;
      } else {
        // A number may start with 0 only if it is 0.
        for (size_t i = begin; i < end; ++i) {
          if (s_[i] != '0' && s_[i] != '_') return Fail(begin, "a number cannot start with 0");
        }
      }
    }
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, begin, std::string(s_.substr(begin, end - begin)));
    pos_ = end;
    return true;
  }

  bool String() {
    const size_t begin = pos_;
    const char quote = s_[begin];
    std::string value;
    for (size_t i = begin + 1; i < s_.size(); ++i) {
      if (s_[i] == quote) {
        Add(TokenKind::kString, begin, std::move(value));
        pos_ = i + 1;
        return true;
      }
      if (s_[i] != '\\') {
        value.push_back(s_[i]);
        continue;
      }
      if (++i >= s_.size()) break;
      if (!Escape(&i, &value)) return false;
    }
    return Fail(begin, "this string has no end");
  }

  // *i is at the character behind the backslash, and afterwards at the last one of the escape.
  bool Escape(size_t* i, std::string* value) {
    const char c = s_[*i];
    constexpr std::array<std::pair<char, char>, 10> kSimple = {
        {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'a', '\a'}, {'b', '\b'}, {'f', '\f'}, {'v', '\v'}, {'\\', '\\'}, {'\'', '\''}, {'"', '"'}}};
    for (const auto& [from, to] : kSimple) {
      if (c == from) {
        value->push_back(to);
        return true;
      }
    }
    if (c == '\n') return true;
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t n = 0;
      for (; n < 3 && At(*i + n) >= '0' && At(*i + n) <= '7'; ++n) code = code * 8 + static_cast<char32_t>(At(*i + n) - '0');
      AppendCodePoint(code, value);
      *i += n - 1;
      return true;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (c == 'N') return Fail(*i - 1, "\\N{...} escapes are not supported");
      value->push_back('\\');
      value->push_back(c);
      return true;
    }
    char32_t code = 0;
    if (!Hex(*i + 1, digits, &code)) return Fail(*i - 1, "truncated or illegal \\" + std::string(1, c) + " escape");
    *i += digits;
    char32_t low = 0;
    if (code >= 0xD800 && code < 0xDC00 && At(*i + 1) == '\\' && At(*i + 2) == 'u' && Hex(*i + 3, 4, &low) && low >= 0xDC00 && low < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      *i += 6;
    }
    AppendCodePoint(code, value);
    return true;
  }

  bool Hex(size_t at, size_t digits, char32_t* code) const {
    *code = 0;
    for (size_t n = 0; n < digits; ++n) {
      const char c = At(at + n);
      const char lower = static_cast<char>(c | 0x20);
      if (IsDigitChar(c)) {
        *code = *code * 16 + static_cast<char32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        *code = *code * 16 + static_cast<char32_t>(lower - 'a' + 10);
      } else {
        return false;
      }
    }
    return *code <= 0x10FFFF;
  }

  bool Operator(std::string* open) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
                                                      "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!StartsWith(pos_, op)) continue;
      const char c = op[0];
      if (c == '{' || c == '(' || c == '[') {
        open->push_back(c == '{' ? '}' : c == '(' ? ')' : ']');
      } else if (c == '}' || c == ')' || c == ']') {
        if (open->empty()) return Fail(pos_, std::string("unexpected '") + c + "'");
        if (open->back() != c) return Fail(pos_, std::string("unexpected '") + c + "', expected '" + open->back() + "'");
        open->pop_back();
      }
      Add(TokenKind::kOperator, pos_, std::string(op));
      pos_ += op.size();
      return true;
    }
    return Fail(pos_, std::string("unexpected character '") + s_[pos_] + "'");
  }

  std::string src_;
  std::string_view s_;
  std::vector<Token>* tokens_;
  SyntaxError* error_;
  size_t pos_ = 0;
  bool line_starting_ = true;
  size_t counted_ = 0;
  uint32_t line_ = 1;
  size_t line_start_ = 0;
};

}  // namespace

bool Tokenize(std::string_view source, std::vector<Token>* tokens, SyntaxError* error) { return Lexer(source, tokens, error).Run(); }

}  // namespace holdfast::text::jinja

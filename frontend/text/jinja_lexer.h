#pragma once
// Cuts template source into tokens as jinja2's lexer does with trim_blocks and lstrip_blocks: whitespace control, comments and raw blocks
// are dealt with here, so that the parser sees text, tag borders and the tokens inside tags. Newlines are normalised and one newline at
// the end of the source is dropped.
#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::text::jinja {

enum class TokenKind : uint8_t {
  kData,           // text: template text
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kName,
  kString,         // text: the string's value, escapes resolved
  kInteger,        // text: the digits as written
  kFloat,
  kOperator,       // text: one of the operators
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  uint32_t line = 1;
  uint32_t column = 1;  // in bytes
};

struct SyntaxError {
  std::string message;  // empty: none
  uint32_t line = 1;
  uint32_t column = 1;
};

// False: *error says what is wrong and where. The last token is kEnd.
bool Tokenize(std::string_view source, std::vector<Token>* tokens, SyntaxError* error);

}  // namespace holdfast::text::jinja

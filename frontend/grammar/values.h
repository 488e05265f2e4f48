#pragma once
// How the values of a schema are spelled in each style: JSON text, or Gemma 4's call arguments. Internal to frontend/grammar.
//
// Numbers are bounded (18 digits, 18 behind the point, a two-digit exponent), white space too (16 at a place), and values of no schema nest
// at most kAnyDepth deep, so that an answer ends.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/grammar/builder.h"
#include "frontend/grammar/utf8_ranges.h"

namespace holdfast::grammar {

inline constexpr uint32_t kAnyDepth = 16;

class Values final {
 public:
  // `shared` returns the node of a key, made by the second argument the first time.
  using Shared = std::function<Node(uint64_t key, const std::function<Node()>& make)>;
  Values(Builder& builder, const SchemaStyle& style, Shared shared) : b_(builder), style_(style), shared_(std::move(shared)) {}

  bool json() const { return style_.style == ValueStyle::kJson; }

  Node AnyString();
  // A string whose characters are described by `content` (made of Chars and Text).
  Node Quoted(Node content);
  // One character of a string out of these, as it is spelled inside a string; escapes that JSON does not need are not used.
  Node Chars(std::span<const CodePointRange> normal);
  // Any one character, in any of its spellings; without close tags, '<' in its escaped ones only.
  Node AnyChar();
  // Any number of them, as a string has them.
  Node AnyChars();
  // These characters inside a string. Precondition: valid UTF-8.
  Node Text(std::string_view text);
  Node Number();
  Node Integer();
  // Digits that spell an integer in [min, max]; a missing bound is a bound of 18 digits.
  Node IntegerIn(std::optional<int64_t> min, std::optional<int64_t> max);
  Node True() { return b_.Literal("true"); }
  Node False() { return b_.Literal("false"); }
  Node Null() { return b_.Literal("null"); }
  Node Bool() { return b_.Choice({True(), False()}); }
  // Exactly this value.
  Node Constant(const text::JsonValue& value);

  // The key of a member with its colon. In Gemma 4's style, between quote markers where its reader would take a bare one for something else.
  Node Key(std::string_view name);
  // A key, with its colon, that is none of these.
  Node OtherKey(std::span<const std::string> taken);
  // A key, with its colon, that `content` describes.
  Node KeyOf(Node content);
  // The characters a bare key may have; with JSON, any.
  std::vector<CodePointRange> KeyCharacters() const;

  // Punctuation with the white space around it.
  Node Open(char bracket);
  Node Close(char bracket);
  Node Comma();

  Node AnyValue(uint32_t depth = 0);
  Node AnyObject(uint32_t depth = 0);
  Node AnyArray(uint32_t depth = 0);

 private:
  Node Space();
  Node Once(uint32_t what, uint32_t n, const std::function<Node()>& make);
  Node Digits(uint32_t min, uint32_t max);
  Node Byte(char lo, char hi);
  Node AnyEscape();
  bool NeedsEscape(uint32_t c) const;

  Builder& b_;
  const SchemaStyle style_;
  Shared shared_;
};

}  // namespace holdfast::grammar

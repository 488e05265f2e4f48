#pragma once
// UTF-8 on untrusted bytes. One decoder for the whole frontend, so that every part agrees on what a broken sequence is: the maximal
// subparts of the Unicode Standard, section 3.9 (table 3-7 and "U+FFFD substitution of maximal subparts"), as WHATWG decoders do it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::text {

inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : uint8_t {
  kOk,         // a well-formed sequence
  kInvalid,    // a maximal bad subpart: to be replaced by one U+FFFD
  kTruncated,  // the text ends inside a sequence that is well-formed so far
};

struct Utf8Step {
  char32_t code_point = 0xFFFD;  // the scalar value when kOk, else U+FFFD
  uint8_t length = 0;            // bytes consumed, 1..4
  Utf8Kind kind = Utf8Kind::kInvalid;
};

// The sequence at s[at]. Precondition: at < s.size().
Utf8Step DecodeUtf8(std::string_view s, size_t at);

// Offset of the first byte of the first ill-formed sequence, or npos.
size_t FirstInvalidUtf8(std::string_view s);
inline bool IsValidUtf8(std::string_view s) { return FirstInvalidUtf8(s) == std::string_view::npos; }

// Length (0..3) of the suffix of s that begins a sequence and lacks its end.
size_t IncompleteUtf8Tail(std::string_view s);

// Precondition: a scalar value (not a surrogate, at most U+10FFFF).
void AppendUtf8(char32_t code_point, std::string* out);

// Appends s with every bad subpart, and a truncated end, replaced by one U+FFFD each.
void AppendValidUtf8(std::string_view s, std::string* out);

}  // namespace holdfast::text

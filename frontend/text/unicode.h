#pragma once
// The character classes that the tokenizers' split patterns ask for. Tables are made by unicode_tables.py.
#include <cstdint>
#include <string_view>

namespace holdfast::text {

enum class CharClass : uint8_t {
  kOther = 0,       // punctuation, symbols, controls, unassigned, and bytes that are no UTF-8
  kSpace = 1,       // the White_Space property
  kUpper = 2,       // Lu
  kLower = 3,       // Ll
  kTitle = 4,       // Lt
  kModifier = 5,    // Lm
  kOtherLetter = 6, // Lo
  kMark = 7,        // Mn Mc Me
  kNumber = 8,      // Nd Nl No
};

// kOther for values above U+10FFFF.
CharClass ClassOf(char32_t code_point);

inline bool IsLetter(CharClass c) { return c >= CharClass::kUpper && c <= CharClass::kOtherLetter; }

std::string_view UnicodeVersion();

}  // namespace holdfast::text

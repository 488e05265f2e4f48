#include "frontend/text/unicode.h"

namespace holdfast::text {
namespace {
#include "frontend/text/unicode_tables.inc"
}  // namespace

CharClass ClassOf(char32_t c) {
  if (c > 0x10FFFF) return CharClass::kOther;
  return static_cast<CharClass>(kUnicodeClass[size_t{kUnicodeBlock[c >> 7]} * 128 + (c & 127)]);
}

std::string_view UnicodeVersion() { return kUnicodeVersion; }

}  // namespace holdfast::text

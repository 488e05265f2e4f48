#pragma once
// Code points of UTF-8 text and the character properties Python's str methods rely on. Pure functions, tables from jinja_unicode_table.py.
// Input is valid UTF-8; a stray byte is taken as one code point of its own value, so that nothing here can read out of bounds.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::text::jinja {

// The code point at s[*pos] (pos < size) and moves *pos behind it.
char32_t NextCodePoint(std::string_view s, size_t* pos);
// The code point that ends at *pos (pos > 0) and moves *pos to its start.
char32_t PreviousCodePoint(std::string_view s, size_t* pos);
void AppendCodePoint(char32_t c, std::string* out);  // surrogates and values beyond U+10FFFF become U+FFFD

bool IsAscii(std::string_view s);
size_t CountCodePoints(std::string_view s);
// Byte offset of code point `index` (or the size when there are fewer).
size_t ByteOffset(std::string_view s, size_t index);

bool IsSpace(char32_t c);        // str.isspace
bool IsAlpha(char32_t c);        // str.isalpha
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);
bool IsNumeric(char32_t c);
bool IsPrintable(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);

void AppendUpper(char32_t c, std::string* out);
void AppendLower(char32_t c, std::string* out);
void AppendTitle(char32_t c, std::string* out);
std::string ToUpper(std::string_view s);
std::string ToLower(std::string_view s);

}  // namespace holdfast::text::jinja

#include "frontend/text/jinja_unicode.h"

#include <algorithm>
#include <iterator>

namespace holdfast::text::jinja {
namespace {

struct CodeRange {
  uint32_t first, last;
};
struct CaseRange {
  uint32_t first, last, step;
  int32_t delta;
};
struct CaseSpecial {
  uint32_t code;
  const char* to;
};

#include "frontend/text/jinja_unicode_table.inc"

template <size_t N>
bool InRanges(const CodeRange (&table)[N], char32_t c) {
  const auto* it = std::upper_bound(std::begin(table), std::end(table), c, [](char32_t v, const CodeRange& r) { return v < r.first; });
  return it != std::begin(table) && c <= std::prev(it)->last;
}

template <size_t N, size_t M>
bool AppendMapped(const CaseRange (&ranges)[N], const CaseSpecial (&specials)[M], char32_t c, std::string* out) {
  const auto* it = std::upper_bound(std::begin(ranges), std::end(ranges), c, [](char32_t v, const CaseRange& r) { return v < r.first; });
  if (it != std::begin(ranges)) {
    const CaseRange& r = *std::prev(it);
    if (c <= r.last && (c - r.first) % r.step == 0) {
      AppendCodePoint(static_cast<char32_t>(static_cast<int32_t>(c) + r.delta), out);
      return true;
    }
  }
  const auto* s = std::lower_bound(std::begin(specials), std::end(specials), c, [](const CaseSpecial& a, char32_t v) { return a.code < v; });
  if (s == std::end(specials) || s->code != c) return false;
  out->append(s->to);
  return true;
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

char32_t NextCodePoint(std::string_view s, size_t* pos) {
  const auto lead = static_cast<unsigned char>(s[*pos]);
  const size_t length = lead < 0x80 ? 1 : (lead >> 5) == 6 ? 2 : (lead >> 4) == 14 ? 3 : (lead >> 3) == 30 ? 4 : 1;
  if (length == 1 || *pos + length > s.size()) {
    ++*pos;
    return lead;
  }
  char32_t c = lead & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(s[*pos + i])) {
      ++*pos;
      return lead;
    }
    c = (c << 6) | (static_cast<unsigned char>(s[*pos + i]) & 0x3F);
  }
  *pos += length;
  return c;
}

char32_t PreviousCodePoint(std::string_view s, size_t* pos) {
  size_t start = *pos - 1;
  while (start > 0 && *pos - start < 4 && IsContinuation(s[start])) --start;
  size_t end = start;
  const char32_t c = NextCodePoint(s, &end);
  if (end == *pos) {
    *pos = start;
    return c;
  }
  --*pos;
  return static_cast<unsigned char>(s[*pos]);
}

void AppendCodePoint(char32_t c, std::string* out) {
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD;
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool IsAscii(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

size_t CountCodePoints(std::string_view s) {
  size_t n = 0;
  for (size_t pos = 0; pos < s.size(); ++n) NextCodePoint(s, &pos);
  return n;
}

size_t ByteOffset(std::string_view s, size_t index) {
  size_t pos = 0;
  while (index > 0 && pos < s.size()) {
    NextCodePoint(s, &pos);
    --index;
  }
  return pos;
}

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
bool IsAlpha(char32_t c) { return InRanges(kAlphaRanges, c); }
bool IsDecimal(char32_t c) { return InRanges(kDecimalRanges, c); }
bool IsDigit(char32_t c) { return InRanges(kDigitRanges, c); }
bool IsNumeric(char32_t c) { return InRanges(kNumericRanges, c); }
bool IsPrintable(char32_t c) { return !InRanges(kUnprintableRanges, c); }
bool IsUpper(char32_t c) { return InRanges(kIsUpperRanges, c); }
bool IsLower(char32_t c) { return InRanges(kIsLowerRanges, c); }

void AppendUpper(char32_t c, std::string* out) {
  if (!AppendMapped(kUpperRanges, kUpperSpecials, c, out)) AppendCodePoint(c, out);
}
void AppendLower(char32_t c, std::string* out) {
  if (!AppendMapped(kLowerRanges, kLowerSpecials, c, out)) AppendCodePoint(c, out);
}
void AppendTitle(char32_t c, std::string* out) {
  if (!AppendMapped(kTitleRanges, kTitleSpecials, c, out)) AppendUpper(c, out);
}

std::string ToUpper(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) AppendUpper(NextCodePoint(s, &pos), &out);
  return out;
}

std::string ToLower(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) {
    const size_t at = pos;
    const char32_t c = NextCodePoint(s, &pos);
    if (c == 0x3A3) {  // a capital sigma at the end of a word has its own small letter
      size_t before = at;
      size_t after = pos;
      const bool follows = at > 0 && IsAlpha(PreviousCodePoint(s, &before));
      const bool ends = pos >= s.size() || !IsAlpha(NextCodePoint(s, &after));
      AppendCodePoint(follows && ends ? 0x3C2 : 0x3C3, &out);
      continue;
    }
    AppendLower(c, &out);
  }
  return out;
}

}  // namespace holdfast::text::jinja

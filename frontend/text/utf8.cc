#include "frontend/text/utf8.h"

#include "proto/base/check.h"

namespace holdfast::text {

Utf8Step DecodeUtf8(std::string_view s, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {lead, 1, Utf8Kind::kOk};
  int rest;
  char32_t value;
  // The first continuation byte has a narrower range for some leads: no overlong forms, no surrogates, nothing above U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    rest = 1;
    value = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    rest = 2;
    value = lead & 0x0Fu;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    rest = 3;
    value = lead & 0x07u;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {0xFFFD, 1, Utf8Kind::kInvalid};
  }
  uint8_t length = 1;
  for (int i = 0; i < rest; ++i) {
    if (at + length >= s.size()) return {0xFFFD, length, Utf8Kind::kTruncated};
    const uint8_t next = byte(at + length);
    if (next < low || next > high) return {0xFFFD, length, Utf8Kind::kInvalid};
    value = (value << 6) | (next & 0x3Fu);
    low = 0x80;
    high = 0xBF;
    ++length;
  }
  return {value, length, Utf8Kind::kOk};
}

size_t FirstInvalidUtf8(std::string_view s) {
  for (size_t at = 0; at < s.size();) {
    if (static_cast<uint8_t>(s[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = DecodeUtf8(s, at);
    if (step.kind != Utf8Kind::kOk) return at;
    at += step.length;
  }
  return std::string_view::npos;
}

size_t IncompleteUtf8Tail(std::string_view s) {
  for (size_t back = 1; back <= 3 && back <= s.size(); ++back) {
    const uint8_t b = static_cast<uint8_t>(s[s.size() - back]);
    if (b < 0x80) return 0;
    if (b >= 0xC0) {
      const Utf8Step step = DecodeUtf8(s, s.size() - back);
      return step.kind == Utf8Kind::kTruncated ? back : 0;
    }
  }
  return 0;
}

void AppendUtf8(char32_t c, std::string* out) {
  HF_CHECK(c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF));
  const auto put = [&](char32_t b) { out->push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

void AppendValidUtf8(std::string_view s, std::string* out) {
  size_t good = 0;  // start of the well-formed stretch that is not yet appended
  for (size_t at = 0; at < s.size();) {
    const Utf8Step step = DecodeUtf8(s, at);
    if (step.kind != Utf8Kind::kOk) {
      out->append(s.substr(good, at - good));
      out->append(kReplacementUtf8);
      good = at + step.length;
    }
    at += step.length;
  }
  out->append(s.substr(good));
}

}  // namespace holdfast::text

#include "frontend/text/jinja_number.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja {
namespace {

std::string_view StripBlanks(std::string_view s) {
  while (!s.empty()) {
    size_t pos = 0;
    if (!IsSpace(NextCodePoint(s, &pos))) break;
    s.remove_prefix(pos);
  }
  while (!s.empty()) {
    size_t pos = s.size();
    if (!IsSpace(PreviousCodePoint(s, &pos))) break;
    s = s.substr(0, pos);
  }
  return s;
}

std::string Printf(const char* format, int precision, double d) {
  const int length = std::snprintf(nullptr, 0, format, precision, d);
  std::string out(static_cast<size_t>(length), '\0');
  std::snprintf(out.data(), out.size() + 1, format, precision, d);
  return out;
}

void AddThousands(std::string* digits) {
  size_t end = digits->find_first_not_of("0123456789");
  if (end == std::string::npos) end = digits->size();
  while (end > 3) {
    end -= 3;
    digits->insert(end, 1, ',');
  }
}

std::string WithSign(bool negative, std::string body, const FormatSpec& spec, const char* prefix = "") {
  std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  sign += prefix;
  const bool fill_inside = spec.align == '=' || (spec.align == 0 && spec.zero);
  if (fill_inside && sign.size() + body.size() < spec.width) {
    const std::string fill = spec.align == '=' ? spec.fill : "0";
    std::string padding;
    for (size_t n = spec.width - sign.size() - body.size(); n > 0; --n) padding += fill;
    return sign + padding + body;
  }
  return Pad(sign + body, spec, '>');
}

}  // namespace

std::string IntToString(Int i, unsigned base) {
  std::string out;
  auto u = i < 0 ? -static_cast<unsigned __int128>(i) : static_cast<unsigned __int128>(i);
  do {
    out.push_back("0123456789abcdefghijklmnopqrstuvwxyz"[static_cast<unsigned>(u % base)]);
    u /= base;
  } while (u != 0);
  if (i < 0) out.push_back('-');
  std::reverse(out.begin(), out.end());
  return out;
}

std::string FloatRepr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  auto result = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  const std::string scientific(buffer, result.ptr);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return scientific;  // to_chars writes at least two exponent digits, as Python does
  result = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::fixed);
  std::string fixed(buffer, result.ptr);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

std::optional<Int> ParseInt(std::string_view text, unsigned base) {
  text = StripBlanks(text);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  bool underscore_ok = false;
  if (text.size() > 2 && text[0] == '0') {
    const char p = static_cast<char>(text[1] | 0x20);
    const unsigned prefix_base = p == 'x' ? 16 : p == 'o' ? 8 : p == 'b' ? 2 : 0;
    if (prefix_base != 0 && (base == 0 || base == prefix_base)) {
      base = prefix_base;
      text.remove_prefix(2);
      underscore_ok = true;
    }
  }
  const bool by_prefix = base == 0;
  if (by_prefix) base = 10;
  if (text.empty()) return std::nullopt;
  Int value = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '_') {
      if (!underscore_ok || i + 1 == text.size()) return std::nullopt;
      underscore_ok = false;
      continue;
    }
    unsigned digit = 99;
    if (c >= '0' && c <= '9') digit = static_cast<unsigned>(c - '0');
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') digit = static_cast<unsigned>((c | 0x20) - 'a') + 10;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) || __builtin_add_overflow(value, static_cast<Int>(digit), &value)) {
      return std::nullopt;
    }
    underscore_ok = true;
  }
  if (by_prefix && text.size() > 1 && text[0] == '0' && value != 0) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> ParseFloat(std::string_view text) {
  text = StripBlanks(text);
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] == '_') {
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
      continue;
    }
    clean.push_back(static_cast<char>(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i]));
  }
  std::string_view body = clean;
  bool negative = false;
  if (!body.empty() && (body[0] == '-' || body[0] == '+')) {
    negative = body[0] == '-';
    body.remove_prefix(1);
  }
  if (body == "inf" || body == "infinity") return negative ? -INFINITY : INFINITY;
  if (body == "nan") return NAN;
  if (body.empty() || !((body[0] >= '0' && body[0] <= '9') || body[0] == '.')) return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(body.data(), body.data() + body.size(), value);
  if (result.ptr != body.data() + body.size()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    const size_t e = body.find('e');
    value = e != std::string_view::npos && e + 1 < body.size() && body[e + 1] == '-' ? 0.0 : INFINITY;
  } else if (result.ec != std::errc()) {
    return std::nullopt;
  }
  return negative ? -value : value;
}

double RoundFloat(double d, int digits) {
  if (!std::isfinite(d) || digits > 323) return d;
  if (digits < -308) return std::copysign(0.0, d);
  if (digits < 0) {
    const double scale = std::pow(10.0, -digits);
    return std::nearbyint(d / scale) * scale;
  }
  // printf rounds the exact binary value correctly, which is what Python's round does.
  return ParseFloat(Printf("%.*f", digits, d)).value_or(d);
}

std::optional<FormatSpec> ParseFormatSpec(std::string_view text) {
  FormatSpec spec;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    size_t pos = 0;
    NextCodePoint(text, &pos);
    if (pos < text.size() && is_align(text[pos])) {
      spec.fill = std::string(text.substr(0, pos));
      spec.align = text[pos];
      text.remove_prefix(pos + 1);
    } else if (is_align(text[0])) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  if (!text.empty() && (text[0] == '+' || text[0] == '-' || text[0] == ' ')) {
    spec.sign = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty() && text[0] == '#') {
    spec.alternate = true;
    text.remove_prefix(1);
  }
  if (!text.empty() && text[0] == '0') {
    spec.zero = true;
    text.remove_prefix(1);
  }
  const auto number = [&text]() -> std::optional<uint32_t> {
    uint32_t n = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), n);
    if (result.ec != std::errc() || n > kMaxFormatWidth) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
    return n;
  };
  if (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    const auto n = number();
    if (!n) return std::nullopt;
    spec.width = *n;
  }
  if (!text.empty() && text[0] == ',') {
    spec.thousands = true;
    text.remove_prefix(1);
  }
  if (!text.empty() && text[0] == '.') {
    text.remove_prefix(1);
    spec.precision = number();
    if (!spec.precision) return std::nullopt;
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty()) return std::nullopt;
  return spec;
}

std::string Pad(std::string body, const FormatSpec& spec, char default_align) {
  const size_t length = CountCodePoints(body);
  if (length >= spec.width) return body;
  const size_t missing = spec.width - length;
  const char align = spec.align != 0 ? spec.align : default_align;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string out;
  for (size_t i = 0; i < left; ++i) out += spec.fill;
  out += body;
  for (size_t i = left; i < missing; ++i) out += spec.fill;
  return out;
}

std::optional<std::string> FormatInt(Int i, const FormatSpec& spec) {
  unsigned base = 10;
  const char* prefix = "";
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      break;
    case 'b':
      base = 2;
      prefix = "0b";
      break;
    case 'o':
      base = 8;
      prefix = "0o";
      break;
    case 'x':
    case 'X':
      base = 16;
      prefix = spec.type == 'x' ? "0x" : "0X";
      break;
    case 'c': {
      std::string out;
      if (i < 0 || i > 0x10FFFF) return std::nullopt;
      AppendCodePoint(static_cast<char32_t>(i), &out);
      return Pad(out, spec, '<');
    }
    default:
      return FormatFloat(static_cast<double>(i), spec);
  }
  if (spec.precision) return std::nullopt;
  std::string digits = IntToString(i, base);
  if (i < 0) digits.erase(0, 1);
  if (spec.type == 'X') digits = ToUpper(digits);
  if (spec.thousands) AddThousands(&digits);
  return WithSign(i < 0, digits, spec, spec.alternate ? prefix : "");
}

std::optional<std::string> FormatFloat(double d, const FormatSpec& spec) {
  const bool negative = std::signbit(d) && !std::isnan(d);
  const double magnitude = std::fabs(d);
  std::string body;
  const int precision = static_cast<int>(spec.precision.value_or(6));
  switch (spec.type) {
    case 0:
      body = spec.precision ? Printf("%.*g", std::max(precision, 1), magnitude) : FloatRepr(magnitude);
      break;
    case 'e':
      body = Printf("%.*e", precision, magnitude);
      break;
    case 'E':
      body = Printf("%.*E", precision, magnitude);
      break;
    case 'f':
    case 'F':
      body = Printf("%.*f", precision, magnitude);
      break;
    case 'g':
      body = Printf("%.*g", precision, magnitude);
      break;
    case 'G':
      body = Printf("%.*G", precision, magnitude);
      break;
    case '%':
      body = Printf("%.*f", precision, magnitude * 100) + "%";
      break;
    default:
      return std::nullopt;
  }
  if (spec.thousands) AddThousands(&body);
  return WithSign(negative, body, spec);
}

}  // namespace holdfast::text::jinja

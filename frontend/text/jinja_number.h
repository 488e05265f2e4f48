#pragma once
// Numbers as Python prints and parses them. Pure functions.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "frontend/text/jinja_value.h"

namespace holdfast::text::jinja {

std::string IntToString(Int i, unsigned base = 10);  // lower-case digits, '-' in front
std::string FloatRepr(double d);                     // repr(float): shortest digits that read back, "1e+16" from 1e16 on

// int(text, base) and float(text): surrounding blanks and single underscores between digits are allowed; nullopt where Python raises
// ValueError. base 0 reads 0x, 0o, 0b prefixes.
std::optional<Int> ParseInt(std::string_view text, unsigned base);
std::optional<double> ParseFloat(std::string_view text);

// round(d, digits) of a float: half to even on the exact decimal value, as Python does.
double RoundFloat(double d, int digits);

// A format specification: [[fill]align][sign][#][0][width][,][.precision][type].
struct FormatSpec {
  std::string fill = " ";
  char align = 0;       // < > ^ = or 0
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  bool thousands = false;
  uint32_t width = 0;
  std::optional<uint32_t> precision;
  char type = 0;
};
constexpr uint32_t kMaxFormatWidth = 1u << 16;

std::optional<FormatSpec> ParseFormatSpec(std::string_view text);
// Pads to spec.width code points.
std::string Pad(std::string body, const FormatSpec& spec, char default_align);
// The type must suit (d b o x X n for integers; e E f F g G % for numbers); nullopt otherwise.
std::optional<std::string> FormatInt(Int i, const FormatSpec& spec);
std::optional<std::string> FormatFloat(double d, const FormatSpec& spec);

}  // namespace holdfast::text::jinja

// Numbers and strings of a schema.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "frontend/grammar/char_automaton.h"
#include "frontend/grammar/regex.h"
#include "frontend/grammar/schema.h"
#include "proto/base/status_wire.h"

namespace holdfast::grammar {
namespace {

using text::JsonValue;

constexpr int64_t kMostDigits = 999'999'999'999'999'999;  // 18 nines
constexpr uint32_t kMaxMultiple = 200;

struct Format {
  std::string_view name, pattern;
};

// Dates follow the calendar, with the leap days of the years that 4 divides and 100 does not.
#define HF_DATE                                                                                                                     \
  "(((19|2\\d)\\d\\d)-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))|" \
  "(19|2\\d)(0[48]|[2468][048]|[13579][26])-02-29)"
#define HF_TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define HF_OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define HF_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
constexpr Format kFormats[] = {
    {"date", HF_DATE},
    {"time", HF_TIME},
    {"date-time", HF_DATE "T" HF_TIME},
    {"duration", "P(\\d{1,4}W|\\d{1,4}D(T\\d{1,4}[HMS])?|\\d{1,4}[YM]|T(\\d{1,4}H)?(\\d{1,4}M)?\\d{1,4}S|T\\d{1,4}[HM])"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,1}@" HF_LABEL "(\\." HF_LABEL "){1,3}"},
    {"hostname", HF_LABEL "(\\." HF_LABEL "){0,5}"},
    {"ipv4", HF_OCTET "\\." HF_OCTET "\\." HF_OCTET "\\." HF_OCTET},
    {"uri", "[a-z][a-z0-9+.-]{0,15}:(//" HF_LABEL "(\\." HF_LABEL "){0,5}(:[1-9]\\d{0,3})?)(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*"
            "(\\?([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"},
};

std::optional<std::string_view> PatternOfFormat(std::string_view name) {
  for (const Format& f : kFormats) {
    if (f.name == name) return f.pattern;
  }
  return std::nullopt;  // by the standard a note for people
}

// Decimal digits of equal number: all numbers from lo to hi.
Node SameLength(Builder& b, std::string_view lo, std::string_view hi) {
  const auto digit = [&](char from, char to) {
    const CodePointRange r{static_cast<uint32_t>(from), static_cast<uint32_t>(to)};
    return b.CodePoints(std::span(&r, 1));
  };
  const auto any = [&](size_t n) { return b.Repeat(digit('0', '9'), static_cast<uint32_t>(n), static_cast<uint32_t>(n)); };
  if (lo.empty()) return b.Empty();
  const size_t rest = lo.size() - 1;
  if (lo.find_first_not_of('0') == std::string_view::npos && hi.find_first_not_of('9') == std::string_view::npos) return any(lo.size());
  if (lo[0] == hi[0]) return b.Seq({digit(lo[0], lo[0]), SameLength(b, lo.substr(1), hi.substr(1))});
  std::vector<Node> choices{b.Seq({digit(lo[0], lo[0]), SameLength(b, lo.substr(1), std::string(rest, '9'))}),
                            b.Seq({digit(hi[0], hi[0]), SameLength(b, std::string(rest, '0'), hi.substr(1))})};
  if (lo[0] + 1 < hi[0]) choices.push_back(b.Seq({digit(static_cast<char>(lo[0] + 1), static_cast<char>(hi[0] - 1)), any(rest)}));
  return b.Choice(choices);
}

// Without a sign and without leading zeros.
Node Magnitudes(Builder& b, uint64_t lo, uint64_t hi) {
  if (lo > hi) return b.Never();
  std::vector<Node> choices;
  const std::string low = std::to_string(lo), high = std::to_string(hi);
  for (size_t n = low.size(); n <= high.size(); ++n) {
    const std::string from = n == low.size() ? low : "1" + std::string(n - 1, '0');
    const std::string to = n == high.size() ? high : std::string(n, '9');
    choices.push_back(SameLength(b, from, to));
  }
  return b.Choice(choices);
}

struct Bounds {
  double lo = -HUGE_VAL, hi = HUGE_VAL;
  bool lo_open = false, hi_open = false;
  bool any() const { return lo > -HUGE_VAL || hi < HUGE_VAL; }
  bool Contains(double v) const { return (lo_open ? v > lo : v >= lo) && (hi_open ? v < hi : v <= hi); }
};

Bounds BoundsOf(const JsonValue& schema) {
  Bounds out;
  const JsonValue* v = nullptr;
  if ((v = schema.Find("minimum")) != nullptr) out.lo = v->AsDouble();
  if ((v = schema.Find("maximum")) != nullptr) out.hi = v->AsDouble();
  if ((v = schema.Find("exclusiveMinimum")) != nullptr && v->AsDouble() >= out.lo) {
    out.lo = v->AsDouble();
    out.lo_open = true;
  }
  if ((v = schema.Find("exclusiveMaximum")) != nullptr && v->AsDouble() <= out.hi) {
    out.hi = v->AsDouble();
    out.hi_open = true;
  }
  return out;
}

// The least and greatest integers within, of at most 18 digits; first > second: none. Beyond 2^53 a double is itself an integer, and bounds
// that the schema gives as integers are taken exactly.
std::pair<int64_t, int64_t> Integers(const JsonValue& schema, const Bounds& bounds) {
  int64_t lo = -kMostDigits, hi = kMostDigits;
  if (bounds.lo > -1e18) {
    if (bounds.lo >= 1e18) return {1, 0};
    lo = static_cast<int64_t>(std::ceil(bounds.lo));
    if (bounds.lo_open && static_cast<double>(lo) == bounds.lo) ++lo;
  }
  if (bounds.hi < 1e18) {
    if (bounds.hi <= -1e18) return {1, 0};
    hi = static_cast<int64_t>(std::floor(bounds.hi));
    if (bounds.hi_open && static_cast<double>(hi) == bounds.hi) --hi;
  }
  const auto exactly = [&](std::string_view key, int64_t* bound, int64_t step) {
    const JsonValue* v = schema.Find(key);
    if (v == nullptr || v->kind() != JsonValue::Kind::kInt || std::abs(static_cast<double>(v->AsInt())) < 9e15) return;
    if (v->AsInt() >= -kMostDigits && v->AsInt() <= kMostDigits) *bound = v->AsInt() + step;
  };
  exactly("minimum", &lo, 0);
  exactly("maximum", &hi, 0);
  exactly("exclusiveMinimum", &lo, 1);
  exactly("exclusiveMaximum", &hi, -1);
  return {std::max(lo, -kMostDigits), std::min(hi, kMostDigits)};
}

// n.ddd with a fraction of three digits such that the value is within: for the unit in which a bound that is no integer lies.
Node Thousandths(Builder& b, bool negative, uint64_t n, const Bounds& bounds) {
  const auto value = [&](int m) { return (negative ? -1 : 1) * std::stod(fmt::format("{}.{:03}", n, m)); };
  int lo = 0, hi = 999;
  while (lo <= 999 && !bounds.Contains(value(lo))) ++lo;
  while (hi >= 0 && !bounds.Contains(value(hi))) --hi;
  if (lo > hi) return b.Never();
  return b.Seq({b.Literal(fmt::format("{}{}.", negative ? "-" : "", n)), SameLength(b, fmt::format("{:03}", lo), fmt::format("{:03}", hi))});
}

}  // namespace

Node Values::IntegerIn(std::optional<int64_t> min, std::optional<int64_t> max) {
  const int64_t lo = min.value_or(-kMostDigits), hi = max.value_or(kMostDigits);
  std::vector<Node> choices;
  if (hi >= 0 && lo <= hi) choices.push_back(Magnitudes(b_, static_cast<uint64_t>(std::max<int64_t>(lo, 0)), static_cast<uint64_t>(hi)));
  if (lo < 0 && lo <= hi) {
    choices.push_back(b_.Seq({b_.Literal("-"), Magnitudes(b_, static_cast<uint64_t>(std::max<int64_t>(1, -hi)), static_cast<uint64_t>(-lo))}));
  }
  return b_.Choice(choices);
}

absl::StatusOr<Node> SchemaCompiler::Number(const JsonValue& schema, bool integer, const std::string& path) {
  Bounds bounds = BoundsOf(schema);
  if (const JsonValue* format = schema.Find("format"); format != nullptr && integer && format->AsString() == "int32") {
    bounds.lo = std::max(bounds.lo, -2147483648.0);
    bounds.hi = std::min(bounds.hi, 2147483647.0);
  }
  const auto [lo, hi] = Integers(schema, bounds);
  if (const JsonValue* multiple = schema.Find("multipleOf"); multiple != nullptr) {
    const double m = multiple->AsDouble();
    const std::string at = path + ".multipleOf";
    if (!(m > 0)) return SchemaError(at, "must be greater than 0");
    for (int digits = 1; digits <= 6 && !integer; ++digits) {
      // 0.1, 0.01, ...: so many digits behind the point.
      if (std::abs(m * std::pow(10, digits) - 1) > 1e-9) continue;
      if (bounds.any()) return SchemaError(at, "is not supported together with minimum or maximum unless it is a whole number");
      const CodePointRange d{'0', '9'};
      return b_.Seq({v_.Integer(), b_.Optional(b_.Seq({b_.Literal("."), b_.Repeat(b_.CodePoints(std::span(&d, 1)), 1, static_cast<uint32_t>(digits))}))});
    }
    if (std::floor(m) != m || m > 1e15) return SchemaError(at, "must be a whole number (or 0.1, 0.01 and so on for numbers)");
    const auto step = static_cast<int64_t>(m);
    if (step != 1) {
      const auto ceil_div = [&](int64_t v) { return v >= 0 ? (v + step - 1) / step : -(-v / step); };
      const int64_t first = ceil_div(lo), last = -ceil_div(-hi);
      if (last - first < 5000) {
        std::vector<Node> values;
        for (int64_t k = first; k <= last; ++k) values.push_back(b_.Literal(std::to_string(k * step)));
        if (values.empty()) return SchemaError(at, "no multiple lies between minimum and maximum");
        return b_.Choice(values);
      }
      const bool unsigned_only = lo == 0 && hi == kMostDigits;
      if (step > kMaxMultiple || (bounds.any() && !unsigned_only)) {
        return SchemaError(at, fmt::format("is supported up to {} without bounds, and for any bounds with up to 5000 multiples between them", kMaxMultiple));
      }
      // State r + 1: the digits so far leave the remainder r; no leading zero.
      const auto n = static_cast<uint32_t>(step);
      std::vector<Builder::Edge> edges;
      for (uint32_t r = 0; r <= n; ++r) {
        for (uint32_t d = r == 0 ? 1 : 0; d < 10; ++d) {
          const uint32_t remainder = ((r == 0 ? 0 : r - 1) * 10 + d) % n;
          edges.push_back({r, b_.Literal(std::string(1, static_cast<char>('0' + d))), remainder + 1});
        }
      }
      const uint32_t finals[] = {1};
      const Node magnitude = b_.Choice({b_.Literal("0"), b_.Graph(n + 1, edges, finals)});
      return unsigned_only ? magnitude : b_.Seq({b_.Optional(b_.Literal("-")), magnitude});
    }
    integer = true;
  }
  if (!bounds.any()) return integer ? v_.Integer() : v_.Number();
  std::vector<Node> choices;
  if (lo <= hi) choices.push_back(v_.IntegerIn(lo, hi));
  if (!integer) {
    const CodePointRange d{'0', '9'};
    const Node fraction = b_.Seq({b_.Literal("."), b_.Repeat(b_.CodePoints(std::span(&d, 1)), 1, 15)});
    // A whole unit [n, n + 1) lies within when its lower end does and its upper end is no more than the bound; below zero, mirrored.
    const auto units = [&](double a, bool a_open, double z, bool negative) {
      const double first = std::max(0.0, a_open ? std::floor(a) + 1 : std::ceil(a));
      const double last = std::min(z, 1e15) - 1;
      if (first <= last) {
        const Node whole = Magnitudes(b_, static_cast<uint64_t>(first), static_cast<uint64_t>(std::floor(last)));
        choices.push_back(b_.Seq({b_.Literal(negative ? "-" : ""), whole, fraction}));
      }
      // The units in which the bounds lie.
      for (const double edge : {std::max(0.0, std::floor(a)), std::floor(z)}) {
        if (edge < 0 || edge > 1e15 || (edge >= first && edge <= last)) continue;
        choices.push_back(Thousandths(b_, negative, static_cast<uint64_t>(edge), bounds));
      }
    };
    if (bounds.hi > 0) units(bounds.lo, bounds.lo_open, bounds.hi, false);
    if (bounds.lo < 0) units(-bounds.hi, bounds.hi_open, -bounds.lo, true);
  }
  const Node all = b_.Choice(choices);
  if (all.id == b_.Never().id) return SchemaError(path, "no number that can be written lies between its bounds");
  return all;
}

absl::StatusOr<std::optional<Node>> SchemaCompiler::StringContent(const JsonValue& schema, const std::string& path) {
  const auto bound = [&](std::string_view key, uint32_t otherwise) {
    const JsonValue* v = schema.Find(key);
    return v == nullptr ? otherwise : static_cast<uint32_t>(std::min(v->AsDouble(), 4e9));
  };
  const uint32_t min = bound("minLength", 0), max = bound("maxLength", Builder::kNoLimit);
  if (min > max) return SchemaError(path, fmt::format("minLength {} is greater than maxLength {}", min, max));
  const JsonValue* pattern = schema.Find("pattern");
  const JsonValue* format = schema.Find("format");
  const auto format_pattern = format == nullptr ? std::nullopt : PatternOfFormat(format->AsString());
  if (pattern == nullptr && !format_pattern) {
    if (min == 0 && max == Builder::kNoLimit) return std::optional<Node>();
    return std::optional<Node>(b_.Repeat(v_.AnyChar(), min, max));
  }
  if (pattern != nullptr && format_pattern) return SchemaError(path, "pattern and format cannot be enforced together");
  const std::string at = path + (pattern != nullptr ? ".pattern" : ".format");
  HF_ASSIGN_OR_RETURN(const Regex regex, pattern != nullptr ? Regex::Parse(pattern->AsString(), Regex::Mode::kSearch, at)
                                                            : Regex::Parse(*format_pattern, Regex::Mode::kWhole, at));
  const SpellClass spell = [this](std::span<const CodePointRange> ranges) { return v_.Chars(ranges); };
  const auto [shortest, longest] = regex.Lengths();
  if (shortest >= min && longest <= max) return std::optional<Node>(regex.ToNode(b_, spell));
  uint32_t from = 0, to = 0;
  if (const ReNode* one = regex.AsRepeatedClass(&from, &to); one != nullptr) {
    const Node node = b_.Repeat(spell(one->ranges), std::max(from, min), std::min(to, max));
    if (std::max(from, min) > std::min(to, max)) return SchemaError(at, "no match has a length between minLength and maxLength");
    return std::optional<Node>(node);
  }
  HF_ASSIGN_OR_RETURN(const CharAutomaton automaton, CharAutomaton::Create(regex, {}, at, work_));
  HF_ASSIGN_OR_RETURN(const CharAutomaton bounded, automaton.WithLength(min, max, at, work_));
  return std::optional<Node>(bounded.ToNode(b_, spell));
}

absl::StatusOr<Node> SchemaCompiler::String(const JsonValue& schema, const std::string& path) {
  HF_ASSIGN_OR_RETURN(const std::optional<Node> content, StringContent(schema, path));
  return content ? v_.Quoted(*content) : v_.AnyString();
}

}  // namespace holdfast::grammar

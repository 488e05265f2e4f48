#include "frontend/text/json_value.h"

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "frontend/text/utf8.h"
#include "proto/base/check.h"

namespace holdfast::text {
namespace {

// Python's repr of a float, which is what json.dumps prints: shortest digits that read back exactly; positional from 1e-4 up to 1e16.
void AppendDouble(double d, std::string* out) {
  if (!std::isfinite(d)) {
    out->append("null");  // JSON has no such number
    return;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), d, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text.front() == '-') {
    out->push_back('-');
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 2) digits.append(text.substr(2, e - 2));
  int exponent = 0;
  const char* from = text.data() + e + 1 + (text[e + 1] == '+' ? 1 : 0);
  std::from_chars(from, text.data() + text.size(), exponent);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out->push_back(digits[0]);
    if (count > 1) {
      out->push_back('.');
      out->append(digits, 1);
    }
    out->append(fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent)));
  } else if (exponent < 0) {
    out->append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  } else if (count <= exponent + 1) {
    out->append(digits).append(static_cast<size_t>(exponent + 1 - count), '0').append(".0");
  } else {
    out->append(digits, 0, static_cast<size_t>(exponent + 1)).append(".").append(digits, static_cast<size_t>(exponent + 1));
  }
}

void AppendString(std::string_view s, std::string* out) {
  std::string repaired;
  if (!IsValidUtf8(s)) {
    AppendValidUtf8(s, &repaired);
    s = repaired;
  }
  out->push_back('"');
  for (const char c : s) {
    switch (c) {
      case '"': out->append("\\\""); break;
      case '\\': out->append("\\\\"); break;
      case '\b': out->append("\\b"); break;
      case '\f': out->append("\\f"); break;
      case '\n': out->append("\\n"); break;
      case '\r': out->append("\\r"); break;
      case '\t': out->append("\\t"); break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out->append(fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<uint8_t>(c))));
        } else {
          out->push_back(c);
        }
    }
  }
  out->push_back('"');
}

// Keeps, for a key given twice, the place of the first and the value of the last (as Python's dict does). n log n and without
// hashing, so that no choice of keys makes it slow.
void DropDuplicateKeys(JsonValue::Object* object) {
  if (object->size() < 2) return;
  std::vector<uint32_t> order(object->size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int c = (*object)[a].first.compare((*object)[b].first);
    return c != 0 ? c < 0 : a < b;
  });
  std::vector<bool> drop;
  for (size_t i = 0; i < order.size();) {
    size_t last = i;
    while (last + 1 < order.size() && (*object)[order[last + 1]].first == (*object)[order[i]].first) ++last;
    if (last > i) {
      if (drop.empty()) drop.resize(object->size());
      (*object)[order[i]].second = (*object)[order[last]].second;
      for (size_t k = i + 1; k <= last; ++k) drop[order[k]] = true;
    }
    i = last + 1;
  }
  if (drop.empty()) return;
  size_t kept = 0;
  for (size_t i = 0; i < object->size(); ++i) {
    if (drop[i]) continue;
    if (kept != i) (*object)[kept] = std::move((*object)[i]);
    ++kept;
  }
  object->resize(kept);
}

// True when a decimal text outside the doubles' range is nearer to zero than to infinity.
bool IsTiny(std::string_view text) {
  int64_t point = 0;        // decimal exponent of the first digit that is not zero
  bool seen_point = false, seen_digit = false;
  size_t i = text.front() == '-' ? 1 : 0;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      seen_point = true;
    } else if (text[i] != '0' || seen_digit) {
      seen_digit = true;
      if (!seen_point) ++point;
    } else if (seen_point) {
      --point;
    }
  }
  bool negative = false;
  int64_t exponent = 0;
  for (++i; i < text.size(); ++i) {
    if (text[i] == '-') negative = true;
    if (text[i] >= '0' && text[i] <= '9') exponent = std::min<int64_t>(exponent * 10 + (text[i] - '0'), 1'000'000'000'000);
  }
  return point + (negative ? -exponent : exponent) < 0;
}

// A number in JSON's grammar: integers that fit keep their kind, all else is the nearest double. nullopt: too big. The parser's own
// conversion is not used: RapidJSON 1.1 reads 1.0e-326 as -2.8e306.
std::optional<JsonValue> ReadNumber(std::string_view text) {
  const char* const end = text.data() + text.size();
  if (text.find_first_of(".eE") == std::string_view::npos) {
    int64_t i;
    if (const auto r = std::from_chars(text.data(), end, i); r.ec == std::errc() && r.ptr == end) return JsonValue(i);
    uint64_t u;
    if (const auto r = std::from_chars(text.data(), end, u); r.ec == std::errc() && r.ptr == end) return JsonValue(u);
  }
  double d = 0;
  const auto r = std::from_chars(text.data(), end, d);
  if (r.ec == std::errc::result_out_of_range) {
    if (!IsTiny(text)) return std::nullopt;
    d = text.front() == '-' ? -0.0 : 0.0;
  }
  if (!std::isfinite(d)) return std::nullopt;
  return JsonValue(d);
}

// Builds the value from the parser's events. A handler that returns false stops the parser; `error` then says why.
class Builder final {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool Null() { return Add(JsonValue()); }
  bool Bool(bool b) { return Add(JsonValue(b)); }
  // With kParseNumbersAsStringsFlag all numbers come as RawNumber.
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(int64_t) { return false; }
  bool Uint64(uint64_t) { return false; }
  bool Double(double) { return false; }
  bool RawNumber(const char* s, rapidjson::SizeType n, bool) {
    std::optional<JsonValue> number = ReadNumber(std::string_view(s, n));
    if (number) return Add(*std::move(number));
    error_ = fmt::format("the number {} is too big for a double", std::string_view(s, std::min<size_t>(n, 40)));
    return false;
  }
  bool String(const char* s, rapidjson::SizeType n, bool) {
    std::string text(s, n);
    return CheckText(text) && Add(JsonValue(std::move(text)));
  }
  bool Key(const char* s, rapidjson::SizeType n, bool) {
    std::string text(s, n);
    if (!CheckText(text)) return false;
    stack_.back().key = std::move(text);
    return true;
  }
  bool StartObject() { return Push(true); }
  bool StartArray() { return Push(false); }
  bool EndObject(rapidjson::SizeType) {
    Frame frame = Pop();
    DropDuplicateKeys(&frame.object);
    return Place(JsonValue(std::move(frame.object)));
  }
  bool EndArray(rapidjson::SizeType) { return Place(JsonValue(Pop().array)); }

  const std::string& error() const { return error_; }
  JsonValue TakeRoot() { return std::move(root_); }

 private:
  struct Frame {
    bool is_object = false;
    JsonValue::Array array;
    JsonValue::Object object;
    std::string key;
  };

  bool Count() {
    if (++values_ <= limits_.max_values) return true;
    error_ = fmt::format("more than {} values", limits_.max_values);
    return false;
  }
  bool Add(JsonValue v) { return Count() && Place(std::move(v)); }
  bool Place(JsonValue v) {
    if (stack_.empty()) {
      root_ = std::move(v);
    } else if (stack_.back().is_object) {
      stack_.back().object.emplace_back(std::move(stack_.back().key), std::move(v));
      stack_.back().key.clear();
    } else {
      stack_.back().array.push_back(std::move(v));
    }
    return true;
  }
  bool Push(bool is_object) {
    if (!Count()) return false;
    if (stack_.size() >= limits_.max_depth) {
      error_ = fmt::format("nested deeper than {} levels", limits_.max_depth);
      return false;
    }
    stack_.emplace_back().is_object = is_object;
    return true;
  }
  Frame Pop() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    return frame;
  }
  bool CheckText(std::string_view s) {
    // The input was checked before, so only an escape can have made this.
    if (IsValidUtf8(s)) return true;
    error_ = "a \\u escape names a lone surrogate";
    return false;
  }

  const JsonLimits limits_;
  std::vector<Frame> stack_;
  JsonValue root_;
  size_t values_ = 0;
  std::string error_;
};

absl::Status JsonError(size_t offset, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("JSON error at byte {}: {}", offset, what));
}

}  // namespace

JsonValue::JsonValue(uint64_t u) {
  if (u <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    v_ = static_cast<int64_t>(u);
  } else {
    v_ = u;
  }
}

JsonValue::Kind JsonValue::kind() const { return static_cast<Kind>(v_.index()); }

bool JsonValue::AsBool() const {
  HF_CHECK(kind() == Kind::kBool);
  return std::get<bool>(v_);
}
int64_t JsonValue::AsInt() const {
  HF_CHECK(kind() == Kind::kInt);
  return std::get<int64_t>(v_);
}
uint64_t JsonValue::AsUint() const {
  HF_CHECK(kind() == Kind::kUint);
  return std::get<uint64_t>(v_);
}
double JsonValue::AsDouble() const {
  switch (kind()) {
    case Kind::kInt: return static_cast<double>(std::get<int64_t>(v_));
    case Kind::kUint: return static_cast<double>(std::get<uint64_t>(v_));
    default: break;
  }
  HF_CHECK(kind() == Kind::kDouble);
  return std::get<double>(v_);
}
const std::string& JsonValue::AsString() const {
  HF_CHECK(kind() == Kind::kString);
  return *std::get<std::shared_ptr<const std::string>>(v_);
}
const JsonValue::Array& JsonValue::AsArray() const {
  HF_CHECK(kind() == Kind::kArray);
  return *std::get<std::shared_ptr<const Array>>(v_);
}
const JsonValue::Object& JsonValue::AsObject() const {
  HF_CHECK(kind() == Kind::kObject);
  return *std::get<std::shared_ptr<const Object>>(v_);
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& member : AsObject()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

std::string JsonValue::Dump() const {
  std::string out;
  DumpTo(&out);
  return out;
}

void JsonValue::DumpTo(std::string* out) const {
  switch (kind()) {
    case Kind::kNull: out->append("null"); return;
    case Kind::kBool: out->append(AsBool() ? "true" : "false"); return;
    case Kind::kInt: out->append(std::to_string(AsInt())); return;
    case Kind::kUint: out->append(std::to_string(AsUint())); return;
    case Kind::kDouble: AppendDouble(std::get<double>(v_), out); return;
    case Kind::kString: AppendString(AsString(), out); return;
    case Kind::kArray: {
      char separator = '[';
      for (const JsonValue& v : AsArray()) {
        out->push_back(separator);
        v.DumpTo(out);
        separator = ',';
      }
      out->append(separator == '[' ? "[]" : "]");
      return;
    }
    case Kind::kObject: {
      char separator = '{';
      for (const Member& member : AsObject()) {
        out->push_back(separator);
        AppendString(member.first, out);
        out->push_back(':');
        member.second.DumpTo(out);
        separator = ',';
      }
      out->append(separator == '{' ? "{}" : "}");
      return;
    }
  }
}

absl::StatusOr<JsonValue> ParseJson(std::string_view text, const JsonLimits& limits) {
  const size_t bom = text.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0;
  const std::string_view body = text.substr(bom);
  if (const size_t bad = FirstInvalidUtf8(body); bad != std::string_view::npos) {
    return JsonError(bom + bad, fmt::format("byte 0x{:02X} does not belong to valid UTF-8", static_cast<uint8_t>(body[bad])));
  }
  constexpr unsigned kFlags = rapidjson::kParseIterativeFlag | rapidjson::kParseNumbersAsStringsFlag;
  rapidjson::MemoryStream stream(body.data(), body.size());
  rapidjson::Reader reader;
  Builder builder(limits);
  const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, builder);
  if (result.IsError()) {
    const std::string what = builder.error().empty() ? rapidjson::GetParseError_En(result.Code()) : builder.error();
    return JsonError(bom + result.Offset(), what);
  }
  // The parser takes a NUL for the end of its input.
  if (stream.Tell() != body.size()) return JsonError(bom + stream.Tell(), "there is text after the value");
  return builder.TakeRoot();
}

}  // namespace holdfast::text

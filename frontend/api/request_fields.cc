#include "frontend/api/request_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace holdfast::api {

using text::JsonValue;

std::string_view KindName(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull: return "null";
    case JsonValue::Kind::kBool: return "a boolean";
    case JsonValue::Kind::kInt:
    case JsonValue::Kind::kUint:
    case JsonValue::Kind::kDouble: return "a number";
    case JsonValue::Kind::kString: return "a string";
    case JsonValue::Kind::kArray: return "an array";
    case JsonValue::Kind::kObject: return "an object";
  }
  return "something else";
}

bool AsInteger(const JsonValue& value, int64_t* out) {
  switch (value.kind()) {
    case JsonValue::Kind::kInt: *out = value.AsInt(); return true;
    case JsonValue::Kind::kUint: *out = INT64_MAX; return true;
    case JsonValue::Kind::kDouble: {
      const double d = value.AsDouble();
      if (!std::isfinite(d) || d != std::floor(d)) return false;
      // 2^63 is exact as a double; everything below it converts
      *out = d >= 9223372036854775808.0 ? INT64_MAX : d < -9223372036854775808.0 ? INT64_MIN : static_cast<int64_t>(d);
      return true;
    }
    default: return false;
  }
}

const JsonValue* FieldReader::Get(std::string_view key) const {
  const JsonValue* value = object_.Find(key);
  return value && !value->is_null() ? value : nullptr;
}

void FieldReader::Bool(std::string_view key, bool* out) {
  const JsonValue* value = Get(key);
  if (!value || failed()) return;
  if (!value->is_bool()) return Fail(key, fmt::format("'{}' must be true or false, not {}", Path(key), KindName(*value)));
  *out = value->AsBool();
}

void FieldReader::Number(std::string_view key, double low, double high, double* out) {
  const JsonValue* value = Get(key);
  if (!value || failed()) return;
  if (!value->is_number()) return Fail(key, fmt::format("'{}' must be a number, not {}", Path(key), KindName(*value)));
  const double d = value->AsDouble();
  if (!(d >= low && d <= high)) return Fail(key, fmt::format("'{}' must be between {} and {}, not {}", Path(key), low, high, d));
  *out = d;
}

void FieldReader::Integer(std::string_view key, int64_t low, int64_t high, bool clamp, int64_t* out) {
  const JsonValue* value = Get(key);
  if (!value || failed()) return;
  int64_t v = 0;
  if (!value->is_number()) return Fail(key, fmt::format("'{}' must be an integer, not {}", Path(key), KindName(*value)));
  if (!AsInteger(*value, &v)) return Fail(key, fmt::format("'{}' must be an integer, not {}", Path(key), value->AsDouble()));
  if (v > high && clamp) v = high;
  if (v < low || v > high) {
    return Fail(key, clamp ? fmt::format("'{}' must be at least {}, not {}", Path(key), low, value->Dump())
                           : fmt::format("'{}' must be between {} and {}, not {}", Path(key), low, high, value->Dump()));
  }
  *out = v;
}

void FieldReader::String(std::string_view key, size_t max_bytes, std::string* out) {
  const JsonValue* value = Get(key);
  if (!value || failed()) return;
  if (!value->is_string()) return Fail(key, fmt::format("'{}' must be a string, not {}", Path(key), KindName(*value)));
  if (value->AsString().size() > max_bytes) {
    return Fail(key, fmt::format("'{}' has {} bytes, the limit is {}", Path(key), value->AsString().size(), max_bytes));
  }
  *out = value->AsString();
}

void FailAt(FieldReader* in, const std::string& path, std::string_view what) {
  in->Fail(InvalidRequest(fmt::format("'{}' {}", path, what), path));
}

const text::JsonValue* Present(const text::JsonValue* value) { return value && !value->is_null() ? value : nullptr; }

}  // namespace holdfast::api

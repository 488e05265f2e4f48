#pragma once
// Reads typed members of a JSON object. The first problem sticks: later reads do nothing, so that a parser reads all fields in a row and
// asks once. Internal to request*.cc.
#include <optional>
#include <string>
#include <string_view>

#include "frontend/api/error.h"
#include "frontend/text/json_value.h"

namespace holdfast::api {

std::string_view KindName(const text::JsonValue& value);   // "a string", "null", ...

class FieldReader final {
 public:
  // `prefix` is put before member names in params: "stream_options.".
  explicit FieldReader(const text::JsonValue& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {}

  // The member, or null when it is absent or JSON null.
  const text::JsonValue* Get(std::string_view key) const;

  // Each sets *out only when the member is there and right.
  void Bool(std::string_view key, bool* out);
  void Number(std::string_view key, double low, double high, double* out);              // [low, high]
  // Integers, also written 5.0. A value above `high` becomes `high` when clamp, else is 400.
  void Integer(std::string_view key, int64_t low, int64_t high, bool clamp, int64_t* out);
  void String(std::string_view key, size_t max_bytes, std::string* out);

  void Fail(ApiError error) { if (!error_) error_ = std::move(error); }
  void Fail(std::string_view key, std::string message) { Fail(InvalidRequest(std::move(message), Path(key))); }
  bool failed() const { return error_.has_value(); }
  ApiError TakeError() { return *std::move(error_); }
  std::string Path(std::string_view key) const { return prefix_ + std::string(key); }

 private:
  const text::JsonValue& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

// 400: "'PATH' WHAT".
void FailAt(FieldReader* in, const std::string& path, std::string_view what);

// The value, or null when it is absent or JSON null.
const text::JsonValue* Present(const text::JsonValue* value);

// An integral number as int64; values beyond are saturated. False when it is no number or has a fraction.
bool AsInteger(const text::JsonValue& value, int64_t* out);

}  // namespace holdfast::api

#pragma once
// A JSON value with insertion-ordered objects: what request bodies parse to and what templates see. Shared, immutable nodes: copies are
// cheap. Parsing is RapidJSON's iterative, full-precision parser with depth and size limits; numbers keep integer and double apart.
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace holdfast::text {

class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Member = std::pair<std::string, JsonValue>;
  using Object = std::vector<Member>;        // unique keys, insertion order; a duplicate key in the text: the last one wins
  enum class Kind : uint8_t { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };

  JsonValue() = default;                     // null
  JsonValue(std::nullptr_t) {}               // NOLINT: implicit on purpose, as the next ones
  JsonValue(bool b) : v_(b) {}               // NOLINT
  JsonValue(int i) : v_(static_cast<int64_t>(i)) {}  // NOLINT
  JsonValue(int64_t i) : v_(i) {}            // NOLINT
  JsonValue(uint64_t u);                     // NOLINT: kInt when it fits
  JsonValue(double d) : v_(d) {}             // NOLINT
  JsonValue(std::string s) : v_(std::make_shared<const std::string>(std::move(s))) {}  // NOLINT
  JsonValue(const char* s) : JsonValue(std::string(s)) {}                              // NOLINT
  JsonValue(Array a) : v_(std::make_shared<const Array>(std::move(a))) {}              // NOLINT
  JsonValue(Object o) : v_(std::make_shared<const Object>(std::move(o))) {}            // NOLINT

  Kind kind() const;
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_number() const { const Kind k = kind(); return k == Kind::kInt || k == Kind::kUint || k == Kind::kDouble; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }

  // Preconditions: the kind matches (HF_CHECK).
  bool AsBool() const;
  int64_t AsInt() const;                     // kInt
  uint64_t AsUint() const;                   // kUint (beyond int64)
  double AsDouble() const;                   // any number
  const std::string& AsString() const;
  const Array& AsArray() const;
  const Object& AsObject() const;

  // Member of an object, or null pointer (also when this is no object).
  const JsonValue* Find(std::string_view key) const;

  // Compact RFC 8259 text, exact numbers, valid UTF-8 left as it is.
  std::string Dump() const;
  void DumpTo(std::string* out) const;

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::shared_ptr<const std::string>, std::shared_ptr<const Array>,
               std::shared_ptr<const Object>>
      v_;
};

struct JsonLimits {
  size_t max_depth = 128;
  size_t max_values = 2'000'000;             // nodes in all
};

// kInvalidArgument with the offset and what was expected. Rejects trailing text, invalid UTF-8, lone surrogates, NaN and Infinity.
// A UTF-8 byte order mark before the value is skipped.
absl::StatusOr<JsonValue> ParseJson(std::string_view text, const JsonLimits& limits = {});

}  // namespace holdfast::text

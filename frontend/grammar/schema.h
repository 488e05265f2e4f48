#pragma once
// JSON Schema to nodes. Internal to frontend/grammar; Builder::Schema is the way in.
//
// What is generated is always valid; not everything that is valid is generated: properties come in the schema's order, objects that list
// properties get no others unless additionalProperties says so, values get no exponent where a bound would have to be checked in it.
#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/grammar/builder.h"
#include "frontend/grammar/values.h"
#include "frontend/grammar/work.h"
#include "frontend/text/json_value.h"

namespace holdfast::grammar {

// Kinds of JSON values, as bits.
enum TypeBits : uint32_t { kNullType = 1, kBoolType = 2, kIntegerType = 4, kNumberType = 8, kStringType = 16, kArrayType = 32, kObjectType = 64, kAllTypes = 127 };

absl::Status SchemaError(std::string_view path, std::string_view what);

// 1 and 1.0 are equal; the order of members is not looked at.
bool SameValue(const text::JsonValue& a, const text::JsonValue& b);

// A schema without combinators, for merging and comparing. kInvalidArgument: as for Builder::Schema, and when the budget is used up:
// a few lines of references can mean more alternatives than there is time to look at. Excludes and Rejects then say true; whoever asks
// them looks at the budget.
class SchemaAlgebra final {
 public:
  SchemaAlgebra(const text::JsonValue& root, WorkBudget& work) : root_(root), work_(work) {}

  // The schema that a reference of this document names.
  absl::StatusOr<const text::JsonValue*> Resolve(std::string_view reference, std::string_view path) const;
  // Refuses keywords that are not known and values that keywords cannot have.
  static absl::Status CheckKeywords(const text::JsonValue& schema, std::string_view path);
  // The alternatives that the schema means, none with a combinator or a reference at its top. false: none; true: {}.
  absl::StatusOr<std::vector<text::JsonValue>> Expand(const text::JsonValue& schema, std::string_view path, int depth = 0) const;
  // Both at once.
  absl::StatusOr<std::optional<text::JsonValue>> Merge(const text::JsonValue& a, const text::JsonValue& b, std::string_view path) const;
  // No value that is generated for `made` is valid under `other`; false when that is not seen. Both are results of Expand.
  bool Excludes(const text::JsonValue& made, const text::JsonValue& other, int depth = 0) const;
  // The value is certainly not valid under the flat schema.
  bool Rejects(const text::JsonValue& schema, const text::JsonValue& value) const;
  // Types that the keyword type allows, with nullable; and those that are generated when it is silent.
  static absl::StatusOr<uint32_t> Types(const text::JsonValue& schema, std::string_view path);
  static uint32_t GeneratedTypes(const text::JsonValue& schema);

 private:
  absl::Status Spend(uint64_t steps, std::string_view path) const;

  const text::JsonValue& root_;
  WorkBudget& work_;
};

class SchemaCompiler final {
 public:
  SchemaCompiler(Builder& builder, Values& values, const text::JsonValue& root, std::string path, WorkBudget& work)
      : b_(builder), v_(values), root_(root), work_(work), algebra_(root, work), path_(std::move(path)) {}

  absl::StatusOr<Node> Compile();

 private:
  absl::StatusOr<Node> Any(const text::JsonValue& schema, const std::string& path, int depth);
  absl::StatusOr<Node> Flat(const text::JsonValue& schema, const std::string& path, int depth);
  absl::StatusOr<Node> Reference(const std::string& reference, const std::string& path);
  absl::StatusOr<Node> Enum(const text::JsonValue& schema, const text::JsonValue::Array& values, const std::string& path);
  absl::StatusOr<Node> Number(const text::JsonValue& schema, bool integer, const std::string& path);
  absl::StatusOr<Node> String(const text::JsonValue& schema, const std::string& path);
  absl::StatusOr<Node> Array(const text::JsonValue& schema, const std::string& path, int depth);
  absl::StatusOr<Node> UniqueArray(const text::JsonValue::Array& values, uint32_t min, uint32_t max, const std::string& path);
  absl::StatusOr<Node> Object(const text::JsonValue& schema, const std::string& path, int depth);
  absl::StatusOr<std::optional<Node>> OtherMember(const text::JsonValue& schema, std::span<const std::string> taken, bool named,
                                                  const std::string& path, int depth);
  // The characters of a string of this schema, and whether they may be any string.
  absl::StatusOr<std::optional<Node>> StringContent(const text::JsonValue& schema, const std::string& path);
  absl::Status CheckDisjoint(const text::JsonValue& branches, const std::string& path);

  Builder& b_;
  Values& v_;
  const text::JsonValue& root_;
  WorkBudget& work_;
  SchemaAlgebra algebra_;
  std::string path_;
  absl::flat_hash_map<std::string, Node> references_;
  std::vector<std::pair<std::string, Node>> undefined_;
};

}  // namespace holdfast::grammar

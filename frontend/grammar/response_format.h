#pragma once
// The grammar of an answer that response_format (or its extension for regular expressions) asks for, and a cache of what was compiled.
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "frontend/grammar/builder.h"
#include "frontend/text/json_value.h"

namespace holdfast::grammar {

struct ResponseFormat {
  enum class Kind : uint8_t { kText, kJsonObject, kJsonSchema, kRegex };
  Kind kind = Kind::kText;
  text::JsonValue schema;              // kJsonSchema
  std::string pattern;                 // kRegex
  std::string path;                    // how messages call it: "response_format.json_schema.schema"
};

// The answer alone, to be put behind a thought (tools::Format::WithReasoning) or built as it is. JSON is written with bounded white space.
// kInvalidArgument names path and keyword. Precondition: kind is not kText.
absl::StatusOr<Node> AnswerNode(Builder& builder, const ResponseFormat& format);

// AnswerNode, built.
absl::StatusOr<proto::Constraint> AnswerConstraint(const ResponseFormat& format);

// What the compiled form depends on, as a key for ConstraintCache.
std::string CacheKey(const ResponseFormat& format);

// Compiled constraints by key, the least recently used dropped beyond a number of bytes. Failures are not kept. Any thread; two callers that
// miss one key at once both compile it.
class ConstraintCache final {
 public:
  explicit ConstraintCache(size_t max_bytes = size_t{64} << 20);
  ~ConstraintCache();
  using Compile = std::function<absl::StatusOr<proto::Constraint>()>;
  absl::StatusOr<std::shared_ptr<const proto::Constraint>> Get(const std::string& key, const Compile& compile);
  size_t bytes() const;
  uint64_t hits() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::grammar

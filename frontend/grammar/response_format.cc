#include "frontend/grammar/response_format.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <list>
#include <mutex>

#include "proto/base/check.h"
#include "proto/base/status_wire.h"
#include "proto/engine.pb.h"

namespace holdfast::grammar {

absl::StatusOr<Node> AnswerNode(Builder& builder, const ResponseFormat& format) {
  SchemaStyle style;
  style.any_whitespace = true;
  switch (format.kind) {
    case ResponseFormat::Kind::kText: break;
    case ResponseFormat::Kind::kJsonObject: return builder.AnyObject(style);
    case ResponseFormat::Kind::kJsonSchema: return builder.Schema(format.schema, style, format.path);
    case ResponseFormat::Kind::kRegex: return builder.Regex(format.pattern, format.path);
  }
  HF_CHECKF(false, "no grammar of kind {}", static_cast<int>(format.kind));
}

absl::StatusOr<proto::Constraint> AnswerConstraint(const ResponseFormat& format) {
  Builder builder;
  HF_ASSIGN_OR_RETURN(const Node root, AnswerNode(builder, format));
  absl::StatusOr<proto::Constraint> built = builder.Build(root);
  if (built.ok()) return built;
  return absl::InvalidArgumentError(fmt::format("{}: {}", format.path, MessageOf(built.status())));
}

std::string CacheKey(const ResponseFormat& format) {
  return fmt::format("{}|{}|{}|{}", static_cast<int>(format.kind), format.path, format.pattern,
                     format.kind == ResponseFormat::Kind::kJsonSchema ? format.schema.Dump() : std::string());
}

struct ConstraintCache::Impl {
  struct Entry {
    std::string key;
    std::shared_ptr<const proto::Constraint> constraint;
    size_t bytes() const { return 2 * key.size() + constraint->program().size() + 256; }
  };
  mutable std::mutex mutex;
  const size_t max_bytes;
  size_t used = 0;
  uint64_t hits = 0;
  std::list<Entry> entries;  // most recently used first
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> index;

  explicit Impl(size_t max) : max_bytes(max) {}
};

ConstraintCache::ConstraintCache(size_t max_bytes) : impl_(std::make_unique<Impl>(max_bytes)) {}
ConstraintCache::~ConstraintCache() = default;

absl::StatusOr<std::shared_ptr<const proto::Constraint>> ConstraintCache::Get(const std::string& key, const Compile& compile) {
  {
    std::lock_guard lock(impl_->mutex);
    if (const auto it = impl_->index.find(key); it != impl_->index.end()) {
      ++impl_->hits;
      impl_->entries.splice(impl_->entries.begin(), impl_->entries, it->second);
      return it->second->constraint;
    }
  }
  HF_ASSIGN_OR_RETURN(proto::Constraint made, compile());
  auto shared = std::make_shared<const proto::Constraint>(std::move(made));
  std::lock_guard lock(impl_->mutex);
  if (impl_->index.contains(key)) return shared;
  impl_->entries.push_front({key, shared});
  impl_->index[key] = impl_->entries.begin();
  impl_->used += impl_->entries.front().bytes();
  while (impl_->used > impl_->max_bytes && impl_->entries.size() > 1) {
    impl_->used -= impl_->entries.back().bytes();
    impl_->index.erase(impl_->entries.back().key);
    impl_->entries.pop_back();
  }
  return shared;
}

size_t ConstraintCache::bytes() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->used;
}

uint64_t ConstraintCache::hits() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->hits;
}

}  // namespace holdfast::grammar

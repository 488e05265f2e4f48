#pragma once
// The keys that requests must carry, and how many requests each may have at work. HTTP and gRPC share one of these, so that a key's places
// are counted over both. Thread-safe.
#include <absl/status/statusor.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::api {

class Keys final {
 public:
  // No keys: everybody may ask, and nothing is counted. max_running: per key; 0 = as many as the engine takes.
  explicit Keys(std::vector<std::string> keys = {}, uint32_t max_running = 0);

  // Whether an Authorization value ("Bearer KEY") or a bare key is one of them, in time that tells nothing about them.
  bool Admits(std::string_view given) const { return digests_.empty() || IndexOf(given) != digests_.size(); }
  // One of the key's places, free again when the last copy is gone; null when all are taken. For keys that are admitted.
  std::shared_ptr<const void> Take(std::string_view given);
  bool HasPlace(std::string_view given) const;
  uint32_t max_running() const { return max_running_; }

 private:
  size_t IndexOf(std::string_view given) const;   // digests_.size(): none
  size_t Taken(size_t key) const { return static_cast<size_t>(places_[key].use_count()) - 1; }

  std::vector<std::string> digests_;
  const uint32_t max_running_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> places_;   // of each key: as many copies as places are taken, and this one
};

// One key a line; blank lines and lines that start with # are skipped. kInvalidArgument / kNotFound say which file and why.
absl::StatusOr<std::vector<std::string>> ReadKeyFile(const std::string& path);

}  // namespace holdfast::api

#include "frontend/api/keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <fstream>

#include "frontend/http/request_head.h"

namespace holdfast::api {
namespace {

std::string Digest(std::string_view text) {
  std::string out(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), reinterpret_cast<unsigned char*>(out.data()));
  return out;
}

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

}  // namespace

Keys::Keys(std::vector<std::string> keys, uint32_t max_running) : max_running_(max_running) {
  for (const std::string& key : keys) {
    digests_.push_back(Digest(key));
    places_.push_back(std::make_shared<int>());
  }
}

size_t Keys::IndexOf(std::string_view given) const {
  given = Trim(given);
  if (http::EqualsIgnoreCase(given.substr(0, 7), "bearer ")) given = Trim(given.substr(7));
  if (given.empty()) return digests_.size();
  // Digests have one length and every key is compared: time tells neither the length nor which key came close.
  const std::string digest = Digest(given);
  size_t found = digests_.size();
  for (size_t i = 0; i < digests_.size(); ++i) {
    const size_t same = CRYPTO_memcmp(digest.data(), digests_[i].data(), digest.size()) == 0;
    found = same * i + (1 - same) * found;
  }
  return found;
}

std::shared_ptr<const void> Keys::Take(std::string_view given) {
  static const std::shared_ptr<const void> uncounted = std::make_shared<int>();
  if (digests_.empty() || max_running_ == 0) return uncounted;
  const size_t key = IndexOf(given);
  if (key == digests_.size()) return nullptr;
  const std::lock_guard lock(mutex_);
  return Taken(key) < max_running_ ? places_[key] : nullptr;
}

bool Keys::HasPlace(std::string_view given) const {
  if (digests_.empty() || max_running_ == 0) return true;
  const size_t key = IndexOf(given);
  const std::lock_guard lock(mutex_);
  return key != digests_.size() && Taken(key) < max_running_;
}

absl::StatusOr<std::vector<std::string>> ReadKeyFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(fmt::format("cannot read the key file {}", path));
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    const std::string_view key = Trim(line);
    if (!key.empty() && key.front() != '#') keys.emplace_back(key);
  }
  if (keys.empty()) return absl::InvalidArgumentError(fmt::format("the key file {} has no key: one a line, # begins a comment", path));
  return keys;
}

}  // namespace holdfast::api

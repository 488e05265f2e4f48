#pragma once
// The constraints of the live requests: decodes their programs, shares engines between requests of one program, and tells the sampler what
// may come next. The worker's loop thread owns it.
#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "worker/constrain/engine.h"
#include "worker/exec/executor.h"

namespace holdfast::worker {

struct ConstraintsOptions {
  size_t max_engine_bytes = size_t{256} << 20;  // of engines that no live request uses; those in use are bounded by their own limits
  constrain::EngineLimits engine;
};

class Constraints final : public exec::ConstraintSource {
 public:
  // texts[id]: what a token adds to a text, empty for special tokens (model::TokenTexts). One for each logit.
  explicit Constraints(std::vector<std::string> texts, const ConstraintsOptions& options = {});

  // kInvalidArgument: a program that is not well-formed, or generated tokens that it does not allow. kResourceExhausted: it cannot be run.
  absl::Status Add(RequestId request, const std::string& program, std::span<const TokenId> generated, std::span<const TokenId> stop_tokens);
  void Remove(RequestId request);

  absl::StatusOr<exec::AllowedTokens> Allowed(RequestId request, std::span<const TokenId> history, uint32_t prompt_tokens) override;

  size_t live() const { return live_.size(); }
  size_t engines() const { return engines_.size(); }

 private:
  struct Shared {
    std::string program;
    std::unique_ptr<constrain::Engine> engine;
    size_t users = 0;
  };
  struct Live {
    std::shared_ptr<Shared> shared;
    constrain::Position position;
    std::vector<TokenId> refused;      // stop tokens that have a text
    bool can_stop = false;             // there are stop tokens
  };

  absl::StatusOr<std::shared_ptr<Shared>> EngineOf(const std::string& program);
  void DropUnused();

  const ConstraintsOptions options_;
  const uint32_t vocabulary_;
  std::vector<std::string> texts_;     // until the first constraint
  std::shared_ptr<const constrain::TokenTrie> trie_;
  std::list<std::shared_ptr<Shared>> engines_;   // the most recently added to first
  absl::flat_hash_map<RequestId, Live> live_;
};

}  // namespace holdfast::worker

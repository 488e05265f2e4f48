#include "worker/constraints.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/check.h"
#include "proto/base/status_wire.h"

namespace holdfast::worker {

Constraints::Constraints(std::vector<std::string> texts, const ConstraintsOptions& options)
    : options_(options), vocabulary_(static_cast<uint32_t>(texts.size())), texts_(std::move(texts)) {}

absl::StatusOr<std::shared_ptr<Constraints::Shared>> Constraints::EngineOf(const std::string& program) {
  const auto it = std::find_if(engines_.begin(), engines_.end(), [&](const auto& e) { return e->program == program; });
  if (it != engines_.end()) {
    engines_.splice(engines_.begin(), engines_, it);
    return engines_.front();
  }
  HF_ASSIGN_OR_RETURN(constrain::Program decoded, constrain::Program::Decode(program, vocabulary_));
  if (trie_ == nullptr) {  // most workers never need it
    trie_ = std::make_shared<constrain::TokenTrie>(texts_);
    texts_ = {};
  }
  auto shared = std::make_shared<Shared>();
  shared->program = program;
  shared->engine = std::make_unique<constrain::Engine>(std::move(decoded), trie_, options_.engine);
  engines_.push_front(shared);
  DropUnused();
  return shared;
}

void Constraints::DropUnused() {
  size_t bytes = 0;
  for (auto it = engines_.begin(); it != engines_.end();) {
    bytes += (*it)->engine->memory() + (*it)->program.size();
    const bool first = it == engines_.begin();
    it = !first && bytes > options_.max_engine_bytes && (*it)->users == 0 ? engines_.erase(it) : std::next(it);
  }
}

absl::Status Constraints::Add(RequestId request, const std::string& program, std::span<const TokenId> generated,
                              std::span<const TokenId> stop_tokens) {
  HF_CHECKF(!live_.contains(request), "request {} has a constraint already", request.v);
  HF_ASSIGN_OR_RETURN(std::shared_ptr<Shared> shared, EngineOf(program));
  Live live;
  HF_RETURN_IF_ERROR(shared->engine->Advance(generated, &live.position));
  for (const TokenId t : stop_tokens) {
    if (t < vocabulary_ && !trie_->text(t).empty()) live.refused.push_back(t);
  }
  live.can_stop = !stop_tokens.empty();
  ++shared->users;
  live.shared = std::move(shared);
  live_.emplace(request, std::move(live));
  return absl::OkStatus();
}

void Constraints::Remove(RequestId request) {
  const auto it = live_.find(request);
  if (it == live_.end()) return;
  --it->second.shared->users;
  live_.erase(it);
}

absl::StatusOr<exec::AllowedTokens> Constraints::Allowed(RequestId request, std::span<const TokenId> history, uint32_t prompt_tokens) {
  const auto it = live_.find(request);
  if (it == live_.end()) return absl::InternalError("nobody knows this request's constraint");
  Live& live = it->second;
  constrain::Engine& engine = *live.shared->engine;
  const std::span<const TokenId> generated = history.subspan(prompt_tokens);
  const auto masked = [&]() -> absl::StatusOr<const constrain::Mask*> {
    HF_RETURN_IF_ERROR(engine.Advance(generated, &live.position));
    return engine.MaskAt(live.position);
  };
  auto found = masked();
  // The engine begins anew after it was full; only what is too much for an empty one as well is the request's fault.
  if (absl::IsResourceExhausted(found.status())) found = masked();
  HF_ASSIGN_OR_RETURN(const constrain::Mask* mask, std::move(found));
  if (mask->count == 0 && !mask->complete) {
    return absl::InvalidArgumentError(fmt::format("the constraint allows no token of this model's vocabulary after {} tokens",
                                                  history.size() - prompt_tokens));
  }
  if (mask->count == 0 && !live.can_stop) {
    return absl::InvalidArgumentError("the constrained answer is complete, but the request names no stop token to end it with");
  }
  exec::AllowedTokens out;
  out.dense = mask->dense;
  out.bits = mask->bits;
  out.few = mask->few;
  out.complete = mask->complete;
  out.refused = live.refused;
  return out;
}

}  // namespace holdfast::worker

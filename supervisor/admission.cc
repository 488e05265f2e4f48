#include "supervisor/admission.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::supervisor {

uint32_t RetryAfterMs(Duration guess) {
  return static_cast<uint32_t>(std::clamp<int64_t>(ToMillis(guess), 1000, 30000));
}

AdmissionAnswer Admit(const AdmissionView& view, const RequestShape& request) {
  // What can never work is said first: retrying it would be a waste whatever the state of the group.
  if (request.duplicate) return {Admission::kInvalid, "request_id is already in use in this session", 0, 0};
  if (request.tokens == 0) return {Admission::kInvalid, "the prompt has no tokens; at least one is needed", 0, 0};
  if (request.prompt_tokens > request.tokens) {
    return {Admission::kInvalid,
            fmt::format("prompt_tokens is {}, but only {} tokens were given", request.prompt_tokens, request.tokens), 0, 0};
  }
  if (request.max_tokens == 0) return {Admission::kInvalid, "max_tokens is 0; at least 1 is needed", 0, 0};
  const uint64_t resumed = request.prompt_tokens == 0 ? 0 : request.tokens - request.prompt_tokens;
  if (resumed >= request.max_tokens) {
    return {Admission::kInvalid, fmt::format("{} tokens were generated before and max_tokens is {}: nothing is left to generate", resumed,
                                             request.max_tokens), 0, 0};
  }
  if (request.quarantined) {
    return {Admission::kQuarantined, "this request was in flight when the engine was lost, twice; it is refused for a while", 0, 0};
  }
  uint64_t room = UINT64_MAX;
  if (view.limits.max_seq_len > 0) room = view.limits.max_seq_len;
  if (view.limits.max_request_tokens > 0) room = std::min(room, view.limits.max_request_tokens);
  if (request.tokens >= room) {
    const uint64_t most = room > 0 ? room - 1 : 0;
    return {Admission::kTooLong,
            fmt::format("the prompt has {} tokens; this server takes at most {} ({} positions, one of them for the answer)", request.tokens,
                        most, room), 0, static_cast<uint32_t>(std::min<uint64_t>(most, UINT32_MAX))};
  }
  if (view.draining) return {Admission::kDraining, "the server is shutting down", 1000, 0};
  if (view.held && !request.resumed) return {Admission::kDraining, "the engine was drained by an operator and takes no new requests", 1000, 0};
  if (!view.serving) {
    const std::string why = view.state_reason.empty() ? "the engine is not serving" : view.state_reason;
    return {Admission::kUnavailable, why, view.permanent ? 30000u : RetryAfterMs(view.until_serving), 0};
  }
  const uint64_t room_for = uint64_t{view.limits.max_running} + view.limits.max_queue;
  if (view.in_flight >= room_for) {
    // One place opens about every mean / max_running.
    const Duration guess = view.mean_request / std::max(1u, view.limits.max_running);
    return {Admission::kOverloaded,
            fmt::format("{} requests are in flight and the queue takes no more ({} running, {} waiting)", view.in_flight,
                        view.limits.max_running, view.limits.max_queue), RetryAfterMs(guess), 0};
  }
  return {};
}

}  // namespace holdfast::supervisor

#include "frontend/engine_request.h"

#include <algorithm>
#include <functional>

#include "proto/base/random.h"
#include "proto/engine.pb.h"

namespace holdfast::api {

uint64_t Fingerprint(const std::vector<uint32_t>& tokens, uint32_t max_tokens, const ConstraintPtr& constraint) {
  uint64_t h = Mix64(max_tokens);
  if (constraint) h = Mix64(h ^ std::hash<std::string>()(constraint->program()));
  for (const uint32_t token : tokens) h = Mix64(h ^ token);
  return h == 0 ? 1 : h;
}

proto::GenerateRequest MakeEngineRequest(const ValidRequest& request, const ModelView& view, const EnginePrompt& prompt, const EngineChoice& choice,
                                         const ConstraintPtr& constraint, uint64_t seed, const std::string& trace_id) {
  const std::vector<uint32_t>& tokens = prompt.prompt.tokens;
  proto::GenerateRequest message;
  message.set_trace_id(trace_id);
  message.mutable_tokens()->Reserve(static_cast<int>(tokens.size() + choice.received.size()));
  message.mutable_tokens()->Add(tokens.begin(), tokens.end());
  message.mutable_tokens()->Add(choice.received.begin(), choice.received.end());
  message.set_prompt_tokens(static_cast<uint32_t>(tokens.size()));
  message.set_max_tokens(std::max<uint32_t>(prompt.max_tokens, 1));
  message.mutable_anchors()->Add(prompt.prompt.anchors.begin(), prompt.prompt.anchors.end());
  message.set_cache_salt(request.cache_salt);
  message.set_no_cache(request.no_cache);
  message.set_prompt_logprobs(choice.score_prompt);
  message.set_fingerprint(prompt.fingerprint);
  message.set_resumes(choice.resumes);
  const Sampling& sampling = request.sampling;
  proto::SamplingParams& out = *message.mutable_sampling();
  out.set_temperature(static_cast<float>(sampling.temperature));
  out.set_top_p(static_cast<float>(sampling.top_p));
  out.set_top_k(sampling.top_k);
  out.set_min_p(static_cast<float>(sampling.min_p));
  out.set_presence_penalty(static_cast<float>(sampling.presence_penalty));
  out.set_frequency_penalty(static_cast<float>(sampling.frequency_penalty));
  out.set_repetition_penalty(static_cast<float>(sampling.repetition_penalty));
  for (const auto& [token, bias] : sampling.logit_bias) {
    proto::LogitBias& one = *out.add_logit_bias();
    one.set_token(token);
    one.set_bias(bias);
  }
  out.set_seed(seed);
  out.set_choice(choice.n);
  out.set_logprobs(sampling.logprobs);
  out.set_top_logprobs(sampling.top_logprobs);
  if (EndsByToken(request, constraint)) out.mutable_stop_tokens()->Add(view.stop_ids().begin(), view.stop_ids().end());
  out.mutable_suppress_tokens()->Add(view.suppress_ids().begin(), view.suppress_ids().end());
  if (constraint) *message.mutable_constraint() = *constraint;
  return message;
}

}  // namespace holdfast::api

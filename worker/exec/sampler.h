#pragma once
// From logits to a token. Order: constraint -> suppress and logit_bias -> penalties -> softmax at temperature -> top_k -> top_p -> min_p -> draw.
// (Temper first, as OpenAI-like engines do: top_p and min_p see the tempered distribution; top_p sees what top_k left, renormalised.)
//
// State is a function of the token history alone: penalties are counted from the history given, the random number is
// SampleUniform(seed, choice, position). So a resumed stream, a preempted one and an undisturbed one draw the same tokens.
//
// Definitions (o = logit): repetition r over the last 64 tokens of prompt and output: o > 0 ? o / r : o * r, once a distinct token;
// frequency: o -= f * count, presence: o -= p if count > 0, counts over generated tokens. top_p keeps the shortest prefix by
// descending logit (ties: lowest id) whose sum reaches p, at least one token. min_p keeps p_i >= min_p * p_max. The draw walks
// kept tokens in ascending id until the running sum exceeds u * total. Greedy (temperature <= 0): the highest logit, ties: lowest id.
// Sums are of integers and exact (kernels/sampling_math.h): a device that adds in another order draws the same token.
//
// Non-finite: a NaN or +inf among the model's logits, or nothing finite left to draw from, fails this token only.
// Threads: one Sampler per thread; it owns scratch of vocabulary size.
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/draw.h"
#include "proto/base/ids.h"

namespace holdfast::exec {

using LogitBias = kernels::TokenBias;

// What a request asked for; every field's zero is its "off".
struct SamplingParams {
  float temperature = 0.f;            // <= 0: greedy
  float top_p = 1.f;                  // <= 0 or >= 1: off
  uint32_t top_k = 0;
  float min_p = 0.f;
  float presence_penalty = 0.f;
  float frequency_penalty = 0.f;
  float repetition_penalty = 1.f;     // 0 or 1: off
  std::vector<LogitBias> logit_bias;  // ids beyond the vocabulary are ignored
  uint64_t seed = 0;
  uint32_t choice = 0;
  bool logprobs = false;
  uint32_t top_logprobs = 0;          // at most 20
  std::vector<TokenId> stop_tokens;   // the drawn token ends the request (SampledToken::is_stop)
  std::vector<TokenId> suppress_tokens;
  bool constrained = false;           // Draw must be told what is allowed
};

// Whether a draw looks at the history.
bool Penalises(const SamplingParams& params);

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.f;                // natural log, of the model's own distribution (after softcap, before everything above)
};

struct Sample {
  TokenId token = 0;
  bool failed = false;
  const char* why = "";               // with failed
  bool refused = false;               // with failed: the logits were fine, but the request's bias or constraint left nothing of them
  float logprob = 0.f;                // with params.logprobs
  std::vector<TokenLogprob> top;      // descending; ties: lowest id
};

// What a constraint allows at one position: a list (ascending) or a bit for each token. A stop token is allowed as well when the answer is
// complete. The spans live until the constraint is asked again.
struct AllowedTokens {
  bool dense = false;
  std::span<const uint64_t> bits;     // dense: at least one bit a token of the vocabulary
  std::span<const TokenId> few;       // else
  bool complete = false;
  std::span<const TokenId> refused;   // not allowed unless complete, whatever bits and few say: stop tokens that are also words
};

// The same as bits, one a token of the vocabulary.
void MaskOf(const AllowedTokens& allowed, const SamplingParams& params, int64_t vocab, std::vector<uint64_t>* bits);

// A sample for which no token could be drawn, with the reason in words.
Sample FailedSample(kernels::DrawStatus status, bool constrained);

// What a backend that draws (kernels::Ops::Draw) is told; `lists` holds what the spec's spans look at. logit_bias must have equal ids next to each
// other.
struct DrawLists {
  std::vector<TokenId> recent;
  std::vector<kernels::TokenCount> generated;
};

class Sampler {
 public:
  explicit Sampler(int64_t vocab);

  // logits[vocab] is overwritten. history[0, prompt_tokens) is the prompt; the token drawn has position history.size() + unseen - prompt_tokens.
  // `allowed` null: every token. unseen: tokens between the history's end and the one drawn, which only params without penalties may have.
  // Log-probabilities stay those of the model's own distribution.
  Sample Draw(std::span<float> logits, const SamplingParams& params, std::span<const TokenId> history, uint32_t prompt_tokens,
              const AllowedTokens* allowed = nullptr, uint32_t unseen = 0);

  // What Draw would do with these, but for a backend that does it. `allowed` empty: every token; else MaskOf.
  kernels::DrawSpec SpecOf(const SamplingParams& params, std::span<const TokenId> history, uint32_t prompt_tokens, std::span<const uint64_t> allowed,
                           uint32_t unseen, DrawLists* lists);

  // Log-probability of `token` and the `top` best of the raw logits, for prompt tokens. failed when the logits are not finite.
  Sample Score(std::span<const float> logits, TokenId token, uint32_t top);

 private:
  struct Peak;
  bool Scan(std::span<const float> logits, Peak* peak) const;
  void FillLogprobs(std::span<const float> logits, const Peak& peak, TokenId token, uint32_t top, Sample* out);
  void ApplyConstraint(std::span<float> logits, const SamplingParams& params, const AllowedTokens& allowed);
  void ApplyPenalties(std::span<float> logits, const SamplingParams& params, std::span<const TokenId> history, uint32_t prompt_tokens);
  // The distinct tokens of `tokens` below the vocabulary, in the order in which they come, and how many there are of each.
  void Count(std::span<const TokenId> tokens, std::vector<kernels::TokenCount>* out);
  bool Choose(std::span<const float> logits, const SamplingParams& params, double u, TokenId* token);

  int64_t vocab_;
  std::vector<float> probs_;
  std::vector<uint32_t> counts_;                       // all zero between calls
  std::vector<kernels::TokenCount> counted_;
  std::vector<std::pair<float, TokenId>> candidates_;
};

}  // namespace holdfast::exec

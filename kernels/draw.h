#pragma once
// What a backend needs to draw a token from a row of logits (Ops::Draw). Definitions and their order are worker/exec/sampler.h's; a backend that
// draws gives the token that sampler gives for the same logits (kernels/sampling_math.h).
#include <cstdint>
#include <span>

#include "proto/base/ids.h"

namespace holdfast::kernels {

struct TokenBias {
  TokenId token = 0;
  float bias = 0.f;
};

struct TokenCount {
  TokenId token = 0;
  uint32_t count = 0;
};

// One row's draw. Spans are host memory and may go when the call returns; ids beyond the vocabulary are ignored.
struct DrawSpec {
  int32_t slot = -1;                       // index of the token among the step's; < 0: nothing is drawn, and the row stays as it is
  float temperature = 0.f;                 // <= 0: greedy
  float top_p = 1.f;                       // <= 0 or >= 1: off
  uint32_t top_k = 0;                      // 0: off
  float min_p = 0.f;                       // <= 0: off
  double u = 0;                            // in [0, 1): what decides
  std::span<const uint64_t> allowed;       // a bit a token, for every token of the vocabulary; empty: no constraint
  std::span<const TokenId> suppressed;
  std::span<const TokenBias> bias;         // equal ids next to each other: they are added one after the other
  float repetition_penalty = 1.f;          // of `recent`: distinct tokens
  std::span<const TokenId> recent;
  float frequency_penalty = 0.f;           // of `generated`: distinct tokens, counts above 0
  float presence_penalty = 0.f;
  std::span<const TokenCount> generated;
};

enum class DrawStatus : uint32_t {
  kDrawn,
  kNotFinite,       // a logit is NaN or +inf
  kNothing,         // every logit is -inf
  kEditedNotFinite, // so is one after constraint, bias and penalties
  kNothingLeft,     // all are -inf after them
  kNoProbability,   // min_p is above every token's
};

struct Drawn {
  TokenId token = 0;                       // 0 where none was drawn
  DrawStatus status = DrawStatus::kDrawn;
};

}  // namespace holdfast::kernels

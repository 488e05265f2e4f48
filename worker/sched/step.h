#pragma once
// What the scheduler and the executor exchange: plain data, no behaviour. The scheduler fills a StepPlan; the executor runs it and
// answers with a StepResult; the scheduler applies it. All arrays of a plan stay valid until the step it describes was applied.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/base/ids.h"

namespace holdfast::sched {

// Index of a sequence in the scheduler's slab; reused after release, so it is a slot for per-sequence state, not an identity.
using SequenceSlot = StrongId<struct SequenceSlotTag, uint32_t>;

// One sequence's share of a step: tokens at positions [start, start + tokens.size()) are computed and their KV written. The token that an
// entry samples is number start + tokens.size() - prompt_tokens of the answer, from 0.
struct StepEntry {
  RequestId request;
  SequenceSlot slot;
  uint32_t start = 0;
  std::span<const TokenId> tokens;               // the new tokens themselves
  std::span<const TokenId> history;              // all tokens of the sequence up to and including `tokens` (penalties read it)
  uint32_t prompt_tokens = 0;                    // history[0, prompt_tokens) is the prompt
  bool sample = false;                           // the last row's logits choose the next token
  bool awaits = false;                           // tokens is one token, not known yet: what the step launched just before draws for this request.
                                                 // Its value here means nothing, and history ends before it.
  bool prompt_logprobs = false;                  // every row's logits are wanted
  std::vector<const int32_t*> tables;            // [group] block table: page of each block, -1 = none
};

struct StepPlan {
  StepNo step;
  std::vector<StepEntry> entries;                // decodes first, then prefill chunks
  uint32_t total_tokens = 0;
  uint64_t digest = 0;                           // of every decision up to and including this plan
};

// Outcome of one entry that sampled.
struct SampledToken {
  RequestId request;
  TokenId token = 0;
  bool is_stop = false;                          // the token is in the request's stop set
  bool failed = false;                           // no token could be drawn: this request fails alone
  std::string why{};                             // with failed: words for the client; empty: the logits were not finite
  bool refused = false;                          // with failed: by what the request asks for; told where tokens are drawn, decides nothing here
};

struct StepResult {
  StepNo step;
  std::vector<SampledToken> sampled;             // one for each entry with sample, in plan order
};

enum class EndReason : uint8_t { kNone, kStop, kLength, kCancelled, kFailed, kNeverFits };

// What happened to a request at the settling of a step (or at once, for refusals and cancels of waiting requests).
struct RequestEvent {
  RequestId request;
  bool admitted = false;                         // first event of an admitted request
  uint32_t cached_tokens = 0;                    // with admitted
  bool has_token = false;
  TokenId token = 0;
  EndReason end = EndReason::kNone;              // not kNone: the last event of this request
  std::string message;                           // for kFailed and kNeverFits: words and numbers for the client
  uint32_t limit = 0;                            // for kNeverFits: the real limit in tokens
};

}  // namespace holdfast::sched

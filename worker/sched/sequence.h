#pragma once
// A request inside the scheduler: its tokens, its row of pages and where it stands. Objects are recycled, never deleted while the
// scheduler lives; `epoch` tells lives (and forced restarts) apart for steps that were launched before.
#include <cstdint>
#include <string>
#include <vector>

#include "worker/kv/row.h"
#include "worker/sched/step.h"

namespace holdfast::sched {

enum class SequenceState : uint8_t {
  kFree,      // in the pool of objects
  kWaiting,   // in the queue, holds nothing
  kPrefill,   // running, some of `tokens` not launched yet
  kDecode,    // running, one token a step
  kEnded,     // its last event is out; holds pages until no launched step includes it
};

struct Sequence {
  explicit Sequence(size_t groups) : row(groups) {}

  RequestId request;
  uint64_t order = 0;              // arrival; the youngest has the largest
  uint64_t epoch = 0;
  SequenceState state = SequenceState::kFree;

  std::vector<TokenId> tokens;     // prompt and generated
  std::vector<uint64_t> chain;     // chain hash of each full block of tokens
  std::vector<uint32_t> anchors;   // ascending, the prompt's end among them
  uint32_t next_anchor = 0;
  uint32_t prompt_tokens = 0;
  uint32_t final_tokens = 0;       // most tokens it can come to: prompt + max_tokens, capped by max_seq_len
  std::string salt;
  uint64_t salt_hash = 0;
  bool use_cache = false;          // matches and inserts
  bool prompt_logprobs = false;
  bool run_ahead = false;          // its next decode may be launched before its token is known

  kv::SeqRow row;
  SequenceSlot slot;
  uint32_t target = 0;             // prefill ends here: the tokens known at admission
  uint32_t inflight = 0;           // launched, unsettled steps that include it
  uint32_t pending = 0;            // of those, the ones that sample: tokens drawn and not in `tokens` yet
  StepNo sampled_in;               // the last step launched that samples for it
  uint32_t reserved = 0;           // full pages promised and not taken yet (its part of R)
  uint32_t hit_blocks = 0;         // of the last admission
  bool admitted_once = false;
  bool leave_running = false;      // preempted while in flight: back to the queue when it settles

  // Waiting for the sequence in slot `writer_slot` (if it is still `writer_order`) to settle `writer_tokens` tokens that both share.
  uint64_t writer_order = 0;
  uint32_t writer_slot = 0;
  uint32_t writer_tokens = 0;
  bool deferred = false;           // counted as put off
  uint32_t passed = 0;             // requests that were admitted before this one although they came later

  bool running() const { return state == SequenceState::kPrefill || state == SequenceState::kDecode; }
};

}  // namespace holdfast::sched

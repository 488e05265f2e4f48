#pragma once
// May this request come in? PURE: a function of what the group is and what the request asks. Every refusal says what was wrong and,
// where waiting helps, for how long.
#include <cstdint>
#include <string>

#include "proto/base/clock.h"

namespace holdfast::supervisor {

struct AdmissionLimits {
  uint32_t max_seq_len = 0;         // prompt + generated; 0 = unknown
  uint64_t max_request_tokens = 0;  // what the full pool holds for one sequence; 0 = unknown
  uint32_t max_running = 1;
  uint32_t max_queue = 256;         // accepted beyond max_running
};

struct AdmissionView {
  bool serving = false;
  bool draining = false;            // shutting down
  bool held = false;                // drained by an operator, and up: only what goes on after a loss is let in
  bool permanent = false;           // will not serve without an operator
  std::string state_reason;         // words for a refusal while not serving
  Duration until_serving{};         // best guess, for Retry-After; zero = no idea
  uint32_t in_flight = 0;
  Duration mean_request{};          // running mean of a request's whole time; zero = none ended yet
  AdmissionLimits limits;
};

struct RequestShape {
  uint64_t tokens = 0;              // prompt and resumed tokens
  uint64_t prompt_tokens = 0;       // 0 = all of them
  uint64_t max_tokens = 0;
  bool quarantined = false;
  bool duplicate = false;           // request_id is in use in its session
  bool resumed = false;             // it was in flight when a generation was lost
};

enum class Admission : uint8_t { kAccept, kInvalid, kTooLong, kOverloaded, kUnavailable, kDraining, kQuarantined };

struct AdmissionAnswer {
  Admission answer = Admission::kAccept;
  std::string message;
  uint32_t retry_after_ms = 0;      // kOverloaded, kUnavailable: 1 s to 30 s
  uint32_t limit = 0;               // kTooLong: the most tokens a prompt may have
};

AdmissionAnswer Admit(const AdmissionView& view, const RequestShape& request);

// Retry-After while not serving: the guess, within [1 s, 30 s].
uint32_t RetryAfterMs(Duration guess);

}  // namespace holdfast::supervisor

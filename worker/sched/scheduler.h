#pragma once
// The deterministic scheduler: a pure function of the ordered log of commands and step results. Every rank of a group runs its own copy
// and must come to the same decisions (compared by digest). README.md in this folder is the contract.
//
// Not thread-safe: the worker's loop thread owns it. No clock, no I/O, no allocation in a steady-state step.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "proto/base/finding.h"
#include "proto/base/ids.h"
#include "worker/kv/units.h"
#include "worker/sched/step.h"

namespace holdfast::sched {

struct SchedulerConfig {
  kv::CacheShape cache;               // groups, page size, capacities (worker/kv/units.h)
  uint32_t max_running = 4;           // N
  uint32_t prefill_chunk = 8192;      // B: tokens computed in a step, before the cap of the window pools
  uint32_t max_seq_len = 0;           // prompt + generated
  uint32_t max_waiting = 256;
  uint32_t overlap_depth = 0;         // D: steps submitted beyond the one running (0 on a synchronous backend)
  bool prefix_cache = true;
  uint32_t audit_period = 256;        // steps between full audits, and one when nothing is left to do; 1 = every step, 0 = never
  uint32_t reserve_tokens = 0;        // cap of max_tokens that admission reserves for; 0 = reserve all of it
};

struct SubmitCommand {
  RequestId request;
  std::vector<TokenId> tokens;        // prompt, then tokens generated before (resume)
  uint32_t prompt_tokens = 0;
  uint32_t max_tokens = 1;            // counted from prompt_tokens
  std::vector<uint32_t> anchors;      // ascending prefix lengths
  std::string cache_salt;
  bool no_cache = false;
  bool prompt_logprobs = false;
  bool run_ahead = false;             // drawing its tokens needs nothing of the host: a decode may be launched before its token is known
};

struct ResizeCommand {
  uint64_t operation = 0;
  uint32_t full_pages = 0;            // 0 = leave
  uint32_t window_pages = 0;          // 0 = leave; applies to every window group
  bool cancel = false;
};

struct ResizeState {
  uint64_t operation = 0;
  enum class Phase : uint8_t { kNone, kRunning, kDone, kRefused, kCancelled } phase = Phase::kNone;
  std::string message;
};

struct SchedulerCounters {
  uint64_t prompt_tokens = 0;             // of admitted requests
  uint64_t cached_tokens = 0;
  uint64_t computed_prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t lookups = 0, hits = 0, window_truncated_hits = 0;
  uint64_t heals = 0, dedups = 0, preemptions = 0, deferred = 0, audits = 0;
};

// A page to copy before the next step runs (shrinking a pool): executor copies group's page `from` to `to`.
struct PageMove {
  uint8_t group = 0;
  uint32_t from = 0;
  uint32_t to = 0;
};

class Scheduler {
 public:
  // Fails with kInvalidArgument when the shape cannot serve max_running sequences: the message has both numbers and what would work.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(const SchedulerConfig& config, FindingSink* findings);
  virtual ~Scheduler() = default;

  // ---- commands, in log order -------------------------------------------------------------------------------------
  virtual void Submit(SubmitCommand command) = 0;    // a request that can never fit ends at once by an event
  virtual void Cancel(RequestId request) = 0;        // any state; unknown or ended requests are ignored
  virtual void Resize(const ResizeCommand& command) = 0;

  // ---- steps ----------------------------------------------------------------------------------------------------------
  // Forms and launches the next step, or returns null when there is nothing to compute or overlap_depth + 1 steps are outstanding.
  virtual const StepPlan* Plan() = 0;
  // Settles the oldest outstanding step.
  virtual void Apply(const StepResult& result) = 0;
  // Events since the last call, in a fixed order. The vector is reused by the next call.
  virtual std::vector<RequestEvent>& TakeEvents() = 0;
  // Pages to copy, in this order, before the next plan is run. Empty unless a pool is shrinking. Moves are decided in Apply, Cancel and
  // Resize, never in Plan, so it does not matter whether this is called before or after Plan.
  virtual std::vector<PageMove> TakePageMoves() = 0;

  // ---- views ------------------------------------------------------------------------------------------------------------
  virtual uint32_t running() const = 0;
  virtual uint32_t waiting() const = 0;
  virtual uint32_t outstanding_steps() const = 0;
  virtual uint64_t digest() const = 0;
  virtual uint32_t effective_chunk() const = 0;
  virtual std::vector<kv::PoolView> Pools() const = 0;
  virtual const SchedulerCounters& counters() const = 0;
  virtual uint64_t index_nodes() const = 0;
  virtual ResizeState resize() const = 0;
  // The longest sequence (prompt + generated) the full pool can ever hold.
  virtual uint32_t max_request_tokens() const = 0;
  // Audits everything now; reports findings; true when clean.
  virtual bool Audit() = 0;
  // The content of a page is not to be trusted (a memory error, a checksum): it leaves the index, is never handed out again, and exactly
  // the requests whose tables name it start again from their tokens.
  virtual void SuspectPage(uint8_t group, uint32_t page) = 0;
};

}  // namespace holdfast::sched

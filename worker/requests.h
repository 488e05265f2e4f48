#pragma once
// The requests between wire and scheduler: a Submit is checked and becomes a scheduler command and sampling parameters; what the executor
// and the scheduler say of a request becomes the events of a step report. The worker's loop thread owns it.
#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/finding.h"
#include "proto/worker.pb.h"
#include "worker/constraints.h"
#include "worker/exec/executor.h"
#include "worker/exec/sampler.h"
#include "worker/sched/scheduler.h"

namespace holdfast::worker {

class Requests final {
 public:
  // Token ids must be below `vocab`. Events carry `generation`. All pointers outlive this.
  Requests(sched::Scheduler* scheduler, Constraints* constraints, uint32_t vocab, uint64_t generation, FindingSink* findings);

  // A request that cannot be served is answered by the next FillEvents; an id that is live already is a structural finding, since the
  // supervisor numbers them.
  void Submit(const proto::Submit& submit);
  // Takes the log-probabilities of a step, before the scheduler applies its result.
  void Collect(const exec::ExecResult& result);
  // Turns refusals and the scheduler's events into events of a report; forgets requests that ended. What the executor may still look up for
  // steps in flight stays until they have been collected.
  void FillEvents(proto::StepReport* report);

  const exec::SamplingTable& sampling() const { return sampling_; }
  bool empty() const { return live_.empty(); }

 private:
  // What the reports of a request need beside what the scheduler knows.
  struct Live {
    uint64_t wire_id = 0;
    bool wants_logprobs = false;
    bool wants_prompt_logprobs = false;
    uint64_t queued_ms = 0;
    Instant submitted{};
    bool refused = false;                  // failed by its own bias or constraint: another try would fail as well
    std::vector<proto::Token> prompt;      // collected over the chunks of the prefill
  };

  // False: the request was refused.
  bool TakeConstraint(RequestId id, const proto::GenerateRequest& request, uint32_t prompt);
  void Refuse(uint64_t id, proto::EngineError::Kind kind, std::string message);
  void Forget(RequestId id);

  sched::Scheduler* const scheduler_;
  Constraints* const constraints_;
  const uint32_t vocab_;
  const uint64_t generation_;
  FindingSink* const findings_;
  exec::SamplingTable sampling_;
  absl::flat_hash_map<RequestId, Live> live_;
  absl::flat_hash_map<RequestId, proto::Token> step_tokens_;   // log-probabilities of this step's sampled tokens
  std::vector<proto::TokenEvent> refusals_;
  struct Ended {
    RequestId request;
    uint32_t steps = 0;                    // in flight when it ended, and not collected yet
  };
  std::vector<Ended> ended_;
};

}  // namespace holdfast::worker

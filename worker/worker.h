#pragma once
// The worker's loop: commands in log order -> Plan -> Run -> Apply -> one StepReport. One thread owns scheduler, ledger and executor; the link
// and the lifeline only post to its inbox.
#include <memory>
#include <optional>

#include "proto/base/finding.h"
#include "worker/config.h"
#include "worker/link/lifeline.h"
#include "worker/link/supervisor_link.h"
#include "worker/requests.h"
#include "worker/runtime.h"

namespace holdfast::worker {

class Worker final : public FindingSink {
 public:
  Worker(const WorkerConfig& config, Inbox* inbox, StepPulse* pulse, SupervisorLink* link, Lifeline* lifeline, Keeper* keeper);

  // Loads, serves until told to stop, and returns the exit code.
  int Run();

  void Report(Finding finding) override;

 private:
  int Load();
  int Serve();
  // Takes everything in the inbox. False: leave with exit_code_.
  bool TakeInbound();
  void TakeCommand(proto::Command command);
  void Step(const sched::StepPlan& plan);
  void SendReport(proto::StepReport report, bool force_status);
  void ApplyPageMoves();
  void ReportResize();
  void WriteFlightRecord();

  const WorkerConfig& config_;
  Inbox* const inbox_;
  StepPulse* const pulse_;
  SupervisorLink* const link_;
  Lifeline* const lifeline_;
  Keeper* const keeper_;
  std::unique_ptr<Runtime> runtime_;
  std::optional<Requests> requests_;     // beside runtime_: from Load on
  uint64_t command_seq_ = 0;
  uint64_t step_ = 0;
  double mean_step_us_ = 0;
  uint32_t last_step_us_ = 0, last_prefill_ = 0, last_decode_ = 0;
  Instant status_sent_{};
  bool status_stale_ = true;
  bool structural_ = false;
  bool draining_ = false;
  bool stopping_ = false;
  uint64_t resize_reported_ = 0;
  sched::ResizeState::Phase resize_phase_ = sched::ResizeState::Phase::kNone;
  sched::ResizeState::Phase backing_phase_ = sched::ResizeState::Phase::kNone;
  int exit_code_ = 0;
};

}  // namespace holdfast::worker

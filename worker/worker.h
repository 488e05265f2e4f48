#pragma once
// The worker's loop. A round: commands in log order -> Plan -> Launch; and when more than overlap_depth steps are in flight, or nothing was planned while
// one is: Finish the oldest -> Apply -> one StepReport. So what a round does follows from the log and the results alone, never from how far the
// device is. One thread owns scheduler, ledger and executor; the link and the lifeline only post to its inbox.
//
// With several ranks, rank 0 leads: it alone decides when a round begins and how much of the log comes before it, draws the tokens and
// reports. The others repeat its rounds and leave with a finding when their scheduler comes to something else (tp/step_channel.h).
#include <deque>
#include <memory>
#include <optional>

#include "proto/base/exit_code.h"
#include "proto/base/finding.h"
#include "worker/config.h"
#include "worker/link/lifeline.h"
#include "worker/link/supervisor_link.h"
#include "worker/requests.h"
#include "worker/runtime.h"
#include "worker/tp/group.h"
#include "worker/tp/step_channel.h"

namespace holdfast::worker {

class Worker final : public FindingSink {
 public:
  // keeper and group may be null: nobody keeps weights; there is one rank.
  Worker(const WorkerConfig& config, Inbox* inbox, StepPulse* pulse, SupervisorLink* link, Lifeline* lifeline, Keeper* keeper, tp::Group* group);

  // Loads, serves until told to stop, and returns the exit code.
  int Run();

  void Report(Finding finding) override;

 private:
  int Load();
  int Serve();
  bool leads() const { return config_.rank == 0; }
  // Takes everything in the inbox; commands go to commands_. False: leave with exit_code_.
  bool Fetch();
  // A follower's wait for rank 0: the next round, and the commands that come before it. False: none yet, or leave (leaving_ says so).
  bool AwaitRound(tp::Round* round);
  // Rank 0, with several ranks: how far the round that begins goes. Up to a resize, which begins a round after the ranks have voted on it.
  uint64_t RoundEnd();
  // The ranks tell each other whether they have room for the resize at the front of commands_. False: leave (structural_ is not looked at).
  bool Vote();
  // Applies the commands up to and including `upto`.
  void TakeCommands(uint64_t upto);
  void TakeCommand(proto::Command command);
  // Tells the others of the round that begins, or compares it with rank 0's. False: leave.
  bool Agree(const sched::StepPlan* plan, const tp::Round& lead);
  // Both leave (leaving_ or exit_code_ says so) or report a structural finding when the step cannot be computed.
  void Launch(const sched::StepPlan& plan);
  void FinishOldest();
  void FailStep(const absl::Status& status);
  // A collective failed. Sets exit_code_, unless the reason is that we were told to go.
  void LosePeers(const absl::Status& status);
  // Says why and leaves with the code.
  void Leave(ExitCode code, const absl::Status& status);
  void SendReport(proto::StepReport report, bool force_status);
  void ApplyPageMoves();
  // kResourceExhausted, with the numbers, when memory does not hold the pages the resize would add on this and the other ranks.
  absl::Status RoomFor(const sched::ResizeCommand& resize) const;
  void ReportResize();
  void WriteFlightRecord();
  int LeaveDamaged();                      // after a structural finding: the exit code

  const WorkerConfig& config_;
  Inbox* const inbox_;
  StepPulse* const pulse_;
  SupervisorLink* const link_;
  Lifeline* const lifeline_;
  Keeper* const keeper_;
  tp::Group* const group_;
  std::optional<tp::StepChannel> rounds_;  // when there are several ranks
  std::deque<proto::Command> commands_;    // arrived, not applied
  uint64_t voted_on_ = 0;                  // number of the command, and what all ranks together said of it
  absl::Status vote_;
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
  bool leaving_ = false;                   // exit_code_ says how
  uint64_t resize_reported_ = 0;
  sched::ResizeState::Phase resize_phase_ = sched::ResizeState::Phase::kNone;
  uint64_t backing_operation_ = 0;  // the resize whose phase the storage has followed last
  sched::ResizeState::Phase backing_phase_ = sched::ResizeState::Phase::kNone;
  int exit_code_ = 0;
};

}  // namespace holdfast::worker

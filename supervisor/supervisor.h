#pragma once
// The loop: the one thread that owns all state of the supervisor. It waits for descriptors (inbox, signals, pidfds, log pipes) and
// deadlines, turns what happens into events for the pure units, and executes what they decide. Nothing here decides.
//
// Run() must be called from the main thread: it spawns, and the children's PDEATHSIG is tied to the spawning thread.
#include <absl/status/statusor.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/systemd_notify.h"
#include "proto/base/unique_fd.h"
#include "supervisor/admission.h"
#include "supervisor/child_log.h"
#include "supervisor/config.h"
#include "supervisor/group_machine.h"
#include "supervisor/inbound.h"
#include "supervisor/incident.h"
#include "supervisor/kept.h"
#include "supervisor/launcher.h"
#include "supervisor/request_table.h"
#include "supervisor/rpc_server.h"
#include "supervisor/runtime_dir.h"
#include "supervisor/sequencer.h"
#include "supervisor/supervisor_metrics.h"

namespace holdfast::supervisor {

inline constexpr std::string_view kVersion = "0.1.0";

// How often health is stated anew; a lease outlives four of them.
inline constexpr Duration kLeasePeriod = std::chrono::milliseconds(250);

class Supervisor {
 public:
  // `signals` from BlockSignals({SIGTERM, SIGINT, SIGCHLD}).
  Supervisor(SupervisorConfig config, RuntimeDir dir, UniqueFd signals, SystemdNotify notify, const Clock& clock);
  ~Supervisor();

  absl::Status Start();  // opens the server and starts the group
  int Run();             // until told to stop; the process's exit code

 private:
  // One rank of the present generation: process, log, link.
  struct RankRuntime {
    ChildProcess child;
    std::optional<ChildLog> log;
    std::shared_ptr<WorkerOutlet> link;
    LinkId link_id;
    std::string token;
    bool link_closed = false;
    std::optional<ExitStatus> exit;     // reaped, not yet told to the machine
    Instant ended{};                    // when the first of link_closed and exit was seen
    bool link_loss_told = false;
    std::string phase;                  // for status
    proto::Progress progress;
    uint64_t resident_bytes = 0;
    std::string failure;                // the worker's own last words
    bool ready = false;
    uint64_t last_step = 0;
  };
  struct PendingResize {
    uint64_t operation = 0;
    Instant until{};
    std::shared_ptr<ReplyOutlet> outlet;
  };

  // ---- the loop (supervisor.cc)
  Duration WaitTime(Instant now) const;
  void Poll(Duration timeout);
  void ReadSignals();
  void ReapAll();
  void SettleEnds();   // link-lost and exited events, in an order that names the cause
  void Tick();
  void Dispatch(GroupEvent event);
  void Execute(const Action& action);
  void Spawn(const Action& action);
  void Term(const Action& action);
  void WriteIncident(const Loss& loss);
  void Finish();

  // ---- workers (supervisor_worker.cc)
  void On(WorkerSaid& said);
  void On(WorkerClosed& closed);
  void OnHello(WorkerSaid& said);
  void OnReady(uint32_t rank, const proto::Ready& ready);
  void OnStep(uint32_t rank, proto::StepReport& step);
  void OnFinding(uint32_t rank, const proto::FindingReport& finding);
  void OnResize(const proto::ResizeReport& report);
  CommandSeq SendCommand(proto::Command command);  // its number
  GroupEvent EventOf(EventKind kind, uint32_t rank) const;

  // ---- sessions and requests (supervisor_requests.cc)
  void On(SessionOpened& opened);
  void On(SessionSaid& said);
  void On(SessionClosed& closed);
  void OnGenerate(SessionId session, proto::GenerateRequest& request);
  void Submit(RequestId id, proto::GenerateRequest request);
  void CancelRequest(RequestEntry& entry);
  void Refuse(SessionId session, uint64_t client_id, const AdmissionAnswer& answer);
  void RouteEvents(proto::StepReport& step);
  void LoseRequests(const std::optional<Loss>& loss);
  void ReleaseHeld();
  void NoteLoad();     // busy and idle events, gauges
  void SendTo(SessionId session, proto::SessionEvent event);
  AdmissionView View() const;
  // Requests may be sent to the worker: it serves, or is held in a drain and finishes what was in flight.
  bool Ready() const { return machine_.state() == GroupState::kServing || machine_.held(); }

  // ---- health and admin (supervisor_admin.cc)
  void On(WatchOpened& opened);
  void On(WatchClosed& closed);
  void On(AdminCall& call);
  void Answer(const proto::ModelCardRequest& request, ReplyOutlet& outlet);
  void Answer(const proto::StatusRequest& request, ReplyOutlet& outlet);
  void Answer(const proto::MetricsRequest& request, ReplyOutlet& outlet);
  void Answer(const proto::ListRequestsRequest& request, ReplyOutlet& outlet);
  void Answer(const proto::ListIncidentsRequest& request, ReplyOutlet& outlet);
  void Answer(const proto::ListQuarantineRequest& request, ReplyOutlet& outlet);
  void Answer(const proto::ClearQuarantineRequest& request, ReplyOutlet& outlet);
  void Answer(const proto::DrainRequest& request, ReplyOutlet& outlet);
  void Answer(const proto::ResumeRequest& request, ReplyOutlet& outlet);
  void AnswerResize(const proto::ResizeCacheRequest& request, std::shared_ptr<ReplyOutlet> outlet);
  void Publish();
  proto::HealthStatement Statement() const;
  std::string Reason() const;

  const SupervisorConfig config_;
  const RuntimeDir dir_;
  const UniqueFd signals_;
  SystemdNotify notify_;
  const Clock& clock_;
  const std::string instance_;
  const Instant started_;
  // The time of this round of the loop. Deadlines are judged by it and not by the clock: if this process is stopped in the middle of a round,
  // the next round sees how late it is before anything is taken for overdue.
  Instant round_;
  Inbox inbox_;
  std::unique_ptr<RpcServer> server_;
  UniqueFd worker_binary_;  // as it was when we started: an upgrade of the package does not mix versions
  GroupMachine machine_;
  RequestTable requests_;
  Sequencer sequencer_;
  IncidentStore incidents_;
  SupervisorMetrics metrics_;
  std::vector<RankRuntime> ranks_;
  std::vector<Kept> kept_;               // [rank], over generations
  std::deque<GroupEvent> events_;        // posted while actions run
  bool dispatching_ = false;
  std::optional<int> exit_code_;
  uint32_t stop_signals_ = 0;

  std::map<SessionId, std::shared_ptr<SessionOutlet>> sessions_;
  std::map<RequestId, proto::GenerateRequest> held_;  // payloads of requests on probation
  bool busy_ = false;
  Duration mean_request_{};

  std::map<WatchId, std::shared_ptr<WatchOutlet>> watchers_;
  uint64_t statement_ = 0;
  Instant next_lease_{};
  Instant next_watchdog_{};
  bool publish_ = false;                 // at the end of this round
  std::string card_, card_fingerprint_;
  proto::Ready ready_;                   // of rank 0
  proto::StepReport last_step_;          // of rank 0, without events
  uint64_t steps_ = 0;
  double mean_step_us_ = 0;
  std::map<std::pair<std::string, std::string>, uint64_t> finding_counts_;
  std::deque<std::string> recent_findings_;
  std::vector<std::string> lost_requests_;  // of the last loss, for its incident
  std::optional<Instant> lost_at_;
  Duration recovery_{};
  std::string permanent_message_;
  int permanent_code_ = 0;
  std::vector<PendingResize> resizes_;
  proto::ResizeReport last_resize_;
  uint64_t resize_operation_ = 0;
  UniqueFd group_memory_;                // of the present generation, when it has several ranks
};

}  // namespace holdfast::supervisor

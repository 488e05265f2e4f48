#pragma once
// The life of the worker group as a table. PURE: no clock, process, socket or thread; time comes in with each event, and what must be
// done goes out as actions. README.md in this folder shows the table; a test holds the two together.
//
// The group is one_for_all: the loss of any rank ends the generation, and no process of the next one is spawned before every process of
// the last was reaped. Everything a worker says carries its generation; what an old generation says is dropped before the table (fenced()).
//
// The caller executes the actions in order, posts what came of them as events after all of them ran, and calls Handle(kTick) when
// NextDeadline() has come. Not thread-safe; the supervisor's loop owns it.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/finding.h"
#include "proto/base/ids.h"
#include "supervisor/liveness.h"
#include "supervisor/loss.h"
#include "supervisor/restart_policy.h"

namespace holdfast::supervisor {

enum class GroupState : uint8_t {
  kDown,         // nothing runs: before the start, after the stop, or after a permanent failure
  kSpawning,     // processes were started; not every rank has attached
  kLoading,      // all attached; weights are read
  kWarming,      // weights are there; the first steps are rehearsed
  kServing,
  kDraining,     // no admissions; requests in flight may end. Held (see held()): stays so until told otherwise
  kStopping,     // every rank was told to go; waiting for the last one
  kBackoff,      // gone; the next generation starts at the deadline
  kQuarantined,  // gone; restarted too often: one trial at the deadline
  kUnkillable,   // a process survived SIGKILL: nothing may be spawned beside it
};
inline constexpr int kGroupStates = 10;
std::string_view GroupStateName(GroupState state);

enum class EventKind : uint8_t {
  kTick,         // time passed
  kStalled,      // the supervisor itself stood still for `duration`
  kSpawned,      // rank's process exists
  kSpawnFailed,  // it does not; text says why
  kAttached,     // rank said Hello with the right token
  kProgress,     // rank loads: `warming` once its weights are there
  kReady,        // rank could serve
  kStep,         // rank ended step `step` in `duration`
  kHeartbeat,    // rank's step thread: step, outstanding, since_change, mean = duration
  kFinding,      // rank reports suspect state of `severity`
  kLinkLost,     // rank's stream ended
  kExited,       // rank's process was reaped with `exit`
  kBusy,         // the first request is in flight
  kIdle,         // none is in flight any more
  kStart,        // operator: run
  kDrain,        // operator: let requests end, then stop for good
  kStopNow,      // operator: stop for good without waiting
  kRestart,      // operator: a fresh generation now, whatever the policy says
  kHold,         // operator: no new requests; what is in flight goes on, and the group stays
  kResume,       // operator: take requests again
  kDeviceFree,   // the device the last generation wanted is free
};
inline constexpr int kEventKinds = 21;
std::string_view EventName(EventKind kind);

struct GroupEvent {
  EventKind kind = EventKind::kTick;
  Generation generation;  // of the speaker; required from kSpawned to kExited
  Rank rank;
  Duration duration{};
  Duration since_change{};
  uint64_t step = 0;
  uint64_t bytes = 0;     // kProgress: done so far
  bool outstanding = false;
  bool warming = false;
  Severity severity{};
  ExitStatus exit;
  std::string text;
};

enum class ActionKind : uint8_t {
  kSpawn,           // rank, generation, safe
  kTerm,            // rank: CONT, the Stop message, TERM; `duration` = grace
  kKill,            // rank
  kLoseRequests,    // every request in flight ends with LOST (or as poison, if `loss` counts against requests); no loss: we stop
  kOpenAdmission,
  kCloseAdmission,
  kWriteIncident,   // loss
  kPublishHealth,
  kNotifyReady,     // serving for the first time in this supervisor's life, or again
  kNotifyStopping,
  kExtendStart,     // loading goes on: systemd may wait `duration` more
  kFinished,        // down for good: the supervisor may exit
};

struct Action {
  ActionKind kind;
  Rank rank;
  Generation generation;
  bool safe = false;
  Duration duration{};
  std::optional<Loss> loss;
};

struct GroupOptions {
  uint32_t ranks = 1;
  Duration attach_timeout = std::chrono::seconds(10);
  Duration load_timeout = std::chrono::seconds(60);        // without progress
  Duration drain_timeout = std::chrono::seconds(30);
  Duration drain_grace = std::chrono::seconds(4);          // TERM to KILL when asked to stop: nothing is left to be done
  Duration loss_grace = std::chrono::seconds(5);           // TERM to KILL after a loss
  Duration kill_timeout = std::chrono::seconds(5);         // KILL to Unkillable
  Duration rekill_period = std::chrono::seconds(10);
  LivenessOptions liveness;
  RestartOptions restart;
};

class GroupMachine {
 public:
  GroupMachine(GroupOptions options, uint64_t seed);

  // The actions are to be executed in order.
  std::vector<Action> Handle(Instant now, const GroupEvent& event);
  // When to call Handle(kTick) at the latest; Instant::max() = never.
  Instant NextDeadline() const;

  GroupState state() const { return state_; }
  Generation generation() const { return generation_; }
  bool permanent() const { return permanent_; }
  bool finished() const { return state_ == GroupState::kDown && stop_for_good_; }
  bool stop_for_good() const { return stop_for_good_; }
  // Draining because of kHold: every rank is ready, what was in flight goes on, over losses too, and nothing new is admitted.
  bool held() const { return state_ == GroupState::kDraining && !stop_for_good_; }
  const std::optional<Loss>& last_loss() const { return last_loss_; }
  uint32_t restarts() const { return restarts_; }     // generations started after the first
  uint64_t fenced() const { return fenced_; }         // events dropped because their generation is over
  bool safe_profile() const { return safe_launch_; }
  // While in kBackoff or kQuarantined: when the next launch is due.
  std::optional<Instant> next_launch() const;
  const GroupOptions& options() const { return options_; }

  // "ignore" or the handler's name, for the table in README.md.
  static std::string_view TableEntry(GroupState state, EventKind event);

 private:
  enum class RankState : uint8_t { kGone, kSpawnAsked, kSpawned, kAttached, kReady };
  struct RankInfo {
    RankState state = RankState::kGone;
    bool told_term = false;
    bool told_kill = false;
    bool warming = false;
    uint64_t bytes = 0;
  };
  using Handler = void (GroupMachine::*)(const GroupEvent&);
  struct Entry {
    Handler handler = nullptr;
    std::string_view name;
  };
  using Table = std::array<std::array<Entry, kEventKinds>, kGroupStates>;
  static constexpr Table MakeTable();
  static const Table kTable;

  // ---- handlers: named in the table ------------------------------------------------------------------------------
  void Ignore(const GroupEvent&) {}
  void Launch(const GroupEvent&);             // spawn every rank of a new generation
  void LaunchIfDue(const GroupEvent&);
  void LaunchFresh(const GroupEvent&);        // as Launch, the policy's memory wiped
  void AttachDeadline(const GroupEvent&);
  void LoadDeadline(const GroupEvent&);
  void ServeDeadline(const GroupEvent&);
  void DrainDeadline(const GroupEvent&);
  void StopDeadline(const GroupEvent&);
  void KillAgain(const GroupEvent&);
  void Shift(const GroupEvent&);
  void NoteSpawned(const GroupEvent&);
  void TermLateSpawn(const GroupEvent&);
  void LoseToSpawn(const GroupEvent&);
  void NoteNotSpawned(const GroupEvent&);
  void NoteAttached(const GroupEvent&);
  void NoteProgress(const GroupEvent&);
  void NoteReady(const GroupEvent&);
  void NoteStep(const GroupEvent&);
  void NoteHeartbeat(const GroupEvent&);
  void NoteFinding(const GroupEvent&);
  void LoseToLink(const GroupEvent&);
  void LoseToExit(const GroupEvent&);
  void NoteGone(const GroupEvent&);
  void NoteBusy(const GroupEvent&);
  void NoteIdle(const GroupEvent&);
  void StopWhenIdle(const GroupEvent&);
  void BeginDrain(const GroupEvent&);
  void DrainHeld(const GroupEvent&);
  void BeginHold(const GroupEvent&);
  void EndHold(const GroupEvent&);
  void NoteHold(const GroupEvent&);           // once it is ready
  void NoteResume(const GroupEvent&);
  void StopForGood(const GroupEvent&);
  void FinishNow(const GroupEvent&);
  void MakeFinal(const GroupEvent&);
  void KillNow(const GroupEvent&);
  void RestartNow(const GroupEvent&);
  void RestartHeld(const GroupEvent&);
  void LaunchOnDevice(const GroupEvent&);

  // ---- parts ---------------------------------------------------------------------------------------------------------
  void Emit(ActionKind kind) { actions_.push_back(Action{kind, Rank(), generation_, false, {}, std::nullopt}); }
  void Enter(GroupState state);
  void Lose(LossCause cause, Rank rank, std::string detail, const ExitStatus* exit = nullptr);
  void TellAllToGo(Duration grace);
  void CheckLiveness();
  void AfterAttach();
  bool AllGone() const;
  bool All(RankState at_least) const;
  void Settle();     // all gone: decide what comes next
  void WriteLoss();  // the incident of the generation that ended, if it was lost

  GroupOptions options_;
  RestartPolicy policy_;
  Liveness liveness_;
  GroupState state_ = GroupState::kDown;
  Generation generation_;
  std::vector<RankInfo> ranks_;
  Instant now_{};
  Instant deadline_ = Instant::max();
  std::vector<Action> actions_;
  std::optional<Loss> loss_;       // of the generation that is stopping
  std::optional<Loss> last_loss_;
  bool stop_for_good_ = false;
  bool hold_ = false;
  bool permanent_ = false;
  bool safe_launch_ = false;
  bool busy_ = false;
  bool device_wait_ = false;
  uint64_t last_step_ = 0;
  uint32_t restarts_ = 0;
  uint64_t fenced_ = 0;
};

}  // namespace holdfast::supervisor

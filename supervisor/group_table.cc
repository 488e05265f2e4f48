// The table of DESIGN 6: one entry for every pair, `ignore` written down. Separate from the handlers so that it reads as a table.
#include "supervisor/group_machine.h"

namespace holdfast::supervisor {

constexpr GroupMachine::Table GroupMachine::MakeTable() {
  using S = GroupState;
  using E = EventKind;
  using M = GroupMachine;
  Table t{};
  const auto row = [&t](S s) -> std::array<Entry, kEventKinds>& { return t[static_cast<size_t>(s)]; };
  const auto set = [](std::array<Entry, kEventKinds>& r, E e, Handler h, std::string_view name) {
    r[static_cast<size_t>(e)] = Entry{h, name};
  };
#define HF_ROW(state) auto& state = row(S::k##state)
#define HF_ON(state, event, handler) set(state, E::k##event, &M::handler, #handler)
#define HF_IGNORE(state, event) set(state, E::k##event, &M::Ignore, "ignore")
  HF_ROW(Down);
  HF_IGNORE(Down, Tick);
  HF_IGNORE(Down, Stalled);
  HF_IGNORE(Down, Spawned);
  HF_IGNORE(Down, SpawnFailed);
  HF_IGNORE(Down, Attached);
  HF_IGNORE(Down, Progress);
  HF_IGNORE(Down, Ready);
  HF_IGNORE(Down, Step);
  HF_IGNORE(Down, Heartbeat);
  HF_IGNORE(Down, Finding);
  HF_IGNORE(Down, LinkLost);
  HF_IGNORE(Down, Exited);
  HF_IGNORE(Down, Busy);
  HF_IGNORE(Down, Idle);
  HF_ON(Down, Start, Launch);
  HF_ON(Down, Drain, FinishNow);
  HF_ON(Down, StopNow, FinishNow);
  HF_ON(Down, Restart, LaunchFresh);
  HF_ON(Down, Hold, NoteHold);
  HF_ON(Down, Resume, NoteResume);
  HF_IGNORE(Down, DeviceFree);

  HF_ROW(Spawning);
  HF_ON(Spawning, Tick, AttachDeadline);
  HF_ON(Spawning, Stalled, Shift);
  HF_ON(Spawning, Spawned, NoteSpawned);
  HF_ON(Spawning, SpawnFailed, LoseToSpawn);
  HF_ON(Spawning, Attached, NoteAttached);
  HF_ON(Spawning, Progress, NoteProgress);
  HF_ON(Spawning, Ready, NoteReady);
  HF_IGNORE(Spawning, Step);
  HF_IGNORE(Spawning, Heartbeat);
  HF_ON(Spawning, Finding, NoteFinding);
  HF_ON(Spawning, LinkLost, LoseToLink);
  HF_ON(Spawning, Exited, LoseToExit);
  HF_IGNORE(Spawning, Busy);
  HF_IGNORE(Spawning, Idle);
  HF_IGNORE(Spawning, Start);
  HF_ON(Spawning, Drain, StopForGood);
  HF_ON(Spawning, StopNow, StopForGood);
  HF_IGNORE(Spawning, Restart);
  HF_ON(Spawning, Hold, NoteHold);
  HF_ON(Spawning, Resume, NoteResume);
  HF_IGNORE(Spawning, DeviceFree);

  HF_ROW(Loading);
  HF_ON(Loading, Tick, LoadDeadline);
  HF_ON(Loading, Stalled, Shift);
  HF_IGNORE(Loading, Spawned);
  HF_IGNORE(Loading, SpawnFailed);
  HF_IGNORE(Loading, Attached);
  HF_ON(Loading, Progress, NoteProgress);
  HF_ON(Loading, Ready, NoteReady);
  HF_IGNORE(Loading, Step);
  HF_IGNORE(Loading, Heartbeat);
  HF_ON(Loading, Finding, NoteFinding);
  HF_ON(Loading, LinkLost, LoseToLink);
  HF_ON(Loading, Exited, LoseToExit);
  HF_IGNORE(Loading, Busy);
  HF_IGNORE(Loading, Idle);
  HF_IGNORE(Loading, Start);
  HF_ON(Loading, Drain, StopForGood);
  HF_ON(Loading, StopNow, StopForGood);
  HF_ON(Loading, Restart, RestartNow);
  HF_ON(Loading, Hold, NoteHold);
  HF_ON(Loading, Resume, NoteResume);
  HF_IGNORE(Loading, DeviceFree);

  HF_ROW(Warming);
  HF_ON(Warming, Tick, LoadDeadline);
  HF_ON(Warming, Stalled, Shift);
  HF_IGNORE(Warming, Spawned);
  HF_IGNORE(Warming, SpawnFailed);
  HF_IGNORE(Warming, Attached);
  HF_ON(Warming, Progress, NoteProgress);
  HF_ON(Warming, Ready, NoteReady);
  HF_IGNORE(Warming, Step);
  HF_IGNORE(Warming, Heartbeat);
  HF_ON(Warming, Finding, NoteFinding);
  HF_ON(Warming, LinkLost, LoseToLink);
  HF_ON(Warming, Exited, LoseToExit);
  HF_IGNORE(Warming, Busy);
  HF_IGNORE(Warming, Idle);
  HF_IGNORE(Warming, Start);
  HF_ON(Warming, Drain, StopForGood);
  HF_ON(Warming, StopNow, StopForGood);
  HF_ON(Warming, Restart, RestartNow);
  HF_ON(Warming, Hold, NoteHold);
  HF_ON(Warming, Resume, NoteResume);
  HF_IGNORE(Warming, DeviceFree);

  HF_ROW(Serving);
  HF_ON(Serving, Tick, ServeDeadline);
  HF_ON(Serving, Stalled, Shift);
  HF_IGNORE(Serving, Spawned);
  HF_IGNORE(Serving, SpawnFailed);
  HF_IGNORE(Serving, Attached);
  HF_IGNORE(Serving, Progress);
  HF_IGNORE(Serving, Ready);
  HF_ON(Serving, Step, NoteStep);
  HF_ON(Serving, Heartbeat, NoteHeartbeat);
  HF_ON(Serving, Finding, NoteFinding);
  HF_ON(Serving, LinkLost, LoseToLink);
  HF_ON(Serving, Exited, LoseToExit);
  HF_ON(Serving, Busy, NoteBusy);
  HF_ON(Serving, Idle, NoteIdle);
  HF_IGNORE(Serving, Start);
  HF_ON(Serving, Drain, BeginDrain);
  HF_ON(Serving, StopNow, StopForGood);
  HF_ON(Serving, Restart, RestartNow);
  HF_ON(Serving, Hold, BeginHold);
  HF_IGNORE(Serving, Resume);
  HF_IGNORE(Serving, DeviceFree);

  HF_ROW(Draining);
  HF_ON(Draining, Tick, DrainDeadline);
  HF_ON(Draining, Stalled, Shift);
  HF_IGNORE(Draining, Spawned);
  HF_IGNORE(Draining, SpawnFailed);
  HF_IGNORE(Draining, Attached);
  HF_IGNORE(Draining, Progress);
  HF_IGNORE(Draining, Ready);
  HF_ON(Draining, Step, NoteStep);
  HF_ON(Draining, Heartbeat, NoteHeartbeat);
  HF_ON(Draining, Finding, NoteFinding);
  HF_ON(Draining, LinkLost, LoseToLink);
  HF_ON(Draining, Exited, LoseToExit);
  HF_ON(Draining, Busy, NoteBusy);
  HF_ON(Draining, Idle, StopWhenIdle);
  HF_IGNORE(Draining, Start);
  HF_ON(Draining, Drain, DrainHeld);
  HF_ON(Draining, StopNow, StopForGood);
  HF_ON(Draining, Restart, RestartHeld);
  HF_IGNORE(Draining, Hold);
  HF_ON(Draining, Resume, EndHold);
  HF_IGNORE(Draining, DeviceFree);

  HF_ROW(Stopping);
  HF_ON(Stopping, Tick, StopDeadline);
  HF_ON(Stopping, Stalled, Shift);
  HF_ON(Stopping, Spawned, TermLateSpawn);
  HF_ON(Stopping, SpawnFailed, NoteNotSpawned);
  HF_IGNORE(Stopping, Attached);
  HF_IGNORE(Stopping, Progress);
  HF_IGNORE(Stopping, Ready);
  HF_IGNORE(Stopping, Step);
  HF_IGNORE(Stopping, Heartbeat);
  HF_IGNORE(Stopping, Finding);
  HF_IGNORE(Stopping, LinkLost);
  HF_ON(Stopping, Exited, NoteGone);
  HF_ON(Stopping, Busy, NoteBusy);
  HF_ON(Stopping, Idle, NoteIdle);
  HF_IGNORE(Stopping, Start);
  HF_ON(Stopping, Drain, MakeFinal);
  HF_ON(Stopping, StopNow, KillNow);
  HF_IGNORE(Stopping, Restart);
  HF_ON(Stopping, Hold, NoteHold);
  HF_ON(Stopping, Resume, NoteResume);
  HF_IGNORE(Stopping, DeviceFree);

  HF_ROW(Backoff);
  HF_ON(Backoff, Tick, LaunchIfDue);
  HF_ON(Backoff, Stalled, Shift);
  HF_IGNORE(Backoff, Spawned);
  HF_IGNORE(Backoff, SpawnFailed);
  HF_IGNORE(Backoff, Attached);
  HF_IGNORE(Backoff, Progress);
  HF_IGNORE(Backoff, Ready);
  HF_IGNORE(Backoff, Step);
  HF_IGNORE(Backoff, Heartbeat);
  HF_IGNORE(Backoff, Finding);
  HF_IGNORE(Backoff, LinkLost);
  HF_IGNORE(Backoff, Exited);
  HF_IGNORE(Backoff, Busy);
  HF_IGNORE(Backoff, Idle);
  HF_IGNORE(Backoff, Start);
  HF_ON(Backoff, Drain, FinishNow);
  HF_ON(Backoff, StopNow, FinishNow);
  HF_ON(Backoff, Restart, LaunchFresh);
  HF_ON(Backoff, Hold, NoteHold);
  HF_ON(Backoff, Resume, NoteResume);
  HF_ON(Backoff, DeviceFree, LaunchOnDevice);

  HF_ROW(Quarantined);
  HF_ON(Quarantined, Tick, LaunchIfDue);
  HF_ON(Quarantined, Stalled, Shift);
  HF_IGNORE(Quarantined, Spawned);
  HF_IGNORE(Quarantined, SpawnFailed);
  HF_IGNORE(Quarantined, Attached);
  HF_IGNORE(Quarantined, Progress);
  HF_IGNORE(Quarantined, Ready);
  HF_IGNORE(Quarantined, Step);
  HF_IGNORE(Quarantined, Heartbeat);
  HF_IGNORE(Quarantined, Finding);
  HF_IGNORE(Quarantined, LinkLost);
  HF_IGNORE(Quarantined, Exited);
  HF_IGNORE(Quarantined, Busy);
  HF_IGNORE(Quarantined, Idle);
  HF_IGNORE(Quarantined, Start);
  HF_ON(Quarantined, Drain, FinishNow);
  HF_ON(Quarantined, StopNow, FinishNow);
  HF_ON(Quarantined, Restart, LaunchFresh);
  HF_ON(Quarantined, Hold, NoteHold);
  HF_ON(Quarantined, Resume, NoteResume);
  HF_IGNORE(Quarantined, DeviceFree);

  HF_ROW(Unkillable);
  HF_ON(Unkillable, Tick, KillAgain);
  HF_ON(Unkillable, Stalled, Shift);
  HF_IGNORE(Unkillable, Spawned);
  HF_IGNORE(Unkillable, SpawnFailed);
  HF_IGNORE(Unkillable, Attached);
  HF_IGNORE(Unkillable, Progress);
  HF_IGNORE(Unkillable, Ready);
  HF_IGNORE(Unkillable, Step);
  HF_IGNORE(Unkillable, Heartbeat);
  HF_IGNORE(Unkillable, Finding);
  HF_IGNORE(Unkillable, LinkLost);
  HF_ON(Unkillable, Exited, NoteGone);
  HF_ON(Unkillable, Busy, NoteBusy);
  HF_ON(Unkillable, Idle, NoteIdle);
  HF_IGNORE(Unkillable, Start);
  HF_ON(Unkillable, Drain, FinishNow);
  HF_ON(Unkillable, StopNow, FinishNow);
  HF_IGNORE(Unkillable, Restart);
  HF_ON(Unkillable, Hold, NoteHold);
  HF_ON(Unkillable, Resume, NoteResume);
  HF_IGNORE(Unkillable, DeviceFree);
#undef HF_ROW
#undef HF_ON
#undef HF_IGNORE
  for (const auto& r : t) {
    for (const Entry& e : r) {
      if (e.handler == nullptr) throw "a (state, event) pair without an entry";  // at compile time only
    }
  }
  return t;
}

constexpr GroupMachine::Table GroupMachine::kTable = GroupMachine::MakeTable();

std::string_view GroupMachine::TableEntry(GroupState state, EventKind event) {
  return kTable[static_cast<size_t>(state)][static_cast<size_t>(event)].name;
}

std::vector<Action> GroupMachine::Handle(Instant now, const GroupEvent& event) {
  now_ = now;
  actions_.clear();
  const bool from_worker = event.kind >= EventKind::kSpawned && event.kind <= EventKind::kExited;
  if (from_worker && (event.generation != generation_ || event.rank.v >= ranks_.size())) {
    ++fenced_;
    return {};
  }
  const Entry& entry = kTable[static_cast<size_t>(state_)][static_cast<size_t>(event.kind)];
  (this->*entry.handler)(event);
  return std::move(actions_);
}

}  // namespace holdfast::supervisor

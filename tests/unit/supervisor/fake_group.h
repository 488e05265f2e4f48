#pragma once
// Processes without an operating system: executes the group machine's actions on imaginary workers and checks the invariants that hold
// whatever happens. Shared by the exhaustive and the seeded tests.
#include <catch2/catch.hpp>
#include <deque>
#include <vector>

#include "supervisor/group_machine.h"

namespace holdfast::supervisor::testing {

// Throws on a broken invariant rather than counting assertions by the million.
inline void Must(bool holds, const std::string& what) {
  if (!holds) FAIL(what);
}

struct FakeProcess {
  bool alive = false;
  Generation generation;
  bool told_term = false;
  bool told_kill = false;
};

struct FakeGroup {
  explicit FakeGroup(GroupOptions options, uint64_t seed = 1) : machine(options, seed), processes(options.ranks) {}

  GroupMachine machine;
  Instant now{std::chrono::hours(1)};
  std::vector<FakeProcess> processes;
  std::vector<uint32_t> spawn_pending;   // ranks whose spawn action has not been answered
  bool admitting = false;
  bool finished = false;
  bool abandoned = false;                // stopped although a process does not die: the one way to leave one behind
  uint64_t losses_seen = 0;              // requests lost because of a loss
  uint64_t incidents = 0;
  std::vector<Instant> launches;
  std::vector<Loss> written;

  void Feed(GroupEvent event) {
    const GroupState before = machine.state();
    const std::vector<Action> actions = machine.Handle(now, event);
    for (const Action& a : actions) Do(a);
    Check(before, event.kind);
  }
  GroupEvent Event(EventKind kind, uint32_t rank = 0) const {
    GroupEvent e;
    e.kind = kind;
    e.generation = machine.generation();
    e.rank = Rank(rank);
    return e;
  }
  void Exit(uint32_t rank, ExitStatus status) {
    processes[rank].alive = false;
    GroupEvent e = Event(EventKind::kExited, rank);
    e.exit = status;
    Feed(e);
  }
  void AnswerSpawn(bool ok) {
    const uint32_t rank = spawn_pending.front();
    spawn_pending.erase(spawn_pending.begin());
    if (ok) {
      processes[rank] = FakeProcess{true, machine.generation(), false, false};
      Feed(Event(EventKind::kSpawned, rank));
    } else {
      Feed(Event(EventKind::kSpawnFailed, rank));
    }
  }
  bool AnyAlive() const {
    for (const FakeProcess& p : processes) {
      if (p.alive) return true;
    }
    return false;
  }

 private:
  void Do(const Action& a) {
    switch (a.kind) {
      case ActionKind::kSpawn:
        Must(!AnyAlive(), "S1: a spawn while a process of the last generation lives");
        if (a.rank.v == 0) launches.push_back(now);
        spawn_pending.push_back(a.rank.v);
        break;
      case ActionKind::kTerm:
        Must(processes[a.rank.v].alive, "TERM to a process that is not there");
        processes[a.rank.v].told_term = true;
        break;
      case ActionKind::kKill:
        Must(processes[a.rank.v].alive, "KILL to a process that is not there");
        processes[a.rank.v].told_kill = true;
        break;
      case ActionKind::kLoseRequests:
        if (a.loss && a.loss->cause != LossCause::kOperator) ++losses_seen;
        break;
      case ActionKind::kOpenAdmission: admitting = true; break;
      case ActionKind::kCloseAdmission: admitting = false; break;
      case ActionKind::kWriteIncident:
        ++incidents;
        written.push_back(*a.loss);
        Must(a.loss->cause != LossCause::kNone && !a.loss->phase.empty(), "S8: an incident without cause or phase");
        break;
      case ActionKind::kFinished: finished = true; break;
      default: break;
    }
  }
  void Check(GroupState before, EventKind kind) {
    const GroupState s = machine.state();
    const std::string where = std::string(GroupStateName(before)) + " + " + std::string(EventName(kind)) + " -> " + std::string(GroupStateName(s));
    Must(admitting == (s == GroupState::kServing), "S3: admission is open exactly while serving: " + where);
    const bool settled = s == GroupState::kBackoff || s == GroupState::kQuarantined || s == GroupState::kDown;
    if (before == GroupState::kUnkillable && finished) abandoned = true;
    if (settled) {
      Must(!AnyAlive() || abandoned, "S7: settled with a live process: " + where);
      Must(incidents == losses_seen, "S8: every loss has one incident: " + where);
    }
    if (s != GroupState::kDown && s != GroupState::kServing && !machine.held()) {
      Must(machine.NextDeadline() != Instant::max(), "a state without a deadline: " + where);
    }
  }
};

}  // namespace holdfast::supervisor::testing

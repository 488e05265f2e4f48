#include "supervisor/group_machine.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/unit/supervisor/fake_group.h"

namespace holdfast::supervisor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeGroup;

GroupOptions Options(uint32_t ranks = 1) {
  GroupOptions o;
  o.ranks = ranks;
  o.restart.jitter = 0;
  return o;
}

void BringUp(FakeGroup& g) {
  if (g.machine.state() == GroupState::kDown) g.Feed(g.Event(EventKind::kStart));
  while (!g.spawn_pending.empty()) g.AnswerSpawn(true);
  for (uint32_t r = 0; r < g.processes.size(); ++r) g.Feed(g.Event(EventKind::kAttached, r));
  for (uint32_t r = 0; r < g.processes.size(); ++r) g.Feed(g.Event(EventKind::kReady, r));
  REQUIRE(g.machine.state() == GroupState::kServing);
}

void Relaunch(FakeGroup& g) {
  const auto due = g.machine.next_launch();
  REQUIRE(due);
  g.now = std::max(g.now, *due);
  g.Feed({});
  BringUp(g);
}

void Heartbeat(FakeGroup& g, uint32_t rank, bool outstanding, Duration since_change, uint64_t step = 0) {
  GroupEvent e = g.Event(EventKind::kHeartbeat, rank);
  e.outstanding = outstanding;
  e.since_change = since_change;
  e.step = step;
  e.duration = milliseconds(10);
  g.Feed(e);
}

// A machine in each state, brought there by events.
FakeGroup InState(GroupState state, uint32_t ranks = 2) {
  FakeGroup g(Options(ranks));
  if (state == GroupState::kDown) return g;
  g.Feed(g.Event(EventKind::kStart));
  while (!g.spawn_pending.empty()) g.AnswerSpawn(true);
  if (state == GroupState::kSpawning) return g;
  for (uint32_t r = 0; r < ranks; ++r) g.Feed(g.Event(EventKind::kAttached, r));
  if (state == GroupState::kLoading) return g;
  if (state == GroupState::kWarming) {
    for (uint32_t r = 0; r < ranks; ++r) {
      GroupEvent e = g.Event(EventKind::kProgress, r);
      e.warming = true;
      e.bytes = 1;
      g.Feed(e);
    }
    return g;
  }
  for (uint32_t r = 0; r < ranks; ++r) g.Feed(g.Event(EventKind::kReady, r));
  if (state == GroupState::kServing) return g;
  if (state == GroupState::kDraining) {
    g.Feed(g.Event(EventKind::kBusy));
    g.Feed(g.Event(EventKind::kDrain));
    return g;
  }
  if (state == GroupState::kQuarantined) {
    for (uint32_t i = 0; i < 1000 && g.machine.state() != GroupState::kQuarantined; ++i) {
      g.Exit(0, {true, 11});
      for (uint32_t r = 1; r < ranks; ++r) g.Exit(r, {true, 15});
      if (g.machine.state() == GroupState::kBackoff) Relaunch(g);
    }
    return g;
  }
  g.Exit(0, {true, 11});
  if (state == GroupState::kStopping) return g;
  if (state == GroupState::kUnkillable) {
    g.now += seconds(20);
    g.Feed({});
    g.now += seconds(20);
    g.Feed({});
    return g;
  }
  for (uint32_t r = 1; r < ranks; ++r) g.Exit(r, {true, 15});
  return g;
}

TEST_CASE("Every (state, event) pair has an entry, and README.md shows the table as it is") {
  std::ifstream file(std::string(HOLDFAST_SOURCE_DIR) + "/supervisor/README.md");
  const std::string readme((std::istreambuf_iterator<char>(file)), {});
  REQUIRE_FALSE(readme.empty());
  std::string expected;
  for (int e = 0; e < kEventKinds; ++e) {
    std::string row = "| " + std::string(EventName(static_cast<EventKind>(e))) + " |";
    for (int s = 0; s < kGroupStates; ++s) {
      const std::string_view entry = GroupMachine::TableEntry(static_cast<GroupState>(s), static_cast<EventKind>(e));
      REQUIRE_FALSE(entry.empty());
      row += entry == "ignore" ? " ignore |" : " **" + std::string(entry) + "** |";
    }
    expected += row + "\n";
  }
  INFO("the table of supervisor/README.md should be:\n" << expected);
  CHECK(readme.find(expected) != std::string::npos);
}

TEST_CASE("InState reaches each state") {
  for (int s = 0; s < kGroupStates; ++s) {
    for (const uint32_t ranks : {1u, 2u}) {
      if (ranks == 1 && (s == static_cast<int>(GroupState::kStopping) || s == static_cast<int>(GroupState::kUnkillable))) continue;
      CHECK(InState(static_cast<GroupState>(s), ranks).machine.state() == static_cast<GroupState>(s));
    }
  }
}

TEST_CASE("An ignored pair changes nothing and asks for nothing") {
  for (int s = 0; s < kGroupStates; ++s) {
    for (int k = 0; k < kEventKinds; ++k) {
      const auto state = static_cast<GroupState>(s);
      const auto kind = static_cast<EventKind>(k);
      if (GroupMachine::TableEntry(state, kind) != "ignore") continue;
      FakeGroup g = InState(state);
      const Instant deadline = g.machine.NextDeadline();
      GroupEvent e = g.Event(kind, 0);
      e.exit = {true, 9};
      e.severity = Severity::kStructural;
      CHECK(g.machine.Handle(g.now, e).empty());
      CHECK(g.machine.state() == state);
      CHECK(g.machine.NextDeadline() == deadline);
    }
  }
}

TEST_CASE("Every handled pair leads to a state the table knows, within the invariants") {
  for (int s = 0; s < kGroupStates; ++s) {
    for (int k = 0; k < kEventKinds; ++k) {
      const auto state = static_cast<GroupState>(s);
      const auto kind = static_cast<EventKind>(k);
      if (GroupMachine::TableEntry(state, kind) == "ignore") continue;
      for (const uint32_t rank : {0u, 1u}) {
        FakeGroup g = InState(state);
        if (kind == EventKind::kExited) {
          if (!g.processes[rank].alive) continue;
          g.Exit(rank, {false, 70});  // checks the invariants
        } else if (kind != EventKind::kSpawned && kind != EventKind::kSpawnFailed) {
          g.Feed(g.Event(kind, rank));
        }
      }
    }
  }
}

TEST_CASE("What an old generation says has no effect") {
  FakeGroup g(Options());
  BringUp(g);
  const Generation old = g.machine.generation();
  g.Exit(0, {true, 9});
  Relaunch(g);
  for (int k = static_cast<int>(EventKind::kSpawned); k <= static_cast<int>(EventKind::kExited); ++k) {
    GroupEvent e = g.Event(static_cast<EventKind>(k));
    e.generation = old;
    e.severity = Severity::kStructural;
    e.exit = {true, 9};
    CHECK(g.machine.Handle(g.now, e).empty());
    CHECK(g.machine.state() == GroupState::kServing);
  }
  GroupEvent stranger = g.Event(EventKind::kExited, 5);  // a rank the group does not have
  CHECK(g.machine.Handle(g.now, stranger).empty());
  CHECK(g.machine.fenced() == static_cast<uint64_t>(EventKind::kExited) - static_cast<uint64_t>(EventKind::kSpawned) + 2);
}

TEST_CASE("Not ready before every rank of the generation is") {
  FakeGroup g(Options(2));
  g.Feed(g.Event(EventKind::kStart));
  g.AnswerSpawn(true);
  g.AnswerSpawn(true);
  g.Feed(g.Event(EventKind::kAttached, 0));
  g.Feed(g.Event(EventKind::kReady, 0));
  CHECK(g.machine.state() == GroupState::kSpawning);
  g.Feed(g.Event(EventKind::kReady, 1));  // a rank that never attached cannot be ready
  CHECK(g.machine.state() == GroupState::kSpawning);
  g.Feed(g.Event(EventKind::kAttached, 1));
  CHECK(g.machine.state() == GroupState::kLoading);
  g.Feed(g.Event(EventKind::kReady, 1));
  CHECK(g.machine.state() == GroupState::kServing);
}

TEST_CASE("Loading: progress extends the deadline, repeating a number does not") {
  FakeGroup g = InState(GroupState::kLoading, 1);
  for (int i = 1; i <= 10; ++i) {
    g.now += seconds(50);
    GroupEvent e = g.Event(EventKind::kProgress);
    e.bytes = static_cast<uint64_t>(i) * 100;
    g.Feed(e);
    g.Feed({});
    REQUIRE(g.machine.state() == GroupState::kLoading);
  }
  g.now += seconds(50);
  GroupEvent same = g.Event(EventKind::kProgress);
  same.bytes = 1000;
  g.Feed(same);
  g.now += seconds(11);
  g.Feed({});
  CHECK(g.machine.state() == GroupState::kStopping);
  g.Exit(0, {true, 15});
  CHECK(g.machine.last_loss()->cause == LossCause::kLoadTimeout);
  CHECK(g.machine.last_loss()->phase == "loading");
}

TEST_CASE("A worker that never attaches is lost at its deadline, and blamed") {
  FakeGroup g(Options(2));
  g.Feed(g.Event(EventKind::kStart));
  g.AnswerSpawn(true);
  g.AnswerSpawn(true);
  g.Feed(g.Event(EventKind::kAttached, 0));
  g.now += seconds(11);
  g.Feed({});
  g.Exit(0, {false, 0});
  g.Exit(1, {true, 15});
  CHECK(g.machine.last_loss()->cause == LossCause::kAttachTimeout);
  CHECK(g.machine.last_loss()->rank == Rank(1));
}

TEST_CASE("A step that does not move is a hang, a link thread that goes on talking cannot vouch for it") {
  FakeGroup g(Options());
  BringUp(g);
  g.Feed(g.Event(EventKind::kBusy));
  Duration still{};
  for (; still < seconds(30); still += seconds(1)) {
    Heartbeat(g, 0, true, still);
    g.Feed({});
    REQUIRE(g.machine.state() == GroupState::kServing);
    g.now += seconds(1);
  }
  g.now += seconds(1);
  Heartbeat(g, 0, true, still + seconds(1));
  g.Feed({});
  CHECK(g.machine.state() == GroupState::kStopping);
  g.Exit(0, {false, 0});
  CHECK(g.machine.last_loss()->cause == LossCause::kHang);
}

TEST_CASE("A long step that moves is no hang, and neither is an idle worker") {
  FakeGroup g(Options());
  BringUp(g);
  g.Feed(g.Event(EventKind::kBusy));
  for (int i = 0; i < 600; ++i) {  // one step of ten minutes, moving layer by layer
    g.now += seconds(1);
    Heartbeat(g, 0, true, milliseconds(900));
    g.Feed({});
  }
  CHECK(g.machine.state() == GroupState::kServing);
  g.Feed(g.Event(EventKind::kIdle));
  for (int i = 0; i < 600; ++i) {
    g.now += seconds(1);
    Heartbeat(g, 0, false, seconds(i));
    g.Feed({});
  }
  CHECK(g.machine.state() == GroupState::kServing);
}

TEST_CASE("Silence is a loss even when idle") {
  FakeGroup g(Options());
  BringUp(g);
  g.now = g.machine.NextDeadline();
  g.Feed({});
  CHECK(g.machine.state() == GroupState::kStopping);
}

TEST_CASE("A supervisor that stood still blames itself: every deadline moves") {
  for (int s = 0; s < kGroupStates; ++s) {
    const auto state = static_cast<GroupState>(s);
    FakeGroup g = InState(state);
    const Instant deadline = g.machine.NextDeadline();
    if (deadline == Instant::max()) continue;
    g.now += std::chrono::hours(1);
    GroupEvent stalled;
    stalled.kind = EventKind::kStalled;
    stalled.duration = std::chrono::hours(1);
    g.Feed(stalled);
    g.Feed({});
    CHECK(g.machine.state() == state);
    CHECK(g.machine.NextDeadline() == deadline + std::chrono::hours(1));
  }
}

TEST_CASE("TERM, then KILL, then unkillable, nothing is spawned until the process is gone") {
  FakeGroup g = InState(GroupState::kStopping);
  REQUIRE(g.processes[1].told_term);
  g.now = g.machine.NextDeadline();
  g.Feed({});
  CHECK(g.processes[1].told_kill);
  CHECK(g.machine.state() == GroupState::kStopping);
  g.now = g.machine.NextDeadline();
  g.Feed({});
  CHECK(g.machine.state() == GroupState::kUnkillable);
  for (int i = 0; i < 10; ++i) {
    g.now = g.machine.NextDeadline();
    g.Feed({});
    CHECK(g.machine.state() == GroupState::kUnkillable);
  }
  CHECK(g.launches.size() == 1);
  g.Exit(1, {true, 9});
  CHECK(g.machine.state() == GroupState::kBackoff);
  CHECK(g.incidents == 1);
}

TEST_CASE("The exit that explains a closed link replaces it as the cause") {
  FakeGroup g(Options(2));
  BringUp(g);
  g.Feed(g.Event(EventKind::kLinkLost, 0));
  g.Exit(0, {true, 11});
  g.Exit(1, {true, 15});  // our TERM
  REQUIRE(g.written.size() == 1);
  CHECK(g.written[0].cause == LossCause::kSignal);
  CHECK(g.written[0].exit.code == 11);
}

TEST_CASE("A rank that lost its peer blames the peer") {
  FakeGroup g(Options(2));
  BringUp(g);
  g.Exit(0, {false, 74});
  g.Exit(1, {true, 11});
  REQUIRE(g.written.size() == 1);
  CHECK(g.written[0].cause == LossCause::kSignal);
  CHECK(g.written[0].rank == Rank(1));
}

TEST_CASE("Exit codes: permanent ones stop for good with the group down, the others restart") {
  for (const int code : {64, 65}) {
    FakeGroup g(Options());
    BringUp(g);
    g.Exit(0, {false, code});
    CHECK(g.machine.state() == GroupState::kDown);
    CHECK(g.machine.permanent());
    CHECK(g.machine.NextDeadline() == Instant::max());
    g.Feed(g.Event(EventKind::kRestart));  // the operator mended the file
    CHECK(g.machine.state() == GroupState::kSpawning);
    CHECK_FALSE(g.machine.permanent());
  }
  for (const int code : {0, 1, 69, 70, 71, 72, 73, 74, 75}) {
    FakeGroup g(Options());
    BringUp(g);
    g.Exit(0, {false, code});
    CHECK(g.machine.state() == GroupState::kBackoff);
    CHECK(g.incidents == 1);
    Relaunch(g);
  }
}

TEST_CASE("Device busy waits for the device, or tries again by itself") {
  FakeGroup g(Options());
  BringUp(g);
  g.Exit(0, {false, 72});
  REQUIRE(g.machine.state() == GroupState::kBackoff);
  g.Feed(g.Event(EventKind::kDeviceFree));
  CHECK(g.machine.state() == GroupState::kSpawning);
}

TEST_CASE("Repeated integrity losses ask for the safe profile") {
  FakeGroup g(Options());
  BringUp(g);
  g.Exit(0, {false, 70});
  CHECK_FALSE(g.machine.safe_profile());
  Relaunch(g);
  GroupEvent finding = g.Event(EventKind::kFinding);
  finding.severity = Severity::kStructural;
  g.Feed(finding);
  g.Exit(0, {true, 15});
  CHECK(g.machine.safe_profile());
  CHECK(g.written.back().cause == LossCause::kIntegrity);
}

TEST_CASE("Findings below structural do not end the generation") {
  FakeGroup g(Options());
  BringUp(g);
  for (const Severity s : {Severity::kSuspect, Severity::kPage, Severity::kSequence}) {
    GroupEvent finding = g.Event(EventKind::kFinding);
    finding.severity = s;
    g.Feed(finding);
    CHECK(g.machine.state() == GroupState::kServing);
  }
}

TEST_CASE("Draining waits for the requests, up to its time, and a loss ends it") {
  SECTION("idle at once") {
    FakeGroup g(Options());
    BringUp(g);
    g.Feed(g.Event(EventKind::kDrain));
    CHECK(g.machine.state() == GroupState::kStopping);
    g.Exit(0, {false, 0});
    CHECK(g.finished);
    CHECK(g.incidents == 0);
  }
  SECTION("the last request ends") {
    FakeGroup g = InState(GroupState::kDraining, 1);
    CHECK_FALSE(g.admitting);
    g.Feed(g.Event(EventKind::kIdle));
    CHECK(g.machine.state() == GroupState::kStopping);
    g.Exit(0, {false, 0});
    CHECK(g.machine.finished());
  }
  SECTION("time runs out") {
    FakeGroup g = InState(GroupState::kDraining, 1);
    for (int i = 0; i < 31; ++i) {
      g.now += seconds(1);
      Heartbeat(g, 0, true, Duration::zero());
      g.Feed({});
    }
    CHECK(g.machine.state() == GroupState::kStopping);
  }
  SECTION("the worker dies") {
    FakeGroup g = InState(GroupState::kDraining, 1);
    g.Exit(0, {true, 9});
    CHECK(g.machine.finished());
    CHECK(g.incidents == 1);
    CHECK(g.launches.size() == 1);
  }
}

TEST_CASE("A hold: nothing new is admitted, the group stays, and the hold outlasts a loss") {
  FakeGroup g(Options());
  BringUp(g);
  g.Feed(g.Event(EventKind::kHold));
  CHECK(g.machine.held());
  CHECK_FALSE(g.admitting);
  g.Feed(g.Event(EventKind::kBusy));
  g.Feed(g.Event(EventKind::kIdle));
  g.now += std::chrono::hours(2);
  Heartbeat(g, 0, false, Duration::zero());
  g.Feed({});
  CHECK(g.machine.held());
  SECTION("resumed") {
    g.Feed(g.Event(EventKind::kResume));
    CHECK(g.machine.state() == GroupState::kServing);
    CHECK(g.admitting);
  }
  SECTION("over a loss") {
    g.Exit(0, {true, 9});
    CHECK(g.machine.state() == GroupState::kBackoff);
    g.now = *g.machine.next_launch();
    g.Feed({});
    g.AnswerSpawn(true);
    g.Feed(g.Event(EventKind::kAttached));
    g.Feed(g.Event(EventKind::kReady));
    CHECK(g.machine.held());
    CHECK_FALSE(g.admitting);
    CHECK(g.incidents == 1);
  }
  SECTION("resumed between two generations") {
    g.Exit(0, {true, 9});
    g.Feed(g.Event(EventKind::kResume));
    Relaunch(g);  // to kServing
  }
  SECTION("stopped") {
    g.Feed(g.Event(EventKind::kBusy));
    g.Feed(g.Event(EventKind::kDrain));
    CHECK(g.machine.state() == GroupState::kDraining);
    CHECK_FALSE(g.machine.held());
    g.Feed(g.Event(EventKind::kIdle));
    g.Exit(0, {false, 0});
    CHECK(g.machine.finished());
  }
  SECTION("a resume does not call back a stop") {
    g.Feed(g.Event(EventKind::kBusy));
    g.Feed(g.Event(EventKind::kDrain));
    g.Feed(g.Event(EventKind::kResume));
    CHECK(g.machine.state() == GroupState::kDraining);
    CHECK_FALSE(g.admitting);
  }
}

TEST_CASE("A second signal kills at once") {
  FakeGroup g = InState(GroupState::kDraining, 1);
  g.Feed(g.Event(EventKind::kStopNow));
  CHECK(g.machine.state() == GroupState::kStopping);
  g.Feed(g.Event(EventKind::kStopNow));
  CHECK(g.processes[0].told_kill);
}

TEST_CASE("A rank that cannot be spawned ends the others and is permanent") {
  FakeGroup g(Options(2));
  g.Feed(g.Event(EventKind::kStart));
  g.AnswerSpawn(false);
  CHECK(g.machine.state() == GroupState::kStopping);
  g.AnswerSpawn(true);  // rank 1 had been asked for in the same breath
  CHECK(g.processes[1].told_term);
  g.Exit(1, {true, 15});
  CHECK(g.machine.permanent());
}

// Every sequence of possible events up to a depth, from every state, on a group of two ranks. FakeGroup checks the invariants after each.
struct Explorer {
  uint64_t visited = 0;

  void Explore(const FakeGroup& g, int depth) {
    ++visited;
    if (depth == 0) return;
    if (!g.spawn_pending.empty()) {  // answered before anything else, as the loop does
      for (const bool ok : {true, false}) {
        FakeGroup next = g;
        next.AnswerSpawn(ok);
        Explore(next, depth - 1);
      }
      return;
    }
    const EventKind plain[] = {EventKind::kBusy, EventKind::kIdle, EventKind::kStart, EventKind::kDrain, EventKind::kStopNow,
                               EventKind::kRestart, EventKind::kHold, EventKind::kResume, EventKind::kDeviceFree};
    for (const EventKind kind : plain) {
      FakeGroup next = g;
      next.Feed(next.Event(kind));
      Explore(next, depth - 1);
    }
    if (g.machine.NextDeadline() != Instant::max()) {
      FakeGroup next = g;
      next.now = std::max(next.now, next.machine.NextDeadline());
      next.Feed({});
      Explore(next, depth - 1);
    }
    for (uint32_t r = 0; r < g.processes.size(); ++r) {
      if (!g.processes[r].alive) continue;
      for (const EventKind kind : {EventKind::kAttached, EventKind::kReady, EventKind::kLinkLost}) {
        FakeGroup next = g;
        next.Feed(next.Event(kind, r));
        Explore(next, depth - 1);
      }
      FakeGroup found = g;
      GroupEvent finding = found.Event(EventKind::kFinding, r);
      finding.severity = Severity::kStructural;
      found.Feed(finding);
      Explore(found, depth - 1);
      for (const ExitStatus status : {ExitStatus{true, 9}, ExitStatus{false, 0}, ExitStatus{false, 65}, ExitStatus{false, 72}}) {
        FakeGroup next = g;
        next.Exit(r, status);
        Explore(next, depth - 1);
      }
    }
  }
};

TEST_CASE("All event sequences of bounded length keep the invariants") {
  Explorer explorer;
  explorer.Explore(FakeGroup(Options(2)), 7);  // the start needs four to get anywhere
  for (int s = 1; s < kGroupStates; ++s) explorer.Explore(InState(static_cast<GroupState>(s)), 4);
  CHECK(explorer.visited > 100000);
}

}  // namespace
}  // namespace holdfast::supervisor

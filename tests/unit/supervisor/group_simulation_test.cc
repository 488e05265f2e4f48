// Seeded simulation of the group machine with processes that lie, die, hang and flap. The invariants are checked after every event
// (fake_group.h); once the faults stop, the group must serve within a bound. The seed of a failure is printed; one fresh seed runs, too.
#include <array>
#include <catch2/catch.hpp>

#include "proto/base/random.h"
#include "supervisor/group_machine.h"
#include "tests/unit/supervisor/fake_group.h"

namespace holdfast::supervisor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeGroup;
using testing::Must;

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed), group_(MakeOptions(seed), seed) {}

  void Run() {
    Do(EventKind::kStart);
    const Instant faults_end = group_.now + std::chrono::minutes(20);
    while (group_.now < faults_end) Round(true);
    // Everything behaves from here on. The longest way back: KILL and its patience, the longest quarantine, loading.
    const Instant bound = group_.now + std::chrono::minutes(15) * 5 / 4 + std::chrono::minutes(3);
    stuck_.assign(stuck_.size(), false);
    while (group_.machine.state() != GroupState::kServing) {
      Must(group_.now < bound, "S5: not serving within the bound after the faults stopped");
      Round(false);
    }
    const Instant calm = group_.now + std::chrono::minutes(2);
    while (group_.now < calm) {
      Round(false);
      Must(group_.machine.state() == GroupState::kServing, "lost without a fault");
    }
    Must(group_.incidents == group_.losses_seen, "S8: losses and incidents differ");
  }
  uint64_t incidents() const { return group_.incidents; }
  bool was(GroupState state) const { return seen_[static_cast<size_t>(state)]; }

 private:
  static GroupOptions MakeOptions(uint64_t seed) {
    GroupOptions o;
    o.ranks = 1 + static_cast<uint32_t>(seed % 3);
    return o;
  }
  uint64_t Next(uint64_t below) {
    random_ = Mix64(random_);
    return random_ % below;
  }
  bool Chance(uint64_t one_in) { return Next(one_in) == 0; }
  void Do(EventKind kind, uint32_t rank = 0) { group_.Feed(group_.Event(kind, rank)); }

  void Round(bool faults) {
    while (!group_.spawn_pending.empty()) group_.AnswerSpawn(true);
    stuck_.resize(group_.processes.size());
    stage_.resize(group_.processes.size());
    life_.resize(group_.processes.size());
    in_kernel_.resize(group_.processes.size());
    // Time passes as the loop lets it: to the next deadline, or a quarter of a second.
    const Duration step = milliseconds(50 + Next(200));
    group_.now = std::min(group_.now + step, std::max(group_.machine.NextDeadline(), group_.now));
    if (faults && Chance(400)) Stand();
    group_.Feed({});
    if (!group_.spawn_pending.empty()) return;
    for (uint32_t r = 0; r < group_.processes.size(); ++r) Live(r, faults);
    seen_[static_cast<size_t>(group_.machine.state())] = true;
    if (faults && Chance(500)) Do(EventKind::kRestart);
    if (Chance(50)) Do(Chance(2) ? EventKind::kBusy : EventKind::kIdle);
    if (faults && Chance(100)) Do(EventKind::kDeviceFree);
  }

  // The supervisor stands still and says so, as the loop does.
  void Stand() {
    GroupEvent e;
    e.kind = EventKind::kStalled;
    e.duration = seconds(Next(3600));
    group_.now += e.duration;
    group_.Feed(e);
  }

  void Live(uint32_t r, bool faults) {
    testing::FakeProcess& p = group_.processes[r];
    if (!p.alive) return;
    if (life_[r] != p.generation) {  // a new process
      life_[r] = p.generation;
      stage_[r] = 0;
      stuck_[r] = faults && Chance(8);
      in_kernel_[r] = Chance(4) ? 200 : 1;
    }
    if (p.told_kill) {  // some sit in the kernel for a while first
      if (faults && in_kernel_[r] > 0 && --in_kernel_[r] > 0) return;
      return group_.Exit(r, {true, 9});
    }
    if (p.told_term && !stuck_[r]) return group_.Exit(r, Chance(2) ? ExitStatus{false, 0} : ExitStatus{true, 15});
    if (faults && Chance(150)) {
      static constexpr int kCodes[] = {70, 71, 72, 74, 75, 0, 1, 69};
      return group_.Exit(r, Chance(2) ? ExitStatus{true, 11} : ExitStatus{false, kCodes[Next(8)]});
    }
    if (stuck_[r]) return;  // hangs: says nothing, does nothing
    if (faults && Chance(60)) Lie(r);
    if (!p.alive || group_.machine.state() == GroupState::kStopping) return;
    switch (stage_[r]) {
      case 0: Do(EventKind::kAttached, r); ++stage_[r]; break;
      case 1: case 2: case 3: {
        GroupEvent e = group_.Event(EventKind::kProgress, r);
        e.bytes = static_cast<uint64_t>(stage_[r]) * 10;
        e.warming = stage_[r] == 3;
        group_.Feed(e);
        ++stage_[r];
        break;
      }
      case 4: Do(EventKind::kReady, r); ++stage_[r]; break;
      default: {
        GroupEvent e = group_.Event(EventKind::kHeartbeat, r);
        e.step = ++step_;
        e.duration = milliseconds(10);
        e.outstanding = Chance(2);
        if (faults && Chance(200)) stuck_[r] = true;
        group_.Feed(e);
        GroupEvent s = group_.Event(EventKind::kStep, r);
        s.step = ++step_;
        s.duration = milliseconds(10);
        group_.Feed(s);
      }
    }
  }

  // Messages out of order, of other generations, of other ranks.
  void Lie(uint32_t r) {
    static constexpr EventKind kKinds[] = {EventKind::kAttached, EventKind::kReady, EventKind::kProgress, EventKind::kStep,
                                           EventKind::kHeartbeat, EventKind::kLinkLost, EventKind::kFinding};
    GroupEvent e = group_.Event(kKinds[Next(7)], r);
    if (e.kind == EventKind::kFinding) e.severity = static_cast<Severity>(Next(4));
    if (Chance(2)) e.generation = Generation(e.generation.v + Next(3) - 1);
    if (Chance(4)) e.rank = Rank(static_cast<uint32_t>(Next(10)));
    e.step = Next(UINT64_MAX);
    e.since_change = seconds(Next(100000));
    e.duration = milliseconds(Next(1000));
    e.bytes = Next(UINT64_MAX);
    const Generation before = group_.machine.generation();
    group_.Feed(e);
    Must(group_.machine.generation() == before, "a message started a generation");
  }

  uint64_t random_;
  FakeGroup group_;
  std::vector<bool> stuck_;
  std::vector<int> stage_;
  std::vector<Generation> life_;
  std::vector<int> in_kernel_;
  uint64_t step_ = 0;
  std::array<bool, kGroupStates> seen_{};
};

TEST_CASE("After the faults stop the group serves within its bound, whatever the processes did before") {
  std::vector<uint64_t> seeds;
  for (uint64_t s = 1; s <= 300; ++s) seeds.push_back(s);
  seeds.push_back(EntropySeed());
  uint64_t incidents = 0;
  std::array<bool, kGroupStates> seen{};
  for (const uint64_t seed : seeds) {
    INFO("seed " << seed);
    Simulation simulation(seed);
    simulation.Run();
    incidents += simulation.incidents();
    for (int s = 0; s < kGroupStates; ++s) seen[static_cast<size_t>(s)] = seen[static_cast<size_t>(s)] || simulation.was(static_cast<GroupState>(s));
  }
  // The faults were real, and took the machine everywhere they can.
  CHECK(incidents > 4 * seeds.size());
  for (const GroupState s : {GroupState::kSpawning, GroupState::kLoading, GroupState::kWarming, GroupState::kServing, GroupState::kStopping,
                             GroupState::kBackoff, GroupState::kQuarantined, GroupState::kUnkillable}) {
    INFO(GroupStateName(s));
    CHECK(seen[static_cast<size_t>(s)]);
  }
}

TEST_CASE("S4: a crash loop stays within the restart intensity, and is quarantined") {
  GroupOptions options;
  FakeGroup g(options, 7);
  g.Feed(g.Event(EventKind::kStart));
  const Instant end = g.now + std::chrono::hours(2);
  bool quarantined = false;
  while (g.now < end) {
    while (!g.spawn_pending.empty()) g.AnswerSpawn(true);
    if (g.processes[0].alive) g.Exit(0, {true, 11});
    quarantined = quarantined || g.machine.state() == GroupState::kQuarantined;
    if (g.machine.NextDeadline() == Instant::max()) break;
    g.now = std::max(g.now, g.machine.NextDeadline());
    g.Feed({});
  }
  CHECK(quarantined);
  // intensity + 1 launches open the breaker; what the half-open tries add is one a quarantine.
  for (size_t i = 0; i < g.launches.size(); ++i) {
    size_t n = 0;
    for (size_t j = i; j < g.launches.size() && g.launches[j] - g.launches[i] < options.restart.window; ++j) ++n;
    CHECK(n <= options.restart.intensity + 1 + 4);
  }
  CHECK(g.launches.size() < 40);  // two hours of crashing
}

}  // namespace
}  // namespace holdfast::supervisor

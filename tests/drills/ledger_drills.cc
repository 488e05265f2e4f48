// T4: bugs that were or could be, each kept behind a switch. The suite must catch each one; how, and after how many steps, is printed.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "tests/sim/commands.h"
#include "tests/sim/interleaving.h"
#include "worker/kv/drill.h"

using namespace holdfast;
using kv::Drill;

namespace {

struct Case {
  Drill drill;
  const char* name;
  uint64_t seeds;          // of random commands to try, at most
  uint32_t ranks = 1;
  bool newest_first = false;
};

const Case kCases[] = {
    {Drill::kFreeTokenCommit, "commit frees the duplicate and leaves the row naming it", 300},
    {Drill::kDisplacingRevive, "commit displaces a page under its readers", 300},
    {Drill::kReleaseInFlight, "cancel releases with a step in flight", 300},
    {Drill::kSlideOnLaunched, "windows slide on the launched position", 300},
    {Drill::kNoReservation, "admission without reservation", 300},
    {Drill::kFloorWithoutWindows, "the floor leaves out the windows", 300},
    {Drill::kCadenceSlide, "windows slide every 32nd step", 300},
    {Drill::kDedupKeepsTally, "de-duplication forgets the row's tally", 300},
    {Drill::kHealMoves, "healing moves the page instead of sharing it", 300},
    {Drill::kMatchShortWindow, "a match needs one block less than the window", 300},
    {Drill::kTieByAddress, "victims by something that differs between ranks", 300, 2},
    {Drill::kQuarantineReturns, "a quarantined page goes back to the free list", 600},
    {Drill::kSettleOutOfOrder, "the newest step settles first", 300, 1, true},
    {Drill::kReleaseAtStop, "a row is released at its stop with a step ahead in flight", 300},
    {Drill::kCommitAwaited, "a block is committed with the step that computes it in flight", 300},
    {Drill::kAheadOfEnd, "a decode is launched ahead of a last token", 300},
    {Drill::kUnknownToken, "an ended request takes an untold token for 0", 300},
};

struct Armed {
  explicit Armed(Drill drill) { kv::drill::active = drill; }
  ~Armed() { kv::drill::active = Drill::kNone; }
};

}  // namespace

TEST_CASE("the drill build without a drill passes") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const sim::CommandOutcome outcome = sim::RunCommands(sim::DrawConfig(seed), sim::DrawCommands(seed, 200));
    INFO("seed " << seed);
    CHECK(outcome.error == "");
  }
  for (bool reader_first : {false, true}) {
    uint64_t steps = 0;
    CHECK(sim::RunInterleaving({.reader_ends_first = reader_first}, &steps) == "");
  }
}

TEST_CASE("random commands catch every drill") {
  for (const Case& c : kCases) {
    DYNAMIC_SECTION(c.name) {
      const Armed armed(c.drill);
      bool killed = false;
      for (uint64_t seed = 1; seed <= c.seeds && !killed; ++seed) {
        sim::CommandConfig config = sim::DrawConfig(seed);
        config.ranks = c.ranks;
        config.newest_first = c.newest_first;
        const std::vector<sim::Command> commands = sim::DrawCommands(seed, 300);
        const sim::CommandOutcome outcome = sim::RunCommands(config, commands);
        if (outcome.error.empty()) continue;
        killed = true;
        const std::vector<sim::Command> least = sim::Shrink(config, commands);
        const sim::CommandOutcome shrunk = sim::RunCommands(config, least);
        fmt::print("drill: {}: seed {}, command {}, step {}; shrunk to {} commands, {} steps: {}\n", c.name, seed, outcome.at, outcome.steps,
                   least.size(), shrunk.steps, shrunk.error);
      }
      CHECK(killed);
    }
  }
}

TEST_CASE("the least interleaving catches the report's bug at the commit that makes it") {
  for (Drill drill : {Drill::kFreeTokenCommit, Drill::kDisplacingRevive}) {
    for (bool reader_first : {false, true}) {
      const Armed armed(drill);
      uint64_t steps = 0;
      const std::string what = sim::RunInterleaving({.reader_ends_first = reader_first}, &steps);
      fmt::print("drill {}: {}\n", static_cast<int>(drill), what);
      CHECK(what.find("B committed") != std::string::npos);
      CHECK(steps == 4);
    }
  }
}

TEST_CASE("a handle of an earlier life is accepted only by the drill") {
  for (bool armed : {false, true}) {
    const Armed drill(armed ? Drill::kNoGenerationCheck : Drill::kNone);
    kv::Arena arena(0, 1, 1);
    kv::PageRef first = arena.Take();
    kv::PageRef stale = kv::TestPeer::Forge(0, first.page(), first.generation());
    arena.Drop(std::move(first));
    kv::PageRef second = arena.Take();
    const bool dropped = arena.Drop(std::move(stale));
    CHECK(dropped == armed);  // armed: the second owner's page is gone under it
    CHECK((arena.word(0).kind() == kv::PageKind::kFree) == armed);
    kv::TestPeer::Forget(second);
  }
  fmt::print("drill: no generation check: killed by the state-word table in 0 steps\n");
}

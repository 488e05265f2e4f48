// Logs of random command sequences for the second oracle: kv_log FIRST COUNT [COMMANDS] writes those of the seeds FIRST, FIRST + 1, ...
// (tests/sim/transcript.h says how). The runs themselves are checked as the property test checks them; exits 1 when one failed.
#include <fmt/format.h>

#include <cstdlib>

#include "tests/sim/commands.h"

using namespace holdfast;

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: kv_log FIRST COUNT [COMMANDS]\n");
    return 64;
  }
  const uint64_t first = std::strtoull(argv[1], nullptr, 10), count = std::strtoull(argv[2], nullptr, 10);
  const size_t commands = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 300;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    sim::CommandConfig config = sim::DrawConfig(seed);
    std::string transcript;
    config.transcript = &transcript;
    const sim::CommandOutcome outcome = sim::RunCommands(config, sim::DrawCommands(seed, commands));
    fmt::print("log {}\n{}", seed, transcript);
    if (!outcome.error.empty()) {
      fmt::print(stderr, "seed {} command {}: {}\n", seed, outcome.at, outcome.error);
      return 1;
    }
  }
  fmt::print("end\n");
  return 0;
}

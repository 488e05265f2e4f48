#pragma once
// Runs scheduler and ledger from a recording (format.h), without a model, and compares the digest at every step.
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace holdfast::replay {

struct Divergence {
  uint64_t step = 0;                   // the step whose digest differs first
  uint64_t entry = 0;                  // 0-based, in the recording
  std::string what;                    // "planned 3 entries, recorded 2"
};

struct ReplayReport {
  std::string version;                 // of the worker that recorded
  uint64_t generation = 0;
  uint32_t rank = 0;
  uint64_t entries = 0;
  uint64_t requests = 0;
  uint64_t steps = 0;                  // settled with the recorded digest
  uint64_t digest = 0;                 // after the last entry
  bool full = false;                   // the recording ran out of room: the life went on beyond it
  std::optional<uint64_t> unfinished;  // the oldest step that was planned and never settled: what ran when the recording ended
  std::vector<std::string> findings;   // that the replay found itself, "severity kind: detail"; at most 100
  std::optional<Divergence> divergence;
  bool same() const { return !divergence.has_value(); }
};

// kInvalidArgument: not a recording, or one of another format. kDataLoss: damaged, with the place. Any bytes are safe to give.
absl::StatusOr<ReplayReport> Replay(std::span<const std::byte> recording);

// The same of a file; or, for an incident bundle's folder, of each recording in it (replay-r*.log). kNotFound when there is none.
struct NamedReport {
  std::string path;
  absl::StatusOr<ReplayReport> report;
};
absl::StatusOr<std::vector<NamedReport>> ReplayBundle(const std::string& path);

// The report in words, one fact a line.
std::string ToText(const NamedReport& report);

// `holdfast replay BUNDLE`: argv[0] is "replay". Exit status 0: same digests; 1: they differ; 2: cannot be replayed; 64: wrong usage.
int ReplayCommand(int argc, const char* const* argv);

}  // namespace holdfast::replay

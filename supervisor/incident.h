#pragma once
// One folder per loss, for people and for `holdfast replay`: what happened, where, after what, and the worker's last words.
//   <incidents>/<UTC time>-g<generation>-r<rank>-<cause>/
//     incident.json   cause, phase, exit, last step, findings, configuration
//     log-r<rank>.txt the last lines of each rank
//     flight-r<rank>.bin  the worker's flight record, if it left one
//     replay-r<rank>.log  what its scheduler was told and decided, for `holdfast replay`; there whatever ended it
// Bounded in number and bytes; the oldest go first. Failing to write (disk full) is logged and never disturbs a restart.
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/loss.h"

namespace holdfast::supervisor {

struct IncidentOptions {
  size_t max_bundles = 20;
  uint64_t max_total_bytes = 64ull << 20;
  uint64_t max_flight_bytes = 16ull << 20;  // a larger flight record is left out
  uint64_t max_replay_bytes = 64ull << 20;  // likewise
};

struct IncidentInput {
  Loss loss;
  int64_t unix_ms = 0;
  std::string failure_message;                       // the worker's own words, if it sent any
  std::vector<std::string> findings;                 // ready lines, newest last
  std::vector<std::string> requests;                 // in flight at the loss: "trace prompt generated"
  std::vector<std::string> command_line;
  std::vector<std::vector<std::string>> log_lines;   // [rank]
  std::vector<std::string> flight_records;           // [rank] path, may not exist
  std::vector<int> recordings;                       // [rank] descriptor, -1 = none; bytes 8 to 15 say how many bytes are written
  std::string version;
};

struct IncidentSummary {
  std::string id;      // the folder's name
  std::string path;
  int64_t unix_ms = 0;
  uint64_t generation = 0;
  uint32_t rank = 0;
  std::string cause, phase, detail;
};

class IncidentStore {
 public:
  IncidentStore(std::string folder, IncidentOptions options) : folder_(std::move(folder)), options_(options) {}

  absl::StatusOr<IncidentSummary> Write(const IncidentInput& input);
  // Newest first, those of earlier supervisors read from their folders; one whose incident.json cannot be read has what its name says.
  std::vector<IncidentSummary> List(size_t limit) const;

 private:
  void Trim() const;

  std::string folder_;
  IncidentOptions options_;
  std::vector<IncidentSummary> written_;
  uint64_t serial_ = 0;
};

}  // namespace holdfast::supervisor

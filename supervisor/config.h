#pragma once
// The supervisor's command line. Flags of the model and the engine are the worker's: they are collected in order and forwarded untouched,
// and a bad value is the worker's to refuse (exit 64). The supervisor reads only what it needs itself.
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "supervisor/group_machine.h"
#include "supervisor/incident.h"
#include "supervisor/poison.h"

namespace holdfast::supervisor {

struct SupervisorConfig {
  std::string runtime_dir;               // empty = RuntimeDir::Default()
  std::string listen;                    // host:port of Engine and Admin besides the unix socket; empty = none
  std::string worker_binary;             // empty = holdfast-worker beside our own executable
  std::vector<std::string> worker_args;  // forwarded, in the order given
  std::string model;                     // for status only
  uint32_t max_queue = 256;              // requests accepted beyond max-running-requests
  bool exit_on_permanent = false;        // exit with the worker's code when no restart can help
  std::string log_level = "info";
  GroupOptions group;
  PoisonOptions poison;
  IncidentOptions incidents;
};

// Parses argv. ok with `help` filled: print it and exit 0. kInvalidArgument: what was wrong (exit 64).
absl::StatusOr<SupervisorConfig> ParseCommandLine(int argc, const char* const* argv, std::string* help);

}  // namespace holdfast::supervisor

// holdfast-supervisor: see config.h for the flags, supervisor.h for the loop.
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "proto/base/exit_code.h"
#include "proto/base/fault.h"
#include "proto/base/log.h"
#include "proto/base/signals.h"
#include "supervisor/config.h"
#include "supervisor/supervisor.h"

namespace holdfast::supervisor {
namespace {

int Die(ExitCode code, const std::string& message) {
  std::fprintf(stderr, "holdfast-supervisor: %s\n", message.c_str());
  return static_cast<int>(code);
}

int Main(int argc, char** argv) {
  ExitWhenExhausted("holdfast-supervisor");
  std::string help;
  absl::StatusOr<SupervisorConfig> config = ParseCommandLine(argc, argv, &help);
  if (!config.ok()) return Die(ExitCode::kConfig, std::string(config.status().message()));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return 0;
  }
  std::string error;
  // HOLDFAST_FAULT names points of either process; a name the supervisor does not have is never hit here.
  if (!InitFaults(&error)) return Die(ExitCode::kConfig, error);
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(config->log_level, &level);
  SetLogLevel(level);
  SetLogContext("supervisor");
  if (config->worker_binary.empty()) {
    std::error_code ec;
    config->worker_binary = (std::filesystem::read_symlink("/proc/self/exe", ec).parent_path() / "holdfast-worker").string();
  }
  const std::string path = config->runtime_dir.empty() ? RuntimeDir::Default() : config->runtime_dir;
  absl::StatusOr<RuntimeDir> dir = RuntimeDir::Open(path);
  if (!dir.ok()) return Die(ExitCode::kEnvironment, std::string(dir.status().message()));

  DieWithParentIfAsked();
  // Before any thread exists, so that all inherit the mask.
  UniqueFd signals = BlockSignals({SIGTERM, SIGINT, SIGCHLD});
  Supervisor supervisor(*std::move(config), *std::move(dir), std::move(signals), SystemdNotify::FromEnvironment(), Clock::Real());
  if (const absl::Status status = supervisor.Start(); !status.ok()) return Die(ExitCode::kEnvironment, std::string(status.message()));
  LeaveProcess(supervisor.Run());
}

}  // namespace
}  // namespace holdfast::supervisor

int main(int argc, char** argv) { return holdfast::supervisor::Main(argc, argv); }

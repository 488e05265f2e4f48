#pragma once
// How a Holdfast process says why it ended. The supervisor and systemd (RestartPreventExitStatus=64 65) decide by these.
#include <string_view>

namespace holdfast {

enum class ExitCode : int {
  kOk = 0,                 // asked to stop
  kConfig = 64,            // impossible flag or configuration: permanent
  kModel = 65,             // unusable model file: permanent until the file changes
  kEnvironment = 69,       // port or runtime directory taken, no memory: the environment must change
  kIntegrity = 70,         // structural finding: incident, restart, counted
  kDevice = 71,            // device error: restart when the device is free, counted
  kDeviceBusy = 72,        // device busy: short retry, not counted
  kSupervisorGone = 73,    // the lifeline closed
  kPeerLost = 74,          // a collective failed: restart, blame the peer
  kFenced = 75,            // a newer generation exists: ignore
};

std::string_view ExitCodeName(ExitCode code);

// True when starting again with the same configuration and file cannot help.
bool IsPermanent(int exit_status);

// From now on an uncaught std::bad_alloc, or std::system_error of a thread or descriptor that is not to be had, on whatever thread, ends the
// process with kEnvironment and a line on stderr; any other uncaught exception aborts as ever. `process` outlives the program.
void ExitWhenExhausted(const char* process);

// Flushes stdio and ends the process without running destructors. The last line of a main that has stopped in order: gRPC 1.51 can abort
// in its own teardown (the shutdown of the callback queue races with its poller; about one exit in 150 seen), and what a process gives
// back at its end it gives back to the kernel anyway.
[[noreturn]] void LeaveProcess(int status);

}  // namespace holdfast

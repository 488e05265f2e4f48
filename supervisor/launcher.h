#pragma once
// Starts worker processes and knows when they end. posix_spawn, never fork; call from the main thread only (the child's PDEATHSIG is
// tied to the thread that spawned it).
//
// The child gets: stdin from /dev/null, stdout and stderr into a pipe of ours, descriptor 3 = the read end of its lifeline (EOF = we are
// gone), descriptor 4 = the spec's keep_fd and 5 its group_fd, if any, a process group of its own (Ctrl-C at a terminal reaches the supervisor alone), default signal dispositions, nothing else.
// Signals go through the pidfd, so they can only ever reach the process that was spawned.
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "proto/base/unique_fd.h"
#include "supervisor/loss.h"

namespace holdfast::supervisor {

inline constexpr int kLifelineFd = 3;  // in the child
inline constexpr int kKeepFd = 4;      // in the child, when the spec has one
inline constexpr int kGroupFd = 5;     // likewise

struct LaunchSpec {
  std::string binary;                    // path, and argv[0]
  std::vector<std::string> args;         // without argv[0]
  std::vector<std::string> environment;  // "NAME=value", added to ours (or replacing)
  int binary_fd = -1;                    // ours (O_PATH will do): this file is executed, whatever is at the path by now; -1 = the path
  int keep_fd = -1;                      // ours; the child gets a copy as kKeepFd
  int group_fd = -1;                     // ours; the child gets a copy as kGroupFd
};

// A process we spawned and have not reaped. Move-only; the destructor closes the lifeline, which ends an obedient child.
class ChildProcess {
 public:
  ChildProcess() = default;

  pid_t pid() const { return pid_; }
  int pid_fd() const { return pid_fd_.get(); }  // readable once the process has ended
  int log_fd() const { return log_.get(); }     // non-blocking read end of its stdout and stderr
  UniqueFd TakeLog() { return std::move(log_); }
  bool running() const { return pid_ > 0; }

  // Reaps it if it has ended: true and the status; afterwards running() is false.
  bool Reap(ExitStatus* status);
  void Signal(int signal) const;
  void CloseLifeline() { lifeline_.Reset(); }

 private:
  friend absl::StatusOr<ChildProcess> Launch(const LaunchSpec& spec);
  pid_t pid_ = 0;
  UniqueFd pid_fd_;
  UniqueFd lifeline_;
  UniqueFd log_;
};

// kNotFound, kPermissionDenied, kInvalidArgument ... : the binary cannot be executed, and will not be until something changes on disk.
// kResourceExhausted: out of processes, descriptors or memory.
absl::StatusOr<ChildProcess> Launch(const LaunchSpec& spec);

}  // namespace holdfast::supervisor

#include "frontend/cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include <fmt/format.h>

#include "proto/base/exit_code.h"

extern char** environ;

namespace holdfast::cli {

absl::StatusOr<Child> Child::Spawn(const std::vector<std::string>& argv, bool capture_stdout) {
  int pipe_fds[2] = {-1, -1};
  if (capture_stdout && ::pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(fmt::format("pipe: {}", std::strerror(errno)));
  }
  UniqueFd read_end(pipe_fds[0]), write_end(pipe_fds[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (capture_stdout) posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Own process group: Ctrl-C reaches only this process, which then ends its children in order.
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> args;
  for (const std::string& a : argv) args.push_back(const_cast<char*>(a.c_str()));
  args.push_back(nullptr);
  Child child;
  const int rc = ::posix_spawn(&child.pid_, argv[0].c_str(), &actions, &attributes, args.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (rc != 0) return absl::NotFoundError(fmt::format("cannot run {}: {}", argv[0], std::strerror(rc)));
  child.pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid_, 0)));
  child.out_ = std::move(read_end);
  return child;
}

void Child::Signal(int signal) const {
  if (!status_) ::kill(pid_, signal);
}

std::optional<int> Child::Poll() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return status_;
}

std::string OwnFolder() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) return ".";
  const std::string full(path, static_cast<size_t>(n));
  return full.substr(0, full.rfind('/'));
}

std::string DescribeStatus(int wait_status) {
  if (WIFSIGNALED(wait_status)) return fmt::format("signal {} ({})", WTERMSIG(wait_status), ::strsignal(WTERMSIG(wait_status)));
  const int code = WEXITSTATUS(wait_status);
  return fmt::format("exit {} ({})", code, ExitCodeName(static_cast<ExitCode>(code)));
}

}  // namespace holdfast::cli

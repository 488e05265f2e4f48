#include "supervisor/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <utility>

#include <fmt/format.h>

#include "proto/base/check.h"

extern char** environ;

namespace holdfast::supervisor {
namespace {

// What systemd or `holdfast serve` tell the supervisor is not for its children.
constexpr std::string_view kNotInherited[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID",
                                              "LISTEN_FDNAMES", "HOLDFAST_DIE_WITH_PARENT"};

std::vector<std::string> Environment(const std::vector<std::string>& added) {
  std::map<std::string, std::string, std::less<>> vars;
  const auto put = [&vars](std::string_view text) {
    const size_t eq = text.find('=');
    if (eq != std::string_view::npos) vars[std::string(text.substr(0, eq))] = std::string(text.substr(eq + 1));
  };
  for (char** e = environ; *e != nullptr; ++e) put(*e);
  for (const std::string_view name : kNotInherited) vars.erase(std::string(name));
  for (const std::string& a : added) put(a);
  std::vector<std::string> out;
  for (const auto& [name, value] : vars) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

class FileActions {
 public:
  FileActions() { HF_CHECK(::posix_spawn_file_actions_init(&actions_) == 0); }
  ~FileActions() { ::posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

class Attributes {
 public:
  Attributes() { HF_CHECK(::posix_spawnattr_init(&attributes_) == 0); }
  ~Attributes() { ::posix_spawnattr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  posix_spawnattr_t* get() { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

bool Pipe(UniqueFd* read_end, UniqueFd* write_end) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return false;
  read_end->Reset(fds[0]);
  write_end->Reset(fds[1]);
  return true;
}

// dup2 in the child must not overwrite a descriptor that a later dup2 still needs: move ours out of the way of 0..5.
bool MoveUp(UniqueFd* fd) {
  if (fd->get() > kGroupFd) return true;
  const int moved = ::fcntl(fd->get(), F_DUPFD_CLOEXEC, kGroupFd + 1);
  if (moved < 0) return false;
  fd->Reset(moved);
  return true;
}

absl::Status FromErrno(int error, const std::string& what) {
  const std::string text = fmt::format("{}: {}", what, ::strerror(error));
  switch (error) {
    case ENOENT: case ENOTDIR: return absl::NotFoundError(text);
    case EACCES: case EPERM: return absl::PermissionDeniedError(text);
    case EAGAIN: case ENOMEM: case EMFILE: case ENFILE: return absl::ResourceExhaustedError(text);
    default: return absl::InvalidArgumentError(text);
  }
}

}  // namespace

bool ChildProcess::Reap(ExitStatus* status) {
  if (pid_ <= 0) return false;
  siginfo_t info{};
  int r;
  do {
    r = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
  } while (r != 0 && errno == EINTR);
  if (r == 0 && info.si_pid == 0) return false;
  if (r == 0) {
    status->signalled = info.si_code != CLD_EXITED;
    status->code = info.si_status;
  } else {  // ECHILD: somebody else reaped it; how it ended is lost, that it ended is not
    *status = ExitStatus{true, 0};
  }
  pid_ = 0;
  pid_fd_.Reset();
  lifeline_.Reset();
  return true;
}

void ChildProcess::Signal(int signal) const {
  if (pid_ <= 0) return;
  ::syscall(SYS_pidfd_send_signal, pid_fd_.get(), signal, nullptr, 0);
}

absl::StatusOr<ChildProcess> Launch(const LaunchSpec& spec) {
  ChildProcess child;
  UniqueFd lifeline_read, log_write, null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null || !Pipe(&lifeline_read, &child.lifeline_) || !Pipe(&child.log_, &log_write)) return FromErrno(errno, "cannot start a worker");
  if (!MoveUp(&lifeline_read) || !MoveUp(&log_write) || !MoveUp(&null)) return FromErrno(errno, "cannot start a worker");
  UniqueFd keep, group;
  for (const auto& [from, to] : {std::pair{spec.keep_fd, &keep}, std::pair{spec.group_fd, &group}}) {
    if (from < 0) continue;
    to->Reset(::fcntl(from, F_DUPFD_CLOEXEC, kGroupFd + 1));
    if (!*to) return FromErrno(errno, "cannot start a worker");
  }
  ::fcntl(child.log_.get(), F_SETFL, O_NONBLOCK);

  FileActions actions;
  ::posix_spawn_file_actions_adddup2(actions.get(), null.get(), 0);
  ::posix_spawn_file_actions_adddup2(actions.get(), log_write.get(), 1);
  ::posix_spawn_file_actions_adddup2(actions.get(), log_write.get(), 2);
  ::posix_spawn_file_actions_adddup2(actions.get(), lifeline_read.get(), kLifelineFd);
  // What is not given is closed: number 4 and 5 may be something of ours.
  const auto give = [&](const UniqueFd& fd, int number) {
    if (fd) {
      ::posix_spawn_file_actions_adddup2(actions.get(), fd.get(), number);
    } else {
      ::posix_spawn_file_actions_addclose(actions.get(), number);
    }
  };
  give(keep, kKeepFd);
  give(group, kGroupFd);
  ::posix_spawn_file_actions_addclosefrom_np(actions.get(), kGroupFd + 1);

  Attributes attributes;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(attributes.get(), &none);
  ::posix_spawnattr_setsigdefault(attributes.get(), &all);
  ::posix_spawnattr_setpgroup(attributes.get(), 0);
  ::posix_spawnattr_setflags(attributes.get(), POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<std::string> args = spec.args;
  args.insert(args.begin(), spec.binary);
  std::vector<std::string> environment = Environment(spec.environment);
  const std::vector<char*> argv = Pointers(args), envp = Pointers(environment);
  pid_t pid = 0;
  int error = ENOENT;
  // glibc reports a failed exec here as well (the child shares our memory until then).
  const auto spawn = [&](const std::string& path) {
    error = ::posix_spawn(&pid, path.c_str(), actions.get(), attributes.get(), argv.data(), envp.data());
  };
  // By our descriptor: the child has closed its own by then. Where /proc does not show it to the child, the path has to do.
  if (spec.binary_fd >= 0) spawn(fmt::format("/proc/{}/fd/{}", ::getpid(), spec.binary_fd));
  if (error == ENOENT || error == EACCES) spawn(spec.binary);
  if (error != 0) return FromErrno(error, fmt::format("cannot execute {}", spec.binary));
  child.pid_ = pid;
  child.pid_fd_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // close-on-exec by definition
  if (!child.pid_fd_) {
    const int why = errno;
    ::kill(pid, SIGKILL);  // ours and not reaped: the number cannot have been given to another process
    ::waitpid(pid, nullptr, 0);
    child.pid_ = 0;
    return FromErrno(why, "pidfd_open");
  }
  return child;
}

}  // namespace holdfast::supervisor

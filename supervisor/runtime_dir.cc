#include "supervisor/runtime_dir.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

namespace holdfast::supervisor {

std::string RuntimeDir::Default() {
  if (const char* xdg = std::getenv("XDG_RUNTIME_DIR"); xdg != nullptr && *xdg != 0) return std::string(xdg) + "/holdfast";
  if (::geteuid() == 0) return "/run/holdfast";
  return fmt::format("/tmp/holdfast-{}", ::geteuid());
}

absl::StatusOr<RuntimeDir> RuntimeDir::Open(const std::string& path) {
  RuntimeDir dir;
  std::error_code ec;
  dir.path_ = std::filesystem::absolute(path, ec).lexically_normal().string();
  while (dir.path_.size() > 1 && dir.path_.back() == '/') dir.path_.pop_back();
  constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;
  if (dir.socket().size() > kMaxSocketPath) {
    return absl::FailedPreconditionError(fmt::format("the runtime directory {} is too long: its socket's path has {} bytes, at most {} work",
                                                     dir.path_, dir.socket().size(), kMaxSocketPath));
  }
  if (::mkdir(dir.path_.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(fmt::format("cannot make the runtime directory {}: {}", dir.path_, ::strerror(errno)));
  }
  struct stat st{};
  if (::lstat(dir.path_.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("the runtime directory {} is not a directory", dir.path_));
  }
  if (st.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(
        fmt::format("the runtime directory {} belongs to user {}, not to us ({})", dir.path_, st.st_uid, ::geteuid()));
  }
  // systemd makes it 0755; we may tighten what is ours.
  if ((st.st_mode & 0077) != 0 && ::chmod(dir.path_.c_str(), 0700) != 0) {
    return absl::FailedPreconditionError(fmt::format("cannot close {} to others: {}", dir.path_, ::strerror(errno)));
  }
  const std::string lock_path = dir.path_ + "/supervisor.lock";
  dir.lock_.Reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!dir.lock_) return absl::FailedPreconditionError(fmt::format("cannot open {}: {}", lock_path, ::strerror(errno)));
  if (::flock(dir.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    char text[32] = {};
    const ssize_t n = ::pread(dir.lock_.get(), text, sizeof text - 1, 0);
    const long pid = n > 0 ? std::strtol(text, nullptr, 10) : 0;
    return absl::AlreadyExistsError(fmt::format("another supervisor (pid {}) uses {}; stop it, or give this one its own --runtime-dir",
                                                pid, dir.path_));
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(dir.lock_.get(), 0) != 0 || ::pwrite(dir.lock_.get(), pid.data(), pid.size(), 0) < 0) {
    return absl::FailedPreconditionError(fmt::format("cannot write {}: {}", lock_path, ::strerror(errno)));
  }
  // What a supervisor that was killed left behind; nobody else can be using it while we hold the lock.
  dir.Clean();
  std::filesystem::remove(dir.stop_asked(), ec);
  return dir;
}

std::string RuntimeDir::flight_record(uint64_t generation, uint32_t rank) const {
  return fmt::format("{}/flight-g{}-r{}.bin", path_, generation, rank);
}

void RuntimeDir::NoteStopAsked() const {
  const UniqueFd mark(::open(stop_asked().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
}

void RuntimeDir::Clean() const {
  std::error_code ec;
  std::filesystem::remove(socket(), ec);
  for (const auto& entry : std::filesystem::directory_iterator(path_, ec)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("flight-g", 0) == 0) std::filesystem::remove(entry.path(), ec);
  }
}

}  // namespace holdfast::supervisor

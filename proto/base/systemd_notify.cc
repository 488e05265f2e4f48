#include "proto/base/systemd_notify.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include <fmt/format.h>

#include "proto/base/unique_fd.h"

namespace holdfast {
namespace {

std::string Extension(Duration more) {
  return fmt::format("EXTEND_TIMEOUT_USEC={}", std::chrono::duration_cast<std::chrono::microseconds>(more).count());
}

}  // namespace

SystemdNotify SystemdNotify::FromEnvironment() {
  const char* socket = std::getenv("NOTIFY_SOCKET");
  if (socket == nullptr || (*socket != '/' && *socket != '@')) return {};
  Duration watchdog{};
  const char* usec = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  const bool for_us = pid == nullptr || std::strtol(pid, nullptr, 10) == ::getpid();
  if (usec != nullptr && for_us) watchdog = std::chrono::microseconds(std::strtoll(usec, nullptr, 10));
  return SystemdNotify(socket, watchdog);
}

void SystemdNotify::Ready(const std::string& status) {
  ready_ = true;
  Send("READY=1\nSTATUS=" + status, true);
}

void SystemdNotify::Starting(const std::string& status, Duration more) {
  const Instant now = Clock::Real().Now();
  if (now < next_start_ && now + more <= promised_ + std::chrono::seconds(1)) return;
  next_start_ = now + std::chrono::seconds(1);
  if (ready_) return Status(status);
  promised_ = std::max(promised_, now + more);
  Send(Extension(more) + "\nSTATUS=" + status);
}

void SystemdNotify::Stopping(const std::string& status, Duration more) const {
  Send("STOPPING=1\n" + Extension(more) + "\nSTATUS=" + status, true);
}

void SystemdNotify::Send(const std::string& message, bool may_wait) const {
  if (socket_.empty()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_.size() >= sizeof address.sun_path) return;
  std::copy(socket_.begin(), socket_.end(), address.sun_path);
  if (socket_[0] == '@') address.sun_path[0] = 0;  // the abstract namespace
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const timeval patience{0, 250000};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  // A manager that does not listen is not our trouble.
  [[maybe_unused]] const ssize_t n = ::sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL | (may_wait ? 0 : MSG_DONTWAIT),
                                              reinterpret_cast<const sockaddr*>(&address), length);
}

}  // namespace holdfast

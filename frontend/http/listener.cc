#include "frontend/http/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace holdfast::http {
namespace {

absl::Status Unavailable(const std::string& what, int error) {
  std::string text = fmt::format("cannot listen on {}: {}", what, std::strerror(error));
  if (error == EADDRINUSE) text += " (another server has this address; stop it, or choose another port, 0 = any free one)";
  if (error == EACCES) text += " (ports below 1024 need privileges)";
  return absl::UnavailableError(text);
}

std::string FormatAddress(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    return fmt::format("{}:{}", text, ntohs(in.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    return fmt::format("[{}]:{}", text, ntohs(in.sin6_port));
  }
  return "unix";
}

}  // namespace

absl::StatusOr<Listener> Listener::Open(const std::string& host, uint16_t port) {
  Listener listener;
  constexpr std::string_view kUnix = "unix:";
  const absl::Status status =
      host.starts_with(kUnix) ? listener.OpenUnix(host.substr(kUnix.size())) : listener.OpenTcp(host, port);
  if (!status.ok()) return status;
  return listener;
}

absl::Status Listener::OpenTcp(const std::string& host, uint16_t port) {
  std::string name = host;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  const std::string what = fmt::format("{}:{}", host, port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(name.empty() ? nullptr : name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0) return absl::UnavailableError(fmt::format("cannot listen on {}: {}", what, gai_strerror(rc)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);

  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) {
      error = errno;
      continue;
    }
    const int on = 1, off = 0;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd.get(), a->ai_addr, a->ai_addrlen) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
      error = errno;
      continue;
    }
    sockaddr_storage real{};
    socklen_t size = sizeof real;
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&real), &size) != 0) {
      error = errno;
      continue;
    }
    family_ = a->ai_family;
    port_ = ntohs(a->ai_family == AF_INET ? reinterpret_cast<sockaddr_in&>(real).sin_port : reinterpret_cast<sockaddr_in6&>(real).sin6_port);
    address_ = FormatAddress(real);
    fd_ = std::move(fd);
    return absl::OkStatus();
  }
  return Unavailable(what, error);
}

absl::Status Listener::OpenUnix(const std::string& path) {
  const std::string what = "unix:" + path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return absl::UnavailableError(
        fmt::format("cannot listen on {}: the path must have 1 to {} bytes, it has {}", what, sizeof address.sun_path - 1, path.size()));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);

  struct stat st {};
  if (lstat(path.c_str(), &st) == 0) {
    if (!S_ISSOCK(st.st_mode)) return absl::UnavailableError(fmt::format("cannot listen on {}: a file that is no socket is there", what));
    const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!probe) return Unavailable(what, errno);
    // EAGAIN is a live listener with a full backlog; only a refusal shows that nobody listens any more.
    if (connect(probe.get(), raw, sizeof address) == 0 || errno != ECONNREFUSED) return Unavailable(what, EADDRINUSE);
    unlink(path.c_str());
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Unavailable(what, errno);
  fchmod(fd.get(), 0660);  // before bind: Linux gives the new file these bits less the umask, so it is never open wider
  if (bind(fd.get(), raw, sizeof address) != 0) return Unavailable(what, errno);
  if (chmod(path.c_str(), 0660) != 0) return Unavailable(what, errno);  // whatever the umask
  if (lstat(path.c_str(), &st) == 0) {
    unix_device_ = st.st_dev;
    unix_inode_ = st.st_ino;
  }
  unix_path_ = path;
  if (listen(fd.get(), SOMAXCONN) != 0) return Unavailable(what, errno);
  family_ = AF_UNIX;
  address_ = what;
  fd_ = std::move(fd);
  return absl::OkStatus();
}

Listener::~Listener() {
  if (unix_path_.empty()) return;
  struct stat st {};
  if (lstat(unix_path_.c_str(), &st) == 0 && st.st_dev == unix_device_ && st.st_ino == unix_inode_) unlink(unix_path_.c_str());
}

UniqueFd Listener::Accept(std::string* peer, int* error) const {
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  UniqueFd fd(accept4(fd_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  *error = fd ? 0 : errno;
  if (!fd) return fd;
  *peer = is_unix() ? "unix" : FormatAddress(from);
  if (!is_unix()) {
    const int on = 1, unsent = 128 << 10;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // The kernel takes no more than this beyond what is on the wire, so a slow reader shows in our own bounded buffer.
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);  // finds dead peers of long silent exchanges
  }
  return fd;
}

}  // namespace holdfast::http

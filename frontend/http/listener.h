#pragma once
// A listening socket: IPv4, IPv6 or a unix path. Close-on-exec and non-blocking from birth.
#include <absl/status/statusor.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "proto/base/unique_fd.h"

namespace holdfast::http {

class Listener final {
 public:
  // kUnavailable with the address and the cause. `host` is a name, an IPv4 or IPv6 address ("::" serves both families), or "unix:/path":
  // a stale socket file is replaced, a live one or another kind of file is not; the new file is for owner and group (0660).
  static absl::StatusOr<Listener> Open(const std::string& host, uint16_t port);

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }               // 0 for a unix path
  const std::string& address() const { return address_; }  // "127.0.0.1:8080", "[::1]:8080", "unix:/path"
  bool is_unix() const { return !unix_path_.empty(); }
  int family() const { return family_; }

  // A connection, or an invalid fd with the errno in *error. `peer` gets "127.0.0.1:51234" or "unix".
  UniqueFd Accept(std::string* peer, int* error) const;

 private:
  Listener() = default;
  absl::Status OpenTcp(const std::string& host, uint16_t port);
  absl::Status OpenUnix(const std::string& path);

  UniqueFd fd_;
  uint16_t port_ = 0;
  int family_ = 0;
  std::string address_;
  std::string unix_path_;
  dev_t unix_device_ = 0;   // of the file this listener made: only that one is removed
  ino_t unix_inode_ = 0;
};

}  // namespace holdfast::http

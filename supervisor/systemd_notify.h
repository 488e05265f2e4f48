#pragma once
// The notify protocol of systemd (sd_notify(3)), spoken directly: a datagram to $NOTIFY_SOCKET. Without that variable nothing is sent.
// The manager's queue is short: what may be lost (status, extensions, pings) never waits and extensions are sent at most once a second;
// READY and STOPPING wait up to a quarter of a second for room. Loop thread only.
#include <string>

#include "proto/base/clock.h"

namespace holdfast::supervisor {

class SystemdNotify {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  static SystemdNotify FromEnvironment();
  SystemdNotify() = default;
  SystemdNotify(std::string socket, Duration watchdog) : socket_(std::move(socket)), watchdog_(watchdog) {}

  void Ready(const std::string& status) const { Send("READY=1\nSTATUS=" + status, true); }
  void Status(const std::string& status) const { Send("STATUS=" + status); }
  void Stopping(const std::string& status) const { Send("STOPPING=1\nSTATUS=" + status, true); }
  void ExtendTimeout(Duration d) const;
  void Watchdog() const { Send("WATCHDOG=1"); }

  // Half the interval systemd asked for; zero = no watchdog.
  Duration watchdog_period() const { return watchdog_ / 2; }
  bool enabled() const { return !socket_.empty(); }

 private:
  void Send(const std::string& message, bool may_wait = false) const;

  std::string socket_;  // a path, or an abstract name that begins with '@'
  Duration watchdog_{};
  mutable Instant next_extension_{};
};

}  // namespace holdfast::supervisor

#pragma once
// The notify protocol of systemd (sd_notify(3)), spoken directly: a datagram to $NOTIFY_SOCKET. Without that variable nothing is sent.
// The manager's queue is short: what may be lost (status, extensions, pings) never waits and extensions are sent at most once a second;
// READY and STOPPING wait up to a quarter of a second for room. One thread only.
#include <string>

#include "proto/base/clock.h"

namespace holdfast {

class SystemdNotify {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  static SystemdNotify FromEnvironment();
  SystemdNotify() = default;
  SystemdNotify(std::string socket, Duration watchdog) : socket_(std::move(socket)), watchdog_(watchdog) {}

  void Ready(const std::string& status);
  void Status(const std::string& status) const { Send("STATUS=" + status); }
  // The way to READY goes on: the manager is to wait `more` from now. Sent at most once a second, unless it promises a second more than
  // what was promised. After the first READY only the status is sent: an extension puts the watchdog off, too.
  void Starting(const std::string& status, Duration more);
  // The end comes within `more` from now, whatever the unit's time-out says.
  void Stopping(const std::string& status, Duration more) const;
  void Watchdog() const { Send("WATCHDOG=1"); }

  // Half the interval systemd asked for; zero = no watchdog.
  Duration watchdog_period() const { return watchdog_ / 2; }
  bool enabled() const { return !socket_.empty(); }

 private:
  void Send(const std::string& message, bool may_wait = false) const;

  std::string socket_;  // a path, or an abstract name that begins with '@'
  Duration watchdog_{};
  bool ready_ = false;
  Instant next_start_{};      // of Starting
  Instant promised_{};
};

}  // namespace holdfast

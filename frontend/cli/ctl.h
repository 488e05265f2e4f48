#pragma once
// `holdfast ctl`: asks the supervisor itself, over its socket, so that it answers also when no frontend does.
#include <cstdint>
#include <optional>
#include <string>

namespace holdfast::cli {

struct CtlOptions {
  std::string target;           // "unix:/run/holdfast/supervisor.sock" or host:port
  bool json = false;
  double timeout_s = 10;
};

// Each prints to stdout and returns the exit status: 0; 1 the supervisor can't be reached or refused; 2 it is not ready (status only).
int CtlStatus(const CtlOptions& options);
int CtlRequests(const CtlOptions& options);
int CtlIncidents(const CtlOptions& options);
int CtlCache(const CtlOptions& options, uint32_t full_pages, uint32_t window_pages, bool cancel);
// clear: nullopt = list; "" or "all" = all; else a fingerprint.
int CtlQuarantine(const CtlOptions& options, const std::optional<std::string>& clear);
int CtlDrain(const CtlOptions& options, bool stop);
int CtlResume(const CtlOptions& options);

// Whether new requests are taken; false also where the supervisor doesn't answer within timeout_s. Prints nothing.
bool Accepting(const CtlOptions& options);

// Where a supervisor's socket usually is: $HOLDFAST_RUNTIME_DIR, $XDG_RUNTIME_DIR/holdfast, /run/holdfast, the newest /tmp/holdfast-*;
// empty when none exists.
std::string FindSupervisorSocket();

}  // namespace holdfast::cli

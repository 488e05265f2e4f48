#pragma once
// `holdfast serve`: starts a supervisor and a frontend for a person at a terminal, prints the one line `ready http://host:port` on stdout
// once the model answers, and keeps both running: a frontend or supervisor that dies is started again (with backoff); the worker is
// the supervisor's business. SIGTERM or Ctrl-C ends everything within 5 s.
#include <string>
#include <vector>

namespace holdfast::cli {

struct ServeOptions {
  std::string model;
  std::string host = "127.0.0.1";
  int port = 8080;                             // 0 = any free port
  std::string runtime_dir;                     // empty: a fresh folder of its own, removed at the end
  std::string log_level = "warn";
  double drain_timeout_s = 4;                  // of running streams, at a stop
  std::vector<std::string> frontend_flags;     // passed through
  std::vector<std::string> supervisor_flags;   // passed through (the supervisor passes model flags on to the worker)
};

// Returns the process's exit status: 0 asked to stop, 64/65 the configuration or the model is at fault, 69 port or folder taken.
int Serve(const ServeOptions& options);

}  // namespace holdfast::cli

#pragma once
// What ends a worker from outside: the supervisor's death (EOF on the inherited pipe, and PDEATHSIG as the second line) and SIGTERM/SIGINT.
#include <atomic>
#include <thread>

#include "proto/base/unique_fd.h"
#include "worker/link/supervisor_link.h"

namespace holdfast::worker {

class Lifeline {
 public:
  // Call in main before other threads start: blocks SIGTERM and SIGINT for all of them. `lifeline_fd` < 0: no supervisor (tests, bench).
  Lifeline(int lifeline_fd, Inbox* inbox);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // While loading nothing is worth finishing: a request to stop exits at once with 0. Serving: it is posted to the inbox.
  void SetServing() { serving_.store(true); }

 private:
  void Watch();

  UniqueFd lifeline_;
  UniqueFd signals_;
  UniqueFd quit_;
  Inbox* const inbox_;
  std::atomic<bool> serving_{false};
  std::thread thread_;
};

}  // namespace holdfast::worker

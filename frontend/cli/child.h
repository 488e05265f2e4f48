#pragma once
// A child process of `holdfast serve`: spawned once, watched by pidfd, ended by TERM and, if it does not listen, KILL.
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "proto/base/unique_fd.h"

namespace holdfast::cli {

class Child {
 public:
  // Runs argv[0] (an absolute path). With capture_stdout, out() reads what it prints; stderr is ours. The child gets SIGTERM when this
  // process dies (it is spawned from the main thread).
  static absl::StatusOr<Child> Spawn(const std::vector<std::string>& argv, bool capture_stdout);

  Child(Child&&) = default;
  Child& operator=(Child&&) = default;
  ~Child() = default;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  int out() const { return out_.get(); }
  void CloseOut() { out_.Reset(); }
  void Signal(int signal) const;
  // The wait status, once it ended. Reaps.
  std::optional<int> Poll();

 private:
  Child() = default;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd out_;
  std::optional<int> status_;
};

// The folder of this program's own executable.
std::string OwnFolder();
// "exit 65 (unusable model)" or "signal 9 (Killed)".
std::string DescribeStatus(int wait_status);

}  // namespace holdfast::cli

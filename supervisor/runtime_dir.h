#pragma once
// The supervisor's directory: 0700, one supervisor at a time (flock), the socket, the incidents, the workers' flight records.
#include <absl/status/statusor.h>

#include <string>

#include "proto/base/unique_fd.h"

namespace holdfast::supervisor {

class RuntimeDir {
 public:
  // $XDG_RUNTIME_DIR/holdfast, else /run/holdfast for root, else /tmp/holdfast-<uid>.
  static std::string Default();

  // Creates the directory if needed and takes its lock. kAlreadyExists: another supervisor has it, its pid is in the message.
  // kFailedPrecondition: the path is not ours, not a directory, open to others, or too long for a socket.
  static absl::StatusOr<RuntimeDir> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string socket() const { return path_ + "/supervisor.sock"; }
  std::string incidents() const { return path_ + "/incidents"; }
  // Where a worker leaves its flight record.
  std::string flight_record(uint64_t generation, uint32_t rank) const;

  // Leaves a word for `holdfast serve`, which starts a supervisor that just ended again: this end was asked for. The next Open removes it.
  void NoteStopAsked() const;
  std::string stop_asked() const { return path_ + "/stop-asked"; }

  // Removes the socket and the flight records; the lock goes with the object.
  void Clean() const;

 private:
  std::string path_;
  UniqueFd lock_;
};

}  // namespace holdfast::supervisor

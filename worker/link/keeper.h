#pragma once
// What outlives this worker, in the supervisor's hands: the sealed weights, which the next generation maps, and the recording, which an
// incident bundle needs whatever ends the process. A socket inherited from the supervisor (proto/base/fd_pass.h); nothing here waits for
// long, and a supervisor that does not answer costs a warning.
//
// Threads: the worker's loop thread only.
#include "proto/base/clock.h"
#include "proto/base/unique_fd.h"

namespace holdfast::worker {

class Keeper final {
 public:
  explicit Keeper(UniqueFd socket);

  // The weights an earlier generation left, once; empty when there are none. They may be anybody's: WeightStore::Attach looks.
  UniqueFd TakeWeights();
  // False: nobody took it. The caller keeps its descriptor.
  bool KeepWeights(int fd);
  bool KeepRecording(int fd);
  // The weights taken are of no use. True once the supervisor has closed its descriptor too, so that their memory is free.
  bool DropWeights(Duration at_most);

 private:
  UniqueFd socket_;
};

}  // namespace holdfast::worker

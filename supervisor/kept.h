#pragma once
// What a rank's worker gave us to keep beyond its life (proto/base/fd_pass.h says how): its sealed weights, handed to its successor, and its
// recording, of which an incident bundle gets a copy. We look into neither.
//
// Loop thread only.
#include "proto/base/unique_fd.h"

namespace holdfast::supervisor {

class Kept {
 public:
  // For a new process: its end of the socket, with the kept weights already in it. Forgets the last recording. Empty: no descriptors left;
  // the worker then starts without.
  UniqueFd Open();
  // Takes what the worker has sent.
  void Drain();
  // Lets go of the weights: no worker will ask for them.
  void DropWeights() { weights_.Reset(); }

  int poll_fd() const { return socket_.get(); }      // readable when Drain has something to do; -1 = nobody speaks
  int recording() const { return recording_.get(); } // -1 = none
  bool has_weights() const { return static_cast<bool>(weights_); }

 private:
  UniqueFd socket_;
  UniqueFd weights_;
  UniqueFd recording_;
};

}  // namespace holdfast::supervisor

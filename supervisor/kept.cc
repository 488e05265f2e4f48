#include "supervisor/kept.h"

#include <fcntl.h>

#include "proto/base/fd_pass.h"
#include "proto/base/log.h"

namespace holdfast::supervisor {
namespace {

// Only a memory file that nobody can resize is worth holding: anything else could block a reader or change under it.
bool Sealed(int fd, int seals) {
  const int has = ::fcntl(fd, F_GET_SEALS);
  return has >= 0 && (has & seals) == seals;
}

}  // namespace

UniqueFd Kept::Open() {
  recording_.Reset();
  socket_.Reset();
  UniqueFd theirs;
  if (!FdSocketPair(&socket_, &theirs)) return {};
  if (weights_) SendFd(socket_.get(), FdTag::kWeights, weights_.get());
  return theirs;
}

void Kept::Drain() {
  while (socket_) {
    FdTag tag{};
    UniqueFd fd;
    switch (ReceiveFd(socket_.get(), &tag, &fd)) {
      case FdReceived::kNothing: return;
      case FdReceived::kClosed: socket_.Reset(); return;
      case FdReceived::kPacket: break;
    }
    switch (tag) {
      case FdTag::kWeights:
        if (fd && Sealed(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)) {
          weights_ = std::move(fd);
        } else {
          LogWarn("a worker offered weights that are not sealed; they are not kept");
        }
        break;
      case FdTag::kDropWeights:
        weights_.Reset();
        SendFd(socket_.get(), FdTag::kDropped);
        break;
      case FdTag::kRecording:
        if (fd && Sealed(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW)) recording_ = std::move(fd);
        break;
      case FdTag::kDropped: break;
    }
  }
}

}  // namespace holdfast::supervisor

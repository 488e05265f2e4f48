#include "worker/link/keeper.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>

#include "proto/base/fd_pass.h"

namespace holdfast::worker {

Keeper::Keeper(UniqueFd socket) : socket_(std::move(socket)) { ::fcntl(socket_.get(), F_SETFD, FD_CLOEXEC); }

UniqueFd Keeper::TakeWeights() {
  FdTag tag{};
  UniqueFd fd;
  while (ReceiveFd(socket_.get(), &tag, &fd) == FdReceived::kPacket) {
    if (tag == FdTag::kWeights && fd) return fd;
  }
  return {};
}

bool Keeper::KeepWeights(int fd) { return SendFd(socket_.get(), FdTag::kWeights, fd); }

bool Keeper::KeepRecording(int fd) { return SendFd(socket_.get(), FdTag::kRecording, fd); }

bool Keeper::DropWeights(Duration at_most) {
  if (!SendFd(socket_.get(), FdTag::kDropWeights)) return false;
  const Instant end = Clock::Real().Now() + at_most;
  for (;;) {
    FdTag tag{};
    UniqueFd fd;
    const FdReceived got = ReceiveFd(socket_.get(), &tag, &fd);
    if (got == FdReceived::kClosed) return false;
    if (got == FdReceived::kPacket) {
      if (tag == FdTag::kDropped) return true;
      continue;
    }
    const auto left = ToMillis(end - Clock::Real().Now());
    if (left <= 0) return false;
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left) + 1) < 0 && errno != EINTR) return false;
  }
}

}  // namespace holdfast::worker

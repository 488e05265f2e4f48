#include "proto/base/fd_pass.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace holdfast {

bool FdSocketPair(UniqueFd* a, UniqueFd* b) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) return false;
  a->Reset(fds[0]);
  b->Reset(fds[1]);
  return true;
}

bool SendFd(int socket, FdTag tag, int fd) {
  char byte = static_cast<char>(tag);
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  ssize_t n;
  do {
    n = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n == 1;
}

FdReceived ReceiveFd(int socket, FdTag* tag, UniqueFd* fd) {
  for (;;) {
    char bytes[2];
    iovec data{bytes, sizeof bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n;
    do {
      n = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? FdReceived::kNothing : FdReceived::kClosed;
    int count = 0;
    fd->Reset();
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= c->cmsg_len; at += sizeof(int), ++count) {
        int received;
        std::memcpy(&received, CMSG_DATA(c) + at, sizeof received);
        fd->Reset(received);  // the last one is kept, the others closed: none leaks
      }
    }
    if (n == 0) return FdReceived::kClosed;
    if (n != 1 || count > 1 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
      fd->Reset();
      continue;
    }
    *tag = static_cast<FdTag>(bytes[0]);
    return FdReceived::kPacket;
  }
}

}  // namespace holdfast

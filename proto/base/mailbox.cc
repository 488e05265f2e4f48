#include "proto/base/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/base/check.h"

namespace holdfast {

WakeFd::WakeFd() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { HF_CHECKF(static_cast<bool>(fd_), "eventfd: out of descriptors"); }

void WakeFd::Notify() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(fd_.get(), &one, sizeof one);  // EAGAIN: already signalled
}

void WakeFd::Drain() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(fd_.get(), &count, sizeof count);
}

}  // namespace holdfast

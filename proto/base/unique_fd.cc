#include "proto/base/unique_fd.h"

#include <unistd.h>

namespace holdfast {

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace holdfast

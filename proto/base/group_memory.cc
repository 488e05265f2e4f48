#include "proto/base/group_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace holdfast {

UniqueFd CreateGroupMemory(uint32_t ranks) {
  UniqueFd fd(::memfd_create("holdfast-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(GroupMemoryBytes(ranks))) != 0) return {};
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return {};
  return fd;
}

}  // namespace holdfast

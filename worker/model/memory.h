#pragma once
// How much memory this process may still take: the least of MemAvailable, what its memory cgroups leave, and RLIMIT_AS.
#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace holdfast::model {

struct MemoryRoom {
  uint64_t bytes = UINT64_MAX;   // UINT64_MAX: no limit could be found
  std::string limited_by;        // "MemAvailable", "cgroup memory.max of /sys/fs/cgroup/...", "RLIMIT_AS"
};

MemoryRoom AvailableMemory();

// kResourceExhausted "need 12.9 GiB for <what>, MemAvailable leaves 7.1 GiB" when bytes do not fit.
absl::Status RequireMemory(uint64_t bytes, const std::string& what);

std::string BytesText(uint64_t bytes);  // "12.9 GiB"

}  // namespace holdfast::model

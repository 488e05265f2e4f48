#pragma once
// The memory that the ranks of one generation share: a memory file which the supervisor makes for the generation and every worker of it
// inherits. The supervisor knows its size only; the workers know what lies in it (worker/tp/group.h). A generation's ranks cannot meet
// those of another, since they do not have its file.
#include <cstdint>

#include "proto/base/unique_fd.h"

namespace holdfast {

inline constexpr uint32_t kMaxRanks = 64;
inline constexpr uint64_t kGroupControlBytes = 64 << 10;
inline constexpr uint64_t kRankAreaBytes = 4 << 20;   // of each rank, for what it sends; taken from the system when first written

constexpr uint64_t GroupMemoryBytes(uint32_t ranks) { return kGroupControlBytes + ranks * kRankAreaBytes; }

// Zeroed, sealed against resizing, close-on-exec. Empty when the system has no descriptor or memory left (errno says which).
UniqueFd CreateGroupMemory(uint32_t ranks);

}  // namespace holdfast

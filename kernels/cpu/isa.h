#pragma once
// Which instruction set runs: chosen once, by what the processor and the operating system both support.
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/kernel_table.h"

namespace holdfast::kernels {

// Sets this machine can run, weakest first: some of scalar, avx2, avx512, avx512vnni, avx512amx.
std::vector<std::string_view> AvailableIsas();

// The table for an `isa` option: the best available up to the named set; "auto" has no limit. Null when the name is unknown.
const KernelTable* KernelsFor(std::string_view isa);

// Cores this process may use: its affinity mask, limited by a cgroup's CPU quota (rounded down, at least 1).
int UsableCores();

}  // namespace holdfast::kernels

#pragma once
// `holdfast bench`: prefill and decode rates of a model through scheduler, executor and kernels, in this process, beside what the machine can
// do at most (memory reads, of a device copies, measured in the same run). Prints ratios; never judges.
#include "worker/backend.h"

namespace holdfast::worker {

// argv[0] is "bench". Flags: --model FILE [--prompt N] [--generate N] [--requests N,N,...] [--threads N] [--repeat N] [--json] and the
// worker's model flags. Returns the exit status.
int Bench(int argc, const char* const* argv, const MakeCuda& make_cuda = kernels::MakeCudaOps);

}  // namespace holdfast::worker

#pragma once
// `holdfast bench`: prefill and decode rates of a model through scheduler, executor and kernels, in this process, beside what the machine can
// do at most (memory reads, measured in the same run). Prints ratios; never judges.
namespace holdfast::worker {

// argv[0] is "bench". Flags: --model FILE [--prompt N] [--generate N] [--requests N,N,...] [--threads N] [--repeat N] [--json] and the
// worker's model flags. Returns the exit status.
int Bench(int argc, const char* const* argv);

}  // namespace holdfast::worker

// The rig and its kernel once more, on the SIMT machine.
#define HF_EMULATED_RIG
#include "tests/bench/gpu_mma.cu"  // NOLINT: the same source
#include "tests/bench/gpu_rig.cc"  // NOLINT

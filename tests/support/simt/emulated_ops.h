#pragma once
// The CUDA backend on the SIMT machine.
#include <memory>

#include "kernels/ops.h"

namespace holdfast::kernels::cuda_emulated {
absl::StatusOr<std::unique_ptr<Ops>> MakeOps(const CudaOptions& options);   // kernels/cuda/make_ops.h, in the emulated namespace
}

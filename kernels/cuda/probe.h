#pragma once
#include <cuda_runtime.h>

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// Runs a kernel that does nothing on the current device, and waits: whether this build has code for it, and whether it answers.
cudaError_t ProbeDevice();

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

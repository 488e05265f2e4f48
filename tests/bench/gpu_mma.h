#pragma once
// What the tensor cores do when nothing has to be loaded.
#include <cuda_runtime.h>

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::bench::HF_CUDA_NAMESPACE {

inline constexpr int kChains = 8;   // independent sums of a warp

// sums[thread] = 16 * rounds * kChains.
void MmaLoop(cudaStream_t stream, int blocks, int threads, int rounds, float* sums);

}  // namespace holdfast::bench::HF_CUDA_NAMESPACE

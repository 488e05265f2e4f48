#pragma once
// Norms of rows: one order of sums for all kernels that have one.
#include "kernels/cuda/device.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

inline constexpr int kNormThreads = 256;
inline constexpr int64_t kNormWarpRow = 1024;   // rows up to here are a warp's, longer ones a block's: by their length alone, so that bits do not depend on T

// 1 / rms of a row by `threads` threads of which this is `self`; sum adds over them.
template <class Sum>
__device__ __forceinline__ float InverseRms(const float* x, int64_t cols, float eps, int self, int threads, Sum&& sum) {
  float squares = 0.f;
  for (int64_t i = self; i < cols; i += threads) squares += x[i] * x[i];
  return 1.f / sqrtf(sum(squares) / static_cast<float>(cols) + eps);
}
__device__ __forceinline__ float Normed(const float* x, const float* weight, float inverse_rms, int64_t i) {
  return weight == nullptr ? x[i] * inverse_rms : x[i] * inverse_rms * weight[i];
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#include "tests/bench/gpu_mma.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"

namespace holdfast::bench::HF_CUDA_NAMESPACE {
namespace {

using namespace kernels::HF_CUDA_NAMESPACE;  // NOLINT: this file alone

__global__ void MmaKernel(int rounds, float* sums) {
  const unsigned one = 0x3f803f80u, a[4] = {one, one, one, one};
  float d[kChains][4];
  HF_UNROLL
  for (int i = 0; i < kChains; ++i) {
    HF_UNROLL
    for (int j = 0; j < 4; ++j) d[i][j] = 0.f;
  }
  for (int r = 0; r < rounds; ++r) {
    HF_UNROLL
    for (int i = 0; i < kChains; ++i) MmaBf16(d[i], a, one, one);
  }
  float sum = 0.f;
  HF_UNROLL
  for (int i = 0; i < kChains; ++i) {
    HF_UNROLL
    for (int j = 0; j < 4; ++j) sum += d[i][j];
  }
  sums[GridThread()] = sum / 4.f;
}

}  // namespace

void MmaLoop(cudaStream_t stream, int blocks, int threads, int rounds, float* sums) {
  Launch(MmaKernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream, rounds, sums);
}

}  // namespace holdfast::bench::HF_CUDA_NAMESPACE

#include "kernels/cuda/probe.h"

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {
__global__ void NothingKernel() {}
}  // namespace

cudaError_t ProbeDevice() {
  Launch(NothingKernel, 1, 1, 0, nullptr);
  const cudaError_t launched = cudaGetLastError();
  return launched != cudaSuccess ? launched : cudaStreamSynchronize(nullptr);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// The one way to start a kernel. Included by .cu files only: nvcc makes the kernel's stub where the call is.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#include "kernels/cuda/device.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// Arguments convert to the kernel's parameters. An error of the launch stays the runtime's last error (Ops::Health finds it at Sync).
// shared_bytes beyond 48 KiB are asked for as the device wants it; up to 227 KiB on 9.0, 163 on 8.0, 99 on 8.9 and 12.0.
template <class... P, class... A>
void Launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
#if defined(__CUDACC__)
  std::tuple<P...> values(std::forward<A>(args)...);
  if (shared_bytes > (48u << 10)) {
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  }
  std::apply([&](P&... p) {
    void* pointers[] = {static_cast<void*>(&p)...};
    cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes, stream);
  }, values);
#else
  ::simt::EnqueueLaunch({reinterpret_cast<const void*>(kernel), grid, block, shared_bytes,
                         [kernel, values = std::tuple<P...>(std::forward<A>(args)...)] { std::apply(kernel, values); }}, stream);
#endif
}

// Blocks for `work` items of `each` a block: never 0, at most `most` (grid-stride kernels do the rest).
inline unsigned Blocks(int64_t work, int64_t each, int64_t most = INT64_C(0x7fffffff)) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + each - 1) / each, 1, most));
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

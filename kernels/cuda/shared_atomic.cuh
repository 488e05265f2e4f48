#pragma once
// Sums that threads of a block build together in shared memory, in no order: for integers only.
#include "kernels/cuda/device.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// *p += v as one step; what was there before. A barrier stands between these and plain accesses of the same element.
template <class T>
__device__ __forceinline__ T SharedAtomicAdd(Shared<T> p, T v) {
#if defined(__CUDACC__)
  return atomicAdd(p, v);
#else
  ::simt::SharedAtomic(p.unchecked(), sizeof(T));
  return atomicAdd(p.unchecked(), v);
#endif
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

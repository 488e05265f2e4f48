#pragma once
// What kernels are written on. The same kernel sources are compiled by nvcc and, against the SIMT machine of tests/support/simt, by the host's
// compiler; where the two differ, the difference is here (and in launch.h, mma.cuh).
//
// Rules for kernels:
//  - Shared memory is one dynamic array: SharedArray<T>(byte offset), sized by the launch. Shared<T> is T* on the device and a recording
//    pointer on the host: index it, add to it, copy it; take no address of an element. Vectors (float4, uint4) are elements, too.
//  - Data that lanes exchange through shared memory needs __syncwarp or __syncthreads between write and read; a shuffle orders no memory.
//  - Barriers stand where all threads of the block come; masks name exactly the lanes that come.
//  - Sizes are int64_t where rows * columns may pass 2^31; blockIdx.x carries the work (its limit is 2^31 - 1, that of y and z 65535).
//  - A row's result depends on the row alone: how a row is cut among threads follows from its length, never from the number of rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/host_device.h"
#if !defined(__CUDACC__)
#include <simt_shared.h>
#endif

// The namespace of this build of the backend: a test program may hold the emulated one beside the real one.
#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

#if defined(__CUDACC__)
template <class T>
using Shared = T*;
template <class T>
__device__ __forceinline__ Shared<T> SharedArray(int byte_offset) {
  extern __shared__ __align__(128) unsigned char hf_dynamic_shared[];
  return reinterpret_cast<T*>(hf_dynamic_shared + byte_offset);
}
// For wrappers of instructions that take addresses: the bytes they touch must be told.
template <class T>
__device__ __forceinline__ T* SharedForRead(Shared<T> p, int) { return p; }
template <class T>
__device__ __forceinline__ T* SharedForWrite(Shared<T> p, int) { return p; }
// The same bytes as elements of another type.
template <class To, class From>
__device__ __forceinline__ Shared<To> SharedAs(Shared<From> p) { return reinterpret_cast<To*>(p); }
#define HF_UNROLL _Pragma("unroll")
#else
template <class T>
using Shared = ::simt::SharedPointer<T>;
template <class T>
inline Shared<T> SharedArray(int byte_offset) { return Shared<T>(reinterpret_cast<T*>(::simt::SharedBase() + byte_offset)); }
template <class T>
inline T* SharedForRead(Shared<T> p, int elements) {
  ::simt::SharedRead(p.unchecked(), sizeof(T) * static_cast<size_t>(elements));
  return p.unchecked();
}
template <class T>
inline T* SharedForWrite(Shared<T> p, int elements) {
  ::simt::SharedWrite(p.unchecked(), sizeof(T) * static_cast<size_t>(elements));
  return p.unchecked();
}
template <class To, class From>
inline Shared<To> SharedAs(Shared<From> p) { return Shared<To>(reinterpret_cast<To*>(p.unchecked())); }
#define HF_UNROLL
#endif

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// First index and step of a grid-stride loop over a one-dimensional grid.
__device__ __forceinline__ int64_t GridThread() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t GridThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// Sums over the warp in the order of a butterfly: every lane has the same bits.
__device__ __forceinline__ float WarpSum(float v) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) v += __shfl_xor_sync(kAllLanes, v, lanes);
  return v;
}
__device__ __forceinline__ float WarpMax(float v) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, lanes));
  return v;
}
// Sum over the block (blockDim.x a multiple of 32, one-dimensional), the same bits in every thread. scratch: 32 floats. Has two barriers, the
// first of which also orders what came before.
__device__ __forceinline__ float BlockSum(float v, Shared<float> scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  v = WarpSum(v);
  __syncthreads();  // whoever still reads scratch of an earlier call
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  float sum = 0.f;
  for (int w = 0; w < warps; ++w) sum += scratch[w];
  return sum;
}

__device__ __forceinline__ float HalfToFloat(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ uint16_t FloatToHalf(float f) { return __half_as_ushort(__float2half_rn(f)); }
__device__ __forceinline__ float BfloatToFloat(uint16_t bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
__device__ __forceinline__ uint16_t FloatToBfloat(float f) { return __bfloat16_as_ushort(__float2bfloat16_rn(f)); }

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

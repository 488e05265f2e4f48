#pragma once
// More instructions for attention, as thin wrappers like mma.cuh's: loads of 16-bit fragments (laid out as mma.cuh says) out of shared memory,
// asynchronous copies that may write zeros instead, arithmetic on pairs of halves.
#include "kernels/cuda/mma.cuh"
#if !defined(__CUDACC__)
#include <cmath>
#include <cstring>
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

template <bool kBf16>
__device__ __forceinline__ void Mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (kBf16) {
    MmaBf16(d, a, b0, b1);
  } else {
    MmaF16(d, a, b0, b1);
  }
}

#if defined(__CUDACC__)

template <class T>
__device__ __forceinline__ unsigned SharedAddress(T* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Four 8x8 matrices of 16-bit values; lane 8i + j gives row j of matrix i (16 bytes, aligned), register i is the lane's part of matrix i.
__device__ __forceinline__ void LoadMatrix4(unsigned (&r)[4], Shared<uint16_t> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(SharedAddress(row)) : "memory");
}
__device__ __forceinline__ void LoadMatrix4Transposed(unsigned (&r)[4], Shared<uint16_t> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(SharedAddress(row)) : "memory");
}

// Copies 16 (4) bytes as CopyAsync16 does, or writes zeros: when !valid, src is not read.
__device__ __forceinline__ void CopyAsyncOrZero16(Shared<uint4> dst, const void* src, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(dst)), "l"(src), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void CopyAsyncOrZero4(Shared<uint32_t> dst, const void* src, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(dst)), "l"(src), "r"(valid ? 4 : 0) : "memory");
}

__device__ __forceinline__ float Exp2(float x) {   // 2 ulp; below 2^-126 it is 0
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ unsigned PackHalf2(float low, float high) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ unsigned PackBfloat2(float low, float high) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ unsigned HalfMul2(unsigned a, unsigned b) {
  unsigned r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ unsigned HalfSub2(unsigned a, unsigned b) {
  unsigned r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

#else  // the SIMT machine

namespace mma_host {

struct MatrixLoad {
  uint16_t row[8];
  unsigned* to;
};
template <bool kTransposed>
void LoadMatrix(void* const lanes[32]) {
  const auto at = [&](int lane) -> MatrixLoad& { return *static_cast<MatrixLoad*>(lanes[lane]); };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, c = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const uint16_t low = kTransposed ? at(i * 8 + c).row[g] : at(i * 8 + g).row[c];
      const uint16_t high = kTransposed ? at(i * 8 + c + 1).row[g] : at(i * 8 + g).row[c + 1];
      at(lane).to[i] = low | static_cast<unsigned>(high) << 16;
    }
  }
}
inline MatrixLoad RowOfMatrix(Shared<uint16_t> row, unsigned* to) {
  if (reinterpret_cast<uintptr_t>(row.unchecked()) % 16 != 0) ::simt::Fault("it loads a row of a matrix that is not aligned to 16 bytes");
  MatrixLoad load{{}, to};
  std::memcpy(load.row, SharedForRead(row, 8), sizeof(load.row));
  return load;
}
inline const void* OrZeros(const void* src, bool valid) {
  alignas(16) static const std::byte zeros[16] = {};
  return valid ? src : zeros;
}

}  // namespace mma_host

inline void LoadMatrix4(unsigned (&r)[4], Shared<uint16_t> row, ::simt::Where where = ::simt::Where::current()) {
  mma_host::MatrixLoad load = mma_host::RowOfMatrix(row, r);
  ::simt::Collective(&load, mma_host::LoadMatrix<false>, where);
}
inline void LoadMatrix4Transposed(unsigned (&r)[4], Shared<uint16_t> row, ::simt::Where where = ::simt::Where::current()) {
  mma_host::MatrixLoad load = mma_host::RowOfMatrix(row, r);
  ::simt::Collective(&load, mma_host::LoadMatrix<true>, where);
}
inline void CopyAsyncOrZero16(Shared<uint4> dst, const void* src, bool valid) { ::simt::AsyncCopy(dst.unchecked(), mma_host::OrZeros(src, valid), 16); }
inline void CopyAsyncOrZero4(Shared<uint32_t> dst, const void* src, bool valid) { ::simt::AsyncCopy(dst.unchecked(), mma_host::OrZeros(src, valid), 4); }

inline float Exp2(float x) { return x < -126.f ? 0.f : std::exp2(x); }
inline unsigned PackHalf2(float low, float high) { return FloatToHalf(low) | static_cast<unsigned>(FloatToHalf(high)) << 16; }
inline unsigned PackBfloat2(float low, float high) { return FloatToBfloat(low) | static_cast<unsigned>(FloatToBfloat(high)) << 16; }
template <class F>
inline unsigned EachHalf(unsigned a, unsigned b, F f) {
  const auto one = [&](unsigned x, unsigned y) { return FloatToHalf(f(HalfToFloat(static_cast<uint16_t>(x)), HalfToFloat(static_cast<uint16_t>(y)))); };
  return one(a & 0xffff, b & 0xffff) | static_cast<unsigned>(one(a >> 16, b >> 16)) << 16;
}
inline unsigned HalfMul2(unsigned a, unsigned b) {
  return EachHalf(a, b, [](float x, float y) { return x * y; });
}
inline unsigned HalfSub2(unsigned a, unsigned b) {
  return EachHalf(a, b, [](float x, float y) { return x - y; });
}

#endif

__device__ __forceinline__ float LowBfloat(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighBfloat(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
// 2^d for an integer d <= 0, exactly; 0 below 2^-126, for -inf and for NaN.
__device__ __forceinline__ float Pow2(float d) { return d >= -126.f ? __int_as_float((static_cast<int>(d) + 127) << 23) : 0.f; }

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

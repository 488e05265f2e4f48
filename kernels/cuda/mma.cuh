#pragma once
// Instructions for tensor cores and copies that run on, as thin wrappers: inline assembly on the device, plain loops over the warp's fragments
// on the host. All of them exist from compute capability 8.0 on.
//
// Fragments of m16n8kK, for lane l with g = l / 4 and c = l % 4 (PTX ISA, "matrix fragments"):
//   C, D: rows g (elements 0, 1) and g + 8 (2, 3), columns 2c and 2c + 1.
//   8-bit A: register i holds four consecutive k from 4c + 16 * (i / 2), of row g + 8 * (i % 2). B: register i holds k from 4c + 16i of column g.
//   16-bit A: register i holds two consecutive k from 2c + 8 * (i / 2), of row g + 8 * (i % 2). B: register i holds k from 2c + 8i of column g.
#include "kernels/cuda/device.cuh"
#if !defined(__CUDACC__)
#include <source_location>
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

#if defined(__CUDACC__)

// d = a b + c in exact integers: [16][32] by [32][8].
__device__ __forceinline__ void MmaS8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], int c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
}
// The same with 16 of k: two registers of A, one of B.
__device__ __forceinline__ void MmaS8Half(int (&d)[4], unsigned a0, unsigned a1, unsigned b, int c) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(c));
}
// d += a b: [16][16] by [16][8], sums in f32.
__device__ __forceinline__ void MmaBf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MmaF16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes of device memory into shared memory; both addresses are multiples of 16.
template <class T>
__device__ __forceinline__ void CopyAsync16(Shared<T> to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all of the thread's groups but the last `kGroups`; a barrier shows the bytes to other threads.
template <int kGroups>
__device__ __forceinline__ void CopyAsyncWait() { asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory"); }

#else

namespace mma_host {

// kSteps registers of B, 2 * kSteps of A; each register holds kEach values that Value reads.
template <class Acc, class Sum>
struct Operands {
  Acc* d;
  unsigned a[4], b[2];
  Acc c[4];
};
template <class Acc, class Sum, int kRegisters, int kEach, class Value>
void Multiply(void* const lanes[32]) {
  const auto at = [&](int lane) -> Operands<Acc, Sum>& { return *static_cast<Operands<Acc, Sum>*>(lanes[lane]); };
  constexpr int kSpan = 4 * kEach, kK = kSpan * kRegisters;
  Sum a[16][kK], b[8][kK];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, c = lane % 4;
    for (int i = 0; i < kRegisters; ++i) {
      for (int e = 0; e < kEach; ++e) {
        const int k = i * kSpan + c * kEach + e;
        a[g][k] = Value::Of(at(lane).a[2 * i], e);
        a[g + 8][k] = Value::Of(at(lane).a[2 * i + 1], e);
        b[g][k] = Value::Of(at(lane).b[i], e);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Sum* row = a[lane / 4 + i / 2 * 8];
      const Sum* column = b[lane % 4 * 2 + i % 2];
      Sum sum = 0;
      for (int k = 0; k < kK; ++k) sum += row[k] * column[k];
      at(lane).d[i] = static_cast<Acc>(static_cast<Sum>(at(lane).c[i]) + sum);
    }
  }
}
struct S8 {
  static int Of(unsigned word, int e) { return static_cast<int8_t>(word >> (8 * e)); }
};
struct Bf16 {
  static double Of(unsigned word, int e) { return BfloatToFloat(static_cast<uint16_t>(word >> (16 * e))); }
};
struct F16 {
  static double Of(unsigned word, int e) { return HalfToFloat(static_cast<uint16_t>(word >> (16 * e))); }
};

}  // namespace mma_host

inline void MmaS8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], int c, ::simt::Where where = ::simt::Where::current()) {
  mma_host::Operands<int, int> o{d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c, c, c, c}};
  ::simt::Collective(&o, mma_host::Multiply<int, int, 2, 4, mma_host::S8>, where);
}
inline void MmaS8Half(int (&d)[4], unsigned a0, unsigned a1, unsigned b, int c, ::simt::Where where = ::simt::Where::current()) {
  mma_host::Operands<int, int> o{d, {a0, a1, 0, 0}, {b, 0}, {c, c, c, c}};
  ::simt::Collective(&o, mma_host::Multiply<int, int, 1, 4, mma_host::S8>, where);
}
inline void MmaBf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, ::simt::Where where = ::simt::Where::current()) {
  mma_host::Operands<float, double> o{d, {a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  ::simt::Collective(&o, mma_host::Multiply<float, double, 2, 2, mma_host::Bf16>, where);
}
inline void MmaF16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, ::simt::Where where = ::simt::Where::current()) {
  mma_host::Operands<float, double> o{d, {a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  ::simt::Collective(&o, mma_host::Multiply<float, double, 2, 2, mma_host::F16>, where);
}

template <class T>
inline void CopyAsync16(Shared<T> to, const void* from) { ::simt::AsyncCopy(to.unchecked(), from, 16); }
inline void CopyAsyncCommit() { ::simt::AsyncCommit(); }
template <int kGroups>
inline void CopyAsyncWait() { ::simt::AsyncWait(kGroups); }

#endif

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// How a kernel reads one packed layout (weight_layout.h): what a lane loads of a record, and what that is as fragments, scales and minimums.
#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/weight_layout.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// Where a record is: device memory (read only while the kernel runs) or shared memory.
struct GlobalBytes {
  const uint8_t* p;
  template <class V>
  __device__ __forceinline__ V Read(int offset) const { return __ldg(reinterpret_cast<const V*>(p + offset)); }
};
struct SharedBytes {
  Shared<uint8_t> p;
  template <class V>
  __device__ __forceinline__ V Read(int offset) const { return SharedAs<V>(p + offset)[0]; }
};

// ---- codes -----------------------------------------------------------------------------------------------------------------------------
// Fragment: registers of A for block blk of 32. They hold the codes times kFactor.
template <CodeKind kKind, DType kType>
struct Codes;

template <DType kType>
struct Codes<CodeKind::kNibble, kType> {
  static constexpr int kFactor = 1;
  uint4 q;
  template <class P>
  __device__ __forceinline__ void Load(const P& record, int lane) { q = record.template Read<uint4>(lane * 16); }
  __device__ __forceinline__ void Fragment(int blk, unsigned (&a)[4]) const {
    const unsigned low = blk == 0 ? q.x : q.z, high = blk == 0 ? q.y : q.w;
    a[0] = low & 0x0f0f0f0fu;
    a[1] = high & 0x0f0f0f0fu;
    a[2] = low >> 4 & 0x0f0f0f0fu;
    a[3] = high >> 4 & 0x0f0f0f0fu;
  }
};

// In the high half of a byte a signed nibble is a signed byte, sixteenfold.
template <DType kType>
struct Codes<CodeKind::kNibbleSigned, kType> {
  static constexpr int kFactor = 16;
  uint4 q;
  template <class P>
  __device__ __forceinline__ void Load(const P& record, int lane) { q = record.template Read<uint4>(lane * 16); }
  __device__ __forceinline__ void Fragment(int blk, unsigned (&a)[4]) const {
    const unsigned low = blk == 0 ? q.x : q.z, high = blk == 0 ? q.y : q.w;
    a[0] = low << 4 & 0xf0f0f0f0u;
    a[1] = high << 4 & 0xf0f0f0f0u;
    a[2] = low & 0xf0f0f0f0u;
    a[3] = high & 0xf0f0f0f0u;
  }
};

template <DType kType>
struct Codes<CodeKind::kNibbleTable, kType> {
  static constexpr int kFactor = 1;
  uint4 q;
  template <class P>
  __device__ __forceinline__ void Load(const P& record, int lane) { q = record.template Read<uint4>(lane * 16); }
  // Four values of the table for the low four nibbles of s.
  __device__ static __forceinline__ unsigned Look(unsigned s) {
    constexpr bool kIq = kType == DType::kIQ4_NL;
    const unsigned pick = s & 0x7777u, low = __byte_perm(kIq ? 0xbfad9881u : 0x03020100u, kIq ? 0xf6eaddcfu : 0x0c080604u, pick);
    const unsigned high = __byte_perm(kIq ? 0x26190d01u : 0xfdfeff00u, kIq ? 0x71594535u : 0xf4f8fafcu, pick);
    return __byte_perm(low, high, 0x3210u | (s & 0x8888u) >> 1);
  }
  __device__ __forceinline__ void Fragment(int blk, unsigned (&a)[4]) const {
    const unsigned low = blk == 0 ? q.x : q.z, high = blk == 0 ? q.y : q.w;
    a[0] = Look(low);
    a[1] = Look(high);
    a[2] = Look(low >> 16);
    a[3] = Look(high >> 16);
  }
};

template <DType kType>
struct Codes<CodeKind::kByte, kType> {
  static constexpr int kFactor = 1;
  uint4 q[2];
  template <class P>
  __device__ __forceinline__ void Load(const P& record, int lane) {
    q[0] = record.template Read<uint4>(lane * 16);
    q[1] = record.template Read<uint4>(512 + lane * 16);
  }
  __device__ __forceinline__ void Fragment(int blk, unsigned (&a)[4]) const {
    a[0] = q[blk].x;
    a[1] = q[blk].y;
    a[2] = q[blk].z;
    a[3] = q[blk].w;
  }
};

// In the high six bits of a byte, fourfold.
template <DType kType>
struct Codes<CodeKind::kSix, kType> {
  static constexpr int kFactor = 4;
  uint4 q;
  uint2 bits;
  template <class P>
  __device__ __forceinline__ void Load(const P& record, int lane) {
    q = record.template Read<uint4>(lane * 16);
    bits = record.template Read<uint2>(512 + lane * 8);
  }
  __device__ __forceinline__ void Fragment(int blk, unsigned (&a)[4]) const {
    const unsigned low = blk == 0 ? q.x : q.z, high = blk == 0 ? q.y : q.w, h = blk == 0 ? bits.x : bits.y;
    a[0] = (low << 2 & 0x3c3c3c3cu) | (h << 6 & 0xc0c0c0c0u);
    a[1] = (high << 2 & 0x3c3c3c3cu) | (h << 4 & 0xc0c0c0c0u);
    a[2] = (low >> 2 & 0x3c3c3c3cu) | (h << 2 & 0xc0c0c0c0u);
    a[3] = (high >> 2 & 0x3c3c3c3cu) | (h & 0xc0c0c0c0u);
  }
};

// ---- scales ----------------------------------------------------------------------------------------------------------------------------
// kPer16: they change every 16 of K, else every 32. A value is code * scale + min.
// kFewBits: a scale has at most 21 significant bits and no extreme exponent, so that 1.5 * 2^23 * scale is exact.
template <ScaleKind kKind>
struct Scales;

__device__ __forceinline__ float LowHalf(unsigned w) { return HalfToFloat(static_cast<uint16_t>(w & 0xffffu)); }
__device__ __forceinline__ float HighHalf(unsigned w) { return HalfToFloat(static_cast<uint16_t>(w >> 16)); }

template <>
struct Scales<ScaleKind::kHalf> {
  static constexpr bool kPer16 = false, kHasMin = false, kFewBits = true;
  uint2 s;
  template <class P>
  __device__ __forceinline__ void Load(const P& scales, const P&, int g) { s = scales.template Read<uint2>(g * 8); }
  __device__ __forceinline__ float Scale(int blk, int, int hi) const {
    const unsigned w = blk == 0 ? s.x : s.y;
    return hi == 0 ? LowHalf(w) : HighHalf(w);
  }
  __device__ __forceinline__ float Min(int, int, int) const { return 0.f; }
};

template <>
struct Scales<ScaleKind::kHalfMin> {
  static constexpr bool kPer16 = false, kHasMin = true, kFewBits = true;
  uint4 s;
  template <class P>
  __device__ __forceinline__ void Load(const P& scales, const P&, int g) { s = scales.template Read<uint4>(g * 16); }
  __device__ __forceinline__ unsigned Word(int blk, int hi) const { return blk == 0 ? (hi == 0 ? s.x : s.y) : (hi == 0 ? s.z : s.w); }
  __device__ __forceinline__ float Scale(int blk, int, int hi) const { return LowHalf(Word(blk, hi)); }
  __device__ __forceinline__ float Min(int blk, int, int hi) const { return HighHalf(Word(blk, hi)); }
};

template <>
struct Scales<ScaleKind::kExponent> {
  static constexpr bool kPer16 = false, kHasMin = false, kFewBits = false;
  unsigned s;
  template <class P>
  __device__ __forceinline__ void Load(const P& scales, const P&, int g) { s = scales.template Read<unsigned>(g * 4); }
  __device__ __forceinline__ float Scale(int blk, int, int hi) const { return E8M0Half(static_cast<uint8_t>(s >> (8 * (2 * blk + hi)) & 0xffu)); }
  __device__ __forceinline__ float Min(int, int, int) const { return 0.f; }
};

template <>
struct Scales<ScaleKind::kScaleMin> {
  static constexpr bool kPer16 = false, kHasMin = true, kFewBits = true;
  uint2 s, d;
  template <class P>
  __device__ __forceinline__ void Load(const P& scales, const P& super, int g) {
    s = scales.template Read<uint2>(g * 8);
    d = super.template Read<uint2>(g * 8);
  }
  __device__ __forceinline__ float Scale(int blk, int, int hi) const {
    const unsigned code = (blk == 0 ? s.x : s.y) >> (16 * hi) & 0xffu;
    return __fmul_rn(LowHalf(hi == 0 ? d.x : d.y), static_cast<float>(code));
  }
  __device__ __forceinline__ float Min(int blk, int, int hi) const {
    const unsigned code = (blk == 0 ? s.x : s.y) >> (16 * hi + 8) & 0xffu;
    return -__fmul_rn(HighHalf(hi == 0 ? d.x : d.y), static_cast<float>(code));
  }
};

template <>
struct Scales<ScaleKind::kScale16> {
  static constexpr bool kPer16 = true, kHasMin = false, kFewBits = true;
  uint2 s;
  unsigned d;
  template <class P>
  __device__ __forceinline__ void Load(const P& scales, const P& super, int g) {
    s = scales.template Read<uint2>(g * 8);
    d = super.template Read<unsigned>(g * 4);
  }
  __device__ __forceinline__ float Scale(int blk, int half, int hi) const {
    const int code = static_cast<int8_t>((blk == 0 ? s.x : s.y) >> (8 * (2 * half + hi)) & 0xffu);
    return __fmul_rn(hi == 0 ? LowHalf(d) : HighHalf(d), static_cast<float>(code));
  }
  __device__ __forceinline__ float Min(int, int, int) const { return 0.f; }
};

template <>
struct Scales<ScaleKind::kScaleMin16> {
  static constexpr bool kPer16 = true, kHasMin = true, kFewBits = true;
  uint4 s;
  uint2 d;
  template <class P>
  __device__ __forceinline__ void Load(const P& scales, const P& super, int g) {
    s = scales.template Read<uint4>(g * 16);
    d = super.template Read<uint2>(g * 8);
  }
  __device__ __forceinline__ unsigned Pair(int blk, int half, int hi) const {
    const unsigned w = blk == 0 ? (half == 0 ? s.x : s.y) : (half == 0 ? s.z : s.w);
    return w >> (16 * hi);
  }
  __device__ __forceinline__ float Scale(int blk, int half, int hi) const {
    return __fmul_rn(LowHalf(hi == 0 ? d.x : d.y), static_cast<float>(Pair(blk, half, hi) & 0xffu));
  }
  __device__ __forceinline__ float Min(int blk, int half, int hi) const {
    return -__fmul_rn(HighHalf(hi == 0 ? d.x : d.y), static_cast<float>(Pair(blk, half, hi) >> 8 & 0xffu));
  }
};

// ---- formats ---------------------------------------------------------------------------------------------------------------------------
// What a lane holds of a record. kPieces: 64-byte pieces of the right side's panel (panel.h) that a tile of K takes.
template <DType kType>
struct QuantFormat {
  static constexpr bool kFloat = false;
  static constexpr int kPieces = 1;
  static constexpr PackedFormat kPacked = PackedFormatOf(kType);
  static constexpr int kRecord = RecordBytes(kPacked), kSuper = SuperBytes(kPacked.scales), kCodeBytes = CodeBytes(kPacked.codes);
  using C = Codes<kPacked.codes, kType>;
  using S = Scales<kPacked.scales>;
  C codes;
  S scales;
  template <class P>
  __device__ __forceinline__ void Load(const P& record, const P& super, int lane) {
    codes.Load(record, lane);
    scales.Load(P{record.p + kCodeBytes}, super, lane / 4);
  }
};

// Two bf16 in a register, the first below.
__device__ __forceinline__ unsigned PackBf16(float a, float b) {
  return FloatToBfloat(a) | static_cast<unsigned>(FloatToBfloat(b)) << 16;
}
// What is left of v after its nearest bf16. Exact.
__device__ __forceinline__ float Rest(float v) { return __fsub_rn(v, BfloatToFloat(FloatToBfloat(v))); }

// Weights that are multiplied as floats: kParts bf16 whose sum is the weight.
template <DType kType>
struct FloatFormat {
  static constexpr bool kFloat = true;
  static constexpr int kPieces = 6, kParts = kType == DType::kBF16 ? 1 : kType == DType::kF16 ? 2 : 3;
  static constexpr int kRecord = RecordBytes(PackedFormatOf(kType)), kSuper = 0, kVectors = kRecord / 512;
  uint4 q[kVectors];
  template <class P>
  __device__ __forceinline__ void Load(const P& record, const P&, int lane) {
    HF_UNROLL
    for (int v = 0; v < kVectors; ++v) q[v] = record.template Read<uint4>(v * 512 + lane * 16);
  }
  // The values of register i (mma.cuh) of step s.
  __device__ __forceinline__ float2 Values(int s, int i) const {
    if constexpr (kType == DType::kF32) {
      const uint4 v = q[2 * s + i / 2];
      return i % 2 == 0 ? make_float2(__uint_as_float(v.x), __uint_as_float(v.y)) : make_float2(__uint_as_float(v.z), __uint_as_float(v.w));
    } else {
      const unsigned w = i == 0 ? q[s].x : i == 1 ? q[s].y : i == 2 ? q[s].z : q[s].w;
      if constexpr (kType == DType::kF16) return make_float2(LowHalf(w), HighHalf(w));
      return make_float2(BfloatToFloat(static_cast<uint16_t>(w & 0xffffu)), BfloatToFloat(static_cast<uint16_t>(w >> 16)));
    }
  }
  __device__ __forceinline__ void Fragment(int s, unsigned (&a)[kParts][4]) const {
    HF_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (kType == DType::kBF16) {
        a[0][i] = i == 0 ? q[s].x : i == 1 ? q[s].y : i == 2 ? q[s].z : q[s].w;
      } else {
        float2 v = Values(s, i);
        HF_UNROLL
        for (int part = 0; part < kParts; ++part) {
          a[part][i] = PackBf16(v.x, v.y);
          v = make_float2(Rest(v.x), Rest(v.y));
        }
      }
    }
  }
};

template <DType kType>
using FormatOf = std::conditional_t<BlockOf<kType>::kElements == 1, FloatFormat<kType>, QuantFormat<kType>>;

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

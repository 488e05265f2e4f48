#pragma once
// Values out of the file's blocks, on the device: element j of a block of each format, computed as quant_blocks.h says (scale products
// first, in f32). Blocks are unaligned: bytes are read one by one, 16-bit fields as two.
#include "kernels/cuda/device.cuh"
#include "kernels/dtype.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

__device__ __forceinline__ uint16_t Load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
__device__ __forceinline__ float LoadHalf(const uint8_t* p) { return HalfToFloat(Load16(p)); }
// Without contraction: `a * b + c` rounded twice, as the host's code is.
__device__ __forceinline__ float MulAdd2(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

__device__ __forceinline__ float Iq4NlValue(int code) {
  // Sixteen values of 8 bits in four words.
  const unsigned words[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
  return static_cast<float>(static_cast<int8_t>(words[code >> 2] >> (8 * (code & 3))));
}
__device__ __forceinline__ float Mxfp4Value(int code) {
  const unsigned words[2] = {0x03020100u, 0x0c080604u};
  const int magnitude = static_cast<int>(words[code >> 2 & 1] >> (8 * (code & 3)) & 0xff);
  return static_cast<float>((code & 8) != 0 ? -magnitude : magnitude);
}
__device__ __forceinline__ float E8M0Half(uint8_t e) {  // 2^(e - 128)
  return e < 2 ? __uint_as_float(0x00200000u << e) : __uint_as_float(static_cast<unsigned>(e - 1) << 23);
}
__device__ __forceinline__ void KScaleMinOf(const uint8_t* s, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  }
}

// Bytes of a block and elements in it.
template <DType kType>
struct BlockOf;
#define HF_BLOCK(type, elements, bytes)                                    \
  template <>                                                              \
  struct BlockOf<DType::type> {                                            \
    static constexpr int kElements = elements, kBytes = bytes;             \
  }
HF_BLOCK(kF32, 1, 4);
HF_BLOCK(kF16, 1, 2);
HF_BLOCK(kBF16, 1, 2);
HF_BLOCK(kQ4_0, 32, 18);
HF_BLOCK(kQ4_1, 32, 20);
HF_BLOCK(kQ5_0, 32, 22);
HF_BLOCK(kQ5_1, 32, 24);
HF_BLOCK(kQ8_0, 32, 34);
HF_BLOCK(kIQ4_NL, 32, 18);
HF_BLOCK(kMXFP4, 32, 17);
HF_BLOCK(kQ2_K, 256, 84);
HF_BLOCK(kQ3_K, 256, 110);
HF_BLOCK(kQ4_K, 256, 144);
HF_BLOCK(kQ5_K, 256, 176);
HF_BLOCK(kQ6_K, 256, 210);
#undef HF_BLOCK

// A value is scale * code - min: the code is an integer (of IQ4_NL and MXFP4 the table's value), scale and min belong to 32 or 16 elements.
struct Coded {
  int code;
  float scale, min;
};

template <DType kType>
__device__ __forceinline__ Coded CodedOf(const uint8_t* b, int j) {
  const auto nibble = [&](const uint8_t* qs) { return j < 16 ? qs[j] & 15 : qs[j - 16] >> 4; };
  const auto fifth = [&](const uint8_t* qh) { return (qh[j / 8] >> (j % 8) & 1) << 4; };
  if constexpr (kType == DType::kQ4_0) return {nibble(b + 2) - 8, LoadHalf(b), 0.f};
  if constexpr (kType == DType::kQ4_1) return {nibble(b + 4), LoadHalf(b), -LoadHalf(b + 2)};
  if constexpr (kType == DType::kQ5_0) return {(nibble(b + 6) | fifth(b + 2)) - 16, LoadHalf(b), 0.f};
  if constexpr (kType == DType::kQ5_1) return {nibble(b + 8) | fifth(b + 4), LoadHalf(b), -LoadHalf(b + 2)};
  if constexpr (kType == DType::kQ8_0) return {static_cast<int8_t>(b[2 + j]), LoadHalf(b), 0.f};
  if constexpr (kType == DType::kIQ4_NL) return {static_cast<int>(Iq4NlValue(nibble(b + 2))), LoadHalf(b), 0.f};
  if constexpr (kType == DType::kMXFP4) return {static_cast<int>(Mxfp4Value(nibble(b + 1))), E8M0Half(b[0]), 0.f};
  if constexpr (kType == DType::kQ2_K) {
    const uint8_t s = b[j / 16];
    const int code = b[16 + 32 * (j / 128) + j % 32] >> (2 * (j % 128 / 32)) & 3;
    return {code, __fmul_rn(LoadHalf(b + 80), static_cast<float>(s & 15)), __fmul_rn(LoadHalf(b + 82), static_cast<float>(s >> 4))};
  }
  if constexpr (kType == DType::kQ3_K) {
    const int h = j / 128, g = j % 128 / 32, l = j % 32, sub = j / 16;
    const int code = (b[32 + 32 * h + l] >> (2 * g) & 3) | (b[l] >> (4 * h + g) & 1) << 2;
    const uint8_t* s = b + 96;
    const int scale = (sub < 8 ? s[sub] & 15 : s[sub - 8] >> 4) | (s[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4;
    return {code - 4, __fmul_rn(LoadHalf(b + 108), static_cast<float>(scale - 32)), 0.f};
  }
  if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    const uint8_t* qs = b + (kType == DType::kQ4_K ? 16 : 48);
    const uint8_t q = qs[32 * (j / 64) + j % 32];
    int code = j % 64 < 32 ? q & 15 : q >> 4;
    if constexpr (kType == DType::kQ5_K) code |= (b[16 + j % 32] >> (j / 32) & 1) << 4;
    int scale, min;
    KScaleMinOf(b + 4, j / 32, &scale, &min);
    return {code, __fmul_rn(LoadHalf(b), static_cast<float>(scale)), __fmul_rn(LoadHalf(b + 2), static_cast<float>(min))};
  }
  if constexpr (kType == DType::kQ6_K) {
    const int h = j / 128, q = j % 128 / 32, l = j % 32;
    const uint8_t low = b[64 * h + (q % 2) * 32 + l], high = b[128 + 32 * h + l];
    const int code = (q < 2 ? low & 15 : low >> 4) | (high >> (2 * q) & 3) << 4;
    return {code - 32, __fmul_rn(LoadHalf(b + 208), static_cast<float>(static_cast<int8_t>(b[192 + j / 16]))), 0.f};
  }
  return {};
}

// Element i of a row.
template <DType kType>
__device__ __forceinline__ float ValueOf(const uint8_t* row, int64_t i) {
  if constexpr (kType == DType::kF32) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (kType == DType::kF16) {
    return HalfToFloat(reinterpret_cast<const uint16_t*>(row)[i]);
  } else if constexpr (kType == DType::kBF16) {
    return BfloatToFloat(reinterpret_cast<const uint16_t*>(row)[i]);
  } else {
    constexpr int n = BlockOf<kType>::kElements;
    const Coded c = CodedOf<kType>(row + i / n * BlockOf<kType>::kBytes, static_cast<int>(i % n));
    const float v = __fmul_rn(static_cast<float>(c.code), c.scale);
    return c.min == 0.f ? v : __fsub_rn(v, c.min);
  }
}

// f(std::integral_constant<DType, T>) for the type at hand.
template <class F>
void ForType(DType type, F&& f) {
  switch (type) {
#define HF_TYPE(t) \
  case DType::t: return f(std::integral_constant<DType, DType::t>{})
    HF_TYPE(kF32);
    HF_TYPE(kF16);
    HF_TYPE(kBF16);
    HF_TYPE(kQ4_0);
    HF_TYPE(kQ4_1);
    HF_TYPE(kQ5_0);
    HF_TYPE(kQ5_1);
    HF_TYPE(kQ8_0);
    HF_TYPE(kIQ4_NL);
    HF_TYPE(kMXFP4);
    HF_TYPE(kQ2_K);
    HF_TYPE(kQ3_K);
    HF_TYPE(kQ4_K);
    HF_TYPE(kQ5_K);
    HF_TYPE(kQ6_K);
#undef HF_TYPE
  }
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// The rule by which 8-bit KV caches store 32 values of a head: one fp16 scale (largest magnitude / 127 for q8_0, / 448 for fp8_e4m3)
// and 32 codes of value / scale, rounded to nearest even. Every backend stores exactly these codes; only their place in a page differs.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/convert.h"
#include "kernels/dtype.h"

namespace holdfast::kernels {

inline constexpr int kKvBlock = 32;

HF_HD inline bool KvIsQuantized(KvDType type) { return type == KvDType::kQ8_0 || type == KvDType::kFp8E4M3; }

// The scale (fp16 bits) of a block whose largest magnitude is amax. poison: the sum of every value times 0, so that a value that is not finite
// makes the scale not finite and is seen downstream.
HF_HD inline uint16_t KvScale(KvDType type, float amax, float poison) { return F32ToF16(amax / (type == KvDType::kQ8_0 ? 127.f : 448.f) + poison); }

// What a block's values are multiplied by before they are rounded; 0: every code is 0.
HF_HD inline float KvInverse(uint16_t scale) {
  const float s = F16ToF32(scale);
  return s > 0.f && s <= 65504.f ? 1.f / s : 0.f;
}

HF_HD inline uint8_t EncodeKv(KvDType type, float x, float inverse) {
  const float v = inverse == 0.f ? 0.f : x * inverse;
  if (type != KvDType::kQ8_0) return F32ToFp8(v);
  return static_cast<uint8_t>(static_cast<int8_t>(std::clamp(nearbyintf(v), -127.f, 127.f)));
}

// Returns the scale.
HF_HD inline uint16_t EncodeKvBlock(KvDType type, const float* x, uint8_t* codes) {
  float amax = 0.f, poison = 0.f;
  for (int i = 0; i < kKvBlock; ++i) {
    amax = std::max(amax, fabsf(x[i]));
    poison += x[i] * 0.f;
  }
  const uint16_t scale = KvScale(type, amax, poison);
  const float inverse = KvInverse(scale);
  for (int i = 0; i < kKvBlock; ++i) codes[i] = EncodeKv(type, x[i], inverse);
  return scale;
}

HF_HD inline float DecodeKv(KvDType type, uint8_t code, uint16_t scale) {
  const float v = type == KvDType::kQ8_0 ? static_cast<float>(static_cast<int8_t>(code)) : Fp8ToF32(code);
  return v * F16ToF32(scale);
}

}  // namespace holdfast::kernels

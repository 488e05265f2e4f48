#pragma once
// Scalar conversions between f32 and the short float types. Round to nearest even; NaN stays NaN.
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

namespace holdfast::kernels {

HF_HD inline float F16ToF32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float v = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

HF_HD inline uint16_t F32ToF16(float f) {
  uint32_t x = std::bit_cast<uint32_t>(f);
  const uint16_t sign = static_cast<uint16_t>((x >> 16) & 0x8000);
  x &= 0x7fffffff;
  if (x > 0x7f800000) return sign | 0x7e00;
  if (x >= 0x47800000) return sign | 0x7c00;  // 65536 and up
  if (x < 0x38800000) {                       // below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded
    const float v = std::bit_cast<float>(x) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(v) - 0x3f000000u));
  }
  x += 0xfff + ((x >> 13) & 1);
  return static_cast<uint16_t>(sign | ((x - 0x38000000u) >> 13));
}

HF_HD inline float Bf16ToF32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

HF_HD inline uint16_t F32ToBf16(float f) {
  const uint32_t x = std::bit_cast<uint32_t>(f);
  if ((x & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((x >> 16) | 0x40);
  return static_cast<uint16_t>((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

// OCP e4m3 "fn": bias 7, no infinities, 0x7f is NaN, largest 448.
HF_HD inline float Fp8ToF32(uint8_t c) {
  if ((c & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u | static_cast<uint32_t>(c & 0x80) << 24);
  const uint32_t bits = static_cast<uint32_t>(c & 0x7f) << 20;  // the same fields 120 exponents too low
  const float v = std::bit_cast<float>(bits) * 0x1p120f;
  return (c & 0x80) != 0 ? -v : v;
}

// Saturates at +-448.
HF_HD inline uint8_t F32ToFp8(float f) {
  const uint32_t x = std::bit_cast<uint32_t>(f);
  const uint8_t sign = static_cast<uint8_t>((x >> 24) & 0x80);
  const uint32_t a = x & 0x7fffffff;
  if (a > 0x7f800000) return sign | 0x7f;
  if (a >= 0x43e00000) return sign | 0x7e;  // 448
  if (a < 0x3c800000) {                     // below 2^-6: multiples of 2^-9; code 8 is the least normal
    return sign | static_cast<uint8_t>(nearbyintf(std::bit_cast<float>(a) * 512.f));
  }
  const uint32_t code = ((a + 0x7ffff + ((a >> 20) & 1)) >> 20) - (120u << 3);
  return sign | static_cast<uint8_t>(code > 0x7e ? 0x7e : code);
}

}  // namespace holdfast::kernels

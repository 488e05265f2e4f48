#pragma once
// Four lanes on the compiler's own vector type: the baseline of any machine. See simd.h for what each name means.
#include <cstdint>
#include <cstring>

#include "kernels/convert.h"

namespace holdfast::kernels::HF_ISA {
namespace {

inline constexpr int kLanes = 4;
inline constexpr bool kHasDpbusd = false;
typedef float F32 __attribute__((vector_size(16)));
typedef int32_t I32 __attribute__((vector_size(16)));
struct Codes {
  uint8_t b[16];
};
typedef I32 Part;

inline F32 Zero() { return F32{0, 0, 0, 0}; }
inline F32 Set1(float v) { return F32{v, v, v, v}; }
inline F32 Load(const float* p) {
  F32 v;
  std::memcpy(&v, p, 16);
  return v;
}
inline void Store(float* p, F32 v) { std::memcpy(p, &v, 16); }
inline F32 LoadPartial(const float* p, int64_t n) {
  F32 v = Zero();
  std::memcpy(&v, p, static_cast<size_t>(n) * 4);
  return v;
}
inline void StorePartial(float* p, F32 v, int64_t n) { std::memcpy(p, &v, static_cast<size_t>(n) * 4); }
inline F32 Add(F32 a, F32 b) { return a + b; }
inline F32 Sub(F32 a, F32 b) { return a - b; }
inline F32 Mul(F32 a, F32 b) { return a * b; }
inline F32 Div(F32 a, F32 b) { return a / b; }
inline F32 Fma(F32 a, F32 b, F32 c) { return a * b + c; }
inline F32 Max(F32 a, F32 b) { return a > b ? a : b; }
inline F32 Min(F32 a, F32 b) { return a < b ? a : b; }
inline F32 Abs(F32 a) { return reinterpret_cast<F32>(reinterpret_cast<I32>(a) & 0x7fffffff); }
inline float ReduceAdd(F32 a) { return (a[0] + a[2]) + (a[1] + a[3]); }
inline float ReduceMax(F32 a) {
  const float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
  return x > y ? x : y;
}
inline F32 KeepRange(F32 v, F32 other, int low, int high) {
  for (int i = 0; i < 4; ++i) v[i] = i >= low && i <= high ? v[i] : other[i];
  return v;
}
inline F32 LoadF16(const uint16_t* p) { return F32{F16ToF32(p[0]), F16ToF32(p[1]), F16ToF32(p[2]), F16ToF32(p[3])}; }
inline F32 LoadBf16(const uint16_t* p) { return F32{Bf16ToF32(p[0]), Bf16ToF32(p[1]), Bf16ToF32(p[2]), Bf16ToF32(p[3])}; }
inline F32 LoadFp8(const uint8_t* p) { return F32{Fp8ToF32(p[0]), Fp8ToF32(p[1]), Fp8ToF32(p[2]), Fp8ToF32(p[3])}; }
inline F32 LoadI8(const uint8_t* p) {
  F32 v;
  for (int i = 0; i < 4; ++i) v[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return v;
}
inline F32 LoadU8(const uint8_t* p) {
  return F32{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])};
}
inline float F16(uint16_t h) { return F16ToF32(h); }
inline void StoreF16(uint16_t* p, F32 v) {
  for (int i = 0; i < 4; ++i) p[i] = F32ToF16(v[i]);
}

inline I32 ISet1(int32_t v) { return I32{v, v, v, v}; }
inline I32 IAdd(I32 a, I32 b) { return a + b; }
inline F32 ToFloat(I32 v) { return __builtin_convertvector(v, F32); }
inline I32 Round(F32 v) {  // to nearest even, for |v| < 2^22
  const F32 magic = Set1(12582912.f);
  return reinterpret_cast<I32>(v + magic) - reinterpret_cast<I32>(magic);
}
inline F32 TimesPowerOfTwo(F32 v, I32 n) { return v * reinterpret_cast<F32>((n + 127) << 23); }
inline void StoreI8(int8_t* p, I32 v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<int8_t>(v[i]);
}
inline int32_t IReduceAdd(I32 v) { return v[0] + v[1] + v[2] + v[3]; }

inline Codes LoadCodes(const uint8_t* p) {
  Codes c;
  std::memcpy(c.b, p, 16);
  return c;
}
inline Codes LowNibbles(Codes c) {
  for (uint8_t& b : c.b) b &= 15;
  return c;
}
inline Codes HighNibbles(Codes c) {
  for (uint8_t& b : c.b) b = static_cast<uint8_t>(b >> 4);
  return c;
}
template <int kShift>
inline Codes Bits45(Codes c) {  // two bits from kShift up, moved to bits 4 and 5
  for (uint8_t& b : c.b) b = static_cast<uint8_t>(((b >> kShift) & 3) << 4);
  return c;
}
inline Codes Or(Codes a, Codes b) {
  for (int i = 0; i < 16; ++i) a.b[i] |= b.b[i];
  return a;
}
inline Codes LoadTable(const uint8_t* table16) { return LoadCodes(table16); }
inline Codes Lookup(Codes table, Codes nibbles) {
  for (uint8_t& b : nibbles.b) b = table.b[b & 15];
  return nibbles;
}

inline Part PartZero() { return I32{0, 0, 0, 0}; }
template <bool kFull>
inline Part DotPart(Part part, Codes w, const int8_t* a) {
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int32_t c = kFull ? static_cast<int32_t>(w.b[4 * i + j]) - 128 : w.b[4 * i + j];
      part[i] += c * a[j];
    }
  }
  return part;
}
inline I32 Flush(I32 total, Part part) { return total + part; }

}  // namespace
}  // namespace holdfast::kernels::HF_ISA

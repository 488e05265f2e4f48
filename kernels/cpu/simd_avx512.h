#pragma once
// Sixteen lanes: AVX-512 F, BW, DQ and VL; with VNNI the quad dot is one instruction. See simd.h for what each name means.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace holdfast::kernels::HF_ISA {
namespace {

inline constexpr int kLanes = 16;
using F32 = __m512;
using I32 = __m512i;
using Codes = __m512i;
using Part = __m512i;

inline F32 Zero() { return _mm512_setzero_ps(); }
inline F32 Set1(float v) { return _mm512_set1_ps(v); }
inline F32 Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, F32 v) { _mm512_storeu_ps(p, v); }
inline __mmask16 FirstLanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline F32 LoadPartial(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(FirstLanes(n), p); }
inline void StorePartial(float* p, F32 v, int64_t n) { _mm512_mask_storeu_ps(p, FirstLanes(n), v); }
inline F32 Add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
inline F32 Sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
inline F32 Mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
inline F32 Div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
inline F32 Fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32 Max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline F32 Min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
inline F32 Abs(F32 a) { return _mm512_abs_ps(a); }
inline __m256 Fold(F32 a, bool maximum) {
  const __m256 low = _mm512_castps512_ps256(a), high = _mm512_extractf32x8_ps(a, 1);
  return maximum ? _mm256_max_ps(low, high) : _mm256_add_ps(low, high);
}
inline float ReduceAdd(F32 a) {
  const __m256 f = Fold(a, false);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline float ReduceMax(F32 a) {
  const __m256 f = Fold(a, true);
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline F32 KeepRange(F32 v, F32 other, int low, int high) {
  const unsigned up_to = high >= 15 ? 0xffffu : high < 0 ? 0u : (2u << high) - 1;
  const unsigned under = low <= 0 ? 0u : low > 15 ? 0xffffu : (1u << low) - 1;
  return _mm512_mask_blend_ps(static_cast<__mmask16>(up_to & ~under), other, v);
}
inline F32 LoadF16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline F32 LoadBf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline __m128i Load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline F32 LoadI8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Load16(p))); }
inline F32 LoadU8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(Load16(p))); }
inline F32 LoadFp8(const uint8_t* p) {
  const __m512i c = _mm512_cvtepu8_epi32(Load16(p));
  const __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(c, _mm512_set1_epi32(0x7f)), 20);
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(c, _mm512_set1_epi32(0x80)), 24);
  return _mm512_or_ps(_mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f)), _mm512_castsi512_ps(sign));
}
inline float F16(uint16_t h) { return _cvtsh_ss(h); }
inline void StoreF16(uint16_t* p, F32 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

inline I32 ISet1(int32_t v) { return _mm512_set1_epi32(v); }
inline I32 IAdd(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
inline F32 ToFloat(I32 v) { return _mm512_cvtepi32_ps(v); }
inline I32 Round(F32 v) { return _mm512_cvtps_epi32(v); }
inline F32 TimesPowerOfTwo(F32 v, I32 n) {
  return _mm512_mul_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23)));
}
inline void StoreI8(int8_t* p, I32 v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v)); }
inline int32_t IReduceAdd(I32 v) { return _mm512_reduce_add_epi32(v); }

inline Codes LoadCodes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Codes LowNibbles(Codes c) { return _mm512_and_si512(c, _mm512_set1_epi8(15)); }
inline Codes HighNibbles(Codes c) { return _mm512_and_si512(_mm512_srli_epi16(c, 4), _mm512_set1_epi8(15)); }
template <int kShift>
inline Codes Bits45(Codes c) {
  const Codes moved = kShift < 4 ? _mm512_slli_epi16(c, kShift < 4 ? 4 - kShift : 0) : _mm512_srli_epi16(c, kShift < 4 ? 0 : kShift - 4);
  return _mm512_and_si512(moved, _mm512_set1_epi8(0x30));
}
inline Codes Or(Codes a, Codes b) { return _mm512_or_si512(a, b); }
inline Codes LoadTable(const uint8_t* table16) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16))); }
inline Codes Lookup(Codes table, Codes nibbles) { return _mm512_shuffle_epi8(table, nibbles); }

inline __m512i Broadcast4(const int8_t* a) {
  int32_t four;
  std::memcpy(&four, a, 4);
  return _mm512_set1_epi32(four);
}

#ifdef __AVX512VNNI__
inline constexpr bool kHasDpbusd = true;
inline I32 Dpbusd(I32 acc, Codes w, const int8_t* a) { return _mm512_dpbusd_epi32(acc, w, Broadcast4(a)); }
#else
inline constexpr bool kHasDpbusd = false;
inline Part PartZero() { return _mm512_setzero_si512(); }
template <bool kFull>
inline Part DotPart(Part part, Codes w, const int8_t* a) {
  const __m512i s = Broadcast4(a);
  if constexpr (kFull) {
    const __m512i ws = _mm512_xor_si512(w, _mm512_set1_epi8(static_cast<char>(0x80)));
    const __m512i signed_s = _mm512_mask_sub_epi8(s, _mm512_movepi8_mask(ws), _mm512_setzero_si512(), s);
    return _mm512_add_epi16(part, _mm512_maddubs_epi16(_mm512_abs_epi8(ws), signed_s));
  }
  return _mm512_add_epi16(part, _mm512_maddubs_epi16(w, s));
}
inline I32 Flush(I32 total, Part part) { return _mm512_add_epi32(total, _mm512_madd_epi16(part, _mm512_set1_epi16(1))); }
#endif

}  // namespace
}  // namespace holdfast::kernels::HF_ISA

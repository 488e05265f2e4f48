#pragma once
// Eight lanes: AVX2 with FMA and F16C. See simd.h for what each name means.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace holdfast::kernels::HF_ISA {
namespace {

inline constexpr int kLanes = 8;
inline constexpr bool kHasDpbusd = false;
using F32 = __m256;
using I32 = __m256i;
using Codes = __m256i;
using Part = __m256i;

inline F32 Zero() { return _mm256_setzero_ps(); }
inline F32 Set1(float v) { return _mm256_set1_ps(v); }
inline F32 Load(const float* p) { return _mm256_loadu_ps(p); }
inline void Store(float* p, F32 v) { _mm256_storeu_ps(p, v); }
inline __m256i LaneIndex() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline __m256i FirstLanes(int64_t n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), LaneIndex()); }
inline F32 LoadPartial(const float* p, int64_t n) { return _mm256_maskload_ps(p, FirstLanes(n)); }
inline void StorePartial(float* p, F32 v, int64_t n) { _mm256_maskstore_ps(p, FirstLanes(n), v); }
inline F32 Add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
inline F32 Sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
inline F32 Mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
inline F32 Div(F32 a, F32 b) { return _mm256_div_ps(a, b); }
inline F32 Fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
inline F32 Max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline F32 Min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
inline F32 Abs(F32 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.f), a); }
inline float ReduceAdd(F32 a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline float ReduceMax(F32 a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline F32 KeepRange(F32 v, F32 other, int low, int high) {
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(low), LaneIndex());
  const __m256i above = _mm256_cmpgt_epi32(LaneIndex(), _mm256_set1_epi32(high));
  return _mm256_blendv_ps(v, other, _mm256_castsi256_ps(_mm256_or_si256(below, above)));
}
inline F32 LoadF16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline F32 LoadBf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline __m128i Load8(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
inline F32 LoadI8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(Load8(p))); }
inline F32 LoadU8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(Load8(p))); }
inline F32 LoadFp8(const uint8_t* p) {
  const __m256i c = _mm256_cvtepu8_epi32(Load8(p));
  const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(c, _mm256_set1_epi32(0x7f)), 20);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(c, _mm256_set1_epi32(0x80)), 24);
  return _mm256_or_ps(_mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p120f)), _mm256_castsi256_ps(sign));
}
inline float F16(uint16_t h) { return _cvtsh_ss(h); }
inline void StoreF16(uint16_t* p, F32 v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }

inline I32 ISet1(int32_t v) { return _mm256_set1_epi32(v); }
inline I32 IAdd(I32 a, I32 b) { return _mm256_add_epi32(a, b); }
inline F32 ToFloat(I32 v) { return _mm256_cvtepi32_ps(v); }
inline I32 Round(F32 v) { return _mm256_cvtps_epi32(v); }
inline F32 TimesPowerOfTwo(F32 v, I32 n) {
  return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)));
}
inline void StoreI8(int8_t* p, I32 v) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline int32_t IReduceAdd(I32 v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

inline Codes LoadCodes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Codes LowNibbles(Codes c) { return _mm256_and_si256(c, _mm256_set1_epi8(15)); }
inline Codes HighNibbles(Codes c) { return _mm256_and_si256(_mm256_srli_epi16(c, 4), _mm256_set1_epi8(15)); }
template <int kShift>
inline Codes Bits45(Codes c) {
  const Codes moved = kShift < 4 ? _mm256_slli_epi16(c, 4 - kShift) : _mm256_srli_epi16(c, kShift - 4);
  return _mm256_and_si256(moved, _mm256_set1_epi8(0x30));
}
inline Codes Or(Codes a, Codes b) { return _mm256_or_si256(a, b); }
inline Codes LoadTable(const uint8_t* table16) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16))); }
inline Codes Lookup(Codes table, Codes nibbles) { return _mm256_shuffle_epi8(table, nibbles); }

inline Part PartZero() { return _mm256_setzero_si256(); }
template <bool kFull>
inline Part DotPart(Part part, Codes w, const int8_t* a) {
  int32_t four;
  std::memcpy(&four, a, 4);
  const __m256i s = _mm256_set1_epi32(four);
  if constexpr (kFull) {
    const __m256i ws = _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80)));
    return _mm256_add_epi16(part, _mm256_maddubs_epi16(_mm256_abs_epi8(ws), _mm256_sign_epi8(s, ws)));
  }
  return _mm256_add_epi16(part, _mm256_maddubs_epi16(w, s));
}
inline I32 Flush(I32 total, Part part) { return _mm256_add_epi32(total, _mm256_madd_epi16(part, _mm256_set1_epi16(1))); }

}  // namespace
}  // namespace holdfast::kernels::HF_ISA

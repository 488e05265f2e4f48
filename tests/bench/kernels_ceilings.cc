#include "tests/bench/kernels_ceilings.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace holdfast::bench {

uint64_t ReadStreams(const std::byte* data, int64_t bytes) {
  const int64_t part = bytes / 4 / 256 * 256;
#if defined(__x86_64__)
  __m128i sum[4] = {};
  for (int64_t i = 0; i < part; i += 64) {
    for (int s = 0; s < 4; ++s) {
      const __m128i* p = reinterpret_cast<const __m128i*>(data + s * part + i);
      for (int j = 0; j < 4; ++j) sum[s] = _mm_xor_si128(sum[s], _mm_loadu_si128(p + j));
    }
  }
  const __m128i all = _mm_xor_si128(_mm_xor_si128(sum[0], sum[1]), _mm_xor_si128(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(all));
#else
  uint64_t sum = 0;
  for (int64_t i = 0; i < 4 * part; i += 8) sum ^= *reinterpret_cast<const uint64_t*>(data + i);
  return sum;
#endif
}

#if defined(__x86_64__)
namespace {

constexpr int kRounds = 20000;
volatile int sink;

// Ten independent chains in registers; the empty asm keeps the compiler from seeing that every round is the same.
#define HF_TEN(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)

__attribute__((target("avx512f,avx512vnni"))) int64_t Vnni512() {
  __m512i w = _mm512_set1_epi8(3), a = _mm512_set1_epi8(5);
#define HF_ZERO(i) __m512i r##i = _mm512_setzero_si512();
#define HF_STEP(i) r##i = _mm512_dpbusd_epi32(r##i, w, a);
#define HF_JOIN(i) total = _mm512_add_epi32(total, r##i);
  HF_TEN(HF_ZERO)
  for (int r = 0; r < kRounds; ++r) {
    HF_TEN(HF_STEP)
    asm volatile("" : "+v"(w), "+v"(a));
  }
  __m512i total = w;
  HF_TEN(HF_JOIN)
  sink = _mm512_cvtsi512_si32(total);
  return int64_t{kRounds} * 10 * 64 * 2;
#undef HF_ZERO
#undef HF_STEP
#undef HF_JOIN
}

__attribute__((target("avx2"))) int64_t Maddubs256() {
  __m256i w = _mm256_set1_epi8(3), a = _mm256_set1_epi8(1);
#define HF_ZERO(i) __m256i r##i = _mm256_setzero_si256();
#define HF_STEP(i) r##i = _mm256_add_epi16(r##i, _mm256_maddubs_epi16(w, a)); asm volatile("" : "+x"(w));
#define HF_JOIN(i) total = _mm256_add_epi32(total, r##i);
  HF_TEN(HF_ZERO)
  for (int r = 0; r < kRounds; ++r) {
    HF_TEN(HF_STEP)
  }
  __m256i total = w;
  HF_TEN(HF_JOIN)
  sink = _mm256_extract_epi32(total, 0);
  return int64_t{kRounds} * 10 * 32 * 2;
#undef HF_ZERO
#undef HF_STEP
#undef HF_JOIN
}

__attribute__((target("avx512f,avx512bf16"))) int64_t Bf16() {
  __m512i bits = _mm512_set1_epi16(0x3f80);
#define HF_ZERO(i) __m512 r##i = _mm512_setzero_ps();
#define HF_STEP(i) r##i = _mm512_dpbf16_ps(r##i, (__m512bh)bits, (__m512bh)bits);
#define HF_JOIN(i) total = _mm512_add_ps(total, r##i);
  HF_TEN(HF_ZERO)
  for (int r = 0; r < kRounds; ++r) {
    HF_TEN(HF_STEP)
    asm volatile("" : "+v"(bits));
  }
  __m512 total = _mm512_setzero_ps();
  HF_TEN(HF_JOIN)
  sink = static_cast<int>(_mm512_cvtss_f32(total));
  return int64_t{kRounds} * 10 * 32 * 2;
#undef HF_ZERO
#undef HF_STEP
#undef HF_JOIN
}

__attribute__((target("avx512f"))) int64_t Fma512() {
  __m512 a = _mm512_set1_ps(0.5f);
#define HF_ZERO(i) __m512 r##i = _mm512_setzero_ps();
#define HF_STEP(i) r##i = _mm512_fmadd_ps(r##i, a, a);
#define HF_JOIN(i) total = _mm512_add_ps(total, r##i);
  HF_TEN(HF_ZERO)
  for (int r = 0; r < kRounds; ++r) {
    HF_TEN(HF_STEP)
    asm volatile("" : "+v"(a));
  }
  __m512 total = a;
  HF_TEN(HF_JOIN)
  sink = static_cast<int>(_mm512_cvtss_f32(total));
  return int64_t{kRounds} * 10 * 16 * 2;
#undef HF_ZERO
#undef HF_STEP
#undef HF_JOIN
}

__attribute__((target("avx2,fma"))) int64_t Fma256() {
  __m256 a = _mm256_set1_ps(0.5f);
#define HF_ZERO(i) __m256 r##i = _mm256_setzero_ps();
#define HF_STEP(i) r##i = _mm256_fmadd_ps(r##i, a, a);
#define HF_JOIN(i) total = _mm256_add_ps(total, r##i);
  HF_TEN(HF_ZERO)
  for (int r = 0; r < kRounds; ++r) {
    HF_TEN(HF_STEP)
    asm volatile("" : "+x"(a));
  }
  __m256 total = a;
  HF_TEN(HF_JOIN)
  sink = static_cast<int>(_mm256_cvtss_f32(total));
  return int64_t{kRounds} * 10 * 8 * 2;
#undef HF_ZERO
#undef HF_STEP
#undef HF_JOIN
}

}  // namespace

int64_t Int8DotOps() {
  if (__builtin_cpu_supports("avx512vnni")) return Vnni512();
  return __builtin_cpu_supports("avx2") ? Maddubs256() : 0;
}
int64_t Bf16DotOps() { return __builtin_cpu_supports("avx512bf16") ? Bf16() : 0; }
int64_t FloatFmaOps() {
  if (__builtin_cpu_supports("avx512f")) return Fma512();
  return __builtin_cpu_supports("fma") ? Fma256() : 0;
}
#else
int64_t Int8DotOps() { return 0; }
int64_t Bf16DotOps() { return 0; }
int64_t FloatFmaOps() { return 0; }
#endif

}  // namespace holdfast::bench

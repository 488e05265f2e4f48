#pragma once
// The arithmetic of drawing a token, shared by the host's sampler (worker/exec/sampler.cc) and the devices' (kernels/cuda/sample.cu), so that
// both draw the same token from the same logits.
//
// A device adds in an order of its own. So nothing here that is added up is a float: a token's weight is an integer, 2^40 for the best token
// and floor(2^40 * exp((logit - best) / temperature)) for the others, and sums of integers do not depend on their order. What comes before the
// weight belongs to one token alone and rounds at every operation: neither side may contract a product and a sum into one (Mul and Add below
// on a device, -ffp-contract=off on the host).
//
// Order of tokens, wherever one is needed: higher logit first, then lower id (the two zeros are equal).
#include <bit>
#include <cstdint>

#include "kernels/host_device.h"

namespace holdfast::kernels {

// A product, a sum, a quotient that rounds by itself.
#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float RoundedMul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float RoundedAdd(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float RoundedDiv(float a, float b) { return __fdiv_rn(a, b); }
#else
HF_HD inline float RoundedMul(float a, float b) { return a * b; }
HF_HD inline float RoundedAdd(float a, float b) { return a + b; }
HF_HD inline float RoundedDiv(float a, float b) { return a / b; }
#endif

inline constexpr float kMinExponent = -87.f;        // below it exp() leaves the normal floats: FastExp gives zero
inline constexpr float kMinWeightExponent = -27.7f; // below it a weight is zero (2^-40 is exp(-27.726)); from it on, at least 1
inline constexpr float kMinTemperature = 1e-6f, kMaxTemperature = 1e30f;   // so that no exponent is a product of infinity and zero
inline constexpr int kWeightBits = 40;              // vocabularies up to 2^20 tokens sum below 2^61

// exp(x) for x <= 0: 2^n * p(f), |relative error| < 2e-7, exactly 1 at 0; zero below `least` (>= kMinExponent). Without branches, so that
// loops over it vectorise. NaN gives anything: look before.
HF_HD inline float FastExp(float x, float least = kMinExponent) {
  const float clamped = x > kMinExponent ? x : kMinExponent;
  const float half_below = RoundedAdd(RoundedMul(clamped, 1.44269504088896341f), -0.5f);  // <= 0: truncation rounds to nearest
  const float n = static_cast<float>(static_cast<int32_t>(half_below));
  const float f = RoundedAdd(RoundedAdd(clamped, RoundedMul(n, -0.693359375f)), RoundedMul(n, 2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = RoundedAdd(RoundedMul(p, f), 1.3981999507e-3f);
  p = RoundedAdd(RoundedMul(p, f), 8.3334519073e-3f);
  p = RoundedAdd(RoundedMul(p, f), 4.1665795894e-2f);
  p = RoundedAdd(RoundedMul(p, f), 1.6666665459e-1f);
  p = RoundedAdd(RoundedMul(p, f), 5.0000001201e-1f);
  p = RoundedAdd(RoundedAdd(RoundedMul(RoundedMul(p, f), f), f), 1.0f);
  const float scale = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return x < least ? 0.f : RoundedMul(p, scale);
}

// What a logit's distance to the best is multiplied by; for temperature > 0.
inline float InverseTemperature(float temperature) {
  const float least = temperature > kMinTemperature ? temperature : kMinTemperature;
  return 1.f / (least < kMaxTemperature ? least : kMaxTemperature);
}

// (logit - best) / temperature: <= 0, and no less for a higher logit. It falls below kMinWeightExponent for a suffix of the order.
HF_HD inline float Exponent(float logit, float best, float inverse) { return RoundedMul(RoundedAdd(logit, -best), inverse); }

// A token's probability over the best one's, in [0, 1]: what min_p is compared with. Zero where the weight is.
HF_HD inline float RelativeProbability(float logit, float best, float inverse) { return FastExp(Exponent(logit, best, inverse), kMinWeightExponent); }

// Its weight: in [0, 2^40]. (2^40 times a float in [2^-40, 1] is exact; the conversion cuts.)
HF_HD inline uint64_t WeightOf(float relative_probability) { return static_cast<uint64_t>(static_cast<int64_t>(relative_probability * 0x1p40f)); }

// A number in [0, 1) as a multiple of 2^-64, cut.
inline uint64_t FractionOf(double v) { return static_cast<uint64_t>(v * 0x1p64); }

HF_HD inline uint64_t MulHigh(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// top_p keeps the shortest prefix of the order whose weights sum to at least ceil(total * fraction), and at least one token.
HF_HD inline uint64_t MassWanted(uint64_t total, uint64_t fraction) {
  const uint64_t whole = MulHigh(total, fraction) + (total * fraction != 0 ? 1 : 0);
  return whole > 0 ? whole : 1;
}

// The token drawn is the first, by ascending id, at which the running sum of the kept weights exceeds floor(u * total); total > 0.
HF_HD inline uint64_t DrawTarget(uint64_t total, uint64_t u) { return MulHigh(total, u); }

// Repetition penalty: once a distinct token.
HF_HD inline float Repeated(float logit, float penalty) { return logit > 0.f ? RoundedDiv(logit, penalty) : RoundedMul(logit, penalty); }
// Frequency and presence penalty of a token generated `count` > 0 times.
HF_HD inline float Penalised(float logit, float frequency, float presence, uint32_t count) {
  return RoundedAdd(logit, -RoundedAdd(RoundedMul(frequency, static_cast<float>(count)), presence));
}

// Place in the order as a number: greater comes first. Of a logit that is a number; the id below 2^32.
HF_HD inline uint64_t OrderKey(float logit, uint32_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(RoundedAdd(logit, 0.f));   // of two zeros, the positive one
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - id);
}
HF_HD inline uint32_t IdOf(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

}  // namespace holdfast::kernels

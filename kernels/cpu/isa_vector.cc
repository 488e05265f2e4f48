// Row-wise kernels of one instruction set: quantising activations, norms, activations, rotations. Each row is computed alone and in one
// order.
#include "kernels/cpu/isa_parts.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"

namespace holdfast::kernels::HF_ISA {
namespace {

inline constexpr int kVectors = 32 / kLanes;  // of a block of 32

// One block of 32: codes round(x * 127 / amax), scale amax / 127. A value that is not finite makes the scale NaN, and so the result.
inline void QuantizeBlock(const float* x, int8_t* codes, Aux* aux) {
  F32 v[kVectors];
  F32 amax = Zero(), poison = Zero();
  for (int i = 0; i < kVectors; ++i) {
    v[i] = Load(x + i * kLanes);
    amax = Max(amax, Abs(v[i]));
    poison = Fma(v[i], Zero(), poison);
  }
  const float top = ReduceMax(amax);
  const float bad = ReduceAdd(poison);
  const float d = top / 127.f + bad;
  const bool usable = top > 0.f && bad == 0.f;
  const F32 inverse = Set1(usable ? 127.f / top : 0.f);
  I32 half[2] = {ISet1(0), ISet1(0)};
  for (int i = 0; i < kVectors; ++i) {
    const I32 q = usable ? Round(Mul(v[i], inverse)) : ISet1(0);
    StoreI8(codes + i * kLanes, q);
    half[i / (kVectors / 2)] = IAdd(half[i / (kVectors / 2)], q);
  }
  const int32_t low = IReduceAdd(half[0]), high = IReduceAdd(half[1]);
  aux->d = d;
  aux->sum = d * static_cast<float>(low + high);
  aux->sum_low = d * static_cast<float>(low);
  aux->sum_high = d * static_cast<float>(high);
  aux->n8 = -8 * (low + high);
  aux->n128 = -128 * (low + high);
  aux->low = low;
  aux->high = high;
}

void Quantize(const RowSource& x, const Tiling& tiling, int64_t i0, int64_t i1, int64_t in, std::byte* panel) {
  for (int64_t i = i0; i < i1; ++i) {
    const int64_t t0 = tiling.Begin(i);
    const int m = tiling.Size(i);
    std::byte* tile = panel + t0 * (in / 32) * kPanelBlockBytes;
    for (int r = 0; r < m; ++r) {
      const float* row = x.row(t0 + r);
      for (int64_t b = 0; b < in / 32; ++b) {
        std::byte* block = tile + b * m * kPanelBlockBytes;
        QuantizeBlock(row + b * 32, reinterpret_cast<int8_t*>(block) + r * 32, reinterpret_cast<Aux*>(block + m * 32) + r);
      }
    }
  }
}

void Interleave(const RowSource& x, const Tiling& tiling, int64_t i0, int64_t i1, int64_t in, std::byte* panel) {
  for (int64_t i = i0; i < i1; ++i) {
    const int64_t t0 = tiling.Begin(i);
    const int m = tiling.Size(i);
    float* tile = reinterpret_cast<float*>(panel) + t0 * in;
    for (int r = 0; r < m; ++r) {
      const float* row = x.row(t0 + r);
      for (int64_t k = 0; k < in; ++k) tile[k * m + r] = row[k];
    }
  }
}

// Calls f(offset, count): whole vectors, then the rest.
template <class F>
inline void Sweep(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
  if (i < n) f(i, n - i);
}
inline F32 Get(const float* p, int64_t n) { return n == kLanes ? Load(p) : LoadPartial(p, n); }
inline void Put(float* p, F32 v, int64_t n) { n == kLanes ? Store(p, v) : StorePartial(p, v, n); }

inline float InverseRms(const float* x, float eps, int64_t n) {
  F32 sum[4] = {Zero(), Zero(), Zero(), Zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const F32 v = Load(x + i + j * kLanes);
      sum[j] = Fma(v, v, sum[j]);
    }
  }
  for (int64_t left = n - i; left > 0; left -= kLanes, i += kLanes) {
    const F32 v = Get(x + i, left < kLanes ? left : kLanes);
    sum[0] = Fma(v, v, sum[0]);
  }
  const float total = ReduceAdd(Add(Add(sum[0], sum[1]), Add(sum[2], sum[3])));
  return 1.f / __builtin_sqrtf(total / static_cast<float>(n) + eps);
}

void RmsNorm(const float* x, const float* weight, float eps, float* out, int64_t n) {
  const F32 r = Set1(InverseRms(x, eps, n));
  Sweep(n, [&](int64_t i, int64_t c) {
    const F32 v = Mul(Get(x + i, c), r);
    Put(out + i, weight != nullptr ? Mul(v, Get(weight + i, c)) : v, c);
  });
}

void AddRmsNorm(float* x, const float* y, const float* weight, float eps, int64_t n) {
  const F32 r = Set1(InverseRms(y, eps, n));
  Sweep(n, [&](int64_t i, int64_t c) {
    const F32 v = Mul(Get(y + i, c), r);
    Put(x + i, Add(Get(x + i, c), weight != nullptr ? Mul(v, Get(weight + i, c)) : v), c);
  });
}

void GatedSilu(const float* g, const float* u, float* out, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(out + i, Mul(Silu(Get(g + i, c)), Get(u + i, c)), c); });
}
void GatedGelu(const float* g, const float* u, float* out, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(out + i, Mul(GeluTanh(Get(g + i, c)), Get(u + i, c)), c); });
}
void GatedOai(const float* g, const float* u, float* out, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(out + i, SwigluOai(Get(g + i, c), Get(u + i, c)), c); });
}
void ApplySilu(float* x, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(x + i, Silu(Get(x + i, c)), c); });
}
void ApplyGelu(float* x, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(x + i, GeluTanh(Get(x + i, c)), c); });
}
void Softcap(float* x, float cap, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(x + i, Mul(Set1(cap), Tanh(Div(Get(x + i, c), Set1(cap)))), c); });
}
void AddRows(float* x, const float* y, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(x + i, Add(Get(x + i, c), Get(y + i, c)), c); });
}
void Multiply(float* x, const float* y, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(x + i, Mul(Get(x + i, c), Get(y + i, c)), c); });
}
void Scale(float* x, float factor, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(x + i, Mul(Get(x + i, c), Set1(factor)), c); });
}
void AddScaled(float* x, const float* y, float factor, int64_t n) {
  Sweep(n, [&](int64_t i, int64_t c) { Put(x + i, Fma(Get(y + i, c), Set1(factor), Get(x + i, c)), c); });
}

void RopeHalves(float* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosine, const float* sine) {
  for (int64_t h = 0; h < heads; ++h) {
    float* a = x + h * head_dim;
    float* b = a + half;
    Sweep(half, [&](int64_t i, int64_t c) {
      const F32 first = Get(a + i, c), second = Get(b + i, c), co = Get(cosine + i, c), si = Get(sine + i, c);
      Put(a + i, Sub(Mul(first, co), Mul(second, si)), c);
      Put(b + i, Add(Mul(first, si), Mul(second, co)), c);
    });
  }
}

void RopePairs(float* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosine, const float* sine) {
  for (int64_t h = 0; h < heads; ++h) {
    float* pair = x + h * head_dim;
    for (int64_t i = 0; i < half; ++i, pair += 2) {
      const float first = pair[0], second = pair[1];
      pair[0] = first * cosine[i] - second * sine[i];
      pair[1] = first * sine[i] + second * cosine[i];
    }
  }
}

void ToF16(const float* x, uint16_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreF16(out + i, Load(x + i));
  if (i < n) {
    uint16_t last[kLanes];
    StoreF16(last, LoadPartial(x + i, n - i));
    for (int64_t j = 0; i + j < n; ++j) out[i + j] = last[j];
  }
}

}  // namespace

void FillVector(KernelTable& t) {
  t.quantize = Quantize;
  t.interleave = Interleave;
  t.rms_norm = RmsNorm;
  t.add_rms_norm = AddRmsNorm;
  t.gated[0] = GatedSilu;
  t.gated[1] = GatedGelu;
  t.gated[2] = GatedOai;
  t.activate[0] = ApplySilu;
  t.activate[1] = ApplyGelu;
  t.softcap = Softcap;
  t.add = AddRows;
  t.multiply = Multiply;
  t.scale = Scale;
  t.add_scaled = AddScaled;
  t.rope_halves = RopeHalves;
  t.rope_pairs = RopePairs;
  t.to_f16 = ToF16;
}

}  // namespace holdfast::kernels::HF_ISA

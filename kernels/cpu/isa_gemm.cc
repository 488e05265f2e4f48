// Matrix products of one instruction set. Each output is one accumulator that walks K in order, whatever the tile: that order is what
// makes a row's result independent of the rows beside it.
#include "kernels/cpu/isa_parts.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weight_formats.h"

namespace holdfast::kernels::HF_ISA {
namespace {

inline constexpr int kSub = kGroupRows / kLanes;             // units (one vector of rows) in a group
inline constexpr int kMaxTile = kLanes == 16 ? 6 : kLanes == 8 ? 4 : 2;  // rows of a register tile
#ifdef __AMX_INT8__
inline constexpr int kMaxPanel = 16;                                      // rows of a panel
#else
inline constexpr int kMaxPanel = kMaxTile;
#endif
inline constexpr int64_t kPanelBudget = 768 << 10;           // bytes of activations swept per pass over the weights

// Units that a tile of m rows takes at once: four address streams for few rows, then as the registers allow.
constexpr int QuantUnits(int m) {
  if (kLanes == 4) return 1;
  return kLanes == 16 ? (m <= 2 ? 4 : 2) : (m == 1 ? 4 : m == 2 ? 2 : 1);
}
constexpr int FloatUnits(int m) { return kLanes == 16 ? 4 : (m <= 2 ? 4 : 2); }

struct Unit {
  const uint8_t* record;
  int lane;
};

inline Unit UnitAt(const GemmArgs& a, int64_t u) {
  return {reinterpret_cast<const uint8_t*>(a.w) + u / kSub * a.group_bytes, static_cast<int>(u % kSub) * kLanes};
}

inline void Finish(const GemmArgs& a, int64_t u, int64_t row, F32 v) {
  const int64_t o = u * kLanes, left = a.out - o;
  if (left <= 0) return;
  float* y = a.y + row * a.stride + o;
  if (left >= kLanes) {
    if (a.bias != nullptr) v = Add(v, Load(a.bias + o));
    if (a.accumulate) v = Add(Load(y), v);
    Store(y, v);
  } else {
    if (a.bias != nullptr) v = Add(v, LoadPartial(a.bias + o, left));
    if (a.accumulate) v = Add(LoadPartial(y, left), v);
    StorePartial(y, v, left);
  }
}

// Four codes vectors of one half of a block against the m rows of the panel block `p`.
template <class W, int U, int M>
inline void DotHalf(const Unit (&units)[U], int s, int half, const W& w, const int8_t* p, I32 (&total)[U][M]) {
#if defined(__AVX512VNNI__)
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const Codes c = w.Load(units[u].record, s, half, v, units[u].lane);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) total[u][m] = Dpbusd(total[u][m], c, p + m * 32 + half * 16 + v * 4);
    }
  }
#else
  Part part[U][M];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const Codes c = w.Load(units[u].record, s, half, v, units[u].lane);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const Part before = v % W::kSteps == 0 ? PartZero() : part[u][m];
        part[u][m] = DotPart<W::kFull>(before, c, p + m * 32 + half * 16 + v * 4);
        if (v % W::kSteps == W::kSteps - 1) total[u][m] = Flush(total[u][m], part[u][m]);
      }
    }
  }
#endif
}

// M rows of a panel: `row` is the first, `panel_row` the panel's first and `width` its rows.
template <class W, int U, int M>
void QuantTile(const GemmArgs& a, int64_t unit, int64_t panel_row, int width, int64_t row) {
  const W w(a);
  Unit units[U];
  for (int u = 0; u < U; ++u) units[u] = UnitAt(a, unit + u);
  F32 acc[U][M];
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[u][m] = Zero();
  }
  const int8_t* p = reinterpret_cast<const int8_t*>(a.panel) + panel_row * (a.in / 32) * kPanelBlockBytes + (row - panel_row) * 32;
  const int64_t to_aux = width * 32, step = width * kPanelBlockBytes;
  for (int64_t k = 0; k < a.in; k += W::kRecord) {
    for (int s = 0; s < W::kRecord / 32; ++s, p += step) {
      const Aux* aux = reinterpret_cast<const Aux*>(p + to_aux);
      I32 total[U][M];
      if constexpr (!W::kHalves) {
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const I32 start = ISet1(w.Start(aux[m]));
#pragma GCC unroll 4
          for (int u = 0; u < U; ++u) total[u][m] = start;
        }
        DotHalf<W, U, M>(units, s, 0, w, p, total);
        DotHalf<W, U, M>(units, s, 1, w, p, total);
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) {
          const F32 scale = w.Scale(units[u].record, s, 0, units[u].lane);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) acc[u][m] = Fma(ToFloat(total[u][m]), Mul(scale, Set1(aux[m].d)), acc[u][m]);
          if constexpr (W::kHasMin) {
            const F32 minimum = w.Min(units[u].record, s, 0, units[u].lane);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) acc[u][m] = Fma(minimum, Set1(aux[m].sum), acc[u][m]);
          }
        }
      } else {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            const I32 start = ISet1(w.StartHalf(half == 0 ? aux[m].low : aux[m].high));
#pragma GCC unroll 4
            for (int u = 0; u < U; ++u) total[u][m] = start;
          }
          DotHalf<W, U, M>(units, s, half, w, p, total);
#pragma GCC unroll 4
          for (int u = 0; u < U; ++u) {
            const F32 scale = w.Scale(units[u].record, s, half, units[u].lane);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) acc[u][m] = Fma(ToFloat(total[u][m]), Mul(scale, Set1(aux[m].d)), acc[u][m]);
            if constexpr (W::kHasMin) {
              const F32 minimum = w.Min(units[u].record, s, half, units[u].lane);
#pragma GCC unroll 8
              for (int m = 0; m < M; ++m) acc[u][m] = Fma(minimum, Set1(half == 0 ? aux[m].sum_low : aux[m].sum_high), acc[u][m]);
            }
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) units[u].record += W::kBytes;
  }
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) Finish(a, unit + u, row + m, acc[u][m]);
  }
}

template <class W, int U, int M>
void FloatTile(const GemmArgs& a, int64_t unit, int64_t panel_row, int width, int64_t row) {
  Unit units[U];
  for (int u = 0; u < U; ++u) units[u] = UnitAt(a, unit + u);
  F32 acc[U][M];
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[u][m] = Zero();
  }
  const float* p = reinterpret_cast<const float*>(a.panel) + panel_row * a.in + (row - panel_row);
  for (int64_t k = 0; k < a.in; ++k, p += width) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const F32 w = W::Load(units[u].record, units[u].lane);
      units[u].record += W::kBytes;
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) acc[u][m] = Fma(w, Set1(p[m]), acc[u][m]);
    }
  }
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) Finish(a, unit + u, row + m, acc[u][m]);
  }
}

#ifdef __AMX_INT8__
}  // namespace
}  // namespace holdfast::kernels::HF_ISA
#include "kernels/cpu/amx_tile.h"
namespace holdfast::kernels::HF_ISA {
namespace {
#endif

struct Rows {
  int64_t panel_row;
  int width;      // of the panel
  int64_t first;
  int count;      // of the register tile
};

template <class W, int M>
void Units(const GemmArgs& a, int64_t u0, int64_t u1, const Rows& r) {
  constexpr int kUnits = W::kIsFloat ? FloatUnits(M) : QuantUnits(M);
  int64_t u = u0;
  for (; u < u1; u += u + kUnits <= u1 ? kUnits : 1) {
    const bool full = u + kUnits <= u1;
    if constexpr (W::kIsFloat) {
      full ? FloatTile<W, kUnits, M>(a, u, r.panel_row, r.width, r.first) : FloatTile<W, 1, M>(a, u, r.panel_row, r.width, r.first);
    } else {
      full ? QuantTile<W, kUnits, M>(a, u, r.panel_row, r.width, r.first) : QuantTile<W, 1, M>(a, u, r.panel_row, r.width, r.first);
    }
  }
}

template <class W>
void Panel(const GemmArgs& a, int64_t u0, int64_t u1, int64_t row, int width) {
  const Tiling tiling(width, kMaxTile);
  for (int64_t i = 0; i < tiling.count; ++i) {
    const Rows r{row, width, row + tiling.Begin(i), tiling.Size(i)};
    switch (r.count) {
      case 1: Units<W, 1>(a, u0, u1, r); break;
      case 2: Units<W, 2>(a, u0, u1, r); break;
      default:
        if constexpr (kMaxTile >= 4) {
          if (r.count == 3) Units<W, 3>(a, u0, u1, r);
          if (r.count == 4) Units<W, 4>(a, u0, u1, r);
        }
        if constexpr (kMaxTile >= 6) {
          if (r.count == 5) Units<W, 5>(a, u0, u1, r);
          if (r.count == 6) Units<W, 6>(a, u0, u1, r);
        }
    }
  }
}

template <class W>
void Gemm(const GemmArgs& a, int64_t g0, int64_t g1) {
  const Tiling tiling(a.rows, kMaxPanel);
  const int64_t row_bytes = W::kIsFloat ? a.in * 4 : a.in / 32 * kPanelBlockBytes;
  int64_t tiles = kPanelBudget / (row_bytes * kMaxPanel);
  if (tiles < 1) tiles = 1;
  constexpr int64_t kStep = 4;  // units that stay in the first cache while the panels of a pass go by
  const int64_t u1 = g1 * kSub;
  for (int64_t t0 = 0; t0 < tiling.count; t0 += tiles) {
    const int64_t t1 = t0 + tiles < tiling.count ? t0 + tiles : tiling.count;
#ifdef __AMX_INT8__
    if constexpr (!W::kIsFloat) {
      if constexpr (!W::kHalves) {
        const int64_t rows = tiling.Begin(t1 - 1) + tiling.Size(t1 - 1) - tiling.Begin(t0);
        if (tiling.Size(t1 - 1) >= kAmxRows && rows >= (W::kFull ? kAmxPassOfBytes : kAmxPass)) {
          AmxPass<W>(a, tiling, t0, t1, g0, g1);
          continue;
        }
      }
    }
#endif
    const int64_t step = t1 - t0 == 1 && tiling.Size(t0) <= kMaxTile ? u1 - g0 * kSub : kStep;
    for (int64_t u = g0 * kSub; u < u1; u += step) {
      for (int64_t t = t0; t < t1; ++t) Panel<W>(a, u, u + step < u1 ? u + step : u1, tiling.Begin(t), tiling.Size(t));
    }
  }
}

}  // namespace

void FillGemm(KernelTable& t) {
  t.max_tile = kMaxPanel;
#ifdef __AMX_INT8__
  t.scratch_bytes = AmxScratchBytes;
#else
  t.scratch_bytes = [](int64_t) -> int64_t { return 0; };
#endif
  t.gemm[kPackNone] = nullptr;
  t.gemm[kPackF32] = Gemm<WeightsF32>;
  t.gemm[kPackF16] = Gemm<WeightsF16>;
  t.gemm[kPackBF16] = Gemm<WeightsBF16>;
  t.gemm[kPackQ4_0] = Gemm<WeightsQ4_0>;
  t.gemm[kPackQ4_1] = Gemm<WeightsQ4_1>;
  t.gemm[kPackQ8_0] = Gemm<WeightsQ8_0>;
  t.gemm[kPackQ4_K] = Gemm<WeightsQ4_K>;
  t.gemm[kPackQ6_K] = Gemm<WeightsQ6_K>;
  t.gemm[kPackTable] = Gemm<WeightsTable>;
  t.gemm[kPackWide] = Gemm<WeightsWide<false>>;
  t.gemm[kPackWideMin] = Gemm<WeightsWide<true>>;
}

}  // namespace holdfast::kernels::HF_ISA

#pragma once
// lint: needs-isa-flags (compiled only as part of isa_gemm.cc with the flags of its set)
// Products with AMX int8 tiles, for many rows: included by isa_gemm.cc in the set that has them. A block of 32 is one tile product of up
// to 16 activation rows with 16 weight rows, an exact integer; scales and sums follow in f32 in the order of the other tiles, so the bits
// are those of the VNNI path. (lint: needs-isa-flags)
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weight_formats.h"

namespace holdfast::kernels::HF_ISA {
namespace {

inline constexpr int kAmxRows = 8;  // a panel of fewer rows goes the VNNI way, and so does a pass too short to pay for unpacking:
inline constexpr int64_t kAmxPass = 12, kAmxPassOfBytes = 32;
inline constexpr int64_t kAmxBlock = 512 + 128;  // unpacked block: 8 vectors of signed codes, 16 scales, 16 minimums

int64_t AmxScratchBytes(int64_t in) { return in / 32 * kAmxBlock + 64; }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

inline void Configure(int m) {
  TileConfig c;
  c.row_bytes[0] = 64, c.rows[0] = static_cast<uint8_t>(m);   // 0: sums, a row of 16 int32 for each activation row
  c.row_bytes[1] = 32, c.rows[1] = static_cast<uint8_t>(m);   // 1: activations
  c.row_bytes[2] = 64, c.rows[2] = 8;                         // 2: weights, four k a row
  _tile_loadconfig(&c);
}

// One group of 16 weight rows: signed codes, scales and minimums of every block.
template <class W>
void AmxUnpack(const GemmArgs& a, int64_t group, uint8_t* out) {
  const W w(a);
  const uint8_t* record = reinterpret_cast<const uint8_t*>(a.w) + group * a.group_bytes;
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(W::kZero));
  for (int64_t k = 0; k < a.in; k += W::kRecord, record += W::kBytes) {
    for (int s = 0; s < W::kRecord / 32; ++s, out += kAmxBlock) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) _mm512_store_si512(out + (half * 4 + v) * 64, _mm512_sub_epi8(w.Load(record, s, half, v, 0), zero));
      }
      Store(reinterpret_cast<float*>(out + 512), w.Scale(record, s, 0, 0));
      if constexpr (W::kHasMin) Store(reinterpret_cast<float*>(out + 576), w.Min(record, s, 0, 0));
    }
  }
}

template <bool kHasMin, int M>
void AmxTile(const GemmArgs& a, const uint8_t* w, int64_t group, int64_t row) {
  alignas(64) int32_t sums[2][16 * 16];
  F32 acc[M];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) acc[m] = Zero();
  const int64_t blocks = a.in / 32;
  const int8_t* p = reinterpret_cast<const int8_t*>(a.panel) + row * blocks * kPanelBlockBytes;
  const auto product = [&](int64_t b) {
    _tile_zero(0);
    _tile_loadd(1, p + b * M * kPanelBlockBytes, 32);
    _tile_loadd(2, w + b * kAmxBlock, 64);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums[b & 1], 64);
  };
  asm volatile("" ::: "memory");  // gcc 12 does not tell the compiler that a tile load reads memory
  product(0);
  for (int64_t b = 0; b < blocks; ++b) {
    if (b + 1 < blocks) product(b + 1);  // runs while this block's sums are scaled
    const Aux* aux = reinterpret_cast<const Aux*>(p + b * M * kPanelBlockBytes + M * 32);
    const F32 scale = Load(reinterpret_cast<const float*>(w + b * kAmxBlock + 512));
    const int32_t* sum = sums[b & 1];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = Fma(ToFloat(_mm512_load_si512(sum + m * 16)), Mul(scale, Set1(aux[m].d)), acc[m]);
    if constexpr (kHasMin) {
      const F32 minimum = Load(reinterpret_cast<const float*>(w + b * kAmxBlock + 576));
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) acc[m] = Fma(minimum, Set1(aux[m].sum), acc[m]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) Finish(a, group, row + m, acc[m]);
}

// Panels [t0, t1) against groups [g0, g1); every panel has at least kAmxRows rows.
template <class W>
void AmxPass(const GemmArgs& a, const Tiling& tiling, int64_t t0, int64_t t1, int64_t g0, int64_t g1) {
  uint8_t* unpacked = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(a.scratch) + 63) / 64 * 64);
  int configured = 0;
  for (int64_t g = g0; g < g1; ++g) {
    AmxUnpack<W>(a, g, unpacked);
    for (int64_t t = t0; t < t1; ++t) {
      const int m = tiling.Size(t);
      if (m != configured) Configure(m);
      configured = m;
      const int64_t row = tiling.Begin(t);
      switch (m) {
        case 8: AmxTile<W::kHasMin, 8>(a, unpacked, g, row); break;
        case 9: AmxTile<W::kHasMin, 9>(a, unpacked, g, row); break;
        case 10: AmxTile<W::kHasMin, 10>(a, unpacked, g, row); break;
        case 11: AmxTile<W::kHasMin, 11>(a, unpacked, g, row); break;
        case 12: AmxTile<W::kHasMin, 12>(a, unpacked, g, row); break;
        case 13: AmxTile<W::kHasMin, 13>(a, unpacked, g, row); break;
        case 14: AmxTile<W::kHasMin, 14>(a, unpacked, g, row); break;
        case 15: AmxTile<W::kHasMin, 15>(a, unpacked, g, row); break;
        case 16: AmxTile<W::kHasMin, 16>(a, unpacked, g, row); break;
        default: break;
      }
    }
  }
  _tile_release();
}

}  // namespace
}  // namespace holdfast::kernels::HF_ISA

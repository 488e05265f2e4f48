#pragma once
// The two kernels of a product, for one weight format. Both do per tile of K what MultiplyTile does, so their sums are the same.
//
// SmallKernel reads every weight once, straight from device memory into the registers of the lane that multiplies it: for decode. A block has
// one group of 16 rows of W; its warps are the runs of K. TileKernel copies weights and panels into shared memory, several tiles of K ahead,
// and multiplies kM x kN at once: for prefill.
#include <type_traits>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/weight_formats.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
static_assert(kWarps == kSegments, "a warp of SmallKernel is a run of K");

// An exact integer in a float's mantissa: the multiply begins at these bits and ends at those of kMagic + dot, |dot| < 2^22.
constexpr int kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.f;

// acc[m][n] += tile m of W times columns n of x. x: Piece(n, piece) is a lane's 16 bytes for column g of n; Aux(n, j, blk) scale and sum of
// column 2c + j; Wanted(n) whether any column of n is used (the same for the whole warp).
template <class F, int kMs, int kNs, class X>
__device__ __forceinline__ void MultiplyTile(const F (&w)[kMs], const X& x, float (&acc)[kMs][kNs][4]) {
  if constexpr (F::kFloat) {
    // A tile's sum begins at zero: tensor cores round sums down, which a long chain would show.
    float part[kMs][kNs][4];
    HF_UNROLL
    for (int m = 0; m < kMs; ++m) {
      HF_UNROLL
      for (int n = 0; n < kNs; ++n) {
        HF_UNROLL
        for (int i = 0; i < 4; ++i) part[m][n][i] = 0.f;
      }
    }
    HF_UNROLL
    for (int pair = 0; pair < 2; ++pair) {   // of steps of 16
      unsigned a[2][kMs][F::kParts][4];
      HF_UNROLL
      for (int m = 0; m < kMs; ++m) {
        w[m].Fragment(2 * pair, a[0][m]);
        w[m].Fragment(2 * pair + 1, a[1][m]);
      }
      HF_UNROLL
      for (int n = 0; n < kNs; ++n) {
        if (!x.Wanted(n)) continue;
        HF_UNROLL
        for (int right = 2; right >= 0; --right) {
          const uint4 b = x.Piece(n, 2 * right + pair);
          HF_UNROLL
          for (int left = F::kParts - 1; left >= 0; --left) {
            if (left + right > 2) continue;   // below the last bit
            HF_UNROLL
            for (int m = 0; m < kMs; ++m) {
              MmaBf16(part[m][n], a[0][m][left], b.x, b.y);
              MmaBf16(part[m][n], a[1][m][left], b.z, b.w);
            }
          }
        }
      }
    }
    HF_UNROLL
    for (int m = 0; m < kMs; ++m) {
      HF_UNROLL
      for (int n = 0; n < kNs; ++n) {
        HF_UNROLL
        for (int i = 0; i < 4; ++i) acc[m][n][i] = __fadd_rn(acc[m][n][i], part[m][n][i]);
      }
    }
  } else {
    using S = typename F::S;
    constexpr float kInverse = 1.f / static_cast<float>(F::C::kFactor);
    HF_UNROLL
    for (int blk = 0; blk < 2; ++blk) {
      unsigned a[kMs][4];
      HF_UNROLL
      for (int m = 0; m < kMs; ++m) w[m].codes.Fragment(blk, a[m]);
      HF_UNROLL
      for (int half = 0; half < (S::kPer16 ? 2 : 1); ++half) {
        float scale[kMs][2], shift[kMs][2], low[kMs][2];
        HF_UNROLL
        for (int m = 0; m < kMs; ++m) {
          HF_UNROLL
          for (int hi = 0; hi < 2; ++hi) {
            scale[m][hi] = __fmul_rn(w[m].scales.Scale(blk, half, hi), kInverse);
            shift[m][hi] = S::kFewBits ? __fmul_rn(scale[m][hi], -kMagic) : 0.f;
            low[m][hi] = S::kHasMin ? w[m].scales.Min(blk, half, hi) : 0.f;
          }
        }
        HF_UNROLL
        for (int n = 0; n < kNs; ++n) {
          if (!x.Wanted(n)) continue;
          const uint4 piece = x.Piece(n, 0);
          const unsigned b[2] = {blk == 0 ? piece.x : piece.z, blk == 0 ? piece.y : piece.w};
          const float2 aux[2] = {x.Aux(n, 0, blk), x.Aux(n, 1, blk)};
          float sums[2] = {aux[0].y, aux[1].y};
          if constexpr (S::kPer16 && S::kHasMin) {   // of this half: a product with ones has them where they are needed
            int d[4];
            MmaS8Half(d, 0x01010101u, 0x01010101u, b[half], kMagicBits);
            sums[0] = __fmul_rn(__fsub_rn(__int_as_float(d[0]), kMagic), aux[0].x);
            sums[1] = __fmul_rn(__fsub_rn(__int_as_float(d[1]), kMagic), aux[1].x);
          }
          HF_UNROLL
          for (int m = 0; m < kMs; ++m) {
            int d[4];
            if constexpr (S::kPer16) {
              MmaS8Half(d, a[m][2 * half], a[m][2 * half + 1], b[half], kMagicBits);
            } else {
              MmaS8(d, a[m], b, kMagicBits);
            }
            HF_UNROLL
            for (int i = 0; i < 4; ++i) {
              const float dot = __int_as_float(d[i]);
              // Both forms round scale * dot once.
              const float v = S::kFewBits ? __fmaf_rn(dot, scale[m][i / 2], shift[m][i / 2]) : __fmul_rn(__fsub_rn(dot, kMagic), scale[m][i / 2]);
              float& sum = acc[m][n][i];
              sum = __fmaf_rn(v, aux[i % 2].x, sum);
              if constexpr (S::kHasMin) sum = __fmaf_rn(low[m][i / 2], sums[i % 2], sum);
            }
          }
        }
      }
    }
  }
}

template <int kMs, int kNs>
__device__ __forceinline__ void Clear(float (&acc)[kMs][kNs][4]) {
  HF_UNROLL
  for (int m = 0; m < kMs; ++m) {
    HF_UNROLL
    for (int n = 0; n < kNs; ++n) {
      HF_UNROLL
      for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.f;
    }
  }
}

__device__ __forceinline__ RowTile TileAt(const RowOrder& rows, int64_t all, int64_t tile) {
  if (rows.tiles != nullptr) return rows.tiles[tile];
  RowTile t;
  t.first = static_cast<int32_t>(tile * rows.width);
  t.count = static_cast<int32_t>(min(int64_t{rows.width}, all - tile * rows.width));
  if (rows.experts != nullptr) t.expert = rows.experts[t.first];
  return t;
}
__device__ __forceinline__ int64_t RowAt(const RowOrder& rows, int64_t place) { return rows.order == nullptr ? place : rows.order[place]; }

// What a sum becomes, and where it goes: column o of y's row `row`.
__device__ __forceinline__ void Finish(const MatMulArgs& a, int expert, int64_t row, int64_t o, float first, float second) {
  if (a.bias[0] != nullptr) first += a.bias[0][expert * a.bias_stride + o];
  float& y = a.y.data[row * a.y.stride + o];
  if (a.count == 2) {
    if (a.bias[1] != nullptr) second += a.bias[1][expert * a.bias_stride + o];
    switch (a.activation) {
      case Activation::kSilu: first = GateValue<Activation::kSilu>(first, second); break;
      case Activation::kGeluTanh: first = GateValue<Activation::kGeluTanh>(first, second); break;
      case Activation::kSwigluOai: first = GateValue<Activation::kSwigluOai>(first, second); break;
    }
  }
  y = a.accumulate ? y + first : first;
}

struct Geometry {
  int64_t group_bytes, supers_bytes;
  int32_t tiles;        // of K
  int32_t first_group, groups;
};

// The groups of an argument's parts follow those of its first product: which of them group `at` is, and what then is multiplied.
__device__ __forceinline__ int64_t SelectPart(int64_t at, const Geometry& geometry, MatMulArgs& a) {
  if (at < geometry.groups) return at;
  at -= geometry.groups;
  const int64_t groups = (a.part[0].y.cols + kGroupRows - 1) / kGroupRows;
  const bool second = at >= groups;
  a.w[0] = second ? a.part[1].w : a.part[0].w;
  a.bias[0] = second ? a.part[1].bias : a.part[0].bias;
  a.y = second ? a.part[1].y : a.part[0].y;
  a.accumulate = second ? a.part[1].accumulate : a.part[0].accumulate;
  a.out = a.y.cols;
  return second ? at - groups : at;
}

// A group's record and super of a tile.
template <class F>
__device__ __forceinline__ void LoadTile(const uint8_t* group, int64_t supers_bytes, int tile, int lane, F& w) {
  w.Load(GlobalBytes{group + supers_bytes + int64_t{tile} * F::kRecord}, GlobalBytes{group + int64_t{tile / 4} * F::kSuper}, lane);
}

// ---- few rows ------------------------------------------------------------------------------------------------------------------------------
template <class F, int kNs>
struct GlobalColumns {
  const uint8_t* pieces[kNs];    // of column g, for each n
  const float4* aux[kNs][2];
  int tile, c, wanted;
  __device__ __forceinline__ bool Wanted(int n) const { return kNs == 1 || n < wanted; }
  __device__ __forceinline__ uint4 Piece(int n, int piece) const {
    return __ldg(reinterpret_cast<const uint4*>(pieces[n] + (int64_t{tile} * F::kPieces + piece) * 64 + c * 16));
  }
  __device__ __forceinline__ float2 Aux(int n, int j, int blk) const { return __ldg(reinterpret_cast<const float2*>(aux[n][j] + tile) + blk); }
};

// Records that a lane has under way: some 40 registers where columns are few, half of that where their sums need registers, too.
template <class F, int kNs>
constexpr int kAhead = sizeof(F) <= 40 ? (kNs == 1 ? 4 : 2) : sizeof(F) <= 64 && kNs == 1 ? 2 : 1;

template <class F, int kNs>
__global__ void __launch_bounds__(kThreads, 2) SmallKernel(MatMulArgs a, Geometry geometry) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, g = lane / 4, c = lane % 4;
  const int64_t row_tiles = a.rows.tile_count;
  const RowTile rows = TileAt(a.rows, a.y.rows, blockIdx.x % row_tiles);
  if (rows.count == 0) return;
  const int64_t group = geometry.first_group + SelectPart(blockIdx.x / row_tiles, geometry, a);
  GlobalColumns<F, kNs> x{};
  x.c = c;
  x.wanted = (rows.count + 7) / 8;
  const auto source = [&](int column) {   // beyond the last: the last once more
    return RowAt(a.rows, rows.first + min(column, rows.count - 1)) / a.rows.x_each * geometry.tiles;
  };
  HF_UNROLL
  for (int n = 0; n < kNs; ++n) {
    x.pieces[n] = a.x.pieces + source(8 * n + g) * (F::kPieces * 64);
    if constexpr (!F::kFloat) {
      x.aux[n][0] = a.x.aux + source(8 * n + 2 * c);
      x.aux[n][1] = a.x.aux + source(8 * n + 2 * c + 1);
    }
  }
  // Sums of the runs: [matrix][warp][column][row].
  Shared<float> parts = SharedArray<float>(0);
  constexpr int kColumns = 8 * kNs, kTiles = kAhead<F, kNs>;
  const int begin = SegmentBegin(geometry.tiles, warp), end = SegmentBegin(geometry.tiles, warp + 1);
  for (int matrix = 0; matrix < a.count; ++matrix) {
    const uint8_t* w = (matrix == 0 ? a.w[0] : a.w[1]) + rows.expert * (matrix == 0 ? a.expert_stride[0] : a.expert_stride[1]) + group * geometry.group_bytes;
    float acc[1][kNs][4];
    Clear(acc);
    // kTiles records are under way all the time: a register is loaded anew as soon as it was multiplied.
    F held[kTiles][1];
    HF_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      if (begin + i < end) LoadTile(w, geometry.supers_bytes, begin + i, lane, held[i][0]);
    }
    for (int tile = begin; tile < end; tile += kTiles) {
      HF_UNROLL
      for (int i = 0; i < kTiles; ++i) {
        if (tile + i >= end) break;
        x.tile = tile + i;
        MultiplyTile(held[i], x, acc);
        if (tile + i + kTiles < end) LoadTile(w, geometry.supers_bytes, tile + i + kTiles, lane, held[i][0]);
      }
    }
    HF_UNROLL
    for (int n = 0; n < kNs; ++n) {
      HF_UNROLL
      for (int i = 0; i < 4; ++i) parts[((matrix * kWarps + warp) * kColumns + 8 * n + 2 * c + i % 2) * kGroupRows + g + i / 2 * 8] = acc[0][n][i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows.count * kGroupRows; i += kThreads) {
    const int column = i / kGroupRows, r = i % kGroupRows;
    const int64_t o = group * kGroupRows + r - a.first_row;
    if (o < 0 || o >= a.out) continue;
    const auto sum_of = [&](int matrix) {
      float sum = 0.f;
      for (int segment = 0; segment < kSegments; ++segment) {
        sum = __fadd_rn(sum, parts[((matrix * kWarps + segment) * kColumns + column) * kGroupRows + r]);
      }
      return sum;
    };
    Finish(a, rows.expert, RowAt(a.rows, rows.first + column), o, sum_of(0), a.count == 2 ? sum_of(1) : 0.f);
  }
}

template <int kNs>
constexpr size_t SmallShared(int matrices) { return sizeof(float) * static_cast<size_t>(matrices * kWarps * 8 * kNs * kGroupRows); }

// ---- many rows -----------------------------------------------------------------------------------------------------------------------------
// Two warps along W's rows, four along x's. A warp has kM tiles of 16 rows and kN of 8 columns.
template <class F>
struct TileShape {
  static constexpr int kM = F::kFloat ? 2 : 4, kN = F::kFloat ? 2 : 4, kStages = F::kFloat ? 2 : 3;
  static constexpr int kGroups = 2 * kM, kColumns = 4 * kN * 8;
  static constexpr int kSlot = F::kRecord + F::kSuper;      // bytes of a group's tile
  static constexpr int kPieces = kGroups * kSlot, kAux = kPieces + F::kPieces * kColumns * 64;
  static constexpr int kStage = kAux + (F::kFloat ? 0 : kColumns * 16);
  static constexpr int kShared = kStages * kStage;
  static_assert(kSlot % 16 == 0 && kShared <= (99 << 10), "what every device has");
};

template <class F>
struct SharedColumns {
  using Shape = TileShape<F>;
  Shared<uint8_t> stage;
  int first, g, c, wanted;     // first column of the warp
  __device__ __forceinline__ bool Wanted(int n) const { return first + 8 * n < wanted; }
  __device__ __forceinline__ uint4 Piece(int n, int piece) const {
    return SharedAs<uint4>(stage + Shape::kPieces)[(piece * Shape::kColumns + first + 8 * n + g) * 4 + c];
  }
  __device__ __forceinline__ float2 Aux(int n, int j, int blk) const {
    return SharedAs<float2>(stage + Shape::kAux)[(first + 8 * n + 2 * c + j) * 2 + blk];
  }
};

template <class F>
__global__ void __launch_bounds__(kThreads, 1) TileKernel(MatMulArgs a, Geometry geometry) {
  using Shape = TileShape<F>;
  constexpr int kM = Shape::kM, kN = Shape::kN;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, g = lane / 4, c = lane % 4;
  const int warp_m = warp / 4, warp_n = warp % 4;
  const int64_t row_tiles = a.rows.tile_count;
  const RowTile rows = TileAt(a.rows, a.y.rows, blockIdx.x % row_tiles);
  if (rows.count == 0) return;
  // Of two matrices a block has the same rows: the first half of a warp's tiles is the first matrix.
  const int each = a.count == 2 ? Shape::kGroups / 2 : Shape::kGroups;
  const int64_t base = blockIdx.x / row_tiles * each;
  const auto matrix_of = [&](int slot) { return a.count == 2 && slot % kM >= kM / 2 ? 1 : 0; };
  const auto group_of = [&](int slot) {   // from the product's first; may lie beyond the last
    return base + (a.count == 2 ? slot / kM * (kM / 2) + slot % (kM / 2) : slot);
  };

  // What this thread copies for each tile: part of a group's bytes, and 16 bytes of each piece of some columns.
  Shared<uint8_t> memory = SharedArray<uint8_t>(0);
  constexpr int kShare = kWarps / Shape::kGroups, kChunks = F::kRecord / 16, kSuperChunks = F::kSuper / 16;
  const int slot = warp % Shape::kGroups;
  const bool second = matrix_of(slot) == 1;
  const uint8_t* group = (second ? a.w[1] : a.w[0]) + rows.expert * (second ? a.expert_stride[1] : a.expert_stride[0]) +
                         (geometry.first_group + min(group_of(slot), int64_t{geometry.groups} - 1)) * geometry.group_bytes;
  const auto source = [&](int column) { return RowAt(a.rows, rows.first + min(column, rows.count - 1)) / a.rows.x_each * geometry.tiles; };
  constexpr int kEach = Shape::kColumns / 64;
  const uint8_t* pieces[kEach];
  HF_UNROLL
  for (int i = 0; i < kEach; ++i) pieces[i] = a.x.pieces + source(static_cast<int>(threadIdx.x) / 4 + 64 * i) * (F::kPieces * 64) + threadIdx.x % 4 * 16;
  const float4* aux = F::kFloat || static_cast<int>(threadIdx.x) >= Shape::kColumns ? nullptr : a.x.aux + source(static_cast<int>(threadIdx.x));
  const auto copy = [&](int tile) {
    Shared<uint8_t> stage = memory + tile % Shape::kStages * Shape::kStage;
    const uint8_t* record = group + geometry.supers_bytes + int64_t{tile} * F::kRecord;
    for (int i = warp / Shape::kGroups * kWarp + lane; i < kChunks; i += kShare * kWarp) {
      CopyAsync16(stage + slot * Shape::kSlot + i * 16, record + i * 16);
    }
    if (warp < Shape::kGroups && lane < kSuperChunks) {
      CopyAsync16(stage + slot * Shape::kSlot + F::kRecord + lane * 16, group + int64_t{tile / 4} * F::kSuper + lane * 16);
    }
    HF_UNROLL
    for (int i = 0; i < kEach; ++i) {
      HF_UNROLL
      for (int piece = 0; piece < F::kPieces; ++piece) {
        CopyAsync16(stage + Shape::kPieces + (piece * Shape::kColumns + 64 * i) * 64 + static_cast<int>(threadIdx.x) * 16,
                    pieces[i] + (int64_t{tile} * F::kPieces + piece) * 64);
      }
    }
    if (aux != nullptr) CopyAsync16(stage + Shape::kAux + static_cast<int>(threadIdx.x) * 16, aux + tile);
  };

  float acc[kM][kN][4], total[kM][kN][4];
  Clear(acc);
  Clear(total);
  HF_UNROLL
  for (int tile = 0; tile < Shape::kStages - 1; ++tile) {
    if (tile < geometry.tiles) copy(tile);
    CopyAsyncCommit();
  }
  SharedColumns<F> x{memory, warp_n * kN * 8, g, c, rows.count};
  int segment = 0;
  for (int tile = 0; tile < geometry.tiles; ++tile) {
    CopyAsyncWait<Shape::kStages - 2>();
    __syncthreads();   // the tile is there for all, and nobody reads the stage that is copied into next
    if (tile + Shape::kStages - 1 < geometry.tiles) copy(tile + Shape::kStages - 1);
    CopyAsyncCommit();
    x.stage = memory + tile % Shape::kStages * Shape::kStage;
    F w[kM];
    HF_UNROLL
    for (int m = 0; m < kM; ++m) {
      Shared<uint8_t> at = x.stage + (warp_m * kM + m) * Shape::kSlot;
      w[m].Load(SharedBytes{at}, SharedBytes{at + F::kRecord}, lane);
    }
    MultiplyTile(w, x, acc);
    while (segment < kSegments && SegmentBegin(geometry.tiles, segment + 1) <= tile + 1) {
      HF_UNROLL
      for (int m = 0; m < kM; ++m) {
        HF_UNROLL
        for (int n = 0; n < kN; ++n) {
          HF_UNROLL
          for (int i = 0; i < 4; ++i) total[m][n][i] = __fadd_rn(total[m][n][i], acc[m][n][i]);
        }
      }
      Clear(acc);
      ++segment;
    }
  }
  HF_UNROLL
  for (int n = 0; n < kN; ++n) {
    HF_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int column = x.first + 8 * n + 2 * c + j;
      if (column >= rows.count) continue;
      const int64_t row = RowAt(a.rows, rows.first + column);
      HF_UNROLL
      for (int m = 0; m < kM; ++m) {
        if (a.count == 2 && m >= kM / 2) continue;
        HF_UNROLL
        for (int hi = 0; hi < 2; ++hi) {
          const int64_t o = (geometry.first_group + group_of(warp_m * kM + m)) * kGroupRows + g + 8 * hi - a.first_row;
          if (o < 0 || o >= a.out) continue;
          Finish(a, rows.expert, row, o, total[m][n][2 * hi + j], total[(m + kM / 2) % kM][n][2 * hi + j]);
        }
      }
    }
  }
}

// ---- rows out of packed weights ---------------------------------------------------------------------------------------------------------------
// A warp per tile of a token's row: it loads the group's record as for a product, and the four lanes that have the row write it.
template <class F>
__global__ void __launch_bounds__(kThreads) EmbedKernel(const uint8_t* table, Geometry geometry, const uint32_t* tokens, float scale, Mat out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, c = lane % 4;
  for (int64_t i = GridThread() / kWarp; i < out.rows * geometry.tiles; i += GridThreads() / kWarp) {
    const int64_t t = i / geometry.tiles;
    const int tile = static_cast<int>(i % geometry.tiles), r = static_cast<int>(tokens[t] % kGroupRows);
    F w;
    LoadTile(table + tokens[t] / kGroupRows * geometry.group_bytes, geometry.supers_bytes, tile, lane, w);
    if (lane / 4 != r % 8) continue;
    float* to = out.data + t * out.stride;
    const auto put = [&](int k, float v) {
      if (const int64_t at = int64_t{tile} * kTileK + k; at < out.cols) to[at] = __fmul_rn(v, scale);
    };
    HF_UNROLL
    for (int piece = 0; piece < 4; ++piece) {
      if constexpr (F::kFloat) {
        HF_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float2 low = w.Values(piece, 2 * half), high = w.Values(piece, 2 * half + 1), v = r < 8 ? low : high;
          put(16 * piece + 8 * half + 2 * c, v.x);
          put(16 * piece + 8 * half + 2 * c + 1, v.y);
        }
      } else {
        const int blk = piece / 2, half = piece % 2;
        unsigned a[4];
        w.codes.Fragment(blk, a);
        const unsigned word = r < 8 ? a[2 * half] : a[2 * half + 1];
        const float factor = r < 8 ? w.scales.Scale(blk, half, 0) : w.scales.Scale(blk, half, 1);
        const float low = r < 8 ? w.scales.Min(blk, half, 0) : w.scales.Min(blk, half, 1);
        HF_UNROLL
        for (int j = 0; j < 4; ++j) {
          const int code = static_cast<int8_t>(word >> (8 * j) & 0xffu) / F::C::kFactor;
          const float v = __fmul_rn(static_cast<float>(code), factor);
          put(32 * blk + 16 * half + 4 * c + j, F::S::kHasMin ? __fadd_rn(v, low) : v);
        }
      }
    }
  }
}

// ---- launches --------------------------------------------------------------------------------------------------------------------------------
template <DType kType>
Geometry GeometryFor(int64_t first_row, int64_t out, int64_t in) {
  Geometry geometry;
  geometry.group_bytes = GroupBytes(kType, in);
  geometry.supers_bytes = SupersBytes(kType, in);
  geometry.tiles = static_cast<int32_t>(TilesOf(in));
  geometry.first_group = static_cast<int32_t>(first_row / kGroupRows);
  geometry.groups = static_cast<int32_t>(GroupsOf(first_row + out)) - geometry.first_group;
  return geometry;
}

template <DType kType>
void LaunchMatMul(cudaStream_t stream, const MatMulArgs& a) {
  using F = FormatOf<kType>;
  const Geometry geometry = GeometryFor<kType>(a.first_row, a.out, a.in);
  const int64_t tiles = a.rows.tile_count;
  int64_t groups = geometry.groups;
  for (int i = 0; i < a.parts; ++i) groups += GroupsOf(a.part[i].y.cols);
  static_assert(TileShape<F>::kColumns == (F::kFloat ? kFloatTileWidth : kTileWidth));
  if (a.rows.width <= kSmallWidth) {
    Launch(SmallKernel<F, 1>, Blocks(groups * tiles, 1), kThreads, SmallShared<1>(a.count), stream, a, geometry);
  } else if (a.rows.width <= kMiddleWidth) {
    Launch(SmallKernel<F, 4>, Blocks(groups * tiles, 1), kThreads, SmallShared<4>(a.count), stream, a, geometry);
  } else {
    const int64_t each = TileShape<F>::kGroups / a.count;
    Launch(TileKernel<F>, Blocks((geometry.groups + each - 1) / each * tiles, 1), kThreads, TileShape<F>::kShared, stream, a, geometry);
  }
}

template <DType kType>
void LaunchEmbed(cudaStream_t stream, const Weight& table, const uint32_t* tokens, float scale, Mat out) {
  const Geometry geometry = GeometryFor<kType>(0, table.out, table.in);
  Launch(EmbedKernel<FormatOf<kType>>, Blocks(out.rows * geometry.tiles, kWarps), kThreads, 0, stream, reinterpret_cast<const uint8_t*>(table.data),
         geometry, tokens, scale, out);
}

}  // namespace

// f(std::integral_constant<DType, T>) for that one of the types that it is.
template <DType... kTypes, class F>
void ForOneOf(DType type, F&& f) {
  static_cast<void>(((type == kTypes ? (f(std::integral_constant<DType, kTypes>{}), true) : false) || ...));
}

// One translation unit a family of types.
#define HF_MATMULS(family, ...)                                                                                             \
  void MatMul##family(cudaStream_t stream, const MatMulArgs& a) {                                                          \
    ForOneOf<__VA_ARGS__>(a.dtype, [&](auto type) { LaunchMatMul<decltype(type)::value>(stream, a); });                     \
  }                                                                                                                          \
  void Embed##family(cudaStream_t stream, const Weight& table, const uint32_t* tokens, float scale, Mat out) {               \
    ForOneOf<__VA_ARGS__>(table.dtype, [&](auto type) { LaunchEmbed<decltype(type)::value>(stream, table, tokens, scale, out); }); \
  }

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// The kernel that attends: an AttentionItem of one kv head after another in blocks of narrow tiles, one a block in wide ones.
//
// A tile of keys is scored (each warp some keys, or some rows and all keys), weighted, and its values added (each warp some dimensions). The
// ring of tiles (keys, values, keys, values, ...) is filled by asynchronous copies, buffers - 1 ahead. What enters a row's sums, and in which
// order, does not depend on how warps share the work: a product's element comes of its row and its column alone, largest values are exact in
// any order, weights are added by the tensor core as a column of ones beside the values.
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_block.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

template <KvDType kType>
struct KvTraits {
  static constexpr bool kBf16 = kType == KvDType::kBF16, kCoded = kType == KvDType::kQ8_0 || kType == KvDType::kFp8E4M3;
  static constexpr int kWidth = kCoded ? 1 : 2;
  static constexpr int kTerms = kAttentionTerms;
};

// Four codes as halves (of fp8, times 2^-8), in their order.
template <KvDType kType>
__device__ __forceinline__ void Widen(unsigned word, unsigned* low, unsigned* high) {
  if constexpr (kType == KvDType::kQ8_0) {
    word ^= 0x80808080u;   // 0x6400 + (code + 128) is the half 1024 + code + 128
    *low = HalfSub2(__byte_perm(word, 0x64646464u, 0x4140), 0x64806480u);
    *high = HalfSub2(__byte_perm(word, 0x64646464u, 0x4342), 0x64806480u);
  } else {
    const unsigned a = __byte_perm(word, 0u, 0x1404), b = __byte_perm(word, 0u, 0x3424);   // codes as the upper bytes of halves
    *low = (a & 0x80008000u) | (a & 0x7f007f00u) >> 1;
    *high = (b & 0x80008000u) | (b & 0x7f007f00u) >> 1;
  }
}
// A scale as Widen's halves need it, twice.
template <KvDType kType>
__device__ __forceinline__ unsigned ScaleFactor(uint16_t a, uint16_t b) {
  const unsigned pair = a | static_cast<unsigned>(b) << 16;
  return kType == KvDType::kFp8E4M3 ? HalfMul2(pair, 0x5c005c00u) : pair;   // 256
}

// Two values as 16-bit values; `rest`: what that lost, as 16-bit values.
template <bool kBf16>
__device__ __forceinline__ unsigned Pack(float a, float b, unsigned* rest) {
  if constexpr (kBf16) {
    const unsigned pair = PackBfloat2(a, b);
    *rest = PackBfloat2(a - LowBfloat(pair), b - HighBfloat(pair));
    return pair;
  } else {
    const unsigned pair = PackHalf2(a, b);
    *rest = PackHalf2(a - HalfToFloat(static_cast<uint16_t>(pair)), b - HalfToFloat(static_cast<uint16_t>(pair >> 16)));
    return pair;
  }
}

template <KvDType kType, int kTileKeys, int kWarpsM, int kWarpsN, int kMT, int kNV>
struct Attend {
  using Traits = KvTraits<kType>;
  static constexpr bool kCoded = Traits::kCoded, kBf16 = Traits::kBf16;
  static constexpr int kTerms = Traits::kTerms, kThreads = kAttentionWarps * kWarp, kRows = 16 * kMT * kWarpsM;
  static_assert(kWarpsM * kWarpsN == kAttentionWarps);
  static constexpr bool kNarrow = kMT == 1;            // its blocks go from item to item
  static constexpr int kPartitionKeys = kTileKeys == 64 ? 512 : 256;
  // Scoring: kTileKeys / 8 columns of 8 keys among the kWarpsN warps of the same rows; where these are fewer than warps, the rows, too.
  static constexpr int kColumns = kTileKeys / 8, kSharers = kColumns < kWarpsN ? kColumns : kWarpsN;
  static constexpr int kNS = kColumns / kSharers, kRowGroups = kWarpsN / kSharers, kMS = kMT / kRowGroups > 0 ? kMT / kRowGroups : 1;
  static constexpr bool kInRegisters = kWarpsN == 1;   // weights go from the score's registers into the product with the values
  static constexpr int kWeightPitch = kTileKeys + 8;   // of the weights' rows, in halves

  struct Where {
    int tid, lane, warp, wm, wn;      // wm, wn: which rows and which columns are the warp's
    int quad_row, quad;               // lane / 4, lane % 4
  };

  struct Range {                      // of keys that some row of the block sees, within the item's partitions
    int64_t begin, end;
    int32_t low_hi, high_lo;          // the first row's last key; the last row's first key: between them nothing is masked
    int32_t start;
  };

  const AttentionArgs& a;
  Where w;
  AttentionItem item;
  int kv;
  SequenceSpan span;
  Range range;

  // ---- loading ------------------------------------------------------------------------------------------------------------------
  // Pages and slots of a partition's keys; -1: not seen.
  __device__ __forceinline__ void FillTable(int64_t partition) {
    Shared<int32_t> page_of = SharedArray<int32_t>(static_cast<int>(a.at.page_of)) + (partition & 1) * kPartitionKeys;
    Shared<int32_t> slot_of = SharedArray<int32_t>(static_cast<int>(a.at.slot_of)) + (partition & 1) * kPartitionKeys;
    const int32_t* pages = a.tables.pages + a.tables.first[item.sequence];
    for (int i = w.tid; i < kPartitionKeys; i += kThreads) {
      const int64_t key = partition * kPartitionKeys + i;
      int32_t page = -1, slot = 0;
      if (key >= range.begin && key < range.end) {
        const int32_t k = static_cast<int32_t>(key), block = k / a.k.page_size;
        page = pages[block];
        slot = k - block * a.k.page_size;
      }
      page_of[i] = page;
      slot_of[i] = slot;
    }
  }

  // Starts the copies of a tile's keys or values into a buffer.
  __device__ __forceinline__ void Load(int64_t tile, bool values, int buffer) {
    const KvPlane& plane = values ? a.v : a.k;
    const int pieces = plane.pitch * Traits::kWidth / 16, pitch = pieces * 16 + 16;
    const int shift = pieces >= 8 ? 3 : pieces >= 4 ? 2 : 1, sharing = 1 << shift;   // lanes of a key: neighbours read 128 bytes
    const int base = static_cast<int>(a.at.ring + buffer * a.at.buffer_bytes);
    const int first = static_cast<int>(tile * kTileKeys % (2 * kPartitionKeys));     // both parities' tables follow each other
    const Shared<int32_t> page_of = SharedArray<int32_t>(static_cast<int>(a.at.page_of)) + first;
    const Shared<int32_t> slot_of = SharedArray<int32_t>(static_cast<int>(a.at.slot_of)) + first;
    for (int row = w.tid >> shift; row < kTileKeys; row += kThreads >> shift) {
      const int32_t page = page_of[row];
      const bool seen = page >= 0;
      const std::byte* from = a.base;
      if (seen) from += page * a.page_stride + plane.codes + plane.Slot(kv, slot_of[row]) * (pieces * 16);
      for (int c = w.tid & (sharing - 1); c < pieces; c += sharing) {
        CopyAsyncOrZero16(SharedArray<uint4>(base + row * pitch + c * 16), seen ? from + c * 16 : from, seen);
      }
    }
    if constexpr (kCoded) {
      const int scales = plane.dim / kKvBlock, at = base + kTileKeys * pitch;
      if (scales % 2 == 0) {
        for (int i = w.tid; i < kTileKeys * (scales / 2); i += kThreads) {
          const int row = i / (scales / 2), c = i % (scales / 2);
          const int32_t page = page_of[row];
          const bool seen = page >= 0;
          const std::byte* from = a.base;
          if (seen) from += page * a.page_stride + plane.scales + plane.Slot(kv, slot_of[row]) * (scales * 2) + c * 4;
          CopyAsyncOrZero4(SharedArray<uint32_t>(at + i * 4), from, seen);
        }
      } else {
        for (int i = w.tid; i < kTileKeys * scales; i += kThreads) {
          const int row = i / scales, c = i % scales;
          const int32_t page = page_of[row];
          uint16_t scale = 0;
          if (page >= 0) {
            scale = reinterpret_cast<const uint16_t*>(a.base + page * a.page_stride + plane.scales)[plane.Slot(kv, slot_of[row]) * scales + c];
          }
          SharedArray<uint16_t>(at)[i] = scale;
        }
      }
    }
  }

  __device__ __forceinline__ int QueryPitch() const { return a.k.pitch + 8; }   // in halves

  // Queries times scale * log2(e), rounded, rows that the item lacks as zeros. Of 8-bit keys a lane takes four neighbours at once: there the
  // elements of each 16 stand in the order 0 1 4 5 8 9 12 13 2 3 6 7 10 11 14 15.
  __device__ __forceinline__ void LoadQueries() {
    const float scale = a.scale * kLog2E;
    const int plane = kRows * QueryPitch();
    Shared<uint32_t> to = SharedArray<uint32_t>(static_cast<int>(a.at.query));
    constexpr int kAtOnce = 4, kLaneRows = kRows / kAttentionWarps;   // rows w.warp + 4 i
    for (int c = w.lane * 4; c < a.k.pitch; c += kWarp * 4) {
      HF_UNROLL
      for (int i = 0; i < kLaneRows; i += kAtOnce) {
        float x[kAtOnce][4];
        HF_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const int r = w.warp + kAttentionWarps * (i + j), packed = item.first_row + r;
          HF_UNROLL
          for (int e = 0; e < 4; ++e) x[j][e] = 0.f;
          if (r >= item.rows) continue;
          const float* from = a.q + (span.first_row + packed / a.group) * a.q_stride + int64_t{kv * a.group + packed % a.group} * a.k.dim + c;
          if (a.q_in_fours) {
            const float4 four = *reinterpret_cast<const float4*>(from);
            x[j][0] = four.x, x[j][1] = four.y, x[j][2] = four.z, x[j][3] = four.w;
          } else {
            HF_UNROLL
            for (int e = 0; e < 4; ++e) x[j][e] = c + e < a.k.dim ? from[e] : 0.f;
          }
        }
        HF_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const int r = w.warp + kAttentionWarps * (i + j), first = c % 16;
          const int at = r * QueryPitch() + c - first, low = kCoded ? first / 2 : first, high = kCoded ? first / 2 + 8 : first + 2;
          unsigned rest_low, rest_high;
          to[(at + low) / 2] = Pack<kBf16>(x[j][0] * scale, x[j][1] * scale, &rest_low);
          to[(at + high) / 2] = Pack<kBf16>(x[j][2] * scale, x[j][3] * scale, &rest_high);
          if constexpr (kTerms == 2) {
            to[(plane + at + low) / 2] = rest_low;
            to[(plane + at + high) / 2] = rest_high;
          }
        }
      }
    }
  }

  // ---- fragments -------------------------------------------------------------------------------------------------------------------
  // Keys column*8 .. +8 (of each of kCount columns), elements step*16 .. +16.
  template <int kCount>
  __device__ __forceinline__ void KeyFragments(int base, int column, int step, unsigned (&b)[kCount][2]) {
    if constexpr (!kCoded) {
      const Shared<uint16_t> tile = SharedArray<uint16_t>(base);
      const int pitch = a.k.pitch + 8;
      if constexpr (kCount % 2 == 0) {
        HF_UNROLL
        for (int n = 0; n < kCount; n += 2) {
          unsigned r[4];
          LoadMatrix4(r, tile + ((column + n + w.lane / 16) * 8 + w.lane % 8) * pitch + step * 16 + w.lane / 8 % 2 * 8);
          b[n][0] = r[0], b[n][1] = r[1], b[n + 1][0] = r[2], b[n + 1][1] = r[3];
        }
      } else {
        const Shared<uint32_t> row = SharedArray<uint32_t>(base) + ((column * 8 + w.quad_row) * pitch + step * 16) / 2 + w.quad;
        static_assert(kCount == 1);
        b[0][0] = row[0], b[0][1] = row[4];
      }
    } else {
      const int pitch = a.k.pitch + 16, scales = a.k.dim / kKvBlock;
      const Shared<uint32_t> codes = SharedArray<uint32_t>(base);
      const Shared<uint16_t> scale = SharedArray<uint16_t>(base + kTileKeys * pitch);
      HF_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int key = (column + n) * 8 + w.quad_row;
        const uint16_t s = scale[key * scales + step / 2];
        const unsigned factor = ScaleFactor<kType>(s, s);
        Widen<kType>(codes[(key * pitch + step * 16) / 4 + w.quad], &b[n][0], &b[n][1]);
        b[n][0] = HalfMul2(b[n][0], factor);
        b[n][1] = HalfMul2(b[n][1], factor);
      }
    }
  }

  // Values of keys step*16 .. +16; columns of 8 dimensions from `column` on: two, of 8-bit values four (32 dimensions).
  static constexpr int kValueColumns = kCoded ? 4 : 2;
  __device__ __forceinline__ void ValueFragments(int base, int step, int column, unsigned (&b)[kValueColumns][2]) {
    if constexpr (!kCoded) {
      unsigned r[4];
      LoadMatrix4Transposed(r, SharedArray<uint16_t>(base) + (step * 16 + w.lane % 16) * (a.v.pitch + 8) + column * 8 + w.lane / 16 * 8);
      b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
    } else {
      // Column j of the four has dimensions 4n + j: a lane reads four neighbours of four keys and transposes them.
      const int pitch = a.v.pitch + 16, scales = a.v.dim / kKvBlock, block = column / 4, key = step * 16 + w.quad * 2;
      const Shared<uint32_t> codes = SharedArray<uint32_t>(base) + (key * pitch + block * 32) / 4 + w.quad_row;
      const Shared<uint16_t> scale = SharedArray<uint16_t>(base + kTileKeys * pitch) + key * scales + block;
      const unsigned k0 = codes[0], k1 = codes[pitch / 4], k2 = codes[pitch * 2], k3 = codes[pitch * 2 + pitch / 4];   // keys 0, 1, 8, 9
      const unsigned low = ScaleFactor<kType>(scale[0], scale[scales]), high = ScaleFactor<kType>(scale[8 * scales], scale[9 * scales]);
      const unsigned a01 = __byte_perm(k0, k1, 0x5140), a23 = __byte_perm(k2, k3, 0x5140);   // dimensions 0 0 1 1 of keys 0 1 0 1
      const unsigned b01 = __byte_perm(k0, k1, 0x7362), b23 = __byte_perm(k2, k3, 0x7362);   // dimensions 2 and 3
      const unsigned by_dimension[4] = {__byte_perm(a01, a23, 0x5410), __byte_perm(a01, a23, 0x7632), __byte_perm(b01, b23, 0x5410),
                                        __byte_perm(b01, b23, 0x7632)};
      HF_UNROLL
      for (int j = 0; j < 4; ++j) {
        Widen<kType>(by_dimension[j], &b[j][0], &b[j][1]);
        b[j][0] = HalfMul2(b[j][0], low);
        b[j][1] = HalfMul2(b[j][1], high);
      }
    }
  }
  // The dimension of element e (0, 1) of a column for this lane.
  __device__ __forceinline__ int DimensionOf(int column, int e) const {
    return kCoded ? column / 4 * 32 + w.quad * 8 + e * 4 + column % 4 : column * 8 + w.quad * 2 + e;
  }

  template <int kPending>
  static __device__ __forceinline__ void WaitFor(int pending) {
    if constexpr (kPending == 0) {
      CopyAsyncWait<0>();
    } else {
      if (pending == kPending) {
        CopyAsyncWait<kPending>();
      } else {
        WaitFor<kPending - 1>(pending);
      }
    }
  }

  // The row of the block whose sums element `half` (0, 1) of fragment m is.
  __device__ __forceinline__ int RowOf(int m, int half) const { return (w.wm * kMT + m) * 16 + half * 8 + w.quad_row; }

  __device__ __forceinline__ int TokenOf(int row) const { return (item.first_row + (row < item.rows ? row : item.rows - 1)) / a.group; }

  __device__ __forceinline__ void Run() {
    const int64_t first_tile = range.begin / kTileKeys, tiles = range.end > range.begin ? (range.end + kTileKeys - 1) / kTileKeys - first_tile : 0;
    const int64_t loads = tiles * 2;
    Shared<RowSums> sums = SharedArray<RowSums>(static_cast<int>(a.at.sums)) + w.wn * kRows;   // each warp's own copy
    int64_t partition = first_tile * kTileKeys / kPartitionKeys;
    FillTable(partition);
    FillTable(partition + 1);
    __syncthreads();
    int64_t loaded = 0;                 // loads started; load i is tile i / 2, of the values where i is odd, into buffer i % buffers
    int next_buffer = 0, buffer = 0;    // of the next load to start; of the next to use
    const auto start_load = [&] {
      if (loaded < loads) Load(first_tile + loaded / 2, loaded % 2 != 0, next_buffer);
      CopyAsyncCommit();
      ++loaded;
      next_buffer = next_buffer + 1 == a.buffers ? 0 : next_buffer + 1;
    };
    for (int i = 0; i < a.buffers - 1; ++i) start_load();
    LoadQueries();
    if (w.quad == 0) {
      HF_UNROLL
      for (int m = 0; m < kMT; ++m) {
        sums[RowOf(m, 0)] = RowSums{-INFINITY, 0.f};
        sums[RowOf(m, 1)] = RowSums{-INFINITY, 0.f};
      }
    }

    float top[kMT][2], total[kMT][4], o[kMT][kNV][4];
    const auto clear = [&] {
      HF_UNROLL
      for (int m = 0; m < kMT; ++m) {
        top[m][0] = top[m][1] = -INFINITY;
        HF_UNROLL
        for (int e = 0; e < 4; ++e) total[m][e] = 0.f;
        HF_UNROLL
        for (int n = 0; n < kNV; ++n) {
          HF_UNROLL
          for (int e = 0; e < 4; ++e) o[m][n][e] = 0.f;
        }
      }
    };
    clear();
    bool fresh = true;                  // nothing is in `out` yet
    const int score_m = kRowGroups == 1 ? 0 : w.wn / kSharers * kMS, score_column = w.wn % kSharers * kNS;   // the warp's first fragment and column
    const bool scores = kRowGroups == 1 || score_m < kMT;
    const int steps = a.k.pitch / 16, value_columns = a.v.pitch / 8, value_first = w.wn * kNV;

    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t tile = first_tile + t;
      if (tile * kTileKeys / kPartitionKeys != partition) {   // what was loaded ahead is in this partition: the one before is not needed again
        ++partition;
        FillTable(partition + 1);
      }
      // Keys.
      WaitFor<4>(a.buffers - 2);
      __syncthreads();
      start_load();
      float s[kMS][kNS][4];
      const int keys_at = static_cast<int>(a.at.ring + buffer * a.at.buffer_bytes);
      buffer = buffer + 1 == a.buffers ? 0 : buffer + 1;
      HF_UNROLL
      for (int m = 0; m < kMS; ++m) {
        HF_UNROLL
        for (int n = 0; n < kNS; ++n) {
          HF_UNROLL
          for (int e = 0; e < 4; ++e) s[m][n][e] = 0.f;
        }
      }
      if (scores) {
        const Shared<uint16_t> q = SharedArray<uint16_t>(static_cast<int>(a.at.query)) +
                                   ((w.wm * kMT + score_m) * 16 + w.lane % 16) * QueryPitch() + w.lane / 16 * 8;
        for (int step = 0; step < steps; ++step) {
          unsigned b[kNS][2];
          KeyFragments<kNS>(keys_at, score_column, step, b);
          HF_UNROLL
          for (int term = 0; term < kTerms; ++term) {
            HF_UNROLL
            for (int m = 0; m < kMS; ++m) {
              unsigned x[4];
              LoadMatrix4(x, q + (term * kRows + m * 16) * QueryPitch() + step * 16);
              HF_UNROLL
              for (int n = 0; n < kNS; ++n) Mma<kBf16>(s[m][n], x, b[n][0], b[n][1]);
            }
          }
        }
      }
      // Scores, the largest of a row, weights.
      if (a.softcap > 0.f) {
        HF_UNROLL
        for (int m = 0; m < kMS; ++m) {
          HF_UNROLL
          for (int n = 0; n < kNS; ++n) {
            HF_UNROLL
            for (int e = 0; e < 4; ++e) s[m][n][e] = a.softcap * kLog2E * tanhf(s[m][n][e] * kLn2 / a.softcap);
          }
        }
      }
      const int64_t tile_begin = tile * kTileKeys, tile_end = tile_begin + kTileKeys;
      const bool masked = tile_end > int64_t{range.low_hi} + 1 || tile_begin < range.high_lo;
      float largest[kMT][2];
      HF_UNROLL
      for (int m = 0; m < kMT; ++m) largest[m][0] = largest[m][1] = -INFINITY;
      HF_UNROLL
      for (int m = 0; m < kMS; ++m) {
        if (!scores) continue;
        HF_UNROLL
        for (int half = 0; half < 2; ++half) {
          float top_here = -INFINITY;
          const int32_t hi = masked ? range.start + TokenOf(RowOf(score_m + m, half)) : 0;
          const int32_t lo = masked && a.window > 0 ? hi - a.window + 1 : 0;
          HF_UNROLL
          for (int n = 0; n < kNS; ++n) {
            HF_UNROLL
            for (int e = 0; e < 2; ++e) {
              float& score = s[m][n][half * 2 + e];
              const int32_t key = static_cast<int32_t>(tile_begin) + (score_column + n) * 8 + w.quad * 2 + e;
              if (masked && (key > hi || key < lo)) score = -INFINITY;
              top_here = fmaxf(top_here, score);
            }
          }
          top_here = fmaxf(top_here, __shfl_xor_sync(kAllLanes, top_here, 1));
          top_here = fmaxf(top_here, __shfl_xor_sync(kAllLanes, top_here, 2));
          if constexpr (kInRegisters) largest[m][half] = top_here;
          if constexpr (!kInRegisters) {
            if (w.quad == 0) {
              SharedArray<float>(static_cast<int>(a.at.tops))[w.wn % kSharers * kRows + RowOf(score_m + m, half)] = top_here;
            }
          }
        }
      }
      if constexpr (!kInRegisters) {
        __syncthreads();
        const Shared<float> tops = SharedArray<float>(static_cast<int>(a.at.tops));
        HF_UNROLL
        for (int m = 0; m < kMT; ++m) {
          HF_UNROLL
          for (int half = 0; half < 2; ++half) {
            HF_UNROLL
            for (int i = 0; i < kSharers; ++i) largest[m][half] = fmaxf(largest[m][half], tops[i * kRows + RowOf(m, half)]);
          }
        }
      }
      bool moved = false;
      float factor[kMT][2];
      HF_UNROLL
      for (int m = 0; m < kMT; ++m) {
        HF_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float next = fmaxf(top[m][half], ceilf(largest[m][half]) - kHeadroom);
          factor[m][half] = Pow2(top[m][half] - next);
          moved = moved || next != top[m][half];
          top[m][half] = next;
        }
      }
      if (__any_sync(kAllLanes, moved)) {
        HF_UNROLL
        for (int m = 0; m < kMT; ++m) {
          HF_UNROLL
          for (int e = 0; e < 4; ++e) {
            const float f = top[m][e / 2] == -INFINITY ? 1.f : factor[m][e / 2];
            total[m][e] *= f;
            HF_UNROLL
            for (int n = 0; n < kNV; ++n) o[m][n][e] *= f;
          }
        }
      }
      unsigned weights[kInRegisters ? kMS : 1][kInRegisters ? kNS : 1][2][kTerms];   // [][][half]: columns 2 quad, 2 quad + 1 of row half * 8 + quad_row
      HF_UNROLL
      for (int m = 0; m < kMS; ++m) {
        HF_UNROLL
        for (int half = 0; half < 2; ++half) {
          float reference = 0.f;
          HF_UNROLL
          for (int i = 0; i < kMT; ++i) {
            if (i == score_m + m) reference = top[i][half] == -INFINITY ? 0.f : top[i][half];
          }
          HF_UNROLL
          for (int n = 0; n < kNS; ++n) {
            unsigned rest;
            const unsigned pair = Pack<kBf16>(Exp2(s[m][n][half * 2] - reference), Exp2(s[m][n][half * 2 + 1] - reference), &rest);
            if constexpr (kInRegisters) {
              weights[m][n][half][0] = pair;
              if constexpr (kTerms == 2) weights[m][n][half][1] = rest;
            } else if (scores) {
              Shared<uint32_t> to = SharedArray<uint32_t>(static_cast<int>(a.at.weights)) +
                                    (RowOf(score_m + m, half) * kWeightPitch + (score_column + n) * 8) / 2 + w.quad;
              to[0] = pair;
              if constexpr (kTerms == 2) to[kRows * kWeightPitch / 2] = rest;
            }
          }
        }
      }
      // Values.
      WaitFor<4>(a.buffers - 2);
      __syncthreads();
      start_load();
      const int values_at = static_cast<int>(a.at.ring + buffer * a.at.buffer_bytes);
      buffer = buffer + 1 == a.buffers ? 0 : buffer + 1;
      HF_UNROLL
      for (int step = 0; step < kTileKeys / 16; ++step) {
        unsigned x[kMT][kTerms][4];
        HF_UNROLL
        for (int m = 0; m < kMT; ++m) {
          HF_UNROLL
          for (int term = 0; term < kTerms; ++term) {
            if constexpr (kInRegisters) {
              x[m][term][0] = weights[m][step * 2][0][term];
              x[m][term][1] = weights[m][step * 2][1][term];
              x[m][term][2] = weights[m][step * 2 + 1][0][term];
              x[m][term][3] = weights[m][step * 2 + 1][1][term];
            } else {
              LoadMatrix4(x[m][term], SharedArray<uint16_t>(static_cast<int>(a.at.weights)) +
                                          (term * kRows + (w.wm * kMT + m) * 16 + w.lane % 16) * kWeightPitch + step * 16 + w.lane / 16 * 8);
            }
            constexpr unsigned kOnes = kBf16 ? 0x3f803f80u : 0x3c003c00u;
            Mma<kBf16>(total[m], x[m][term], kOnes, kOnes);
          }
        }
        HF_UNROLL
        for (int n = 0; n < kNV; n += kValueColumns) {
          if (value_first + n >= value_columns) continue;
          unsigned b[kValueColumns][2];
          ValueFragments(values_at, step, value_first + n, b);
          HF_UNROLL
          for (int term = 0; term < kTerms; ++term) {
            HF_UNROLL
            for (int m = 0; m < kMT; ++m) {
              HF_UNROLL
              for (int j = 0; j < kValueColumns; ++j) Mma<kBf16>(o[m][n + j], x[m][term], b[j][0], b[j][1]);
            }
          }
        }
      }
      // The partition's end.
      const bool last = t + 1 == tiles;
      if (item.record < 0 && (last || (tile + 1) * kTileKeys % kPartitionKeys == 0)) {
        MergeIntoOut(top, total, o, sums, fresh, last);
        fresh = false;
        if (!last) clear();
      }
    }
    CopyAsyncWait<0>();
    if (item.record >= 0) LeaveRecord(top, total, o, tiles > 0);
  }

  __device__ __forceinline__ void MergeIntoOut(const float (&top)[kMT][2], const float (&total)[kMT][4], const float (&o)[kMT][kNV][4],
                                               Shared<RowSums> sums, bool fresh, bool last) {
    __syncwarp();
    HF_UNROLL
    for (int m = 0; m < kMT; ++m) {
      HF_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = RowOf(m, half);
        RowSums all = sums[row];
        const Merge merge = MergeSums(&all, RowSums{top[m][half], total[m][half * 2]});
        __syncwarp();
        if (w.quad == 0) sums[row] = all;
        if (row >= item.rows) continue;
        const int packed = item.first_row + row, head = kv * a.group + packed % a.group;
        float* out = a.out + (span.first_row + packed / a.group) * a.out_stride + int64_t{head} * a.v.dim;
        const float finish = last ? FinishSums(&all, a.sinks, head) : 1.f;
        HF_UNROLL
        for (int n = 0; n < kNV; ++n) {
          HF_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int c = DimensionOf(w.wn * kNV + n, e);
            if (c >= a.v.dim) continue;
            float sum = (fresh ? 0.f : out[c]) * merge.mine + o[m][n][half * 2 + e] * merge.other;
            if (last) sum = __fdiv_rn(sum * finish, all.total);
            out[c] = sum;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void LeaveRecord(const float (&top)[kMT][2], const float (&total)[kMT][4], const float (&o)[kMT][kNV][4], bool any) {
    HF_UNROLL
    for (int m = 0; m < kMT; ++m) {
      HF_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = RowOf(m, half);
        if (row >= item.rows) continue;
        const int64_t record = int64_t{item.record + row} * a.kv_heads + kv;
        if (w.wn == 0 && w.quad == 0) a.record_sums[record] = make_float2(any ? top[m][half] : -INFINITY, any ? total[m][half * 2] : 0.f);
        float* out = a.record_values + record * a.v.dim;
        HF_UNROLL
        for (int n = 0; n < kNV; ++n) {
          HF_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int c = DimensionOf(w.wn * kNV + n, e);
            if (c < a.v.dim) out[c] = o[m][n][half * 2 + e];
          }
        }
      }
    }
  }
};

// Work `index` of the launch: a kv head of an item.
template <class Work>
__device__ __forceinline__ void AttendTo(const AttentionArgs& a, unsigned index, const typename Work::Where& where) {
  const AttentionItem item = a.items[index / static_cast<unsigned>(a.kv_heads)];
  const int kv = static_cast<int>(index % static_cast<unsigned>(a.kv_heads));
  const SequenceSpan span = a.batch.sequences[item.sequence];
  if (Work::kNarrow && item.partitions == 0) {
    for (int i = where.tid; i < item.rows * a.v.dim; i += Work::kThreads) {
      const int packed = item.first_row + i / a.v.dim, head = kv * a.group + packed % a.group;
      a.out[(span.first_row + packed / a.group) * a.out_stride + int64_t{head} * a.v.dim + i % a.v.dim] = 0.f;
    }
    return;
  }
  const int32_t first_token = item.first_row / a.group, last_token = (item.first_row + item.rows - 1) / a.group;
  typename Work::Range range;
  range.start = span.start;
  range.low_hi = span.start + first_token;
  range.high_lo = a.window > 0 ? span.start + last_token - a.window + 1 : 0;
  const int64_t first_key = a.window > 0 && range.low_hi - a.window + 1 > 0 ? range.low_hi - a.window + 1 : 0;
  const int64_t from = int64_t{item.partition} * Work::kPartitionKeys, to = from + int64_t{item.partitions} * Work::kPartitionKeys;
  range.begin = first_key > from ? first_key : from;
  range.end = span.start + last_token + 1 < to ? span.start + last_token + 1 : to;
  Work{a, where, item, kv, span, range}.Run();
}

template <KvDType kType, int kTileKeys, int kWarpsM, int kWarpsN, int kMT, int kNV>
__global__ void __launch_bounds__(kAttentionWarps* kWarp, kMT == 1 ? 3 : 2) AttendKernel(const __grid_constant__ AttentionArgs a) {
  using Work = Attend<kType, kTileKeys, kWarpsM, kWarpsN, kMT, kNV>;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp;
  const typename Work::Where where{tid, lane, warp, warp / kWarpsN, warp % kWarpsN, lane / 4, lane % 4};
  if constexpr (Work::kNarrow) {
    for (unsigned i = blockIdx.x; i < static_cast<unsigned>(*a.item_count) * static_cast<unsigned>(a.kv_heads); i += gridDim.x) {
      AttendTo<Work>(a, i, where);
      __syncthreads();   // the next item's pages and tiles lie where this one's do
    }
  } else {
    AttendTo<Work>(a, blockIdx.x, where);
  }
}

// Launches the kernel of the tile's shape.
template <KvDType kType>
void LaunchTile(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args) {
  const auto with = [&]<int kTileKeys, int kWarpsM, int kWarpsN, int kMT, int kNV>() {
    if (tile != AttentionTile{kTileKeys, kWarpsM, kWarpsN, kMT, kNV}) return;
    Launch(AttendKernel<kType, kTileKeys, kWarpsM, kWarpsN, kMT, kNV>, blocks, kAttentionWarps * kWarp, static_cast<size_t>(args.at.bytes), stream, args);
  };
  with.template operator()<64, 1, 4, 1, 4>();
  with.template operator()<32, 1, 4, 1, 8>();
  with.template operator()<16, 1, 4, 1, 16>();
  with.template operator()<64, 4, 1, 2, 16>();
  with.template operator()<32, 2, 2, 2, 16>();
  with.template operator()<16, 1, 4, 2, 16>();
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

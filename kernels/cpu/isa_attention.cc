// Attention of one instruction set: online softmax over blocks of kKeyBlock keys at absolute positions. A row's state after a block
// depends on its own query and its visible keys alone, so neither chunking nor neighbours change a bit of it: keys a row does not see
// enter with weight exactly 0, and a block it does not see at all leaves its state as it was.
#include "kernels/cpu/isa_parts.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"

namespace holdfast::kernels::HF_ISA {
namespace {

inline constexpr int kKeyVectors = kKeyTile / kLanes;                  // vectors of a tile of 16 keys
inline constexpr int kRows = kLanes == 16 ? 6 : kLanes == 8 ? 4 : 2;   // query rows of a register tile
inline constexpr int kValueVectors = kLanes == 16 ? 4 : 2;             // value vectors of a register tile
inline constexpr float kInfinity = __builtin_inff();

struct KvF16 {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static F32 Load(const uint8_t* p) { return LoadF16(reinterpret_cast<const uint16_t*>(p)); }
};
struct KvBf16 {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static F32 Load(const uint8_t* p) { return LoadBf16(reinterpret_cast<const uint16_t*>(p)); }
};
struct KvQ8 {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static F32 Load(const uint8_t* p) { return LoadI8(p); }
};
struct KvFp8 {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static F32 Load(const uint8_t* p) { return LoadFp8(p); }
};

// scores[r][0..16) of R rows with one tile of keys. q is [dim][R]; codes [dim][16]; scales [dim/32][16].
template <class Kv, int R>
void ScoreTile(const float* q, const uint8_t* codes, const uint16_t* scales, int64_t dim, float* scores) {
  F32 acc[R][kKeyVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kKeyVectors; ++v) acc[r][v] = Zero();
  }
  F32 scale[kKeyVectors];
  for (int64_t d = 0; d < dim; ++d, q += R, codes += kKeyTile * Kv::kBytes) {
    if constexpr (Kv::kScaled) {
      if (d % 32 == 0) {
#pragma GCC unroll 4
        for (int v = 0; v < kKeyVectors; ++v) scale[v] = LoadF16(scales + d / 32 * kKeyTile + v * kLanes);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kKeyVectors; ++v) {
      F32 k = Kv::Load(codes + v * kLanes * Kv::kBytes);
      if constexpr (Kv::kScaled) k = Mul(k, scale[v]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][v] = Fma(Set1(q[r]), k, acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kKeyVectors; ++v) Store(scores + r * kKeyBlock + v * kLanes, acc[r][v]);
  }
}

// N tiles at once where the registers allow: each query element then serves 16 N keys, and there are R N sums in flight.
template <class Kv, int R, int N>
void ScoreTiles(const float* q, const uint8_t* const* tiles, const uint16_t* const* scales, int64_t dim, float* scores) {
  F32 acc[R][N], scale[N];
  const uint8_t* codes[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    codes[n] = tiles[n];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][n] = Zero();
  }
  for (int64_t d = 0; d < dim; ++d, q += R) {
    if constexpr (Kv::kScaled) {
      if (d % 32 == 0) {
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) scale[n] = LoadF16(scales[n] + d / 32 * kKeyTile);
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      F32 k = Kv::Load(codes[n]);
      codes[n] += kKeyTile * Kv::kBytes;
      if constexpr (Kv::kScaled) k = Mul(k, scale[n]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][n] = Fma(Set1(q[r]), k, acc[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) Store(scores + r * kKeyBlock + n * kKeyTile, acc[r][n]);
  }
}

struct Values {
  const uint8_t* codes[kKeyBlock];
  float* scales;  // [key][dim/32]
  int64_t scale_pitch;
};

// o[r][c .. c + V vectors) = o * correction[r] + sum over keys [low, high] of p[r][key] * value[key].
template <class Kv, int R, int V>
void AccumulateValues(const Values& values, int low, int high, const float* p, const float* correction, float* o, int64_t pitch, int64_t c) {
  F32 acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[r][v] = Mul(Load(o + r * pitch + c + v * kLanes), Set1(correction[r]));
  }
  for (int key = low; key <= high; ++key) {
    const uint8_t* codes = values.codes[key] + c * Kv::kBytes;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      F32 x = Kv::Load(codes + v * kLanes * Kv::kBytes);
      if constexpr (Kv::kScaled) x = Mul(x, Set1(values.scales[key * values.scale_pitch + (c + v * kLanes) / 32]));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][v] = Fma(Set1(p[r * kKeyBlock + key]), x, acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) Store(o + r * pitch + c + v * kLanes, acc[r][v]);
  }
}

inline float Exp1(float x) { return ReduceMax(Exp(Set1(x))); }
inline float Max1(float a, float b) { return a > b ? a : b; }

// Scores of keys [low, high] of the block become weights exp(s - m); m and l move on; returns what o must be multiplied by.
inline float Softmax(const AttendArgs& a, float* s, int tile_low, int tile_high, int low, int high, float* m, float* l) {
  const int v0 = tile_low / kLanes, v1 = tile_high / kLanes;
  if (high < low) {
    for (int v = v0; v <= v1; ++v) Store(s + v * kLanes, Zero());
    return 1.f;
  }
  F32 top = Set1(-kInfinity);
  for (int v = v0; v <= v1; ++v) {
    F32 x = Mul(Load(s + v * kLanes), Set1(a.scale));
    if (a.softcap > 0.f) x = Mul(Set1(a.softcap), Tanh(Div(x, Set1(a.softcap))));
    x = KeepRange(x, Set1(-kInfinity), low - v * kLanes, high - v * kLanes);
    top = Max(top, x);
    Store(s + v * kLanes, x);
  }
  const float now = Max1(*m, ReduceMax(top));
  F32 sum = Zero();
  for (int v = v0; v <= v1; ++v) {
    const F32 p = KeepRange(Exp(Sub(Load(s + v * kLanes), Set1(now))), Zero(), low - v * kLanes, high - v * kLanes);
    sum = Add(sum, p);
    Store(s + v * kLanes, p);
  }
  const float correction = *m == -kInfinity ? 0.f : Exp1(*m - now);
  *m = now;
  *l = *l * correction + ReduceAdd(sum);
  return correction;
}

// The codes of keys [key, key + 16) as [dim][16], and their scales as [dim/32][16]: in place where the page keeps tiles, else gathered.
template <class Kv>
inline const uint8_t* KeyTile(const AttendArgs& a, int64_t key, int64_t low, int64_t high, uint8_t* room, const uint16_t** scales) {
  const auto page_of = [&](int64_t k) {
    return reinterpret_cast<const uint8_t*>(a.base) + static_cast<int64_t>(a.table[k / a.page_size]) * a.page_stride;
  };
  const int64_t blocks = a.dim_k / 32;
  if (a.page_size % kKeyTile == 0) {
    const uint8_t* page = page_of(key);
    const int64_t tile = key % a.page_size / kKeyTile;
    *scales = reinterpret_cast<const uint16_t*>(page + a.k_scales) + tile * blocks * kKeyTile;
    return page + a.k_codes + tile * a.dim_k * kKeyTile * Kv::kBytes;
  }
  uint16_t* scale_room = reinterpret_cast<uint16_t*>(room + a.dim_k * kKeyTile * Kv::kBytes);
  for (int64_t k = low > key ? low : key; k <= high && k < key + kKeyTile; ++k) {
    const uint8_t* page = page_of(k);
    const int64_t slot = k % a.page_size;
    const uint8_t* codes = page + a.k_codes + slot * a.dim_k * Kv::kBytes;
    for (int64_t d = 0; d < a.dim_k; ++d) {
      for (int b = 0; b < Kv::kBytes; ++b) room[(d * kKeyTile + k - key) * Kv::kBytes + b] = codes[d * Kv::kBytes + b];
    }
    if constexpr (Kv::kScaled) {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(page + a.k_scales) + slot * blocks;
      for (int64_t d = 0; d < blocks; ++d) scale_room[d * kKeyTile + k - key] = from[d];
    }
  }
  *scales = scale_room;
  return room;
}

struct Block {
  int64_t key;                        // first key of the block
  const uint8_t* k_codes[kKeyBlock / kKeyTile];
  const uint16_t* k_scales[kKeyBlock / kKeyTile];
  Values values;
};

// One block of keys for R rows beginning at row r0; q is their panel.
template <class Kv, int R>
void AttendRows(const AttendArgs& a, const Block& block, int r0, const float* q, float* scores, int64_t begin, int64_t end) {
  const int64_t pitch = ValuePitch(a.dim_v);
  int low[R], high[R];
  int tile_low = kKeyBlock, tile_high = -1;
  for (int r = 0; r < R; ++r) {
    const QueryRow& row = a.rows[r0 + r];
    const int64_t from = row.first > begin ? row.first : begin;
    const int64_t to = row.last < end - 1 ? row.last : end - 1;
    low[r] = static_cast<int>(from - block.key > 0 ? from - block.key : 0);
    high[r] = static_cast<int>(to - block.key < kKeyBlock - 1 ? to - block.key : kKeyBlock - 1);
    if (from - block.key >= kKeyBlock || high[r] < low[r]) {
      low[r] = 0;
      high[r] = -1;
      continue;
    }
    tile_low = low[r] < tile_low ? low[r] : tile_low;
    tile_high = high[r] > tile_high ? high[r] : tile_high;
  }
  if (tile_high < tile_low) return;
  int t = tile_low / kKeyTile;
  const int t1 = tile_high / kKeyTile;
  while (t <= t1) {
    if constexpr (kLanes == kKeyTile) {
      constexpr int kTiles = R <= 3 ? 4 : 2;
      if (t + kTiles - 1 <= t1) {
        ScoreTiles<Kv, R, kTiles>(q, block.k_codes + t, block.k_scales + t, a.dim_k, scores + t * kKeyTile);
        t += kTiles;
        continue;
      }
    }
    ScoreTile<Kv, R>(q, block.k_codes[t], block.k_scales[t], a.dim_k, scores + t * kKeyTile);
    ++t;
  }
  float correction[R];
  for (int r = 0; r < R; ++r) {
    correction[r] = Softmax(a, scores + r * kKeyBlock, tile_low, tile_high, low[r], high[r], a.m + r0 + r, a.l + r0 + r);
  }
  float* o = a.o + r0 * pitch;
  int64_t c = 0;
  for (; c + kValueVectors * kLanes <= pitch; c += kValueVectors * kLanes) {
    AccumulateValues<Kv, R, kValueVectors>(block.values, tile_low, tile_high, scores, correction, o, pitch, c);
  }
  for (; c < pitch; c += kLanes) AccumulateValues<Kv, R, 1>(block.values, tile_low, tile_high, scores, correction, o, pitch, c);
}

template <class Kv>
void Attend(const AttendArgs& a) {
  const int64_t pitch = ValuePitch(a.dim_v);
  const Tiling tiling(a.row_count, kRows);
  float* panel = reinterpret_cast<float*>(a.scratch);
  float* scores = panel + a.row_count * a.dim_k;
  Block block;
  block.values.scales = scores + kRows * kKeyBlock;
  block.values.scale_pitch = a.dim_v / 32;
  uint8_t* room = reinterpret_cast<uint8_t*>(block.values.scales + (Kv::kScaled ? kKeyBlock * block.values.scale_pitch : 0));
  const int64_t room_bytes = a.dim_k * kKeyTile * Kv::kBytes + a.dim_k / 32 * kKeyTile * 2;

  int64_t first = a.end, last = a.begin - 1;
  for (int r = 0; r < a.row_count; ++r) {
    a.m[r] = -kInfinity;
    a.l[r] = 0.f;
    first = a.rows[r].first < first ? a.rows[r].first : first;
    last = a.rows[r].last > last ? a.rows[r].last : last;
  }
  first = first > a.begin ? first : a.begin;
  last = last < a.end - 1 ? last : a.end - 1;
  for (int64_t i = 0; i < a.row_count * pitch; ++i) a.o[i] = 0.f;
  for (int64_t i = 0; i < tiling.count; ++i) {
    const int64_t r0 = tiling.Begin(i);
    const int rows = tiling.Size(i);
    for (int r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < a.dim_k; ++d) panel[r0 * a.dim_k + d * rows + r] = a.rows[r0 + r].q[d];
    }
  }
  for (int64_t key = first / kKeyBlock * kKeyBlock; key <= last; key += kKeyBlock) {
    const int64_t low = first > key ? first : key;
    const int64_t high = last < key + kKeyBlock - 1 ? last : key + kKeyBlock - 1;
    block.key = key;
    for (int64_t t = (low - key) / kKeyTile; t <= (high - key) / kKeyTile; ++t) {
      block.k_codes[t] = KeyTile<Kv>(a, key + t * kKeyTile, low, high, room + t * room_bytes, &block.k_scales[t]);
    }
    for (int64_t k = low; k <= high; ++k) {
      const uint8_t* page = reinterpret_cast<const uint8_t*>(a.base) + static_cast<int64_t>(a.table[k / a.page_size]) * a.page_stride;
      const int64_t slot = k % a.page_size;
      block.values.codes[k - key] = page + a.v_codes + slot * pitch * Kv::kBytes;
      if constexpr (Kv::kScaled) {
        const uint16_t* from = reinterpret_cast<const uint16_t*>(page + a.v_scales) + slot * (a.dim_v / 32);
        for (int64_t d = 0; d < a.dim_v / 32; ++d) block.values.scales[(k - key) * (a.dim_v / 32) + d] = F16(from[d]);
      }
    }
    for (int64_t i = 0; i < tiling.count; ++i) {
      const int r0 = static_cast<int>(tiling.Begin(i));
      const float* q = panel + r0 * a.dim_k;
      switch (tiling.Size(i)) {
        case 1: AttendRows<Kv, 1>(a, block, r0, q, scores, a.begin, a.end); break;
        case 2: AttendRows<Kv, 2>(a, block, r0, q, scores, a.begin, a.end); break;
        default:
          if constexpr (kRows >= 4) {
            if (tiling.Size(i) == 3) AttendRows<Kv, 3>(a, block, r0, q, scores, a.begin, a.end);
            if (tiling.Size(i) == 4) AttendRows<Kv, 4>(a, block, r0, q, scores, a.begin, a.end);
          }
          if constexpr (kRows >= 6) {
            if (tiling.Size(i) == 5) AttendRows<Kv, 5>(a, block, r0, q, scores, a.begin, a.end);
            if (tiling.Size(i) == 6) AttendRows<Kv, 6>(a, block, r0, q, scores, a.begin, a.end);
          }
      }
    }
  }
}

void Merge(float* m, float* l, float* o, const float* m2, const float* l2, const float* o2, int rows, int64_t dim_v) {
  const int64_t pitch = ValuePitch(dim_v);
  for (int r = 0; r < rows; ++r) {
    if (m2[r] == -kInfinity) continue;
    const float top = Max1(m[r], m2[r]);
    const float a = m[r] == -kInfinity ? 0.f : Exp1(m[r] - top);
    const float b = Exp1(m2[r] - top);
    m[r] = top;
    l[r] = l[r] * a + l2[r] * b;
    for (int64_t c = 0; c < pitch; c += kLanes) {
      float* at = o + r * pitch + c;
      Store(at, Fma(Load(o2 + r * pitch + c), Set1(b), Mul(Load(at), Set1(a))));
    }
  }
}

void FinishRow(float m, float l, const float* o, const float* sink, float* out, int64_t dim_v) {
  float factor = 1.f / l;
  if (sink != nullptr) {
    const float top = Max1(m, *sink);
    const float a = Exp1(m - top);
    factor = a / (l * a + Exp1(*sink - top));
  }
  for (int64_t c = 0; c < dim_v; c += kLanes) {
    const F32 v = Mul(Load(o + c), Set1(factor));
    dim_v - c >= kLanes ? Store(out + c, v) : StorePartial(out + c, v, dim_v - c);
  }
}

}  // namespace

void FillAttention(KernelTable& t) {
  t.attend[0] = Attend<KvF16>;
  t.attend[1] = Attend<KvBf16>;
  t.attend[2] = Attend<KvQ8>;
  t.attend[3] = Attend<KvFp8>;
  t.attend_merge = Merge;
  t.attend_finish = FinishRow;
}

}  // namespace holdfast::kernels::HF_ISA

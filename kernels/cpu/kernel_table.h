#pragma once
// What the CPU backend asks of an instruction set: plain structures and a table of functions. isa_*.cc fill one table per set.
//
// Packed weights. A matrix is cut into groups of 16 rows (the last padded with zero rows); a group is a run of records along K.
// In a code vector (64 bytes) dword lane r belongs to row r and its bytes are four consecutive k.
#include <cstddef>
#include <cstdint>

// Functions of this header are compiled into sources of every instruction set: they must leave no copy for the linker to choose from.
#define HF_EVERYWHERE __attribute__((always_inline)) inline

namespace holdfast::kernels {

// Weight::layout of the CPU backend; 0 is the file's own rows (embedding tables that are only looked up).
enum PackedLayout : uint8_t {
  kPackNone = 0,
  kPackF32,    // per k: 16 f32
  kPackF16,    // per k: 16 f16
  kPackBF16,   // per k: 16 bf16
  kPackQ4_0,   // per 32 k: 16 f16 scales, 4 vectors of nibbles (low: k 0..15, high: k 16..31)
  kPackQ4_1,   // per 32 k: 16 f16 scales, 16 f16 minimums, 4 vectors of nibbles
  kPackQ8_0,   // per 32 k: 16 f16 scales, 8 vectors of bytes + 128
  kPackQ4_K,   // per 256 k: 16 f16 d, 16 f16 dmin, 8 x 16 scales u8, 8 x 16 mins u8, 8 x 4 vectors of nibbles
  kPackQ6_K,   // per 256 k: 16 f16 d, 16 x 16 scales i8, 8 x (4 vectors of low nibbles, 2 vectors of high bits)
  kPackTable,  // per 32 k: 16 f32 scales, 4 vectors of nibbles that index a table of 16 bytes + 128 (IQ4_NL, MXFP4)
  kPackWide,   // per 32 k: 2 x 16 f32 scales, 8 vectors of bytes with a zero point (Q5_0, Q3_K)
  kPackWideMin,  // per 32 k: 2 x 16 f32 scales, 2 x 16 f32 minimums, 8 vectors of bytes (Q5_1, Q5_K, Q2_K)
  kPackCount,
};
inline constexpr int kGroupRows = 16;

// Activations of a MatMul, laid out for tiles. T rows make TileCount tiles of nearly equal size; a tile of m rows beginning at row t0
// has its panel at t0 * RowBytes. Quantised panel: per 32 k, m x 32 int8 codes, then m Aux. Float panel: per k, m floats.
struct Aux {
  float d;          // scale of the 32 codes
  float sum;        // d * sum of the codes
  float sum_low;    // d * sum of the first 16
  float sum_high;
  int32_t n8;       // -8 * sum of the codes
  int32_t n128;     // -128 * sum of the codes
  int32_t low;      // sum of the first 16 codes
  int32_t high;
};
inline constexpr int64_t kPanelBlockBytes = 32 + sizeof(Aux);  // a row's share of 32 k

// Tiles of at most `most` rows: the first (rows % count) tiles have one row more.
struct Tiling {
  int64_t rows, count;
  HF_EVERYWHERE Tiling(int64_t r, int64_t most) : rows(r), count((r + most - 1) / most) {}
  HF_EVERYWHERE int64_t Begin(int64_t i) const { return i * (rows / count) + (i < rows % count ? i : rows % count); }
  HF_EVERYWHERE int Size(int64_t i) const { return static_cast<int>(rows / count + (i < rows % count ? 1 : 0)); }
};

struct GemmArgs {
  const std::byte* w = nullptr;    // packed groups of this expert
  int64_t group_bytes = 0;
  int64_t out = 0;                 // rows of W
  int64_t in = 0;
  const std::byte* panel = nullptr;
  int64_t rows = 0;                // T
  float* y = nullptr;              // y[row * stride + o]
  int64_t stride = 0;
  const float* bias = nullptr;
  bool accumulate = false;
  const uint8_t* table = nullptr;  // kPackTable
  int32_t zero = 0;                // kPackWide
  std::byte* scratch = nullptr;    // this thread's, KernelTable::scratch_bytes(in)
};

// Rows of activations: x + index[t] * stride, or x + t * stride where index is null.
struct RowSource {
  const float* x = nullptr;
  int64_t stride = 0;
  const int32_t* index = nullptr;
  HF_EVERYWHERE const float* row(int64_t t) const { return x + (index != nullptr ? index[t] : t) * stride; }
};

inline constexpr int kKeyBlock = 64;       // keys of one online-softmax step, at absolute positions
inline constexpr int kKeyTile = 16;        // keys of one K vector run
inline constexpr int kMaxQueryRows = 96;   // (token, head) rows of one attention task: keys are read from memory once for all of them

// One query row of an attention task: a head of a token.
struct QueryRow {
  const float* q = nullptr;        // [dim_k]
  int64_t first = 0, last = 0;     // visible keys, both included
};

// Part of the keys for up to kMaxQueryRows rows that read one kv head of one sequence. State: m, l [rows], o [rows][ValuePitch(dim_v)].
// A page holds for this head, at the byte offsets given: K codes in tiles of 16 keys [dim_k][16] where page_size % 16 == 0, else
// [slot][dim_k]; K scales likewise [dim_k/32][16] or [slot][dim_k/32]; V codes [slot][ValuePitch]; V scales [slot][dim_v/32].
struct AttendArgs {
  const std::byte* base = nullptr;
  int64_t page_stride = 0;
  const int32_t* table = nullptr;
  int32_t page_size = 0;
  int32_t dim_k = 0, dim_v = 0;
  int64_t k_codes = 0, k_scales = 0, v_codes = 0, v_scales = 0;
  float scale = 1.f, softcap = 0.f;
  const QueryRow* rows = nullptr;
  int row_count = 0;
  int64_t begin = 0, end = 0;      // keys [begin, end) of this call, begin a multiple of kKeyBlock
  float* m = nullptr;
  float* l = nullptr;
  float* o = nullptr;
  std::byte* scratch = nullptr;    // AttendScratchBytes
};
// Values of a row of V codes, and of a row of o, padded to whole vectors.
HF_EVERYWHERE constexpr int64_t ValuePitch(int64_t dim_v) { return (dim_v + 15) / 16 * 16; }
// Query panel, scores, value scales and four gathered K tiles.
HF_EVERYWHERE int64_t AttendScratchBytes(int64_t dim_k, int64_t dim_v) {
  return 4 * (kMaxQueryRows * dim_k + 8 * kKeyBlock + kKeyBlock * (dim_v / 32)) + 4 * (dim_k * kKeyTile * 2 + dim_k / 32 * kKeyTile * 2) + 64;
}

struct KernelTable {
  const char* name;
  int max_tile;                    // rows of the largest panel
  int64_t (*scratch_bytes)(int64_t in);
  // Rows [16 * g0, 16 * g1) of y = W x, one function per PackedLayout.
  void (*gemm[kPackCount])(const GemmArgs& args, int64_t g0, int64_t g1);
  // Panels of tiles [i0, i1).
  void (*quantize)(const RowSource& x, const Tiling& tiling, int64_t i0, int64_t i1, int64_t in, std::byte* panel);
  void (*interleave)(const RowSource& x, const Tiling& tiling, int64_t i0, int64_t i1, int64_t in, std::byte* panel);
  // One function per KvDType.
  void (*attend[4])(const AttendArgs& args);
  // Joins the state of later keys to that of earlier ones; then out = o / l, with the sink in the denominator if there is one.
  void (*attend_merge)(float* m, float* l, float* o, const float* m2, const float* l2, const float* o2, int rows, int64_t dim_v);
  void (*attend_finish)(float m, float l, const float* o, const float* sink, float* out, int64_t dim_v);
  void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int64_t n);          // weight may be null
  void (*add_rms_norm)(float* x, const float* y, const float* weight, float eps, int64_t n);
  void (*gated[3])(const float* gate, const float* up, float* out, int64_t n);                      // one per Activation
  void (*activate[2])(float* x, int64_t n);
  void (*softcap)(float* x, float cap, int64_t n);
  void (*add)(float* x, const float* y, int64_t n);
  void (*multiply)(float* x, const float* y, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);
  void (*add_scaled)(float* x, const float* y, float factor, int64_t n);                            // x += factor * y
  // Rotates `heads` heads of head_dim; half pairs (i, i + half) or (2i, 2i + 1).
  void (*rope_halves)(float* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosine, const float* sine);
  void (*rope_pairs)(float* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosine, const float* sine);
  void (*to_f16)(const float* x, uint16_t* out, int64_t n);
};

}  // namespace holdfast::kernels

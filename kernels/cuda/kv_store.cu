#include "kernels/cuda/kv_store.h"

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 128;
constexpr int kWide = 8;     // values of a thread in the 16-bit types: 16 bytes of the page
constexpr int kNarrow = 4;   // in the 8-bit types, where 8 lanes share a block

struct Place {
  std::byte* page;     // null: the row belongs to no sequence
  const KvPlane* plane;
  int64_t slot;        // KvPlane::Slot
  int32_t at;          // first element in the head
  const float* from;   // of element `at`
};

// Piece i of a step: row after row, in a row the K pieces of every head, then the V pieces.
__device__ __forceinline__ Place PlaceOf(int64_t i, int each, const KvLayer& layer, const KvPageLayout& page, const DeviceBatch& batch,
                                         const DeviceTables& tables, const ConstMat& k, const ConstMat& v) {
  const int32_t of_k = page.k.pitch / each, of_v = page.v.pitch / each, of_row = (of_k + of_v) * layer.kv_heads;
  const int64_t t = i / of_row;
  int32_t piece = static_cast<int32_t>(i % of_row);
  const bool is_v = piece >= of_k * layer.kv_heads;
  if (is_v) piece -= of_k * layer.kv_heads;
  const int32_t of_head = is_v ? of_v : of_k, head = piece / of_head, at = piece % of_head * each;
  const int32_t s = batch.row_sequence[t];
  Place p{};
  if (s < 0) return p;
  const SequenceSpan span = batch.sequences[s];
  const int64_t position = span.start + (t - span.first_row);
  p.plane = is_v ? &page.v : &page.k;
  p.page = layer.base + tables.pages[tables.first[s] + position / layer.page_size] * layer.page_stride;
  p.slot = p.plane->Slot(head, position % layer.page_size);
  p.at = at;
  p.from = (is_v ? v.data + t * v.stride : k.data + t * k.stride) + int64_t{head} * p.plane->dim + at;
  return p;
}

__global__ void __launch_bounds__(kThreads) StoreWide(KvLayer layer, KvPageLayout page, DeviceBatch batch, DeviceTables tables, ConstMat k, ConstMat v) {
  const int64_t pieces = k.rows * layer.kv_heads * ((page.k.pitch + page.v.pitch) / kWide);
  for (int64_t i = GridThread(); i < pieces; i += GridThreads()) {
    const Place p = PlaceOf(i, kWide, layer, page, batch, tables, k, v);
    if (p.page == nullptr) continue;
    unsigned words[kWide / 2] = {};
    HF_UNROLL
    for (int e = 0; e < kWide; ++e) {
      const float x = p.at + e < p.plane->dim ? p.from[e] : 0.f;
      words[e / 2] |= static_cast<unsigned>(layer.dtype == KvDType::kF16 ? FloatToHalf(x) : FloatToBfloat(x)) << (e % 2 * 16);
    }
    *reinterpret_cast<uint4*>(p.page + p.plane->codes + (p.slot * p.plane->pitch + p.at) * 2) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

__global__ void __launch_bounds__(kThreads) StoreNarrow(KvLayer layer, KvPageLayout page, DeviceBatch batch, DeviceTables tables, ConstMat k, ConstMat v) {
  const int64_t pieces = k.rows * layer.kv_heads * ((page.k.pitch + page.v.pitch) / kNarrow);
  constexpr int kSharing = kKvBlock / kNarrow;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned sharing = ((1u << kSharing) - 1) << (lane / kSharing * kSharing);   // pieces are whole blocks: these lanes come together
  for (int64_t i = GridThread(); i < pieces; i += GridThreads()) {
    const Place p = PlaceOf(i, kNarrow, layer, page, batch, tables, k, v);
    if (p.page == nullptr) continue;   // lanes that share a block are of one row
    float x[kNarrow], amax = 0.f, poison = 0.f;
    HF_UNROLL
    for (int e = 0; e < kNarrow; ++e) {
      x[e] = p.from[e];
      amax = fmaxf(amax, fabsf(x[e]));
      poison += x[e] * 0.f;
    }
    HF_UNROLL
    for (int lanes = kSharing / 2; lanes > 0; lanes /= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(sharing, amax, lanes));
      poison += __shfl_xor_sync(sharing, poison, lanes);
    }
    const uint16_t scale = KvScale(layer.dtype, amax, poison);
    const float inverse = KvInverse(scale);
    unsigned word = 0;
    HF_UNROLL
    for (int e = 0; e < kNarrow; ++e) word |= static_cast<unsigned>(EncodeKv(layer.dtype, x[e], inverse)) << (8 * e);
    *reinterpret_cast<unsigned*>(p.page + p.plane->codes + p.slot * p.plane->pitch + p.at) = word;
    if (p.at % kKvBlock == 0) {
      reinterpret_cast<uint16_t*>(p.page + p.plane->scales)[p.slot * (p.plane->dim / kKvBlock) + p.at / kKvBlock] = scale;
    }
  }
}

}  // namespace

void StoreKv(cudaStream_t stream, const KvLayer& layer, const KvPageLayout& page, const DeviceBatch& batch, const DeviceTables& tables, ConstMat k,
             ConstMat v) {
  if (k.rows == 0) return;
  const bool wide = !KvIsQuantized(layer.dtype);
  const int64_t pieces = k.rows * layer.kv_heads * ((page.k.pitch + page.v.pitch) / (wide ? kWide : kNarrow));
  Launch(wide ? StoreWide : StoreNarrow, Blocks(pieces, kThreads), kThreads, 0, stream, layer, page, batch, tables, k, v);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#include "kernels/cuda/attention.h"

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kWarps = 4, kTile = kWarp, kMostPerLane = kMostHeadDim / kWarp;

struct Args {
  KvLayer layer;
  KvPageLayout page;
  DeviceBatch batch;
  DeviceTables tables;
  ConstMat q;
  Mat out;
  int32_t heads;
  float scale, softcap;
  const float* sinks;
};

// Shared memory of a warp: its query, and of the tile's keys the weights and where their values are.
__host__ __device__ constexpr int SharedOfWarp(int dim_k) { return kTile * 8 + kTile * 4 + (dim_k * 4 + 15) / 16 * 16; }

__device__ __forceinline__ float ReadKv(KvDType type, const std::byte* page, const KvPlane& plane, int64_t index) {
  if (KvIsQuantized(type)) {
    return DecodeKv(type, reinterpret_cast<const uint8_t*>(page + plane.codes)[index], reinterpret_cast<const uint16_t*>(page + plane.scales)[index / kKvBlock]);
  }
  const uint16_t h = reinterpret_cast<const uint16_t*>(page + plane.codes)[index];
  return type == KvDType::kF16 ? HalfToFloat(h) : BfloatToFloat(h);
}

// A warp per row and head. Keys come in tiles of 32 at absolute positions: a lane scores a key, then all lanes add the tile's values, each its
// own dimensions.
__global__ void __launch_bounds__(kWarps * kWarp) AttentionKernel(Args a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int dim_k = a.layer.head_dim_k, dim_v = a.layer.head_dim_v, base = warp * SharedOfWarp(dim_k);
  Shared<int64_t> value_at = SharedArray<int64_t>(base);   // page of the key, as a byte offset
  Shared<float> weight = SharedArray<float>(base + kTile * 8);
  Shared<float> query = SharedArray<float>(base + kTile * 12);
  const int group = a.heads / a.layer.kv_heads;
  for (int64_t i = GridThread() / kWarp; i < a.q.rows * a.heads; i += GridThreads() / kWarp) {
    const int64_t t = i / a.heads;
    const int h = static_cast<int>(i % a.heads), kv = h / group;
    const int32_t s = a.batch.row_sequence[t];
    const SequenceSpan span = a.batch.sequences[s];
    const int32_t* pages = a.tables.pages + a.tables.first[s];
    const int64_t last = span.start + (t - span.first_row);
    const int64_t first = a.tables.window > 0 && last - a.tables.window + 1 > 0 ? last - a.tables.window + 1 : 0;
    __syncwarp();
    for (int c = lane; c < dim_k; c += kWarp) query[c] = a.q.data[t * a.q.stride + int64_t{h} * dim_k + c];
    __syncwarp();
    float top = a.sinks == nullptr ? -INFINITY : a.sinks[h];
    float total = a.sinks == nullptr || lane != 0 ? 0.f : 1.f;  // of this lane's keys; the sink is lane 0's
    float sum[kMostPerLane];
    HF_UNROLL
    for (int d = 0; d < kMostPerLane; ++d) sum[d] = 0.f;
    for (int64_t tile = first / kTile; tile <= last / kTile; ++tile) {
      const int64_t key = tile * kTile + lane;
      const bool seen = key >= first && key <= last;
      float score = -INFINITY;
      int64_t page = 0;
      if (seen) {
        page = int64_t{pages[key / a.layer.page_size]} * a.layer.page_stride;
        const int64_t index = a.page.k.Index(kv, key % a.layer.page_size, 0);
        float dot = 0.f;
        for (int c = 0; c < dim_k; ++c) dot += query[c] * ReadKv(a.layer.dtype, a.layer.base + page, a.page.k, index + c);
        score = dot * a.scale;
        if (a.softcap > 0.f) score = a.softcap * tanhf(score / a.softcap);
      }
      const float next = fmaxf(top, WarpMax(score)), keep = expf(top - next);
      const float p = seen ? expf(score - next) : 0.f;
      total = total * keep + p;
      top = next;
      weight[lane] = p;
      value_at[lane] = page;
      __syncwarp();
      const int begin = tile * kTile < first ? static_cast<int>(first - tile * kTile) : 0;
      const int end = (tile + 1) * kTile > last ? static_cast<int>(last - tile * kTile) + 1 : kTile;
      HF_UNROLL
      for (int d = 0; d < kMostPerLane; ++d) {
        const int c = d * kWarp + lane;
        if (c >= dim_v) continue;
        float v = sum[d] * keep;
        for (int k = begin; k < end; ++k) {
          const int64_t index = a.page.v.Index(kv, (tile * kTile + k) % a.layer.page_size, c);
          v += weight[k] * ReadKv(a.layer.dtype, a.layer.base + value_at[k], a.page.v, index);
        }
        sum[d] = v;
      }
      __syncwarp();
    }
    total = WarpSum(total);
    HF_UNROLL
    for (int d = 0; d < kMostPerLane; ++d) {
      const int c = d * kWarp + lane;
      if (c < dim_v) a.out.data[t * a.out.stride + int64_t{h} * dim_v + c] = sum[d] / total;
    }
  }
}

}  // namespace

void Attention(cudaStream_t stream, const KvLayer& layer, const KvPageLayout& page, const DeviceBatch& batch, const DeviceTables& tables, ConstMat q,
               const AttentionParams& p, Mat out) {
  if (q.rows == 0) return;
  const Args args{layer, page, batch, tables, q, out, p.heads, p.scale, p.softcap, p.sinks.empty() ? nullptr : p.sinks.data()};
  Launch(AttentionKernel, Blocks(q.rows * p.heads, kWarps), kWarps * kWarp, static_cast<size_t>(kWarps * SharedOfWarp(layer.head_dim_k)), stream, args);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

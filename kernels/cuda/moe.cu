#include "kernels/cuda/moe.h"

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

// Logits in the order in which they are chosen, as one number: higher logits first, then lower ids. NaN comes last.
__device__ __forceinline__ unsigned long long RankOf(float logit, int expert) {
  const unsigned bits = __float_as_uint(logit + 0.f);   // of two zeros, the positive one
  const unsigned ordered = logit != logit ? 0 : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<unsigned>(expert));
}

// A warp per row. Each round takes the best of those that come after the last one taken.
__global__ void __launch_bounds__(kThreads) RouteKernel(const float* logits, int64_t stride, int64_t rows, int64_t experts, RouterNorm norm, Routing out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t t = GridThread() / kWarp; t < rows; t += GridThreads() / kWarp) {
    const float* l = logits + t * stride;
    int32_t* ids = out.ids + t * out.k;
    float* weights = out.weights + t * out.k;
    unsigned long long last = ~0ull;
    float top = 0.f, sum = 0.f;
    for (int j = 0; j < out.k; ++j) {
      unsigned long long best = 0;
      for (int e = lane; e < experts; e += kWarp) {
        const unsigned long long rank = RankOf(l[e], e);
        if (rank < last && rank > best) best = rank;
      }
      for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, lanes));
      last = best;
      const int id = static_cast<int>(0xffffffffu - static_cast<unsigned>(best & 0xffffffffu));
      if (j == 0) top = l[id];
      const float weight = expf(l[id] - top);
      if (norm == RouterNorm::kSoftmaxTopK) sum += weight;
      if (lane == 0) {
        ids[j] = id;
        weights[j] = weight;
      }
    }
    if (norm == RouterNorm::kSoftmaxAll) {
      for (int e = lane; e < experts; e += kWarp) sum += expf(l[e] - top);
      sum = WarpSum(sum);
    }
    __syncwarp();   // lane 0's weights
    for (int j = lane; j < out.k; j += kWarp) weights[j] /= sum;
  }
}

// A block per expert: how many pairs chose it.
__global__ void __launch_bounds__(kThreads) CountKernel(const int32_t* ids, int64_t pairs, int32_t* counts) {
  const int expert = static_cast<int>(blockIdx.x);
  int count = 0;
  for (int64_t base = 0; base < pairs; base += kThreads) {
    const int64_t p = base + threadIdx.x;
    count += __syncthreads_count(p < pairs && ids[p] == expert);
  }
  if (threadIdx.x == 0) counts[expert] = count;
}

// A block per expert: its tiles and its pairs, after those of the experts before. The last one's block also writes the tiles that nobody needs.
__global__ void __launch_bounds__(kThreads) PlaceKernel(const int32_t* ids, int64_t pairs, int experts, const int32_t* counts, int width, int tile_count,
                                                        RowTile* tiles, int32_t* order) {
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  Shared<int> shared = SharedArray<int>(0);   // pairs and tiles before; then the warps' hits
  if (warp == 0) {
    int pairs_before = 0, tiles_before = 0;
    for (int e = lane; e < expert; e += kWarp) {
      pairs_before += counts[e];
      tiles_before += (counts[e] + width - 1) / width;
    }
    pairs_before = __reduce_add_sync(kAllLanes, pairs_before);
    tiles_before = __reduce_add_sync(kAllLanes, tiles_before);
    if (lane == 0) {
      shared[0] = pairs_before;
      shared[1] = tiles_before;
    }
  }
  __syncthreads();
  const int count = counts[expert], first = shared[0], tile = shared[1], mine = (count + width - 1) / width;
  for (int i = thread; i < mine; i += kThreads) {
    RowTile t;
    t.expert = expert;
    t.first = first + i * width;
    t.count = min(width, count - i * width);
    tiles[tile + i] = t;
  }
  if (expert == experts - 1) {
    for (int i = tile + mine + thread; i < tile_count; i += kThreads) tiles[i] = RowTile{};
  }
  if (count == 0) return;
  int done = 0;
  for (int64_t base = 0; base < pairs; base += kThreads) {
    const int64_t p = base + thread;
    const bool hit = p < pairs && ids[p] == expert;
    const unsigned hits = __ballot_sync(kAllLanes, hit);
    if (lane == 0) shared[2 + warp] = __popc(hits);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      const int n = shared[2 + w];
      before += w < warp ? n : 0;
      all += n;
    }
    if (hit) order[first + done + before + __popc(hits & ((1u << lane) - 1u))] = static_cast<int32_t>(p);
    done += all;
    __syncthreads();   // before the next hits are written
  }
}

__global__ void __launch_bounds__(kThreads) CombineKernel(const float* y, Routing routing, const float* scale, Mat out) {
  const int64_t d = out.cols;
  for (int64_t i = GridThread(); i < out.rows * d; i += GridThreads()) {
    const int64_t t = i / d, c = i % d;
    float sum = 0.f;
    for (int j = 0; j < routing.k; ++j) {
      const int64_t pair = t * routing.k + j;
      const float w = scale == nullptr ? routing.weights[pair] : routing.weights[pair] * scale[routing.ids[pair]];
      sum += w * y[pair * d + c];
    }
    out.data[t * out.stride + c] = sum;
  }
}

int64_t TileSlots(int64_t pairs, int64_t experts, int32_t width) { return pairs / width + std::min(pairs, experts); }

}  // namespace

void Route(cudaStream_t stream, ConstMat logits, RouterNorm norm, const Routing& out) {
  if (logits.rows == 0) return;
  Launch(RouteKernel, Blocks(logits.rows, kThreads / kWarp), kThreads, 0, stream, logits.data, logits.stride, logits.rows, logits.cols, norm, out);
}

int64_t SortBytes(int64_t pairs, int64_t experts, int32_t width) {
  return TileSlots(pairs, experts, width) * static_cast<int64_t>(sizeof(RowTile)) + (pairs + experts) * static_cast<int64_t>(sizeof(int32_t));
}

RowOrder SortByExpert(cudaStream_t stream, const int32_t* ids, int64_t pairs, int64_t experts, int32_t width, void* memory) {
  RowOrder rows;
  rows.width = width;
  rows.tile_count = static_cast<int32_t>(TileSlots(pairs, experts, width));
  RowTile* tiles = static_cast<RowTile*>(memory);
  int32_t* order = reinterpret_cast<int32_t*>(tiles + rows.tile_count);
  int32_t* counts = order + pairs;
  Launch(CountKernel, Blocks(experts, 1), kThreads, 0, stream, ids, pairs, counts);
  Launch(PlaceKernel, Blocks(experts, 1), kThreads, (2 + kThreads / kWarp) * sizeof(int), stream, ids, pairs, static_cast<int>(experts), counts, width,
         rows.tile_count, tiles, order);
  rows.tiles = tiles;
  rows.order = order;
  return rows;
}

void CombineExperts(cudaStream_t stream, const float* y, const Routing& routing, const float* scale, Mat out) {
  if (out.rows == 0) return;
  Launch(CombineKernel, Blocks(out.rows * out.cols, kThreads), kThreads, 0, stream, y, routing, scale, out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

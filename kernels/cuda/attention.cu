#include "kernels/cuda/attention.h"

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kMostPerLane = kMostHeadDim / kWarp;

struct CombineArgs {
  const AttentionCounts* counts;
  const CombineItem* items;
  const SequenceSpan* sequences;
  int32_t kv_heads, group, dim;
  float* out;
  int64_t out_stride;
  const float* sinks;
  const float2* record_sums;
  const float* record_values;
};

// A warp per row: its partitions' records in their order.
__global__ void __launch_bounds__(kCombineRows * kWarp) CombineKernel(CombineArgs a) {
  const unsigned index = blockIdx.x / static_cast<unsigned>(a.kv_heads);
  if (index >= static_cast<unsigned>(a.counts->combine)) return;
  const CombineItem item = a.items[index];
  const int kv = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.kv_heads));
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = static_cast<int>(threadIdx.x) / kWarp;
  if (row >= item.rows) return;
  RowSums all{-INFINITY, 0.f};
  float sum[kMostPerLane];
  HF_UNROLL
  for (int d = 0; d < kMostPerLane; ++d) sum[d] = 0.f;
  for (int p = 0; p < item.partitions; ++p) {
    const int64_t record = (int64_t{item.record} + int64_t{p} * item.step + row) * a.kv_heads + kv;
    const float2 sums = a.record_sums[record];
    const Merge merge = MergeSums(&all, RowSums{sums.x, sums.y});
    const float* values = a.record_values + record * a.dim;
    HF_UNROLL
    for (int d = 0; d < kMostPerLane; ++d) {
      const int c = d * kWarp + lane;
      if (c < a.dim) sum[d] = sum[d] * merge.mine + values[c] * merge.other;
    }
  }
  const SequenceSpan span = a.sequences[item.sequence];
  const int packed = item.first_row + row, head = kv * a.group + packed % a.group;
  const float finish = FinishSums(&all, a.sinks, head);
  float* out = a.out + (span.first_row + packed / a.group) * a.out_stride + int64_t{head} * a.dim;
  HF_UNROLL
  for (int d = 0; d < kMostPerLane; ++d) {
    const int c = d * kWarp + lane;
    if (c < a.dim) out[c] = __fdiv_rn(sum[d] * finish, all.total);
  }
}

}  // namespace

void Attention(cudaStream_t stream, const KvLayer& layer, const KvPageLayout& page, const DeviceBatch& batch, const DeviceTables& tables,
               const AttentionWork& work, ConstMat q, const AttentionParams& p, Mat out) {
  const AttentionPlan& plan = *work.plan;
  AttentionArgs args{};
  args.base = layer.base;
  args.page_stride = layer.page_stride;
  args.k = page.k;
  args.v = page.v;
  args.kv_heads = layer.kv_heads;
  args.group = plan.shape.group();
  args.window = tables.window;
  args.batch = batch;
  args.tables = tables;
  args.q = q.data;
  args.q_stride = q.stride;
  args.q_in_fours = layer.head_dim_k % 16 == 0 && q.stride % 4 == 0 && reinterpret_cast<uintptr_t>(q.data) % 16 == 0;
  args.out = out.data;
  args.out_stride = out.stride;
  args.scale = p.scale;
  args.softcap = p.softcap;
  args.sinks = p.sinks.empty() ? nullptr : p.sinks.data();
  args.record_sums = work.record_sums;
  args.record_values = work.record_values;
  for (const bool wide : {false, true}) {
    const AttentionLaunch& launch = wide ? plan.wide : plan.narrow;
    if (launch.items.empty()) continue;
    args.items = wide ? work.wide : work.narrow;
    args.item_count = wide ? &work.counts->wide : &work.counts->narrow;
    args.buffers = launch.buffers;
    args.at = SharedOf(plan.shape, launch.tile, launch.buffers);
    const unsigned blocks = static_cast<unsigned>(launch.blocks);
    switch (layer.dtype) {
      case KvDType::kF16: AttendF16(stream, launch.tile, blocks, args); break;
      case KvDType::kBF16: AttendBf16(stream, launch.tile, blocks, args); break;
      case KvDType::kQ8_0: AttendQ8(stream, launch.tile, blocks, args); break;
      case KvDType::kFp8E4M3: AttendFp8(stream, launch.tile, blocks, args); break;
    }
  }
  if (plan.combine.empty()) return;
  const CombineArgs combine{work.counts, work.combine, batch.sequences, layer.kv_heads, args.group, layer.head_dim_v, out.data, out.stride, args.sinks,
                            work.record_sums, work.record_values};
  Launch(CombineKernel, static_cast<unsigned>(plan.combine_slots * layer.kv_heads), kCombineRows * kWarp, 0, stream, combine);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

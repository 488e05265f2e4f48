#pragma once
// Between attention.cu, which launches, and the files of one KV type each, which have the kernels (they take long to compile).
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_mma.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

inline constexpr int kAttentionWarps = 4;
inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
inline constexpr float kHeadroom = 8.f;   // weights are at most 2^8: what is below f16's normal numbers is then below 2^-22 of the largest

struct AttentionArgs {
  const std::byte* base;
  int64_t page_stride;
  KvPlane k, v;
  int32_t kv_heads, group, window, buffers;
  DeviceBatch batch;
  DeviceTables tables;
  const float* q;
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  bool q_in_fours;              // rows and heads of q begin at multiples of 16 bytes
  float scale, softcap;
  const float* sinks;
  AttentionShared at;
  const AttentionItem* items;
  const int32_t* item_count;    // on the device: the grid does not say
  float2* record_sums;
  float* record_values;
};

// A row's sums so far: sum of weights and of weights times values, both over 2^top.
struct RowSums {
  float top, total;
};
// What both sides of an addition are multiplied by: powers of two, so that it rounds once.
struct Merge {
  float mine, other;
};
__device__ __forceinline__ Merge MergeSums(RowSums* mine, RowSums other) {
  const float top = fmaxf(mine->top, other.top);
  const Merge m{Pow2(mine->top - top), Pow2(other.top - top)};
  mine->total = mine->total * m.mine + other.total * m.other;
  mine->top = top;
  return m;
}
// The row's result is sum * mine / total afterwards.
__device__ __forceinline__ float FinishSums(RowSums* s, const float* sinks, int head) {
  if (sinks == nullptr) return 1.f;
  const float sink = sinks[head] * kLog2E, top = fmaxf(s->top, ceilf(sink) - kHeadroom), mine = Pow2(s->top - top);
  s->total = s->total * mine + Exp2(sink - top);
  return mine;
}

void AttendF16(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args);
void AttendBf16(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args);
void AttendQ8(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args);
void AttendFp8(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

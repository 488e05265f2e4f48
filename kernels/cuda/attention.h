#pragma once
// Attention over the paged cache, for prompts and single tokens alike: keys and values come through shared memory in tiles, products run on
// tensor cores with f32 sums, a row's sums have the order that attention_plan.h describes.
//
// Rounding. Queries (times scale * log2(e)) and weights (the softmax's numerators, at most 2^8) are each the sum of two f16 values, of bf16
// caches two bf16 values, and multiplied as such: one alone shifts scores by 2^-12 of their size, which with int8 activations and routers
// after it is enough to be seen in the logits. Keys and values are as stored, or codes times scale rounded to f16. The reference point of a
// row's weights is a power of two, so that moving it is exact. docs/gpu-attention.md has what this costs.
#include <cuda_runtime.h>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/batch.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/ops.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// A plan with its lists on the device.
struct AttentionWork {
  const AttentionPlan* plan = nullptr;
  const AttentionCounts* counts = nullptr;
  const AttentionItem *narrow = nullptr, *wide = nullptr;
  const CombineItem* combine = nullptr;
  float2* record_sums = nullptr;     // [records * kv_heads]
  float* record_values = nullptr;    // [records * kv_heads][dim_v]
};

// As Ops::Attention. sinks: [heads] or null.
void Attention(cudaStream_t stream, const KvLayer& layer, const KvPageLayout& page, const DeviceBatch& batch, const DeviceTables& tables,
               const AttentionWork& work, ConstMat q, const AttentionParams& params, Mat out);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

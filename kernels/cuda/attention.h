#pragma once
// Attention over the paged cache.
#include <cuda_runtime.h>

#include "kernels/cuda/batch.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/ops.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

inline constexpr int kMostHeadDim = 512;

// As Ops::Attention; head dimensions up to kMostHeadDim. sinks: [heads] or null.
void Attention(cudaStream_t stream, const KvLayer& layer, const KvPageLayout& page, const DeviceBatch& batch, const DeviceTables& tables, ConstMat q,
               const AttentionParams& params, Mat out);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// Writes a step's keys and values into the pages of their positions, in one kernel; codes and scales are those of kernels/kv_block.h.
#include <cuda_runtime.h>

#include "kernels/cuda/batch.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/ops.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

void StoreKv(cudaStream_t stream, const KvLayer& layer, const KvPageLayout& page, const DeviceBatch& batch, const DeviceTables& tables, ConstMat k,
             ConstMat v);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

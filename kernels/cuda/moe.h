#pragma once
// Mixture of experts: which, the order in which their rows are multiplied, and their sum. The experts' products are matmul.h's.
#include <cuda_runtime.h>

#include "kernels/cuda/matmul.h"
#include "kernels/ops.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

void Route(cudaStream_t stream, ConstMat logits, RouterNorm norm, const Routing& out);

// Pairs of token and expert up to here are multiplied one by one: at two tokens, few experts are chosen twice.
inline constexpr int64_t kUnsortedPairs = 16;
// Pairs by expert, in their order; tiles of up to `width` pairs of one expert. memory: SortBytes, 16-byte aligned.
int64_t SortBytes(int64_t pairs, int64_t experts, int32_t width);
RowOrder SortByExpert(cudaStream_t stream, const int32_t* ids, int64_t pairs, int64_t experts, int32_t width, void* memory);

// out[t] = sum_j weights[t,j] * scale[e] * y[t * k + j], in order of j; scale may be null.
void CombineExperts(cudaStream_t stream, const float* y, const Routing& routing, const float* scale, Mat out);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// Mixture of experts: which, and their sum. The experts' products are matmul.h's.
#include <cuda_runtime.h>

#include "kernels/ops.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

void Route(cudaStream_t stream, ConstMat logits, RouterNorm norm, const Routing& out);
// out[t] = sum_j weights[t,j] * scale[e] * y[t * k + j], in order of j; scale may be null.
void CombineExperts(cudaStream_t stream, const float* y, const Routing& routing, const float* scale, Mat out);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

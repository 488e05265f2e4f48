#pragma once
// The kernels around the collectives of several devices. Every call enqueues on the stream and returns.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/view.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// out[i] = sum over ranks of part r's [i], in the order of ranks; part r is parts + r * stride, that of `mine` (a rank, or -1) is out itself.
void SumOfRanks(cudaStream_t stream, const float* parts, int64_t stride, int ranks, int mine, float* out, int64_t n);
// to = from.
void CopyMatrix(cudaStream_t stream, ConstMat from, Mat to);
// part[t] = tokens[t] - first where that lies in [0, count), else 0.
void TokensOfPart(cudaStream_t stream, const uint32_t* tokens, int64_t first, int64_t count, uint32_t* part, int64_t rows);
// Zeroes the rows of x whose token lies outside [first, first + count).
void ZeroOtherTokens(cudaStream_t stream, const uint32_t* tokens, int64_t first, int64_t count, Mat x);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

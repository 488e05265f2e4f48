#pragma once
// Norms, activations, rotations, lookups and copies of rows. Every call enqueues on the stream and returns; shapes were checked by OpsCuda.
#include <cuda_runtime.h>

#include "kernels/cuda/batch.h"
#include "kernels/ops.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// out = x / sqrt(mean(x^2) + eps) * weight; weight may be null; out may be x.
void RmsNorm(cudaStream_t stream, ConstMat x, const float* weight, float eps, Mat out);
// x += rmsnorm(y) * weight.
void AddRmsNorm(cudaStream_t stream, Mat x, ConstMat y, const float* weight, float eps);

void Add(cudaStream_t stream, Mat x, ConstMat y);
void Multiply(cudaStream_t stream, Mat x, ConstMat y);
void Scale(cudaStream_t stream, Mat x, float factor);
void ScaleColumns(cudaStream_t stream, Mat x, const float* factors);
void Softcap(cudaStream_t stream, Mat x, float cap);
void Activate(cudaStream_t stream, Mat x, Activation activation);
void Gated(cudaStream_t stream, ConstMat gate, ConstMat up, Activation activation, Mat out);
// out[i] = x[rows[i]]; rows is device memory.
void GatherRows(cudaStream_t stream, ConstMat x, const int32_t* rows, Mat out);

// out[t] = scale * row tokens[t] of the table, in the file's layout.
void Embed(cudaStream_t stream, const Weight& table, const uint32_t* tokens, float scale, Mat out);

// What a rotation needs of RopeParams, worked out once: the angle of pair i at position p is p * scale * base^(-2i/dims), divided by
// freq_factors[i], and by YaRN's ramp between `low` and `high` (pair indices) on its way to factor-fold slower.
struct RopeTableSpec {
  double base = 10000, scale = 1, yarn_factor = 1, low = 0, high = 0, attention_factor = 1;
  int32_t dims = 0;
  const float* freq_factors = nullptr;  // [dims / 2] or null
};
// table[t][i] = (cos, sin) of row t's angle i, i < dims / 2; [rows][dims / 2] float2.
void RopeTable(cudaStream_t stream, const RopeTableSpec& spec, const int32_t* positions, int64_t rows, float* table);
void Rope(cudaStream_t stream, Mat x, int32_t heads, RopeKind kind, int32_t dims, const float* table);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

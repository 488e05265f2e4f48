#pragma once
// Products with weights in the file's layout. Rows are independent: each output is one sum in one order that follows from K alone.
#include <cuda_runtime.h>

#include "kernels/ops.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

inline bool TakesFloat(const Weight& w) { return w.dtype == DType::kF32 || w.dtype == DType::kF16 || w.dtype == DType::kBF16; }

// Rows as int8: codes [rows][in], then one f32 scale per 32 values, [rows][in / 32]. x = code * scale, code = round(x * 127 / amax) to nearest
// even, scale = amax / 127; a block with a value that is not finite gets the scale NaN.
struct Int8Rows {
  const int8_t* codes = nullptr;
  const float* scales = nullptr;
};
inline int64_t Int8Bytes(int64_t rows, int64_t in) { return rows * in + rows * (in / 32) * 4; }
inline Int8Rows Int8At(void* memory, int64_t rows, int64_t in) {
  return {static_cast<const int8_t*>(memory), reinterpret_cast<const float*>(static_cast<std::byte*>(memory) + rows * in)};
}
// memory: Int8Bytes(x.rows, x.cols), 16-byte aligned; x.cols % 32 == 0.
void QuantizeRows(cudaStream_t stream, ConstMat x, void* memory);

// y[t] (+)= W[expert of t] x[row of t] + bias[expert of t].
struct MatMulArgs {
  Weight w;
  ConstMat x;                      // rows of x, not of y
  Int8Rows int8_x;                 // of x; when !TakesFloat(w)
  Mat y;
  const float* bias = nullptr;     // [experts][bias_stride] or null
  int64_t bias_stride = 0;
  bool accumulate = false;
  const int32_t* experts = nullptr;  // [y.rows] or null: expert 0
  int32_t rows_each = 1;           // row of t = t / rows_each
};
void MatMul(cudaStream_t stream, const MatMulArgs& args);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

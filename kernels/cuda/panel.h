#pragma once
// Activations as the right operand of a tensor core's multiply, made once for all products that read them.
//
// K is cut into tiles of 64 (padded with zeros), a tile of a row into pieces of 64 bytes, a piece into the 16 bytes that lane c of a column
// loads (mma.cuh).
//   int8: one piece: bytes 16c + 4 * (2 * blk + half) + j hold k = 32 * blk + 16 * half + 4c + j; and per block of 32 a scale and scale * sum of
//     the codes. x = code * scale, code = round(x * 127 / amax) to nearest even, scale = amax / 127; a block with a value that is not finite
//     gets the scale NaN.
//   float: x as the sum of three bf16 (24 bits: nothing is lost but the last bits of values near the least normal), six pieces: 2 * part + s / 2
//     for step s of 16 k; bytes 16c + 8 * (s % 2) + 4 * (k % 16 / 8) + 2 * (k % 2) hold k = 16s + ..., c = k % 8 / 2.
#include <cuda_runtime.h>

#include "kernels/cuda/weight_layout.h"
#include "kernels/view.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

struct PanelView {
  const uint8_t* pieces = nullptr;   // [rows][tiles][kPieces][64]
  const float4* aux = nullptr;       // int8 only: [rows][tiles] scale, sum of block 0, scale, sum of block 1
};

inline constexpr int kInt8Pieces = 1, kFloatPieces = 6;
// Bytes of a panel; memory for it is 256-byte aligned.
constexpr int64_t PanelBytes(bool float_weights, int64_t rows, int64_t in) {
  return rows * TilesOf(in) * (float_weights ? kFloatPieces * 64 : kInt8Pieces * 64 + 16);
}
inline PanelView PanelAt(void* memory, bool float_weights, int64_t rows, int64_t in) {
  const uint8_t* p = static_cast<const uint8_t*>(memory);
  return {p, float_weights ? nullptr : reinterpret_cast<const float4*>(p + rows * TilesOf(in) * 64)};
}
void MakePanel(cudaStream_t stream, ConstMat x, bool float_weights, void* memory);
// out = RmsNorm(x) (elementwise.h), and out's int8 panel, in one pass; the same bits as one after the other. x.cols is a multiple of 32, out is not x.
void NormPanel(cudaStream_t stream, ConstMat x, const float* weight, float eps, Mat out, void* memory);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// Products of packed weights (weight_layout.h) with panels (panel.h), for any number of rows.
//
// Every output is one sum in an order that K alone decides: K's tiles of 64 are cut into kSegments runs; a run is summed from left to right, and
// the runs' sums are added in order. So a row has the same bits whichever kernel computes it and whatever rows share the call.
#include <cuda_runtime.h>

#include "kernels/cuda/panel.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/host_device.h"
#include "kernels/ops.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

inline constexpr int kSegments = 8;
// First tile of a run.
HF_HD inline int SegmentBegin(int tiles, int segment) { return static_cast<int>(static_cast<int64_t>(tiles) * segment / kSegments); }

inline bool TakesFloat(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

// Rows of one expert that are multiplied together: places [first, first + count) of the order.
struct RowTile {
  int32_t expert = 0, first = 0, count = 0, unused = 0;
};

// Which rows a product reads and writes. Without tiles: place p is row p and, with experts, of expert experts[p]. With tiles: as they say, and
// place p is row order[p].
struct RowOrder {
  const int32_t* experts = nullptr;
  const RowTile* tiles = nullptr;    // [tile_count], of width `width`; those not needed have count 0
  const int32_t* order = nullptr;
  int32_t tile_count = 0, width = 0;
  int32_t x_each = 1;                // y's row p is x's row p / x_each
};

// One more product of the same x and type in the launch of few rows.
struct MatMulPart {
  const uint8_t* w = nullptr;
  const float* bias = nullptr;
  Mat y;
  bool accumulate = false;
};
inline constexpr int32_t kMostParts = 2;

struct MatMulArgs {
  // One matrix, or two (gate and up) of one type and shape whose products are joined by the activation.
  const uint8_t* w[2] = {nullptr, nullptr};
  int32_t count = 1;
  DType dtype = DType::kF32;
  int64_t expert_stride[2] = {0, 0};   // bytes
  int64_t first_row = 0;               // of the matrix: y's column 0
  int64_t out = 0, in = 0;
  PanelView x;
  Mat y;                               // all rows, where place p's is row `order[p]`
  const float* bias[2] = {nullptr, nullptr};   // [experts][bias_stride], at y's column 0
  int64_t bias_stride = 0;
  bool accumulate = false;
  Activation activation = Activation::kSilu;
  RowOrder rows;
  int32_t parts = 0;                   // with count 1, first_row 0, and a width up to kMiddleWidth
  MatMulPart part[kMostParts];
};

// Rows that one block multiplies together: a RowOrder's width is one of these (or less than the least), and says which kernel it is.
inline constexpr int32_t kSmallWidth = 8, kMiddleWidth = 32, kFloatTileWidth = 64, kTileWidth = 128;
// The width for so many rows (on average, of an expert).
inline int32_t WidthFor(DType type, int64_t rows) {
  if (rows <= kSmallWidth) return kSmallWidth;
  return rows <= 64 ? kMiddleWidth : TakesFloat(type) ? kFloatTileWidth : kTileWidth;
}
// All rows, of one expert (or with experts: row by row).
inline RowOrder InOrder(DType type, int64_t rows, const int32_t* experts = nullptr) {
  RowOrder o;
  o.experts = experts;
  o.width = experts != nullptr ? 1 : WidthFor(type, rows);
  o.tile_count = static_cast<int32_t>((rows + o.width - 1) / o.width);
  return o;
}
// y = W x, all rows in order.
inline MatMulArgs ArgsFor(const Weight& w, PanelView x, Mat y) {
  MatMulArgs a;
  a.w[0] = reinterpret_cast<const uint8_t*>(w.data);
  a.dtype = w.dtype;
  a.expert_stride[0] = w.expert_stride;
  a.out = y.cols;
  a.in = w.in;
  a.x = x;
  a.y = y;
  a.rows = InOrder(w.dtype, y.rows);
  return a;
}
// ... becomes y = act(W x) * (up x).
inline void Join(const Weight& up, Activation activation, MatMulArgs* a) {
  a->w[1] = reinterpret_cast<const uint8_t*>(up.data);
  a->expert_stride[1] = up.expert_stride;
  a->count = 2;
  a->activation = activation;
}
void MatMul(cudaStream_t stream, const MatMulArgs& args);

// out[t] = scale * row tokens[t] of a packed table.
void EmbedPacked(cudaStream_t stream, const Weight& table, const uint32_t* tokens, float scale, Mat out);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

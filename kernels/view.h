#pragma once
// Views: shape and stride without ownership. All activations are f32 and row-major: one row a token.
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/dtype.h"

namespace holdfast::kernels {

template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from a row to the next, >= cols

  Matrix() = default;
  Matrix(T* d, int64_t r, int64_t c) : data(d), rows(r), cols(c), stride(c) {}
  Matrix(T* d, int64_t r, int64_t c, int64_t s) : data(d), rows(r), cols(c), stride(s) {}
  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_const_v<U>)
  Matrix(const Matrix<U>& m) : data(m.data), rows(m.rows), cols(m.cols), stride(m.stride) {}  // NOLINT: a view to const is always fine
  T* row(int64_t i) const { return data + i * stride; }
  Matrix Columns(int64_t first, int64_t count) const { return {data + first, rows, count, stride}; }
  Matrix Rows(int64_t first, int64_t count) const { return {data + first * stride, count, cols, stride}; }
};
using Mat = Matrix<float>;
using ConstMat = Matrix<const float>;

// A weight matrix y = W x, W is [out][in], possibly one of `experts` equal matrices. `data` is in the layout that the backend chose
// (Ops::LayoutOf) and packed (Ops::Pack); only that backend reads it. Owned by worker/model's weight arena.
struct Weight {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  uint8_t layout = 0;          // backend-defined; 0 = as in the GGUF file
  int64_t out = 0;
  int64_t in = 0;
  int64_t experts = 1;
  int64_t expert_stride = 0;   // bytes
  explicit operator bool() const { return data != nullptr; }
};

// A vector of f32 parameters (norm weights, biases, frequency factors, sinks); may be absent.
using Vec = std::span<const float>;

// One layer's part of a page group. Page p of the group begins at base + p * page_stride and holds page_size tokens of K and V of this
// layer, in a layout of the backend's choosing (Ops::KvPageBytes). Pages are 0-based physical indices from the block tables.
struct KvLayer {
  std::byte* base = nullptr;
  int64_t page_stride = 0;     // bytes
  int32_t page_size = 0;       // tokens
  int32_t kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  KvDType dtype = KvDType::kF16;
  int32_t group = 0;           // which block table of the batch
};

// One sequence's share of a step: rows [first_row, first_row + rows) of the activations are its tokens at positions
// [start, start + rows); the cache already holds positions [0, start) that its window can see.
struct SequenceSpan {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t start = 0;
};

// Block tables of one group: table(s)[b] = page of block b of sequence s, -1 where no page is held (left of the window).
struct BlockTables {
  std::span<const int32_t* const> tables;  // one pointer a sequence
  int32_t window = 0;                      // 0 = full attention; else query i sees keys i-window+1..i
};

// What one step computes. Every array lives until the step is done. Rows behind those of the last sequence belong to none: padding, for backends
// whose Ops::PaddedRows asks for it. No K and V of theirs is stored, attention gives them zeros, and nobody wants their results.
struct Batch {
  std::span<const uint32_t> tokens;        // [T]
  std::span<const int32_t> positions;      // [T]
  std::span<const SequenceSpan> sequences; // [S], rows ascending and contiguous
  std::span<const BlockTables> groups;     // [G]
  std::span<const int32_t> logit_rows;     // rows whose logits are wanted, ascending
  int32_t page_size = 0;
  // [T], or empty: none. Row t takes the token of that index of what the backend drew last; -1: it has its token. Only where the backend draws.
  std::span<const int32_t> awaited;
};

}  // namespace holdfast::kernels

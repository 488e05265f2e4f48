#include <algorithm>
#include <cstring>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/ops_cuda.h"
#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

WeightLayout CudaOps::LayoutOf(DType type, int64_t out, int64_t in, WeightUse) const { return {0, out * RowBytes(type, in), 64}; }

void CudaOps::Pack(DType, int64_t, int64_t, const WeightLayout& layout, const std::byte* src, std::byte* dst) const {
  std::memcpy(dst, src, static_cast<size_t>(layout.bytes));
}

void CudaOps::CheckWeight(const Weight& w, int64_t in) {
  HF_CHECKF(w.in == in, "a weight of {} columns against rows of {}", w.in, in);
  HF_CHECKF(w.layout == 0, "{} weight [{}][{}] has layout {}", InfoOf(w.dtype).name, w.out, w.in, w.layout);
}

void CudaOps::MatMul(ConstMat x, std::span<const Product> products) {
  bool int8 = false;
  for (const Product& p : products) {
    CheckWeight(p.w, x.cols);
    HF_CHECKF(p.w.out == p.y.cols && p.y.rows == x.rows, "W [{}][{}], x [{}][{}], y [{}][{}]", p.w.out, p.w.in, x.rows, x.cols, p.y.rows,
              p.y.cols);
    HF_CHECK(p.bias.empty() || static_cast<int64_t>(p.bias.size()) == p.w.out);
    int8 = int8 || !TakesFloat(p.w);
  }
  if (x.rows == 0 || !ok()) return;
  void* memory = int8 ? int8_x_.Get(Int8Bytes(x.rows, x.cols)) : nullptr;
  if (!ok()) return;
  if (int8) QuantizeRows(stream_, x, memory);
  for (const Product& p : products) {
    MatMulArgs a;
    a.w = p.w;
    a.x = x;
    if (int8) a.int8_x = Int8At(memory, x.rows, x.cols);
    a.y = p.y;
    a.bias = p.bias.empty() ? nullptr : p.bias.data();
    a.accumulate = p.accumulate;
    HF_CUDA_NAMESPACE::MatMul(stream_, a);
  }
}

void CudaOps::GatedMatMul(ConstMat x, const Weight& gate, const Weight& up, Activation activation, Mat out) {
  HF_CHECKF(gate.out == out.cols && up.out == out.cols && out.rows == x.rows, "gate [{}], up [{}], x [{}], out [{}][{}]", gate.out, up.out, x.rows,
            out.rows, out.cols);
  float* above = wide_.Of<float>(x.rows * out.cols);
  if (above == nullptr) return;
  const Product products[] = {{gate, out, {}, false}, {up, Mat(above, x.rows, out.cols), {}, false}};
  MatMul(x, products);
  Gated(out, products[1].y, activation, out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

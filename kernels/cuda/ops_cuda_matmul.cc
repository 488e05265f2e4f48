#include <cstring>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/ops_cuda.h"
#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

WeightLayout CudaOps::LayoutOf(DType type, int64_t out, int64_t in, WeightUse use) const {
  if (use == WeightUse::kEmbedding) return {kLayoutFile, out * RowBytes(type, in), 64};
  return {kLayoutPacked, PackedBytes(type, out, in), 64};
}

void CudaOps::Pack(DType type, int64_t out, int64_t in, const WeightLayout& layout, const std::byte* src, std::byte* dst) const {
  if (layout.layout == kLayoutPacked) {
    PackWeights(type, out, in, src, dst);
  } else {
    std::memcpy(dst, src, static_cast<size_t>(layout.bytes));
  }
}

void CudaOps::CheckWeight(const Weight& w, int64_t in) {
  HF_CHECKF(w.in == in, "a weight of {} columns against rows of {}", w.in, in);
  HF_CHECKF(w.layout == kLayoutPacked, "{} weight [{}][{}] has layout {}", InfoOf(w.dtype).name, w.out, w.in, w.layout);
}

PanelView CudaOps::PanelFor(DType weights, ConstMat x) {
  const bool floats = TakesFloat(weights);
  void* memory = panels_[floats ? 1 : 0].Get(PanelBytes(floats, x.rows, x.cols));
  if (memory == nullptr || !ok()) return {};
  MakePanel(stream_, x, floats, memory);
  return PanelAt(memory, floats, x.rows, x.cols);
}

void CudaOps::MatMul(ConstMat x, std::span<const Product> products) {
  for (const Product& p : products) {
    CheckWeight(p.w, x.cols);
    HF_CHECKF(p.w.out == p.y.cols && p.y.rows == x.rows, "W [{}][{}], x [{}][{}], y [{}][{}]", p.w.out, p.w.in, x.rows, x.cols, p.y.rows,
              p.y.cols);
    HF_CHECK(p.bias.empty() || static_cast<int64_t>(p.bias.size()) == p.w.out);
  }
  if (x.rows == 0 || !ok()) return;
  PanelView panels[2];
  for (const Product& p : products) {
    PanelView& panel = panels[TakesFloat(p.w.dtype) ? 1 : 0];
    if (panel.pieces == nullptr) panel = PanelFor(p.w.dtype, x);
    if (!ok()) return;
    MatMulArgs a = ArgsFor(p.w, panel, p.y);
    a.bias[0] = p.bias.empty() ? nullptr : p.bias.data();
    a.accumulate = p.accumulate;
    HF_CUDA_NAMESPACE::MatMul(stream_, a);
  }
}

void CudaOps::GatedMatMul(ConstMat x, const Weight& gate, const Weight& up, Activation activation, Mat out) {
  HF_CHECKF(gate.out == out.cols && up.out == out.cols && out.rows == x.rows, "gate [{}], up [{}], x [{}], out [{}][{}]", gate.out, up.out, x.rows,
            out.rows, out.cols);
  CheckWeight(gate, x.cols);
  CheckWeight(up, x.cols);
  if (x.rows == 0 || !ok()) return;
  if (gate.dtype == up.dtype) {
    MatMulArgs a = ArgsFor(gate, PanelFor(gate.dtype, x), out);
    Join(up, activation, &a);
    if (ok()) HF_CUDA_NAMESPACE::MatMul(stream_, a);
    return;
  }
  float* above = wide_.Of<float>(x.rows * out.cols);
  if (above == nullptr) return;
  const Product products[] = {{gate, out, {}, false}, {up, Mat(above, x.rows, out.cols), {}, false}};
  MatMul(x, products);
  Gated(out, products[1].y, activation, out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

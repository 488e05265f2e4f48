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
  if (!floats) {
    takes_int8_ = true;
    const bool made = normed_.data == x.data && normed_.rows == x.rows && normed_.cols == x.cols && normed_.stride == x.stride && x.data != nullptr;
    if (made) return PanelAt(memory, floats, x.rows, x.cols);   // where NormForProducts put it: as many bytes, so the memory did not move
    normed_ = {};
  }
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
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    PanelView& panel = panels[TakesFloat(p.w.dtype) ? 1 : 0];
    if (panel.pieces == nullptr) panel = PanelFor(p.w.dtype, x);
    if (!ok()) return;
    MatMulArgs a = ArgsFor(p.w, panel, p.y);
    a.bias[0] = p.bias.empty() ? nullptr : p.bias.data();
    a.accumulate = p.accumulate;
    // Few rows: products of one type that follow (queries, keys, values) go into the same launch.
    while (a.rows.width <= kMiddleWidth && a.parts < kMostParts && i + 1 < products.size() && products[i + 1].w.dtype == p.w.dtype && products[i + 1].y.data != p.y.data) {
      const Product& next = products[++i];
      a.part[a.parts++] = {reinterpret_cast<const uint8_t*>(next.w.data), next.bias.empty() ? nullptr : next.bias.data(), next.y, next.accumulate};
    }
    HF_CUDA_NAMESPACE::MatMul(stream_, a);
  }
  for (const Product& p : products) Wrote(p.y);
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
    Wrote(out);
    return;
  }
  float* above = wide_.Of<float>(x.rows * out.cols);
  if (above == nullptr) return;
  const Product products[] = {{gate, out, {}, false}, {up, Mat(above, x.rows, out.cols), {}, false}};
  MatMul(x, products);
  Gated(out, products[1].y, activation, out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

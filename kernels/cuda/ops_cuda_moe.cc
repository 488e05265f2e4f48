#include <algorithm>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/ops_cuda.h"
#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

void CudaOps::Route(ConstMat logits, RouterNorm norm, Routing out) {
  HF_CHECKF(out.k > 0 && out.k <= logits.cols, "top {} of {} experts", out.k, logits.cols);
  if (ok()) HF_CUDA_NAMESPACE::Route(stream_, logits, norm, out);
}

void CudaOps::MoeFfn(ConstMat x, const Routing& routing, const MoeParams& p, Mat out) {
  HF_CHECKF(x.rows == out.rows && x.cols == out.cols, "[{}][{}] against [{}][{}]", x.rows, x.cols, out.rows, out.cols);
  const int64_t f = p.down.in, d = p.down.out, experts = p.down.experts, pairs = x.rows * routing.k;
  const bool fused = static_cast<bool>(p.gate_up);
  HF_CHECK(d == x.cols && (fused ? p.gate_up.out == 2 * f && p.gate_up.in == d && p.gate_up.experts == experts
                                 : p.gate.out == f && p.up.out == f && p.gate.in == d && p.up.in == d));
  HF_CHECK(p.gate_bias.empty() || static_cast<int64_t>(p.gate_bias.size()) == experts * f);
  HF_CHECK(p.down_bias.empty() || static_cast<int64_t>(p.down_bias.size()) == experts * d);
  const Weight& gate = fused ? p.gate_up : p.gate;
  const Weight& up = fused ? p.gate_up : p.up;
  CheckWeight(gate, d);
  CheckWeight(up, d);
  CheckWeight(p.down, f);
  if (x.rows == 0 || !ok()) return;
  // Gate and up become one product where they have one type and their rows lie alike in the groups of packed weights.
  const bool joined = gate.dtype == up.dtype && (!fused || f % kGroupRows == 0);
  float* wide = wide_.Of<float>(pairs * (2 * f + d));
  const int64_t each = (pairs + experts - 1) / experts;   // rows of an expert, on average
  const auto width = [&](const Weight& w) { return WidthFor(w.dtype, each); };
  // Widths differ between types at most; one sort each.
  int64_t sort_bytes = 0;
  for (const Weight* w : {&gate, &up, &p.down}) sort_bytes = std::max(sort_bytes, (SortBytes(pairs, experts, width(*w)) + 255) / 256 * 256);
  const bool sorted = pairs > kUnsortedPairs;
  std::byte* memory = sorted ? experts_.Of<std::byte>(3 * sort_bytes) : nullptr;
  if (!ok()) return;
  RowOrder orders[3];
  int count = 0;
  const auto order_for = [&](const Weight& w) {
    if (!sorted) return InOrder(w.dtype, pairs, routing.ids);
    for (int i = 0; i < count; ++i) {
      if (orders[i].width == width(w)) return orders[i];
    }
    orders[count] = SortByExpert(stream_, routing.ids, pairs, experts, width(w), memory + count * sort_bytes);
    return orders[count++];
  };
  const Mat gated(wide, pairs, f), above(wide + pairs * f, pairs, f), y(wide + 2 * pairs * f, pairs, d);
  const auto or_null = [](Vec v) { return v.empty() ? nullptr : v.data(); };
  PanelView panels[2];
  const auto args_for = [&](const Weight& w, Mat to, Vec bias) {
    PanelView& panel = panels[TakesFloat(w.dtype) ? 1 : 0];
    if (panel.pieces == nullptr) panel = PanelFor(w.dtype, x);
    MatMulArgs a = ArgsFor(w, panel, to);
    a.rows = order_for(w);
    a.rows.x_each = routing.k;
    a.bias[0] = or_null(bias);
    a.bias_stride = to.cols;
    return a;
  };
  MatMulArgs a = args_for(gate, gated, p.gate_bias);
  if (joined) {
    Join(up, p.activation, &a);
    if (fused) a.w[1] += f / kGroupRows * GroupBytes(up.dtype, up.in);
    a.bias[1] = or_null(p.up_bias);
    if (ok()) HF_CUDA_NAMESPACE::MatMul(stream_, a);
  } else {
    MatMulArgs b = args_for(up, above, p.up_bias);
    if (fused) b.first_row = f;
    if (!ok()) return;
    HF_CUDA_NAMESPACE::MatMul(stream_, a);
    HF_CUDA_NAMESPACE::MatMul(stream_, b);
    HF_CUDA_NAMESPACE::Gated(stream_, gated, above, p.activation, gated);
  }
  MatMulArgs down = ArgsFor(p.down, PanelFor(p.down.dtype, gated), y);
  down.rows = order_for(p.down);
  down.bias[0] = or_null(p.down_bias);
  down.bias_stride = d;
  if (!ok()) return;
  HF_CUDA_NAMESPACE::MatMul(stream_, down);
  CombineExperts(stream_, y.data, routing, or_null(p.down_scale), out);
  Wrote(out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

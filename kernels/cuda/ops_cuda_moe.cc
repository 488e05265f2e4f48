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
  if (x.rows == 0 || !ok()) return;
  Weight gate = p.gate, up = p.up;
  if (fused) {  // rows 0 to F - 1 of each expert, and the rest
    gate = up = p.gate_up;
    gate.out = up.out = f;
    up.data += f * RowBytes(up.dtype, up.in);
  }
  CheckWeight(gate, d);
  CheckWeight(up, d);
  CheckWeight(p.down, f);
  // Both are read and written in one call: the gated rows, then the experts' outputs.
  float* wide = wide_.Of<float>(pairs * (2 * f + d));
  void* int8 = int8_x_.Get(std::max(Int8Bytes(x.rows, d), Int8Bytes(pairs, f)));
  if (!ok()) return;
  const Mat gated(wide, pairs, f), above(wide + pairs * f, pairs, f), y(wide + 2 * pairs * f, pairs, d);
  const auto multiply = [&](const Weight& w, ConstMat from, Vec bias, Mat to, int32_t rows_each) {
    MatMulArgs a;
    a.w = w;
    a.x = from;
    if (!TakesFloat(w)) a.int8_x = Int8At(int8, from.rows, from.cols);
    a.y = to;
    a.bias = bias.empty() ? nullptr : bias.data();
    a.bias_stride = w.out;
    a.experts = routing.ids;
    a.rows_each = rows_each;
    HF_CUDA_NAMESPACE::MatMul(stream_, a);
  };
  if (!TakesFloat(gate) || !TakesFloat(up)) QuantizeRows(stream_, x, int8);
  multiply(gate, x, p.gate_bias, gated, routing.k);
  multiply(up, x, p.up_bias, above, routing.k);
  HF_CUDA_NAMESPACE::Gated(stream_, gated, above, p.activation, gated);
  if (!TakesFloat(p.down)) QuantizeRows(stream_, gated, int8);
  multiply(p.down, gated, p.down_bias, y, 1);
  CombineExperts(stream_, y.data, routing, p.down_scale.empty() ? nullptr : p.down_scale.data(), out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

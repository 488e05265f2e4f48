#include "kernels/reference/ops_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numbers>

#include "kernels/quant_blocks.h"
#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

double Activate(Activation a, double x) {
  switch (a) {
    case Activation::kSilu: return x / (1.0 + std::exp(-x));
    case Activation::kGeluTanh: return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSwigluOai: break;
  }
  CheckFailed(__FILE__, __LINE__, "swiglu-oai has two inputs", {});
}

double Gate(Activation a, double gate, double up) {
  if (a != Activation::kSwigluOai) return Activate(a, gate) * up;
  const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0);
  return g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0);
}

template <class A, class B>
void CheckSameShape(const A& a, const B& b) {
  HF_CHECKF(a.rows == b.rows && a.cols == b.cols, "[{}][{}] against [{}][{}]", a.rows, a.cols, b.rows, b.cols);
}

void NormRow(const float* x, int64_t n, Vec weight, float eps, double* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double r = 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * r * (weight.empty() ? 1.0 : weight[i]);
}

}  // namespace

Buffer ReferenceOps::Allocate(int64_t bytes) {
  const size_t size = (static_cast<size_t>(bytes) + 63) / 64 * 64;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(64, std::max<size_t>(size, 64)));
  HF_CHECKF(p != nullptr, "no memory for {} bytes", bytes);
  return Buffer(p, bytes, [](std::byte* q, int64_t) { std::free(q); });
}

void ReferenceOps::CopyToHost(std::byte* dst, const std::byte* src, int64_t bytes) { std::memcpy(dst, src, static_cast<size_t>(bytes)); }

WeightLayout ReferenceOps::LayoutOf(DType type, int64_t out, int64_t in, WeightUse) const { return {0, out * RowBytes(type, in), 1}; }

void ReferenceOps::Pack(DType, int64_t, int64_t, const WeightLayout& layout, const std::byte* src, std::byte* dst) const {
  std::memcpy(dst, src, static_cast<size_t>(layout.bytes));
}

void ReferenceOps::Embed(const Weight& table, float scale, Mat out) {
  for (const uint32_t id : batch_->tokens) HF_CHECKF(id < table.out, "token {} of {}", id, table.out);
  EmbedPart(table, 0, scale, out);
}

void ReferenceOps::EmbedPart(const Weight& table, int64_t first, float scale, Mat out) {
  HF_CHECK(out.rows == static_cast<int64_t>(batch_->tokens.size()) && out.cols == table.in);
  for (int64_t t = 0; t < out.rows; ++t) {
    const int64_t id = int64_t{batch_->tokens[static_cast<size_t>(t)]} - first;
    if (id < 0 || id >= table.out) {
      std::fill_n(out.row(t), out.cols, 0.f);
      continue;
    }
    DequantizeRow(table.dtype, table.data + id * RowBytes(table.dtype, table.in), out.row(t), table.in);
    for (int64_t i = 0; i < out.cols; ++i) out.row(t)[i] *= scale;
  }
}

void ReferenceOps::RmsNorm(ConstMat x, Vec weight, float eps, Mat out) {
  CheckSameShape(x, out);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  std::vector<double> y(static_cast<size_t>(x.cols));
  for (int64_t t = 0; t < x.rows; ++t) {
    NormRow(x.row(t), x.cols, weight, eps, y.data());
    std::copy(y.begin(), y.end(), out.row(t));
  }
}

void ReferenceOps::AddRmsNorm(Mat x, ConstMat y, Vec weight, float eps) {
  CheckSameShape(x, y);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  std::vector<double> n(static_cast<size_t>(x.cols));
  for (int64_t t = 0; t < x.rows; ++t) {
    NormRow(y.row(t), x.cols, weight, eps, n.data());
    for (int64_t i = 0; i < x.cols; ++i) x.row(t)[i] = static_cast<float>(x.row(t)[i] + n[static_cast<size_t>(i)]);
  }
}

void ReferenceOps::MultiplyRow(const Weight& w, int64_t expert, const float* x, double* y) {
  row_.resize(static_cast<size_t>(w.in));
  const int64_t bytes = RowBytes(w.dtype, w.in);
  for (int64_t o = 0; o < w.out; ++o) {
    DequantizeRow(w.dtype, w.data + expert * w.expert_stride + o * bytes, row_.data(), w.in);
    double sum = 0;
    for (int64_t i = 0; i < w.in; ++i) sum += static_cast<double>(row_[static_cast<size_t>(i)]) * x[i];
    y[o] = sum;
  }
}

void ReferenceOps::MatMul(ConstMat x, std::span<const Product> products) {
  for (const Product& p : products) {
    HF_CHECKF(p.w.in == x.cols && p.w.out == p.y.cols && p.y.rows == x.rows, "W [{}][{}], x [{}][{}], y [{}][{}]", p.w.out, p.w.in, x.rows,
              x.cols, p.y.rows, p.y.cols);
    HF_CHECK(p.w.layout == 0 && (p.bias.empty() || static_cast<int64_t>(p.bias.size()) == p.w.out));
    std::vector<double> y(static_cast<size_t>(p.w.out));
    for (int64_t t = 0; t < x.rows; ++t) {
      MultiplyRow(p.w, 0, x.row(t), y.data());
      for (int64_t o = 0; o < p.w.out; ++o) {
        double v = y[static_cast<size_t>(o)] + (p.bias.empty() ? 0.0 : p.bias[static_cast<size_t>(o)]);
        if (p.accumulate) v += p.y.row(t)[o];
        p.y.row(t)[o] = static_cast<float>(v);
      }
    }
  }
}

void ReferenceOps::GatedMatMul(ConstMat x, const Weight& gate, const Weight& up, Activation activation, Mat out) {
  HF_CHECK(gate.in == x.cols && up.in == x.cols && gate.out == out.cols && up.out == out.cols && out.rows == x.rows);
  std::vector<double> g(static_cast<size_t>(gate.out)), u(static_cast<size_t>(up.out));
  for (int64_t t = 0; t < x.rows; ++t) {
    MultiplyRow(gate, 0, x.row(t), g.data());
    MultiplyRow(up, 0, x.row(t), u.data());
    for (int64_t o = 0; o < out.cols; ++o) {
      out.row(t)[o] = static_cast<float>(Gate(activation, g[static_cast<size_t>(o)], u[static_cast<size_t>(o)]));
    }
  }
}

void ReferenceOps::Gated(ConstMat gate, ConstMat up, Activation activation, Mat out) {
  CheckSameShape(gate, up);
  CheckSameShape(gate, out);
  for (int64_t t = 0; t < out.rows; ++t) {
    for (int64_t i = 0; i < out.cols; ++i) out.row(t)[i] = static_cast<float>(Gate(activation, gate.row(t)[i], up.row(t)[i]));
  }
}

void ReferenceOps::MoeFfn(ConstMat x, const Routing& routing, const MoeParams& p, Mat out) {
  CheckSameShape(x, out);
  const int64_t f = p.down.in, d = p.down.out, experts = p.down.experts;
  const bool fused = static_cast<bool>(p.gate_up);
  HF_CHECK(d == x.cols && (fused ? p.gate_up.out == 2 * f && p.gate_up.in == d : p.gate.out == f && p.up.out == f && p.gate.in == d));
  std::vector<double> gu(static_cast<size_t>(2 * f)), y(static_cast<size_t>(d)), sum(static_cast<size_t>(d));
  std::vector<float> h(static_cast<size_t>(f));
  for (int64_t t = 0; t < x.rows; ++t) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int32_t j = 0; j < routing.k; ++j) {
      const int64_t e = routing.ids[t * routing.k + j];
      HF_CHECKF(e >= 0 && e < experts, "expert {} of {}", e, experts);
      if (fused) {
        MultiplyRow(p.gate_up, e, x.row(t), gu.data());
      } else {
        MultiplyRow(p.gate, e, x.row(t), gu.data());
        MultiplyRow(p.up, e, x.row(t), gu.data() + f);
      }
      for (int64_t i = 0; i < f; ++i) {
        const double gate = gu[static_cast<size_t>(i)] + (p.gate_bias.empty() ? 0.0 : p.gate_bias[static_cast<size_t>(e * f + i)]);
        const double up = gu[static_cast<size_t>(f + i)] + (p.up_bias.empty() ? 0.0 : p.up_bias[static_cast<size_t>(e * f + i)]);
        h[static_cast<size_t>(i)] = static_cast<float>(Gate(p.activation, gate, up));
      }
      MultiplyRow(p.down, e, h.data(), y.data());
      const double w = static_cast<double>(routing.weights[t * routing.k + j]) * (p.down_scale.empty() ? 1.0 : p.down_scale[static_cast<size_t>(e)]);
      for (int64_t i = 0; i < d; ++i) {
        sum[static_cast<size_t>(i)] += w * (y[static_cast<size_t>(i)] + (p.down_bias.empty() ? 0.0 : p.down_bias[static_cast<size_t>(e * d + i)]));
      }
    }
    std::copy(sum.begin(), sum.end(), out.row(t));
  }
}

void ReferenceOps::Route(ConstMat logits, RouterNorm norm, Routing out) {
  HF_CHECKF(out.k > 0 && out.k <= logits.cols, "top {} of {} experts", out.k, logits.cols);
  std::vector<int32_t> order(static_cast<size_t>(logits.cols));
  for (int64_t t = 0; t < logits.rows; ++t) {
    const float* l = logits.row(t);
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return l[a] > l[b]; });
    const double top = l[order[0]];
    double sum = 0;
    const int64_t counted = norm == RouterNorm::kSoftmaxAll ? logits.cols : out.k;
    for (int64_t j = 0; j < counted; ++j) sum += std::exp(l[order[static_cast<size_t>(j)]] - top);
    for (int32_t j = 0; j < out.k; ++j) {
      out.ids[t * out.k + j] = order[static_cast<size_t>(j)];
      out.weights[t * out.k + j] = static_cast<float>(std::exp(l[order[static_cast<size_t>(j)]] - top) / sum);
    }
  }
}

void ReferenceOps::Add(Mat x, ConstMat y) {
  CheckSameShape(x, y);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(t)[i] += y.row(t)[i];
  }
}

void ReferenceOps::Scale(Mat x, float factor) {
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(t)[i] *= factor;
  }
}

void ReferenceOps::ScaleColumns(Mat x, Vec factors) {
  HF_CHECK(static_cast<int64_t>(factors.size()) == x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(t)[i] *= factors[static_cast<size_t>(i)];
  }
}

void ReferenceOps::Multiply(Mat x, ConstMat y) {
  CheckSameShape(x, y);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(t)[i] *= y.row(t)[i];
  }
}

void ReferenceOps::ActivateInPlace(Mat x, Activation activation) {
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(t)[i] = static_cast<float>(Activate(activation, x.row(t)[i]));
  }
}

void ReferenceOps::Softcap(Mat x, float cap) {
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(t)[i] = static_cast<float>(cap * std::tanh(static_cast<double>(x.row(t)[i]) / cap));
  }
}

void ReferenceOps::GatherRows(ConstMat x, std::span<const int32_t> rows, Mat out) {
  HF_CHECK(out.rows == static_cast<int64_t>(rows.size()) && out.cols == x.cols);
  for (int64_t i = 0; i < out.rows; ++i) {
    const int32_t r = rows[static_cast<size_t>(i)];
    HF_CHECKF(r >= 0 && r < x.rows, "row {} of {}", r, x.rows);
    std::memmove(out.row(i), x.row(r), static_cast<size_t>(x.cols) * sizeof(float));
  }
}

std::unique_ptr<Ops> MakeReferenceOps() { return std::make_unique<ReferenceOps>(); }

}  // namespace holdfast::kernels

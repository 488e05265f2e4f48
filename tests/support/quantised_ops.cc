#include "tests/support/quantised_ops.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace holdfast::test {
namespace {

using namespace kernels;  // NOLINT: a whole Ops is spelled out below

bool Quantised(const Weight& w) { return InfoOf(w.dtype).block_elements > 1; }

// d = amax / 127, q = round to nearest even of x / d.
std::vector<float> Rounded(ConstMat x) {
  std::vector<float> out(x.rows * x.cols);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t b = 0; b < x.cols; b += 32) {
      const int64_t end = std::min(x.cols, b + 32);
      float top = 0;
      for (int64_t c = b; c < end; ++c) top = std::max(top, std::fabs(x.row(r)[c]));
      const float inverse = top > 0 ? 127.f / top : 0.f, d = top / 127.f;
      for (int64_t c = b; c < end; ++c) out[r * x.cols + c] = std::nearbyint(x.row(r)[c] * inverse) * d;
    }
  }
  return out;
}

class QuantisedActivationOps final : public Ops {
 public:
  QuantisedActivationOps() : inner_(MakeReferenceOps()) {}
  std::string Describe() const override { return "reference with int8 activations"; }
  Buffer Allocate(int64_t bytes) override { return inner_->Allocate(bytes); }
  void Sync() override { inner_->Sync(); }
  void CopyToHost(std::byte* dst, const std::byte* src, int64_t bytes) override { inner_->CopyToHost(dst, src, bytes); }
  WeightLayout LayoutOf(DType type, int64_t out, int64_t in, WeightUse use) const override { return inner_->LayoutOf(type, out, in, use); }
  void Pack(DType type, int64_t out, int64_t in, const WeightLayout& layout, const std::byte* src, std::byte* dst) const override {
    inner_->Pack(type, out, in, layout, src, dst);
  }
  void BeginStep(const Batch& batch) override { inner_->BeginStep(batch); }
  void Embed(const Weight& table, float scale, Mat out) override { inner_->Embed(table, scale, out); }
  void EmbedPart(const Weight& table, int64_t first, float scale, Mat out) override { inner_->EmbedPart(table, first, scale, out); }
  void RmsNorm(ConstMat x, Vec weight, float eps, Mat out) override { inner_->RmsNorm(x, weight, eps, out); }
  void AddRmsNorm(Mat x, ConstMat y, Vec weight, float eps) override { inner_->AddRmsNorm(x, y, weight, eps); }
  void MatMul(ConstMat x, std::span<const Product> products) override {
    const std::vector<float> rounded = Rounded(x);
    for (const Product& p : products) inner_->MatMul(Quantised(p.w) ? ConstMat(rounded.data(), x.rows, x.cols) : x, {&p, 1});
  }
  void GatedMatMul(ConstMat x, const Weight& gate, const Weight& up, Activation activation, Mat out) override {
    std::vector<float> g(x.rows * gate.out), u(x.rows * up.out);
    const Mat gm(g.data(), x.rows, gate.out), um(u.data(), x.rows, up.out);
    const Product products[] = {{gate, gm, {}, false}, {up, um, {}, false}};
    MatMul(x, products);
    inner_->Gated(gm, um, activation, out);
  }
  void Gated(ConstMat gate, ConstMat up, Activation activation, Mat out) override { inner_->Gated(gate, up, activation, out); }
  void Rope(Mat x, int32_t heads, const RopeParams& params) override { inner_->Rope(x, heads, params); }
  void StoreKv(const KvLayer& layer, ConstMat k, ConstMat v) override { inner_->StoreKv(layer, k, v); }
  void Attention(const KvLayer& layer, ConstMat q, const AttentionParams& params, Mat out) override { inner_->Attention(layer, q, params, out); }
  void Route(ConstMat logits, RouterNorm norm, Routing out) override { inner_->Route(logits, norm, out); }
  void MoeFfn(ConstMat x, const Routing& routing, const MoeParams& p, Mat out) override {
    const auto expert = [](const Weight& w, int32_t e) {
      Weight one = w;
      one.data += e * w.expert_stride;
      one.experts = 1;
      return one;
    };
    const auto slice = [](Vec v, int32_t e, int64_t n) { return v.empty() ? v : v.subspan(e * n, n); };
    for (int64_t t = 0; t < x.rows; ++t) {
      const ConstMat row = ConstMat(x.row(t), 1, x.cols);
      std::fill(out.row(t), out.row(t) + out.cols, 0.f);
      for (int32_t j = 0; j < routing.k; ++j) {
        const int32_t e = routing.ids[t * routing.k + j];
        const int64_t width = p.down.in;
        std::vector<float> both(2 * width), y(out.cols);
        const Mat gate(both.data(), 1, width), up(both.data() + width, 1, width), down(y.data(), 1, out.cols);
        if (p.gate_up) {
          const Product product{expert(p.gate_up, e), Mat(both.data(), 1, 2 * width), {}, false};
          MatMul(row, {&product, 1});
        } else {
          const Product products[] = {{expert(p.gate, e), gate, slice(p.gate_bias, e, width), false},
                                      {expert(p.up, e), up, slice(p.up_bias, e, width), false}};
          MatMul(row, products);
        }
        inner_->Gated(gate, up, p.activation, gate);
        const Product product{expert(p.down, e), down, slice(p.down_bias, e, out.cols), false};
        MatMul(gate, {&product, 1});
        const float weight = routing.weights[t * routing.k + j] * (p.down_scale.empty() ? 1.f : p.down_scale[e]);
        for (int64_t c = 0; c < out.cols; ++c) out.row(t)[c] += weight * y[c];
      }
    }
  }
  void Add(Mat x, ConstMat y) override { inner_->Add(x, y); }
  void Scale(Mat x, float factor) override { inner_->Scale(x, factor); }
  void ScaleColumns(Mat x, Vec factors) override { inner_->ScaleColumns(x, factors); }
  void Multiply(Mat x, ConstMat y) override { inner_->Multiply(x, y); }
  void ActivateInPlace(Mat x, Activation activation) override { inner_->ActivateInPlace(x, activation); }
  void Softcap(Mat x, float cap) override { inner_->Softcap(x, cap); }
  void GatherRows(ConstMat x, std::span<const int32_t> rows, Mat out) override { inner_->GatherRows(x, rows, out); }
  int64_t KvPageBytes(KvDType type, int32_t page_size, int32_t kv_heads, int32_t k, int32_t v) const override {
    return inner_->KvPageBytes(type, page_size, kv_heads, k, v);
  }
  void CopyPage(std::byte* dst, const std::byte* src, int64_t bytes) override { inner_->CopyPage(dst, src, bytes); }

 private:
  std::unique_ptr<Ops> inner_;
};

}  // namespace

std::unique_ptr<kernels::Ops> MakeQuantisedActivationOps() { return std::make_unique<QuantisedActivationOps>(); }

}  // namespace holdfast::test

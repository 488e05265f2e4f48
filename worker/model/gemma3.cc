// gemma3: pre- and post-norms around attention and feed-forward, q/k norms, windowed layers with a rope base of their own.
#include <algorithm>

#include "proto/base/check.h"
#include "worker/model/families.h"

namespace holdfast::model {
namespace {

using kernels::Activation;
using kernels::Mat;
using kernels::Product;
using kernels::Vec;
using kernels::Weight;

class Gemma3Model final : public Model {
 public:
  Gemma3Model(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks) : Model(h, std::move(weights), ranks) {
    rope_ = Rope(h.rope, {});
    rope_windowed_ = Rope(h.rope_windowed, {});
    for (int i = 0; i < static_cast<int>(h.layers.size()); ++i) {
      layers_.push_back({Vector(i, "attn_norm.weight"), Vector(i, "attn_q_norm.weight"), Vector(i, "attn_k_norm.weight"),
                         Vector(i, "post_attention_norm.weight"), Vector(i, "ffn_norm.weight"), Vector(i, "post_ffw_norm.weight"),
                         Matrix(i, "attn_q.weight"), Matrix(i, "attn_k.weight"), Matrix(i, "attn_v.weight"), Matrix(i, "attn_output.weight"),
                         Matrix(i, "ffn_gate.weight"), Matrix(i, "ffn_up.weight"), Matrix(i, "ffn_down.weight")});
    }
  }
  void Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) override;

 private:
  struct Layer {
    Vec attn_norm, q_norm, k_norm, post_attention_norm, ffn_norm, post_ffw_norm;
    Weight q, k, v, o, gate, up, down;
  };
  void ReserveLayers(kernels::Ops& ops, int64_t max_tokens) override;

  std::vector<Layer> layers_;
  kernels::RopeParams rope_, rope_windowed_;
  Scratch h_, q_, k_, v_, attn_, y_, ff_;
};

void Gemma3Model::ReserveLayers(kernels::Ops& ops, int64_t max_tokens) {
  int64_t q = 0, kv = 0, ff = 0;
  for (const Layer& l : layers_) {
    q = std::max(q, l.q.out);
    kv = std::max(kv, l.k.out);
    ff = std::max(ff, l.gate.out);
  }
  Grow(ops, &h_, max_tokens, hparams_.dim);
  Grow(ops, &q_, max_tokens, q);
  Grow(ops, &k_, max_tokens, kv);
  Grow(ops, &v_, max_tokens, kv);
  Grow(ops, &attn_, max_tokens, q);
  Grow(ops, &y_, max_tokens, hparams_.dim);
  Grow(ops, &ff_, max_tokens, ff);
}

void Gemma3Model::Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) {
  const int64_t rows = static_cast<int64_t>(batch.tokens.size());
  HF_CHECK(kv.layers.size() == layers_.size());
  const Mat x = x_.View(rows, hparams_.dim), h = h_.View(rows, hparams_.dim), y = y_.View(rows, hparams_.dim);
  Embed(ops, embedding_, hparams_.embedding_scale, x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!LayerBegins()) return;
    const Layer& layer = layers_[i];
    const LayerHparams& lp = hparams_.layers[i];
    const kernels::RopeParams& rope = lp.windowed ? rope_windowed_ : rope_;
    const Mat q = q_.View(rows, layer.q.out), k = k_.View(rows, layer.k.out), v = v_.View(rows, layer.v.out);
    const Mat q_heads = q_.View(rows * lp.heads, lp.head_dim), k_heads = k_.View(rows * lp.kv_heads, lp.head_dim);
    ops.NormForProducts(x, layer.attn_norm, hparams_.eps, h);
    const Product qkv[] = {{layer.q, q, {}, false}, {layer.k, k, {}, false}, {layer.v, v, {}, false}};
    ops.MatMul(h, qkv);
    ops.RmsNorm(q_heads, layer.q_norm, hparams_.eps, q_heads);
    ops.RmsNorm(k_heads, layer.k_norm, hparams_.eps, k_heads);
    ops.Rope(q, lp.heads, rope);
    ops.Rope(k, lp.kv_heads, rope);
    ops.StoreKv(kv.layers[i], k, v);
    const Mat attn = attn_.View(rows, layer.q.out);
    kernels::AttentionParams params;
    params.heads = lp.heads;
    params.scale = hparams_.attention_scale;
    ops.Attention(kv.layers[i], q, params, attn);
    const Product o{layer.o, y, {}, false};
    ops.MatMul(attn, {&o, 1});
    SumOverRanks(ops, y);
    ops.AddRmsNorm(x, y, layer.post_attention_norm, hparams_.eps);
    ops.NormForProducts(x, layer.ffn_norm, hparams_.eps, h);
    const Mat ff = ff_.View(rows, layer.gate.out);
    ops.GatedMatMul(h, layer.gate, layer.up, Activation::kGeluTanh, ff);
    const Product down{layer.down, y, {}, false};
    ops.MatMul(ff, {&down, 1});
    SumOverRanks(ops, y);
    ops.AddRmsNorm(x, y, layer.post_ffw_norm, hparams_.eps);
  }
}

}  // namespace

void PlanGemma3(const Hparams& h, PlanBuilder* plan) {
  for (int i = 0; i < static_cast<int>(h.layers.size()); ++i) {
    const LayerHparams& l = h.layers[i];
    const LayerShard& share = plan->share(i);
    plan->Vector(LayerName(i, "attn_norm.weight"), h.dim);
    plan->Qkv(h, i);
    plan->Vector(LayerName(i, "attn_q_norm.weight"), l.head_dim);
    plan->Vector(LayerName(i, "attn_k_norm.weight"), l.head_dim);
    plan->Columns(LayerName(i, "attn_output.weight"), int64_t{h.heads} * l.head_dim, h.dim, share.heads.Times(l.head_dim));
    plan->Vector(LayerName(i, "post_attention_norm.weight"), h.dim);
    plan->Vector(LayerName(i, "ffn_norm.weight"), h.dim);
    plan->Rows(LayerName(i, "ffn_gate.weight"), h.dim, l.feed_forward, share.feed_forward);
    plan->Rows(LayerName(i, "ffn_up.weight"), h.dim, l.feed_forward, share.feed_forward);
    plan->Columns(LayerName(i, "ffn_down.weight"), l.feed_forward, h.dim, share.feed_forward);
    plan->Vector(LayerName(i, "post_ffw_norm.weight"), h.dim);
  }
}

std::unique_ptr<Model> MakeGemma3(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks) {
  return std::make_unique<Gemma3Model>(h, std::move(weights), ranks);
}

}  // namespace holdfast::model

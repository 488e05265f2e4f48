// gpt-oss: biases everywhere, attention sinks, YaRN, alternating window, experts with the clamped swiglu.
#include <algorithm>

#include "proto/base/check.h"
#include "worker/model/families.h"

namespace holdfast::model {
namespace {

using kernels::Mat;
using kernels::Product;
using kernels::Vec;
using kernels::Weight;

class GptOssModel final : public Model {
 public:
  GptOssModel(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks) : Model(h, std::move(weights), ranks) {
    rope_ = Rope(h.rope, h.rope_freqs ? weights_->vector("rope_freqs.weight") : Vec());
    for (int i = 0; i < static_cast<int>(h.layers.size()); ++i) {
      Layer l{Vector(i, "attn_norm.weight"), Vector(i, "post_attention_norm.weight"), Vector(i, "attn_sinks.weight"),
              Vector(i, "attn_q.bias"), Vector(i, "attn_k.bias"), Vector(i, "attn_v.bias"), Vector(i, "attn_output.bias"),
              Vector(i, "ffn_gate_inp.bias"),
              Matrix(i, "attn_q.weight"), Matrix(i, "attn_k.weight"), Matrix(i, "attn_v.weight"), Matrix(i, "attn_output.weight"),
              Matrix(i, "ffn_gate_inp.weight"), {}};
      l.moe.gate_up = Matrix(i, "ffn_gate_up_exps.weight");
      l.moe.gate = Matrix(i, "ffn_gate_exps.weight");
      l.moe.up = Matrix(i, "ffn_up_exps.weight");
      l.moe.down = Matrix(i, "ffn_down_exps.weight");
      l.moe.gate_bias = Vector(i, "ffn_gate_exps.bias");
      l.moe.up_bias = Vector(i, "ffn_up_exps.bias");
      if (adds_once() || Whole(l.moe)) l.moe.down_bias = Vector(i, "ffn_down_exps.bias");
      l.moe.activation = kernels::Activation::kSwigluOai;
      layers_.push_back(std::move(l));
    }
  }
  void Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) override;

 private:
  struct Layer {
    Vec attn_norm, ffn_norm, sinks, q_bias, k_bias, v_bias, o_bias, router_bias;
    Weight q, k, v, o, router;
    kernels::MoeParams moe;
  };
  void ReserveLayers(kernels::Ops& ops, int64_t max_tokens) override;

  std::vector<Layer> layers_;
  kernels::RopeParams rope_;
  Scratch h_, q_, k_, v_, attn_, y_, router_logits_;
  kernels::Buffer expert_ids_, expert_weights_;
};

void GptOssModel::ReserveLayers(kernels::Ops& ops, int64_t max_tokens) {
  int64_t q = 0, kv = 0;
  for (const Layer& l : layers_) {
    q = std::max(q, l.q.out);
    kv = std::max(kv, l.k.out);
  }
  Grow(ops, &h_, max_tokens, hparams_.dim);
  Grow(ops, &q_, max_tokens, q);
  Grow(ops, &k_, max_tokens, kv);
  Grow(ops, &v_, max_tokens, kv);
  Grow(ops, &attn_, max_tokens, q);
  Grow(ops, &y_, max_tokens, hparams_.dim);
  Grow(ops, &router_logits_, max_tokens, hparams_.experts);
  expert_ids_ = ops.Allocate(max_tokens * hparams_.experts_used * 4);
  expert_weights_ = ops.Allocate(max_tokens * hparams_.experts_used * 4);
}

void GptOssModel::Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) {
  const int64_t rows = static_cast<int64_t>(batch.tokens.size());
  HF_CHECK(kv.layers.size() == layers_.size());
  const Mat x = x_.View(rows, hparams_.dim), h = h_.View(rows, hparams_.dim), y = y_.View(rows, hparams_.dim);
  Embed(ops, embedding_, hparams_.embedding_scale, x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!LayerBegins()) return;
    const Layer& layer = layers_[i];
    const LayerHparams& lp = hparams_.layers[i];
    const Mat q = q_.View(rows, layer.q.out), k = k_.View(rows, layer.k.out), v = v_.View(rows, layer.v.out);
    ops.NormForProducts(x, layer.attn_norm, hparams_.eps, h);
    const Product qkv[] = {{layer.q, q, layer.q_bias, false}, {layer.k, k, layer.k_bias, false}, {layer.v, v, layer.v_bias, false}};
    ops.MatMul(h, qkv);
    ops.Rope(q, lp.heads, rope_);
    ops.Rope(k, lp.kv_heads, rope_);
    ops.StoreKv(kv.layers[i], k, v);
    const Mat attn = attn_.View(rows, layer.q.out);
    kernels::AttentionParams params;
    params.heads = lp.heads;
    params.scale = hparams_.attention_scale;
    params.sinks = layer.sinks;
    ops.Attention(kv.layers[i], q, params, attn);
    AddProduct(ops, layer.o, layer.o_bias, attn, x);
    ops.NormForProducts(x, layer.ffn_norm, hparams_.eps, h);
    const Mat logits = router_logits_.View(rows, hparams_.experts);
    const Product router{layer.router, logits, layer.router_bias, false};
    ops.MatMul(h, {&router, 1});
    const kernels::Routing routing{expert_ids_.as<int32_t>(), expert_weights_.as<float>(), hparams_.experts_used};
    ops.Route(logits, kernels::RouterNorm::kSoftmaxTopK, routing);
    ops.MoeFfn(h, routing, layer.moe, y);
    if (!Whole(layer.moe)) SumOverRanks(ops, y);
    ops.Add(x, y);
  }
}

}  // namespace

void PlanGptOss(const Hparams& h, PlanBuilder* plan) {
  for (int i = 0; i < static_cast<int>(h.layers.size()); ++i) {
    const LayerHparams& l = h.layers[i];
    const LayerShard& share = plan->share(i);
    plan->Vector(LayerName(i, "attn_norm.weight"), h.dim);
    plan->Qkv(h, i);
    plan->Vector(LayerName(i, "attn_sinks.weight"), h.heads, 1, share.heads);
    plan->Columns(LayerName(i, "attn_output.weight"), int64_t{h.heads} * l.head_dim, h.dim, share.heads.Times(l.head_dim));
    plan->OptionalVector(LayerName(i, "attn_output.bias"), h.dim);
    plan->Vector(LayerName(i, "post_attention_norm.weight"), h.dim);
    plan->Matrix(LayerName(i, "ffn_gate_inp.weight"), h.dim, h.experts);
    plan->OptionalVector(LayerName(i, "ffn_gate_inp.bias"), h.experts);
    plan->MoeExperts(h, i);
    plan->OptionalVector(LayerName(i, "ffn_gate_exps.bias"), h.expert_feed_forward, h.experts, share.expert_feed_forward);
    plan->OptionalVector(LayerName(i, "ffn_up_exps.bias"), h.expert_feed_forward, h.experts, share.expert_feed_forward);
    plan->OptionalVector(LayerName(i, "ffn_down_exps.bias"), h.dim, h.experts);
  }
}

std::unique_ptr<Model> MakeGptOss(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks) {
  return std::make_unique<GptOssModel>(h, std::move(weights), ranks);
}

}  // namespace holdfast::model

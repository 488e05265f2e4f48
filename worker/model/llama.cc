// llama (Llama 2/3, Mistral, SmolLM2, Mixtral), qwen2, qwen3, qwen3moe: one skeleton, whose optional pieces (biases, q/k norms, experts)
// are there when the file has their tensors.
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

bool HasQkNorm(const Hparams& h) { return h.family == Family::kQwen3 || h.family == Family::kQwen3Moe; }

class LlamaModel final : public Model {
 public:
  LlamaModel(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks);
  void Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) override;

 private:
  struct Layer {
    Vec attn_norm, ffn_norm, q_norm, k_norm;
    Weight q, k, v, o, gate, up, down, router;
    Vec q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
    kernels::MoeParams moe;
  };
  void ReserveLayers(kernels::Ops& ops, int64_t max_tokens) override;
  void FeedForward(kernels::Ops& ops, const Layer& layer, int64_t rows);

  std::vector<Layer> layers_;
  kernels::RopeParams rope_;
  Scratch h_, q_, k_, v_, attn_, ff_, ff2_, router_logits_, moe_;
  kernels::Buffer expert_ids_, expert_weights_;
};

LlamaModel::LlamaModel(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks) : Model(h, std::move(weights), ranks) {
  rope_ = Rope(h.rope, h.rope_freqs ? weights_->vector("rope_freqs.weight") : Vec());
  for (int i = 0; i < static_cast<int>(h.layers.size()); ++i) {
    Layer l;
    l.attn_norm = Vector(i, "attn_norm.weight");
    l.ffn_norm = Vector(i, "ffn_norm.weight");
    l.q_norm = Vector(i, "attn_q_norm.weight");
    l.k_norm = Vector(i, "attn_k_norm.weight");
    l.q = Matrix(i, "attn_q.weight");
    l.k = Matrix(i, "attn_k.weight");
    l.v = Matrix(i, "attn_v.weight");
    l.o = Matrix(i, "attn_output.weight");
    l.q_bias = Vector(i, "attn_q.bias");
    l.k_bias = Vector(i, "attn_k.bias");
    l.v_bias = Vector(i, "attn_v.bias");
    l.o_bias = Vector(i, "attn_output.bias");
    if (h.experts > 0) {
      l.router = Matrix(i, "ffn_gate_inp.weight");
      l.moe.gate_up = Matrix(i, "ffn_gate_up_exps.weight");
      l.moe.gate = Matrix(i, "ffn_gate_exps.weight");
      l.moe.up = Matrix(i, "ffn_up_exps.weight");
      l.moe.down = Matrix(i, "ffn_down_exps.weight");
      l.moe.activation = Activation::kSilu;
    } else {
      l.gate = Matrix(i, "ffn_gate.weight");
      l.up = Matrix(i, "ffn_up.weight");
      l.down = Matrix(i, "ffn_down.weight");
      l.gate_bias = Vector(i, "ffn_gate.bias");
      l.up_bias = Vector(i, "ffn_up.bias");
      l.down_bias = Vector(i, "ffn_down.bias");
    }
    layers_.push_back(std::move(l));
  }
}

void LlamaModel::ReserveLayers(kernels::Ops& ops, int64_t max_tokens) {
  int64_t q = 0, kv = 0, ff = 0;
  for (const LayerHparams& l : hparams_.layers) {
    q = std::max<int64_t>(q, int64_t{l.heads} * l.head_dim);
    kv = std::max<int64_t>(kv, int64_t{l.kv_heads} * l.head_dim);
    ff = std::max<int64_t>(ff, l.feed_forward);
  }
  Grow(ops, &h_, max_tokens, hparams_.dim);
  Grow(ops, &q_, max_tokens, q);
  Grow(ops, &k_, max_tokens, kv);
  Grow(ops, &v_, max_tokens, kv);
  Grow(ops, &attn_, max_tokens, q);
  if (ff > 0) Grow(ops, &ff_, max_tokens, ff);
  if (hparams_.experts > 0) {
    Grow(ops, &router_logits_, max_tokens, hparams_.experts);
    Grow(ops, &moe_, max_tokens, hparams_.dim);
    expert_ids_ = ops.Allocate(max_tokens * hparams_.experts_used * 4);
    expert_weights_ = ops.Allocate(max_tokens * hparams_.experts_used * 4);
  }
}

void LlamaModel::FeedForward(kernels::Ops& ops, const Layer& layer, int64_t rows) {
  const Mat x = x_.View(rows, hparams_.dim), h = h_.View(rows, hparams_.dim);
  ops.NormForProducts(x, layer.ffn_norm, hparams_.eps, h);
  if (layer.router) {
    const Mat logits = router_logits_.View(rows, hparams_.experts);
    const Product router{layer.router, logits, {}, false};
    ops.MatMul(h, {&router, 1});
    const kernels::Routing routing{expert_ids_.as<int32_t>(), expert_weights_.as<float>(), hparams_.experts_used};
    ops.Route(logits, kernels::RouterNorm::kSoftmaxTopK, routing);
    const Mat out = moe_.View(rows, hparams_.dim);
    ops.MoeFfn(h, routing, layer.moe, out);
    if (!Whole(layer.moe)) SumOverRanks(ops, out);
    if (hparams_.expert_weights_scale != 1.f) ops.Scale(out, hparams_.expert_weights_scale);
    ops.Add(x, out);
    return;
  }
  const Mat ff = ff_.View(rows, layer.gate.out);
  if (layer.gate_bias.empty() && layer.up_bias.empty()) {
    ops.GatedMatMul(h, layer.gate, layer.up, Activation::kSilu, ff);
  } else {
    Grow(ops, &ff2_, rows, layer.gate.out);
    const Mat up = ff2_.View(rows, layer.gate.out);
    const Product products[] = {{layer.gate, ff, layer.gate_bias, false}, {layer.up, up, layer.up_bias, false}};
    ops.MatMul(h, products);
    ops.Gated(ff, up, Activation::kSilu, ff);
  }
  AddProduct(ops, layer.down, layer.down_bias, ff, x);
}

void LlamaModel::Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) {
  const int64_t rows = static_cast<int64_t>(batch.tokens.size());
  HF_CHECK(kv.layers.size() == layers_.size());
  const Mat x = x_.View(rows, hparams_.dim), h = h_.View(rows, hparams_.dim);
  Embed(ops, embedding_, hparams_.embedding_scale, x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!LayerBegins()) return;
    const Layer& layer = layers_[i];
    const LayerHparams& lp = hparams_.layers[i];
    const Mat q = q_.View(rows, layer.q.out), k = k_.View(rows, layer.k.out), v = v_.View(rows, layer.v.out);
    ops.NormForProducts(x, layer.attn_norm, hparams_.eps, h);
    const Product qkv[] = {{layer.q, q, layer.q_bias, false}, {layer.k, k, layer.k_bias, false}, {layer.v, v, layer.v_bias, false}};
    ops.MatMul(h, qkv);
    if (!layer.q_norm.empty()) {
      const Mat q_heads = q_.View(rows * lp.heads, lp.head_dim), k_heads = k_.View(rows * lp.kv_heads, lp.head_dim);
      ops.RmsNorm(q_heads, layer.q_norm, hparams_.eps, q_heads);
      ops.RmsNorm(k_heads, layer.k_norm, hparams_.eps, k_heads);
    }
    ops.Rope(q, lp.heads, rope_);
    ops.Rope(k, lp.kv_heads, rope_);
    ops.StoreKv(kv.layers[i], k, v);
    const Mat attn = attn_.View(rows, layer.q.out);
    kernels::AttentionParams params;
    params.heads = lp.heads;
    params.scale = hparams_.attention_scale;
    ops.Attention(kv.layers[i], q, params, attn);
    AddProduct(ops, layer.o, layer.o_bias, attn, x);
    FeedForward(ops, layer, rows);
  }
}

}  // namespace

void PlanLlama(const Hparams& h, PlanBuilder* plan) {
  for (int i = 0; i < static_cast<int>(h.layers.size()); ++i) {
    const LayerHparams& l = h.layers[i];
    const LayerShard& share = plan->share(i);
    plan->Vector(LayerName(i, "attn_norm.weight"), h.dim);
    plan->Qkv(h, i);
    if (HasQkNorm(h)) {
      plan->Vector(LayerName(i, "attn_q_norm.weight"), l.head_dim);
      plan->Vector(LayerName(i, "attn_k_norm.weight"), l.head_dim);
    }
    plan->Columns(LayerName(i, "attn_output.weight"), int64_t{h.heads} * l.head_dim, h.dim, share.heads.Times(l.head_dim));
    plan->OptionalVector(LayerName(i, "attn_output.bias"), h.dim);
    plan->Vector(LayerName(i, "ffn_norm.weight"), h.dim);
    if (h.experts > 0) {
      plan->Matrix(LayerName(i, "ffn_gate_inp.weight"), h.dim, h.experts);
      plan->MoeExperts(h, i);
      continue;
    }
    plan->Rows(LayerName(i, "ffn_gate.weight"), h.dim, l.feed_forward, share.feed_forward);
    plan->Rows(LayerName(i, "ffn_up.weight"), h.dim, l.feed_forward, share.feed_forward);
    plan->Columns(LayerName(i, "ffn_down.weight"), l.feed_forward, h.dim, share.feed_forward);
    plan->OptionalVector(LayerName(i, "ffn_gate.bias"), l.feed_forward, 1, share.feed_forward);
    plan->OptionalVector(LayerName(i, "ffn_up.bias"), l.feed_forward, 1, share.feed_forward);
    plan->OptionalVector(LayerName(i, "ffn_down.bias"), h.dim);
  }
}

std::unique_ptr<Model> MakeLlama(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks) {
  return std::make_unique<LlamaModel>(h, std::move(weights), ranks);
}

}  // namespace holdfast::model

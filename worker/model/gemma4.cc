// gemma4: dense and mixture-of-experts, per-layer embeddings, layers that share an earlier layer's cache, K = V projections, head sizes
// that differ between windowed and full layers.
#include <algorithm>
#include <cmath>

#include "proto/base/check.h"
#include "worker/model/families.h"

namespace holdfast::model {
namespace {

using kernels::Activation;
using kernels::Mat;
using kernels::Product;
using kernels::Vec;
using kernels::Weight;

class Gemma4Model final : public Model {
 public:
  Gemma4Model(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks);
  void Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) override;

 private:
  struct Layer {
    Vec attn_norm, q_norm, k_norm, post_attention_norm, ffn_norm, post_ffw_norm;
    Weight q, k, v, o, gate, up, down;
    float output_scale = 1.f;
    // experts
    Weight router;
    Vec router_scale, pre_ffw_norm_2, post_ffw_norm_1, post_ffw_norm_2;
    kernels::MoeParams moe;
    // per-layer embeddings
    Weight inp_gate, proj;
    Vec post_norm;
  };
  void ReserveLayers(kernels::Ops& ops, int64_t max_tokens) override;
  void PerLayerInputs(kernels::Ops& ops, const kernels::Batch& batch);
  void Attention(kernels::Ops& ops, size_t index, int64_t rows, const kernels::KvLayer& cache);
  void FeedForward(kernels::Ops& ops, const Layer& layer, int64_t rows);

  std::vector<Layer> layers_;
  kernels::RopeParams rope_, rope_windowed_;
  Weight per_layer_embedding_, per_layer_model_proj_;
  Vec per_layer_proj_norm_;
  Scratch h_, q_, k_, v_, attn_, y_, ff_;
  Scratch moe_, router_logits_;
  Scratch per_layer_, per_layer_proj_, per_layer_gate_;
  kernels::Buffer expert_ids_, expert_weights_;
};

Gemma4Model::Gemma4Model(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks) : Model(h, std::move(weights), ranks) {
  rope_ = Rope(h.rope, h.rope_freqs ? weights_->vector("rope_freqs.weight") : Vec());
  rope_windowed_ = Rope(h.rope_windowed, {});
  if (h.per_layer_input > 0) {
    per_layer_embedding_ = weights_->matrix("per_layer_token_embd.weight");
    per_layer_model_proj_ = weights_->matrix("per_layer_model_proj.weight");
    per_layer_proj_norm_ = weights_->vector("per_layer_proj_norm.weight");
  }
  for (int i = 0; i < static_cast<int>(h.layers.size()); ++i) {
    Layer l;
    l.attn_norm = Vector(i, "attn_norm.weight");
    l.q_norm = Vector(i, "attn_q_norm.weight");
    l.k_norm = Vector(i, "attn_k_norm.weight");
    l.post_attention_norm = Vector(i, "post_attention_norm.weight");
    l.ffn_norm = Vector(i, "ffn_norm.weight");
    l.post_ffw_norm = Vector(i, "post_ffw_norm.weight");
    l.q = Matrix(i, "attn_q.weight");
    l.k = Matrix(i, "attn_k.weight");
    l.v = Matrix(i, "attn_v.weight");
    l.o = Matrix(i, "attn_output.weight");
    l.gate = Matrix(i, "ffn_gate.weight");
    l.up = Matrix(i, "ffn_up.weight");
    l.down = Matrix(i, "ffn_down.weight");
    const Vec scale = weights_->host_vector(LayerName(i, "layer_output_scale.weight"));
    if (!scale.empty()) l.output_scale = scale[0];
    if (h.experts > 0) {
      l.router = Matrix(i, "ffn_gate_inp.weight");
      l.router_scale = Vector(i, "ffn_gate_inp.scale");
      l.pre_ffw_norm_2 = Vector(i, "pre_ffw_norm_2.weight");
      l.post_ffw_norm_1 = Vector(i, "post_ffw_norm_1.weight");
      l.post_ffw_norm_2 = Vector(i, "post_ffw_norm_2.weight");
      l.moe.gate_up = Matrix(i, "ffn_gate_up_exps.weight");
      l.moe.gate = Matrix(i, "ffn_gate_exps.weight");
      l.moe.up = Matrix(i, "ffn_up_exps.weight");
      l.moe.down = Matrix(i, "ffn_down_exps.weight");
      l.moe.down_scale = Vector(i, "ffn_down_exps.scale");
      l.moe.activation = Activation::kGeluTanh;
    }
    if (h.per_layer_input > 0) {
      l.inp_gate = Matrix(i, "inp_gate.weight");
      l.proj = Matrix(i, "proj.weight");
      l.post_norm = Vector(i, "post_norm.weight");
    }
    layers_.push_back(std::move(l));
  }
}

void Gemma4Model::ReserveLayers(kernels::Ops& ops, int64_t max_tokens) {
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
  if (hparams_.experts > 0) {
    Grow(ops, &moe_, max_tokens, hparams_.dim);
    Grow(ops, &router_logits_, max_tokens, hparams_.experts);
    expert_ids_ = ops.Allocate(max_tokens * hparams_.experts_used * 4);
    expert_weights_ = ops.Allocate(max_tokens * hparams_.experts_used * 4);
  }
  if (hparams_.per_layer_input > 0) {
    const int64_t width = int64_t{hparams_.per_layer_input} * static_cast<int64_t>(layers_.size());
    Grow(ops, &per_layer_, max_tokens, width);
    Grow(ops, &per_layer_proj_, max_tokens, width);
    Grow(ops, &per_layer_gate_, max_tokens, hparams_.per_layer_input);
  }
}

// Step 2: per_layer_ [T][L*P] = (embedding * sqrt(P) + rms(projection / sqrt(D)) * norm) / sqrt(2).
void Gemma4Model::PerLayerInputs(kernels::Ops& ops, const kernels::Batch& batch) {
  const int64_t rows = static_cast<int64_t>(batch.tokens.size());
  const int64_t layers = static_cast<int64_t>(layers_.size()), p = hparams_.per_layer_input;
  const Mat a = per_layer_.View(rows, layers * p), b = per_layer_proj_.View(rows, layers * p);
  Embed(ops, per_layer_embedding_, std::sqrt(static_cast<float>(p)), a);
  const Product product{per_layer_model_proj_, b, {}, false};
  ops.MatMul(x_.View(rows, hparams_.dim), {&product, 1});
  ops.Scale(b, 1.f / std::sqrt(static_cast<float>(hparams_.dim)));
  const Mat heads = per_layer_proj_.View(rows * layers, p);
  ops.RmsNorm(heads, per_layer_proj_norm_, hparams_.eps, heads);
  ops.Add(a, b);
  ops.Scale(a, 1.f / std::sqrt(2.f));
}

// Steps 3 to 6.
void Gemma4Model::Attention(kernels::Ops& ops, size_t index, int64_t rows, const kernels::KvLayer& cache) {
  const Layer& layer = layers_[index];
  const LayerHparams& lp = hparams_.layers[index];
  const kernels::RopeParams& rope = lp.windowed ? rope_windowed_ : rope_;
  const float eps = hparams_.eps;
  const Mat x = x_.View(rows, hparams_.dim), h = h_.View(rows, hparams_.dim), y = y_.View(rows, hparams_.dim);
  const Mat q = q_.View(rows, layer.q.out);
  ops.NormForProducts(x, layer.attn_norm, eps, h);
  if (lp.owns_kv) {
    const Mat k = k_.View(rows, layer.k.out), v = v_.View(rows, layer.k.out);
    const Mat k_heads = k_.View(rows * lp.kv_heads, lp.head_dim), v_heads = v_.View(rows * lp.kv_heads, lp.head_dim);
    const Product products[] = {{layer.q, q, {}, false}, {layer.k, k, {}, false}, {layer.v, v, {}, false}};
    ops.MatMul(h, std::span(products, layer.v ? 3 : 2));
    // Without a V projection, V is the raw K projection: taken before K is normalised and rotated.
    ops.RmsNorm(layer.v ? v_heads : k_heads, {}, eps, v_heads);
    ops.RmsNorm(k_heads, layer.k_norm, eps, k_heads);
    ops.Rope(k, lp.kv_heads, rope);
    ops.StoreKv(cache, k, v);
  } else {
    const Product product{layer.q, q, {}, false};
    ops.MatMul(h, {&product, 1});
  }
  const Mat q_heads = q_.View(rows * lp.heads, lp.head_dim);
  ops.RmsNorm(q_heads, layer.q_norm, eps, q_heads);
  ops.Rope(q, lp.heads, rope);
  const Mat attn = attn_.View(rows, layer.q.out);
  kernels::AttentionParams params;
  params.heads = lp.heads;
  params.scale = hparams_.attention_scale;
  ops.Attention(cache, q, params, attn);
  const Product o{layer.o, y, {}, false};
  ops.MatMul(attn, {&o, 1});
  SumOverRanks(ops, y);
  ops.AddRmsNorm(x, y, layer.post_attention_norm, eps);
}

// Steps 7 and 8.
void Gemma4Model::FeedForward(kernels::Ops& ops, const Layer& layer, int64_t rows) {
  const float eps = hparams_.eps;
  const Mat x = x_.View(rows, hparams_.dim), h = h_.View(rows, hparams_.dim), y = y_.View(rows, hparams_.dim);
  const Mat ff = ff_.View(rows, layer.gate.out);
  ops.NormForProducts(x, layer.ffn_norm, eps, h);
  ops.GatedMatMul(h, layer.gate, layer.up, Activation::kGeluTanh, ff);
  const Product down{layer.down, y, {}, false};
  ops.MatMul(ff, {&down, 1});
  SumOverRanks(ops, y);
  if (layer.router) {
    ops.RmsNorm(y, layer.post_ffw_norm_1, eps, y);
    const Mat logits = router_logits_.View(rows, hparams_.experts), experts = moe_.View(rows, hparams_.dim);
    ops.RmsNorm(x, layer.router_scale, eps, h);
    ops.Scale(h, 1.f / std::sqrt(static_cast<float>(hparams_.dim)));
    const Product router{layer.router, logits, {}, false};
    ops.MatMul(h, {&router, 1});
    const kernels::Routing routing{expert_ids_.as<int32_t>(), expert_weights_.as<float>(), hparams_.experts_used};
    ops.Route(logits, kernels::RouterNorm::kSoftmaxTopK, routing);
    ops.NormForProducts(x, layer.pre_ffw_norm_2, eps, h);
    ops.MoeFfn(h, routing, layer.moe, experts);
    if (!Whole(layer.moe)) SumOverRanks(ops, experts);
    ops.RmsNorm(experts, layer.post_ffw_norm_2, eps, experts);
    ops.Add(y, experts);
  }
  ops.AddRmsNorm(x, y, layer.post_ffw_norm, eps);
}

void Gemma4Model::Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) {
  const int64_t rows = static_cast<int64_t>(batch.tokens.size());
  HF_CHECK(kv.layers.size() == layers_.size());
  const Mat x = x_.View(rows, hparams_.dim), y = y_.View(rows, hparams_.dim);
  Embed(ops, embedding_, hparams_.embedding_scale, x);
  if (hparams_.per_layer_input > 0) PerLayerInputs(ops, batch);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!LayerBegins()) return;
    const Layer& layer = layers_[i];
    Attention(ops, i, rows, kv.layers[i]);
    FeedForward(ops, layer, rows);
    if (layer.inp_gate) {
      const int64_t p = hparams_.per_layer_input;
      const Mat gate = per_layer_gate_.View(rows, p);
      const Mat input = per_layer_.View(rows, p * static_cast<int64_t>(layers_.size())).Columns(static_cast<int64_t>(i) * p, p);
      const Product in{layer.inp_gate, gate, {}, false};
      ops.MatMul(x, {&in, 1});
      ops.ActivateInPlace(gate, Activation::kGeluTanh);
      ops.Multiply(gate, input);
      const Product out{layer.proj, y, {}, false};
      ops.MatMul(gate, {&out, 1});
      ops.AddRmsNorm(x, y, layer.post_norm, hparams_.eps);
    }
    if (layer.output_scale != 1.f) ops.Scale(x, layer.output_scale);
  }
}

}  // namespace

void PlanGemma4(const Hparams& h, PlanBuilder* plan) {
  const int64_t layers = static_cast<int64_t>(h.layers.size()), p = h.per_layer_input;
  if (p > 0) {
    plan->Vocabulary("per_layer_token_embd.weight", p * layers, h.vocab, kernels::WeightUse::kEmbedding);
    plan->Matrix("per_layer_model_proj.weight", h.dim, p * layers);
    plan->Vector("per_layer_proj_norm.weight", p);
  }
  for (int i = 0; i < static_cast<int>(layers); ++i) {
    const LayerHparams& l = h.layers[i];
    const LayerShard& share = plan->share(i);
    const Range heads = share.heads.Times(l.head_dim), kv_heads = share.kv_heads.Times(l.head_dim);
    const int64_t q = int64_t{h.heads} * l.head_dim, kv = int64_t{l.kv_heads} * l.head_dim;
    plan->Vector(LayerName(i, "attn_norm.weight"), h.dim);
    plan->Rows(LayerName(i, "attn_q.weight"), h.dim, q, heads);
    plan->Vector(LayerName(i, "attn_q_norm.weight"), l.head_dim);
    if (l.owns_kv) {
      plan->Rows(LayerName(i, "attn_k.weight"), h.dim, kv, kv_heads);
      plan->Vector(LayerName(i, "attn_k_norm.weight"), l.head_dim);
      if (plan->Has(LayerName(i, "attn_v.weight"))) plan->Rows(LayerName(i, "attn_v.weight"), h.dim, kv, kv_heads);
    } else {
      // Converters leave the unused projections of sharing layers in the file.
      for (const char* name : {"attn_k.weight", "attn_k_norm.weight", "attn_v.weight"}) plan->Tolerate(LayerName(i, name));
    }
    plan->Columns(LayerName(i, "attn_output.weight"), q, h.dim, heads);
    plan->Vector(LayerName(i, "post_attention_norm.weight"), h.dim);
    plan->OptionalVector(LayerName(i, "layer_output_scale.weight"), 1);
    plan->Vector(LayerName(i, "ffn_norm.weight"), h.dim);
    plan->Rows(LayerName(i, "ffn_gate.weight"), h.dim, l.feed_forward, share.feed_forward);
    plan->Rows(LayerName(i, "ffn_up.weight"), h.dim, l.feed_forward, share.feed_forward);
    plan->Columns(LayerName(i, "ffn_down.weight"), l.feed_forward, h.dim, share.feed_forward);
    plan->Vector(LayerName(i, "post_ffw_norm.weight"), h.dim);
    if (h.experts > 0) {
      plan->Matrix(LayerName(i, "ffn_gate_inp.weight"), h.dim, h.experts);
      plan->Vector(LayerName(i, "ffn_gate_inp.scale"), h.dim);
      plan->Vector(LayerName(i, "pre_ffw_norm_2.weight"), h.dim);
      plan->Vector(LayerName(i, "post_ffw_norm_1.weight"), h.dim);
      plan->Vector(LayerName(i, "post_ffw_norm_2.weight"), h.dim);
      plan->MoeExperts(h, i);
      plan->OptionalVector(LayerName(i, "ffn_down_exps.scale"), h.experts);
    }
    if (p > 0) {
      plan->Matrix(LayerName(i, "inp_gate.weight"), h.dim, p);
      plan->Matrix(LayerName(i, "proj.weight"), p, h.dim);
      plan->Vector(LayerName(i, "post_norm.weight"), h.dim);
    }
  }
}

std::unique_ptr<Model> MakeGemma4(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks) {
  return std::make_unique<Gemma4Model>(h, std::move(weights), ranks);
}

}  // namespace holdfast::model

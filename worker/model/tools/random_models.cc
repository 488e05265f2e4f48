#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "proto/base/check.h"
#include "proto/base/random.h"
#include "worker/model/tools/make_model.h"
#include "worker/model/tools/vocabularies.h"

namespace holdfast::model {
namespace {

// Roughly normal values: the sum of four uniforms, scaled to variance 1. Exact shape does not matter; being the same everywhere does.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(Mix64(seed)) {}
  std::vector<float> Values(int64_t n, float mean, float deviation) {
    std::vector<float> out(n);
    for (float& v : out) {
      state_ = Mix64(state_);
      float sum = 0;
      for (int i = 0; i < 4; ++i) sum += static_cast<float>((state_ >> (16 * i)) & 0xFFFF) / 65536.f - 0.5f;
      v = mean + deviation * sum * 1.7320508f;
    }
    return out;
  }

 private:
  uint64_t state_;
};

class Builder {
 public:
  explicit Builder(const RandomModelOptions& o) : options(o), noise_(o.seed) {}
  void Matrix(const std::string& name, int64_t in, int64_t out, int64_t experts = 1) {
    std::vector<int64_t> dims = {in, out};
    if (experts > 1) dims.push_back(experts);
    w.Tensor(name, dims, options.type, noise_.Values(in * out * experts, 0.f, 1.f / std::sqrt(static_cast<float>(in))));
  }
  void Norm(const std::string& name, int64_t n) { w.Tensor(name, {n}, kernels::DType::kF32, noise_.Values(n, 1.f, 0.1f)); }
  void Vector(const std::string& name, int64_t n, float mean, float deviation) {
    w.Tensor(name, {n}, kernels::DType::kF32, noise_.Values(n, mean, deviation));
  }
  void Embedding(const std::string& name, int64_t in, int64_t out, float deviation) {
    w.Tensor(name, {in, out}, options.type, noise_.Values(in * out, 0.f, deviation));
  }
  void Router(const std::string& name, int64_t in, int64_t out) { w.Tensor(name, {in, out}, kernels::DType::kF32, noise_.Values(in * out, 0.f, 1.f)); }

  GgufWriter w;
  const RandomModelOptions& options;

 private:
  Noise noise_;
};

}  // namespace

RandomModelOptions Gemma4Large(int32_t layers) {
  RandomModelOptions o;
  o.type = kernels::DType::kQ4_0;
  o.layers = layers;
  o.dim = 2816;
  o.context = 131072;
  o.window = 1024;
  o.experts = true;
  o.gemma4 = {16, 256, 512, 8, 2, 2112, 128, 8, 704, 6, 262144};
  return o;
}

GgufWriter RandomGemma4(const RandomModelOptions& o) {
  HF_CHECKF(o.dim % 32 == 0 && o.layers >= 3 && o.per_layer % 32 == 0, "dim {}, layers {}, per_layer {}", o.dim, o.layers, o.per_layer);
  const Gemma4Shape& g = o.gemma4;
  const int32_t heads = g.heads, hd_windowed = g.head_dim, hd_full = g.head_dim_full, kv_windowed = g.kv_heads, kv_full = g.kv_heads_full, experts = g.experts,
                used = g.experts_used, expert_width = g.expert_width;
  const int32_t ff = g.feed_forward > 0 ? g.feed_forward : 2 * o.dim, shared = o.per_layer > 0 ? 2 : 0;
  Builder b(o);
  std::vector<bool> windowed;
  std::vector<int32_t> kv_heads;
  for (int32_t i = 0; i < o.layers; ++i) {
    // With shared caches, the layers before the last two must end windowed, full.
    const bool full = shared > 0 ? i == o.layers - 3 || i == o.layers - 1 : i % g.period == g.period - 1;
    windowed.push_back(!full);
    kv_heads.push_back(full ? kv_full : kv_windowed);
  }
  GgufWriter& w = b.w;
  w.String("general.architecture", "gemma4");
  w.String("general.name", "random-gemma4");
  w.F32("general.sampling.temp", 1.0f);
  w.I32("general.sampling.top_k", 64);
  w.F32("general.sampling.top_p", 0.95f);
  w.U32("gemma4.context_length", o.context);
  w.U32("gemma4.embedding_length", o.dim);
  w.U32("gemma4.block_count", o.layers);
  w.U32("gemma4.feed_forward_length", ff);
  w.U32("gemma4.attention.head_count", heads);
  w.I32s("gemma4.attention.head_count_kv", kv_heads);
  w.U32("gemma4.attention.key_length", hd_full);
  w.U32("gemma4.attention.value_length", hd_full);
  w.U32("gemma4.attention.key_length_swa", hd_windowed);
  w.U32("gemma4.attention.value_length_swa", hd_windowed);
  w.U32("gemma4.attention.sliding_window", o.window);
  w.Bools("gemma4.attention.sliding_window_pattern", windowed);
  w.U32("gemma4.attention.shared_kv_layers", shared);
  w.F32("gemma4.attention.layer_norm_rms_epsilon", 1e-6f);
  w.U32("gemma4.embedding_length_per_layer_input", o.per_layer);
  w.F32("gemma4.final_logit_softcapping", 30.f);
  w.F32("gemma4.rope.freq_base", 1e6f);
  w.F32("gemma4.rope.freq_base_swa", 1e4f);
  w.U32("gemma4.rope.dimension_count", hd_full);
  w.U32("gemma4.rope.dimension_count_swa", hd_windowed);
  if (o.experts) {
    w.U32("gemma4.expert_count", experts);
    w.U32("gemma4.expert_used_count", used);
    w.U32("gemma4.expert_feed_forward_length", expert_width);
  }
  const int64_t vocab = WriteGemmaVocabulary(&w, g.vocabulary);
  // Rows of length 1: x starts at rms 1 (it is scaled by sqrt(dim)), so that the layers outweigh the token itself, and a tied head gives
  // logits with a spread of output_norm's mean: the text depends on the whole context and sampling has something to choose from.
  b.Embedding("token_embd.weight", o.dim, vocab, 1.f / std::sqrt(static_cast<float>(o.dim)));
  if (o.per_layer > 0) {
    b.Embedding("per_layer_token_embd.weight", int64_t{o.per_layer} * o.layers, vocab, 1.f);
    b.Matrix("per_layer_model_proj.weight", o.dim, int64_t{o.per_layer} * o.layers);
    b.Norm("per_layer_proj_norm.weight", o.per_layer);
  }
  std::vector<float> factors(hd_full / 2, 1e30f);  // a quarter of a full head rotates
  std::fill(factors.begin(), factors.begin() + hd_full / 8, 1.f);
  w.Tensor("rope_freqs.weight", {hd_full / 2}, kernels::DType::kF32, factors);
  b.Vector("output_norm.weight", o.dim, 3.f, 0.3f);
  for (int32_t i = 0; i < o.layers; ++i) {
    const auto name = [i](const char* suffix) { return fmt::format("blk.{}.{}", i, suffix); };
    const int64_t hd = windowed[i] ? hd_windowed : hd_full, kv = kv_heads[i];
    for (const char* n : {"attn_norm.weight", "post_attention_norm.weight", "ffn_norm.weight", "post_ffw_norm.weight"}) b.Norm(name(n), o.dim);
    b.Matrix(name("attn_q.weight"), o.dim, heads * hd);
    b.Norm(name("attn_q_norm.weight"), hd);
    if (i < o.layers - shared) {
      b.Matrix(name("attn_k.weight"), o.dim, kv * hd);
      b.Norm(name("attn_k_norm.weight"), hd);
      if (windowed[i]) b.Matrix(name("attn_v.weight"), o.dim, kv * hd);
    }
    b.Matrix(name("attn_output.weight"), heads * hd, o.dim);
    b.Vector(name("layer_output_scale.weight"), 1, 0.8f, 0.1f);
    b.Matrix(name("ffn_gate.weight"), o.dim, ff);
    b.Matrix(name("ffn_up.weight"), o.dim, ff);
    b.Matrix(name("ffn_down.weight"), ff, o.dim);
    if (o.experts) {
      b.Router(name("ffn_gate_inp.weight"), o.dim, experts);
      for (const char* n : {"ffn_gate_inp.scale", "pre_ffw_norm_2.weight", "post_ffw_norm_1.weight", "post_ffw_norm_2.weight"}) b.Norm(name(n), o.dim);
      b.Matrix(name("ffn_gate_up_exps.weight"), o.dim, 2 * expert_width, experts);
      b.Matrix(name("ffn_down_exps.weight"), expert_width, o.dim, experts);
      b.Vector(name("ffn_down_exps.scale"), experts, 1.f, 0.2f);
    }
    if (o.per_layer > 0) {
      b.Matrix(name("inp_gate.weight"), o.dim, o.per_layer);
      b.Matrix(name("proj.weight"), o.per_layer, o.dim);
      b.Norm(name("post_norm.weight"), o.dim);
    }
  }
  return std::move(b.w);
}

GgufWriter RandomLlama(const RandomModelOptions& o) {
  HF_CHECKF(o.dim % 64 == 0 && o.layers >= 1, "dim {}, layers {}", o.dim, o.layers);
  const int32_t heads = o.dim / 32, kv = heads / 2, hd = 32, ff = 2 * o.dim;
  Builder b(o);
  GgufWriter& w = b.w;
  w.String("general.architecture", "llama");
  w.String("general.name", "random-llama");
  w.U32("llama.context_length", o.context);
  w.U32("llama.embedding_length", o.dim);
  w.U32("llama.block_count", o.layers);
  w.U32("llama.feed_forward_length", ff);
  w.U32("llama.attention.head_count", heads);
  w.U32("llama.attention.head_count_kv", kv);
  w.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.F32("llama.rope.freq_base", 1e5f);
  w.U32("llama.rope.dimension_count", hd);
  const int64_t vocab = WriteChatmlVocabulary(&w);
  b.Embedding("token_embd.weight", o.dim, vocab, 0.3f);
  if (!o.tied) b.Matrix("output.weight", o.dim, vocab);
  b.Norm("output_norm.weight", o.dim);
  if (o.rope_freqs) b.Vector("rope_freqs.weight", hd / 2, 4.f, 1.f);
  for (int32_t i = 0; i < o.layers; ++i) {
    const auto name = [i](const char* suffix) { return fmt::format("blk.{}.{}", i, suffix); };
    b.Norm(name("attn_norm.weight"), o.dim);
    b.Norm(name("ffn_norm.weight"), o.dim);
    b.Matrix(name("attn_q.weight"), o.dim, heads * hd);
    b.Matrix(name("attn_k.weight"), o.dim, kv * hd);
    b.Matrix(name("attn_v.weight"), o.dim, kv * hd);
    b.Matrix(name("attn_output.weight"), heads * hd, o.dim);
    if (o.biases) {
      b.Vector(name("attn_q.bias"), heads * hd, 0.f, 0.1f);
      b.Vector(name("attn_k.bias"), kv * hd, 0.f, 0.1f);
      b.Vector(name("attn_v.bias"), kv * hd, 0.f, 0.1f);
      b.Vector(name("attn_output.bias"), o.dim, 0.f, 0.1f);
    }
    b.Matrix(name("ffn_gate.weight"), o.dim, ff);
    b.Matrix(name("ffn_up.weight"), o.dim, ff);
    b.Matrix(name("ffn_down.weight"), ff, o.dim);
  }
  return std::move(b.w);
}

}  // namespace holdfast::model

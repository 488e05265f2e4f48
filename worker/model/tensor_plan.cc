#include "worker/model/tensor_plan.h"

#include <fmt/format.h>

#include "proto/base/log.h"
#include "worker/model/families.h"

namespace holdfast::model {

std::string LayerName(int layer, std::string_view suffix) { return fmt::format("blk.{}.{}", layer, suffix); }

const GgufTensor* PlanBuilder::Find(const std::string& name, std::vector<int64_t> dims) {
  if (!status_.ok()) return nullptr;
  while (dims.size() > 1 && dims.back() == 1) dims.pop_back();
  const GgufTensor* t = file_.FindTensor(name);
  if (t == nullptr) {
    status_ = absl::InvalidArgumentError(fmt::format("{}: tensor {} of shape {} is missing", file_.path(), Quoted(name), DimsText(dims)));
    return nullptr;
  }
  for (size_t i = 0; i < 4; ++i) {
    if (t->dims[i] == (i < dims.size() ? dims[i] : 1)) continue;
    status_ = absl::InvalidArgumentError(fmt::format("{}: tensor {} has shape {}; the model's hyper-parameters make it {}", file_.path(),
                                                     Quoted(name), DimsText({t->dims.data(), static_cast<size_t>(t->dims_count)}),
                                                     DimsText(dims)));
    return nullptr;
  }
  used_.insert(name);
  return t;
}

void PlanBuilder::Matrix(const std::string& name, int64_t in, int64_t out, kernels::WeightUse use, int64_t experts) {
  const GgufTensor* t = Find(name, {in, out, experts});
  if (t == nullptr) return;
  PlannedTensor p;
  p.name = name;
  p.source = t;
  p.use = use;
  p.in = in;
  p.out = out;
  p.experts = experts;
  out_->push_back(std::move(p));
}

void PlanBuilder::MatrixSlice(const std::string& name, const std::string& source, int64_t in, int64_t out, int64_t first_row, int64_t total) {
  const GgufTensor* t = Find(source, {in, total});
  if (t == nullptr) return;
  PlannedTensor p;
  p.name = name;
  p.source = t;
  p.in = in;
  p.out = out;
  p.first_row = first_row;
  out_->push_back(std::move(p));
}

void PlanBuilder::Vector(const std::string& name, int64_t size, int64_t experts) {
  const GgufTensor* t = Find(name, {size, experts});
  if (t == nullptr) return;
  const auto type = t->type;
  if (type != kernels::DType::kF32 && type != kernels::DType::kF16 && type != kernels::DType::kBF16) {
    status_ = absl::InvalidArgumentError(fmt::format("{}: tensor {} is {}; f32, f16 or bf16 is expected for it", file_.path(), Quoted(name),
                                                     kernels::InfoOf(type).name));
    return;
  }
  PlannedTensor p;
  p.name = name;
  p.source = t;
  p.is_vector = true;
  p.in = size;
  p.experts = experts;
  out_->push_back(std::move(p));
}

void PlanBuilder::VectorSlice(const std::string& name, const std::string& source, int64_t size, int64_t first, int64_t total) {
  const size_t before = out_->size();
  Vector(source, total);
  if (out_->size() == before) return;
  out_->back().name = name;
  out_->back().in = size;
  out_->back().first_row = first;
}

void PlanBuilder::Qkv(const Hparams& h, int layer) {
  const LayerHparams& l = h.layers[layer];
  const int64_t q = int64_t{h.heads} * l.head_dim, kv = int64_t{l.kv_heads} * l.head_dim;
  const int64_t sizes[] = {q, kv, kv}, starts[] = {0, q, q + kv};
  const char* names[] = {"attn_q", "attn_k", "attn_v"};
  const bool fused = !Has(LayerName(layer, "attn_q.weight")) && Has(LayerName(layer, "attn_qkv.weight"));
  for (int i = 0; i < 3; ++i) {
    const std::string weight = LayerName(layer, fmt::format("{}.weight", names[i])), bias = LayerName(layer, fmt::format("{}.bias", names[i]));
    if (fused) {
      MatrixSlice(weight, LayerName(layer, "attn_qkv.weight"), h.dim, sizes[i], starts[i], q + 2 * kv);
      if (Has(LayerName(layer, "attn_qkv.bias"))) VectorSlice(bias, LayerName(layer, "attn_qkv.bias"), sizes[i], starts[i], q + 2 * kv);
    } else {
      Matrix(weight, h.dim, sizes[i]);
      OptionalVector(bias, sizes[i]);
    }
  }
}

void PlanBuilder::MoeExperts(const Hparams& h, int layer) {
  const int64_t width = h.expert_feed_forward;
  if (Has(LayerName(layer, "ffn_gate_up_exps.weight"))) {
    Experts(LayerName(layer, "ffn_gate_up_exps.weight"), h.dim, 2 * width, h.experts);
  } else {
    Experts(LayerName(layer, "ffn_gate_exps.weight"), h.dim, width, h.experts);
    Experts(LayerName(layer, "ffn_up_exps.weight"), h.dim, width, h.experts);
  }
  Experts(LayerName(layer, "ffn_down_exps.weight"), width, h.dim, h.experts);
}

size_t PlanBuilder::Unused() const {
  size_t n = 0;
  for (const GgufTensor& t : file_.tensors()) n += !used_.contains(t.name);
  return n;
}

std::string PlanBuilder::FirstUnused() const {
  for (const GgufTensor& t : file_.tensors()) {
    if (!used_.contains(t.name)) return t.name;
  }
  return "";
}

absl::StatusOr<TensorPlan> TensorPlan::Make(const GgufFile& file, const Hparams& h) {
  TensorPlan plan;
  PlanBuilder builder(file, &plan.tensors_);
  builder.Matrix("token_embd.weight", h.dim, h.vocab, h.tied_embeddings ? kernels::WeightUse::kBoth : kernels::WeightUse::kEmbedding);
  if (!h.tied_embeddings) builder.Matrix("output.weight", h.dim, h.vocab);
  builder.Vector("output_norm.weight", h.dim);
  if (h.rope_freqs) builder.Vector("rope_freqs.weight", h.rope.dims / 2);
  switch (h.family) {
    case Family::kLlama:
    case Family::kQwen2:
    case Family::kQwen3:
    case Family::kQwen3Moe: PlanLlama(h, &builder); break;
    case Family::kGemma3: PlanGemma3(h, &builder); break;
    case Family::kGemma4: PlanGemma4(h, &builder); break;
    case Family::kGptOss: PlanGptOss(h, &builder); break;
  }
  if (!builder.status().ok()) return builder.status();
  for (const PlannedTensor& t : plan.tensors_) plan.parameters_ += static_cast<uint64_t>(t.in) * t.out * t.experts;
  plan.ignored_ = builder.Unused();
  if (plan.ignored_ > 0) {
    LogInfo("{}: {} tensors are not used by architecture {} (the first is {})", file.path(), plan.ignored_, h.architecture,
            Quoted(builder.FirstUnused()));
  }
  return plan;
}

}  // namespace holdfast::model

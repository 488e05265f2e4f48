#include "worker/model/tensor_plan.h"

#include <fmt/format.h>

#include "proto/base/log.h"
#include "proto/base/status_wire.h"
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

void PlanBuilder::Matrix(const std::string& name, int64_t in, int64_t out, const Cut& cut, kernels::WeightUse use, int64_t experts) {
  const GgufTensor* t = Find(name, {in, out, experts});
  if (t == nullptr) return;
  PlannedTensor p;
  p.name = name;
  p.source = t;
  p.use = use;
  p.experts = experts;
  p.source_in = p.in = in;
  p.source_out = p.out = out;
  if (cut.columns.count > 0) {
    p.first_column = cut.columns.first;
    p.in = cut.columns.count;
  }
  if (cut.rows.count > 0) {
    p.first_row = cut.rows.first;
    p.out = cut.rows.count;
  }
  if (cut.halves && cut.rows.count > 0 && 2 * cut.rows.count < out) {
    p.second_row = out / 2 + cut.rows.first;
    p.out = 2 * cut.rows.count;
  } else if (cut.halves) {
    p.out = out;
  }
  out_->push_back(std::move(p));
}

void PlanBuilder::MatrixSlice(const std::string& name, const std::string& source, int64_t in, Range rows, int64_t total) {
  const size_t before = out_->size();
  Matrix(source, in, total, {rows, {}, false});
  if (out_->size() > before) out_->back().name = name;
}

void PlanBuilder::Vector(const std::string& name, int64_t size, int64_t experts, Range elements) {
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
  p.experts = experts;
  p.source_in = p.in = size;
  if (elements.count > 0) {
    p.first_column = elements.first;
    p.in = elements.count;
  }
  out_->push_back(std::move(p));
}

void PlanBuilder::VectorSlice(const std::string& name, const std::string& source, Range elements, int64_t total) {
  const size_t before = out_->size();
  Vector(source, total, 1, elements);
  if (out_->size() > before) out_->back().name = name;
}

void PlanBuilder::Qkv(const Hparams& h, int layer) {
  const LayerHparams& l = h.layers[layer];
  const Range heads = share(layer).heads.Times(l.head_dim), kv_heads = share(layer).kv_heads.Times(l.head_dim);
  const int64_t q = int64_t{h.heads} * l.head_dim, kv = int64_t{l.kv_heads} * l.head_dim;
  const int64_t sizes[] = {q, kv, kv}, starts[] = {0, q, q + kv};
  const Range shares[] = {heads, kv_heads, kv_heads};
  const char* names[] = {"attn_q", "attn_k", "attn_v"};
  const bool fused = !Has(LayerName(layer, "attn_q.weight")) && Has(LayerName(layer, "attn_qkv.weight"));
  for (int i = 0; i < 3; ++i) {
    const std::string weight = LayerName(layer, fmt::format("{}.weight", names[i])), bias = LayerName(layer, fmt::format("{}.bias", names[i]));
    if (fused) {
      const Range part{starts[i] + shares[i].first, shares[i].count};
      MatrixSlice(weight, LayerName(layer, "attn_qkv.weight"), h.dim, part, q + 2 * kv);
      if (Has(LayerName(layer, "attn_qkv.bias"))) VectorSlice(bias, LayerName(layer, "attn_qkv.bias"), part, q + 2 * kv);
    } else {
      Rows(weight, h.dim, sizes[i], shares[i]);
      OptionalVector(bias, sizes[i], 1, shares[i]);
    }
  }
}

void PlanBuilder::MoeExperts(const Hparams& h, int layer) {
  const int64_t width = h.expert_feed_forward;
  const Range part = share(layer).expert_feed_forward;
  const auto experts = [&](const char* name, int64_t in, int64_t out, const Cut& cut) {
    Matrix(LayerName(layer, name), in, out, cut, kernels::WeightUse::kMatMul, h.experts);
  };
  if (Has(LayerName(layer, "ffn_gate_up_exps.weight"))) {
    experts("ffn_gate_up_exps.weight", h.dim, 2 * width, {part, {}, true});
  } else {
    experts("ffn_gate_exps.weight", h.dim, width, {part, {}, false});
    experts("ffn_up_exps.weight", h.dim, width, {part, {}, false});
  }
  experts("ffn_down_exps.weight", width, h.dim, {{}, part, false});
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
  HF_ASSIGN_OR_RETURN(const Shard whole, MakeShard(file, h, 0, 1));
  return Make(file, h, whole);
}

absl::StatusOr<TensorPlan> TensorPlan::Make(const GgufFile& file, const Hparams& h, const Shard& shard) {
  TensorPlan plan;
  PlanBuilder builder(file, shard, &plan.tensors_);
  builder.Vocabulary("token_embd.weight", h.dim, h.vocab, h.tied_embeddings ? kernels::WeightUse::kBoth : kernels::WeightUse::kEmbedding);
  if (!h.tied_embeddings) builder.Vocabulary("output.weight", h.dim, h.vocab, kernels::WeightUse::kMatMul);
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
  if (plan.ignored_ > 0 && shard.first()) {
    LogInfo("{}: {} tensors are not used by architecture {} (the first is {})", file.path(), plan.ignored_, h.architecture,
            Quoted(builder.FirstUnused()));
  }
  return plan;
}

}  // namespace holdfast::model

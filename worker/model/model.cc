#include "worker/model/model.h"

#include <algorithm>

#include "proto/base/check.h"
#include "worker/model/families.h"

namespace holdfast::model {

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const Hparams& hparams, std::shared_ptr<const WeightStore> weights) {
  switch (hparams.family) {
    case Family::kLlama:
    case Family::kQwen2:
    case Family::kQwen3:
    case Family::kQwen3Moe: return MakeLlama(hparams, std::move(weights));
    case Family::kGemma3: return MakeGemma3(hparams, std::move(weights));
    case Family::kGemma4: return MakeGemma4(hparams, std::move(weights));
    case Family::kGptOss: return MakeGptOss(hparams, std::move(weights));
  }
  return absl::UnimplementedError("no model for architecture " + hparams.architecture);
}

Model::Model(Hparams hparams, std::shared_ptr<const WeightStore> weights)
    : hparams_(std::move(hparams)),
      weights_(std::move(weights)),
      embedding_(weights_->matrix("token_embd.weight")),
      head_(hparams_.tied_embeddings ? embedding_ : weights_->matrix("output.weight")),
      output_norm_(weights_->vector("output_norm.weight")) {
  HF_CHECK(embedding_ && head_ && !output_norm_.empty());
}

void Model::Grow(kernels::Ops& ops, Scratch* scratch, int64_t rows, int64_t cols) {
  const int64_t bytes = std::max<int64_t>(1, rows) * cols * static_cast<int64_t>(sizeof(float));
  if (scratch->buffer.bytes() >= bytes) return;
  activation_bytes_ += bytes - scratch->buffer.bytes();
  scratch->buffer.Reset();
  scratch->buffer = ops.Allocate(bytes);
}

void Model::Reserve(kernels::Ops& ops, int64_t max_tokens) {
  if (max_tokens <= reserved_) return;
  ops.Sync();
  Grow(ops, &x_, max_tokens, hparams_.dim);
  ReserveLayers(ops, max_tokens);
  reserved_ = max_tokens;
}

void Model::Logits(kernels::Ops& ops, std::span<const int32_t> rows, kernels::Mat out) {
  if (rows.empty()) return;
  const int64_t n = static_cast<int64_t>(rows.size());
  HF_CHECK(out.rows == n && out.cols == hparams_.vocab);
  for (const int32_t row : rows) HF_CHECKF(row >= 0 && row < rows_, "row {} of {}", row, rows_);
  Grow(ops, &gathered_, n, hparams_.dim);
  const kernels::Mat hidden = gathered_.View(n, hparams_.dim);
  ops.GatherRows(x_.View(rows_, hparams_.dim), rows, hidden);
  ops.RmsNorm(hidden, output_norm_, hparams_.eps, hidden);
  const kernels::Product product{head_, out, {}, false};
  ops.MatMul(hidden, {&product, 1});
  if (hparams_.logit_softcap > 0.f) ops.Softcap(out, hparams_.logit_softcap);
}

kernels::Weight Model::Matrix(int layer, std::string_view suffix) const { return weights_->matrix(LayerName(layer, suffix)); }
kernels::Vec Model::Vector(int layer, std::string_view suffix) const { return weights_->vector(LayerName(layer, suffix)); }

kernels::RopeParams Model::Rope(const RopeSpec& spec, kernels::Vec factors) const {
  kernels::RopeParams p;
  p.kind = spec.kind;
  p.dims = spec.dims;
  p.base = spec.base;
  p.scale = spec.scale;
  p.freq_factors = factors;
  p.yarn_factor = spec.yarn_factor;
  p.yarn_original_context = spec.yarn_original_context;
  p.yarn_beta_fast = spec.yarn_beta_fast;
  p.yarn_beta_slow = spec.yarn_beta_slow;
  p.attention_factor = spec.attention_factor;
  return p;
}

}  // namespace holdfast::model

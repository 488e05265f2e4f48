#include "worker/model/model.h"

#include <algorithm>
#include <functional>

#include "kernels/device_collective.h"
#include "proto/base/check.h"
#include "worker/model/families.h"

namespace holdfast::model {

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const Hparams& hparams, std::shared_ptr<const WeightStore> weights,
                                                     tp::Collective* ranks) {
  if (ranks != nullptr && ranks->size() == 1) ranks = nullptr;
  switch (hparams.family) {
    case Family::kLlama:
    case Family::kQwen2:
    case Family::kQwen3:
    case Family::kQwen3Moe: return MakeLlama(hparams, std::move(weights), ranks);
    case Family::kGemma3: return MakeGemma3(hparams, std::move(weights), ranks);
    case Family::kGemma4: return MakeGemma4(hparams, std::move(weights), ranks);
    case Family::kGptOss: return MakeGptOss(hparams, std::move(weights), ranks);
  }
  return absl::UnimplementedError("no model for architecture " + hparams.architecture);
}

Model::Model(Hparams hparams, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks)
    : hparams_(std::move(hparams)),
      weights_(std::move(weights)),
      embedding_(weights_->matrix("token_embd.weight")),
      head_(hparams_.tied_embeddings ? embedding_ : weights_->matrix("output.weight")),
      output_norm_(weights_->vector("output_norm.weight")),
      ranks_(ranks) {
  HF_CHECK(embedding_ && head_ && !output_norm_.empty());
  if (ranks_ == nullptr) return;
  vocab_shares_ = VocabShares(hparams_.vocab, ranks_->size());
  for (uint32_t r = 0; r < ranks_->rank(); ++r) first_token_ += vocab_shares_[r];
  HF_CHECKF(head_.out == vocab_shares_[ranks_->rank()], "the weights are of another shard: {} of {} rows", head_.out, hparams_.vocab);
}

void Model::Embed(kernels::Ops& ops, const kernels::Weight& table, float scale, kernels::Mat out) {
  if (ranks_ == nullptr) return ops.Embed(table, scale, out);
  ops.EmbedPart(table, first_token_, scale, out);  // of each row's sum one part is not zero
  SumOverRanks(ops, out);
}

void Model::AddProduct(kernels::Ops& ops, const kernels::Weight& w, kernels::Vec bias, kernels::ConstMat in, kernels::Mat x) {
  // Rank 0 adds to the residual, the others write beside it (theirs is the same, and comes back with the sum).
  const kernels::Product product{w, x, adds_once() ? bias : kernels::Vec(), adds_once()};
  ops.MatMul(in, {&product, 1});
  SumOverRanks(ops, x);
}

void Model::SumOverRanks(kernels::Ops& ops, kernels::Mat x) {
  if (ranks_ == nullptr || !status_.ok()) return;
  HF_CHECK(x.stride == x.cols);
  if (kernels::DeviceCollective* device = ops.ranks()) {
    device->AllReduceSum(x.data, x.rows * x.cols);
    status_ = device->status();
    return;
  }
  const kernels::Mat part = OnHost(ops, x);
  ops.Sync();
  status_ = ranks_->AllReduceSum({part.data, static_cast<size_t>(x.rows * x.cols)});
  if (part.data != x.data && status_.ok()) {
    ops.CopyFromHost(reinterpret_cast<std::byte*>(x.data), reinterpret_cast<const std::byte*>(part.data), x.rows * x.cols * int64_t{sizeof(float)});
  }
}

kernels::Mat Model::OnHost(kernels::Ops& ops, kernels::Mat x) {
  if (ops.HostMemory()) return x;
  host_.resize(static_cast<size_t>(x.rows * x.cols));
  ops.CopyToHost(reinterpret_cast<std::byte*>(host_.data()), reinterpret_cast<const std::byte*>(x.data), x.rows * x.cols * int64_t{sizeof(float)});
  return {host_.data(), x.rows, x.cols};
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

void Model::Begin(kernels::Ops& ops, const kernels::Batch& batch) {
  rows_ = static_cast<int64_t>(batch.tokens.size());
  Reserve(ops, rows_);
  ops.BeginStep(batch);
}

void Model::Forward(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) {
  Begin(ops, batch);
  Compute(ops, batch, kv);
}

void Model::Logits(kernels::Ops& ops, std::span<const int32_t> rows, kernels::Mat out) {
  if (rows.empty()) return;
  const int64_t n = static_cast<int64_t>(rows.size());
  HF_CHECK(out.rows == n && out.cols == hparams_.vocab);
  for (const int32_t row : rows) HF_CHECKF(row >= 0 && row < rows_, "row {} of {}", row, rows_);
  Grow(ops, &gathered_, n, hparams_.dim);
  const kernels::Mat hidden = gathered_.View(n, hparams_.dim);
  const bool every = n == rows_ && std::is_sorted(rows.begin(), rows.end(), std::less_equal<>());   // each once, in order
  if (!every) ops.GatherRows(x_.View(rows_, hparams_.dim), rows, hidden);
  ops.RmsNorm(every ? x_.View(rows_, hparams_.dim) : hidden, output_norm_, hparams_.eps, hidden);
  kernels::Mat part = out;
  if (divided()) {
    Grow(ops, &part_logits_, n, head_.out);
    part = part_logits_.View(n, head_.out);
  }
  const kernels::Product product{head_, part, {}, false};
  ops.MatMul(hidden, {&product, 1});
  if (hparams_.logit_softcap > 0.f) ops.Softcap(part, hparams_.logit_softcap);
  if (!divided() || !status_.ok()) return;
  if (kernels::DeviceCollective* device = ops.ranks()) {
    device->GatherColumns(part, vocab_shares_, out);
    status_ = device->status();
    return;
  }
  const kernels::Mat mine = OnHost(ops, part);
  ops.Sync();
  const bool whole = ranks_->rank() == 0, apart = mine.data != part.data;
  if (whole && apart) host_whole_.resize(static_cast<size_t>(out.rows * out.cols));
  const kernels::Mat all = !whole ? kernels::Mat() : apart ? kernels::Mat(host_whole_.data(), out.rows, out.cols) : out;
  status_ = ranks_->AllGatherColumns(mine, vocab_shares_, all);
  if (whole && apart && status_.ok()) {
    HF_CHECK(out.stride == out.cols);
    ops.CopyFromHost(reinterpret_cast<std::byte*>(out.data), reinterpret_cast<const std::byte*>(all.data), out.rows * out.cols * int64_t{sizeof(float)});
  }
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

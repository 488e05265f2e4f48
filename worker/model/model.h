#pragma once
// A language model: composes a backend's operations into a forward pass. One file per architecture family derives from it.
//
// Order of a life: GgufFile::Open -> ReadHparams -> TensorPlan::Make -> WeightStore -> Model::Create -> Reserve -> (Forward, Logits)*.
// Threads: one caller. A Model owns its activations and nothing of the cache or the weights.
//
// With several ranks a model computes with its part of the weights (shard.h): the residual stream is whole and the same on every rank, the
// products that reduce over a divided width are summed over the ranks: by the devices themselves where they are joined (Ops::ranks), else
// through the host. A rank that lost its peers computes no further: status() says so, or Ops::Health() after a Sync.
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "worker/model/hparams.h"
#include "worker/model/weights.h"
#include "worker/tp/collective.h"

namespace holdfast::model {

// The cache as a forward pass sees it: one KvLayer a model layer; a layer that owns no cache names its source's.
struct KvView {
  std::span<const kernels::KvLayer> layers;
};

class Model {
 public:
  // hparams: as HparamsOf gives them; weights: of the same shard. ranks: null when there is one rank only; else it outlives the model.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const Hparams& hparams, std::shared_ptr<const WeightStore> weights,
                                                       tp::Collective* ranks = nullptr);
  virtual ~Model() = default;

  // Allocates activations for steps of up to max_tokens rows; grows only. Forward calls it when a batch is larger.
  void Reserve(kernels::Ops& ops, int64_t max_tokens);
  int64_t activation_bytes() const { return activation_bytes_; }

  // Computes the batch: stores its K and V in the pages of the block tables and keeps the last hidden state of every row until the
  // next call. batch.groups are in the order of KvPlan::groups. Begin and Compute.
  void Forward(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv);
  // The two halves: what a step brings with it (ops.BeginStep), and the calls, which are the same for every batch of as many rows that all are
  // their sequence's only one (Ops::Repeatable; with several ranks they are not).
  void Begin(kernels::Ops& ops, const kernels::Batch& batch);
  virtual void Compute(kernels::Ops& ops, const kernels::Batch& batch, const KvView& kv) = 0;
  // out[i] = logits (after softcap) of row rows[i] of the last Forward. out is [rows][vocab]; rows is host memory. With several ranks all
  // of them call it, and rank 0 alone receives them (the others may pass an out without data).
  void Logits(kernels::Ops& ops, std::span<const int32_t> rows, kernels::Mat out);

  // Called on the step thread as each layer begins: a step may take longer than a watchdog's patience, a layer does not.
  void SetProgress(std::function<void()> progress) { progress_ = std::move(progress); }

  const Hparams& hparams() const { return hparams_; }
  // Not ok from the first collective on that failed: what Forward and Logits left is of no use then.
  const absl::Status& status() const { return status_; }

 protected:
  // False: leave Forward, the peers are gone.
  bool LayerBegins() const {
    if (progress_) progress_();
    return status_.ok();
  }
  Model(Hparams hparams, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks);

  bool divided() const { return ranks_ != nullptr; }
  // What must be added once for the whole group (a bias, the residual) is added by rank 0.
  bool adds_once() const { return ranks_ == nullptr || ranks_->rank() == 0; }
  // Rows of the table for the tokens of the batch that ops has begun; each rank holds some of the rows.
  void Embed(kernels::Ops& ops, const kernels::Weight& table, float scale, kernels::Mat out);
  // x += w in + bias, where the ranks divide the width that w reduces over.
  void AddProduct(kernels::Ops& ops, const kernels::Weight& w, kernels::Vec bias, kernels::ConstMat in, kernels::Mat x);
  // Experts too narrow to be divided are whole on every rank: their output is no part of a sum.
  bool Whole(const kernels::MoeParams& moe) const { return moe.down.in == hparams_.expert_feed_forward; }
  // x = sum of x over the ranks; x is contiguous. Nothing to do when there is one.
  void SumOverRanks(kernels::Ops& ops, kernels::Mat x);

  // Grows a named scratch matrix [rows][cols] out of the activations; contents undefined.
  struct Scratch {
    kernels::Buffer buffer;
    kernels::Mat View(int64_t rows, int64_t cols) const { return {buffer.as<float>(), rows, cols}; }
  };
  void Grow(kernels::Ops& ops, Scratch* scratch, int64_t rows, int64_t cols);
  virtual void ReserveLayers(kernels::Ops& ops, int64_t max_tokens) = 0;

  kernels::Weight Matrix(int layer, std::string_view suffix) const;   // "blk.N.<suffix>"
  kernels::Vec Vector(int layer, std::string_view suffix) const;
  kernels::RopeParams Rope(const RopeSpec& spec, kernels::Vec factors) const;

  Hparams hparams_;
  std::shared_ptr<const WeightStore> weights_;
  kernels::Weight embedding_;
  kernels::Weight head_;                                              // the embedding itself when tied
  kernels::Vec output_norm_;
  Scratch x_;                                                         // [T][D] residual stream
  Scratch gathered_;                                                  // [rows][D]
  Scratch part_logits_;                                               // [rows][this rank's vocabulary]
  int64_t rows_ = 0;                                                  // of the last Forward
  int64_t reserved_ = 0;
  int64_t activation_bytes_ = 0;
  std::function<void()> progress_;

 private:
  tp::Collective* const ranks_;
  std::vector<int64_t> vocab_shares_;                                 // [rank], when divided
  int64_t first_token_ = 0;
  // x where the host's collectives can reach it: itself, or, after the next Sync, a copy.
  kernels::Mat OnHost(kernels::Ops& ops, kernels::Mat x);

  std::vector<float> host_, host_whole_;                              // of OnHost; of rank 0's gathered logits
  absl::Status status_;
};

}  // namespace holdfast::model

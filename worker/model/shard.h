#pragma once
// Which part of a model each rank of a tensor-parallel group holds. Attention is divided by heads, feed-forward layers and every expert by
// their hidden width, embedding and output matrix by the vocabulary; norms, routers and what is small are on every rank. Parts need not
// be equal: three KV heads on two ranks are two and one.
//
// What a row of a product is reduced over (the columns of attn_output, ffn_down and ffn_down_exps) is cut on the borders of the file's
// quantisation blocks, so that no value is rounded again.
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "worker/model/gguf_file.h"
#include "worker/model/hparams.h"

namespace holdfast::model {

struct Range {
  int64_t first = 0;
  int64_t count = 0;
  Range Times(int64_t n) const { return {first * n, count * n}; }
};

struct LayerShard {
  Range heads;                       // query heads
  Range kv_heads;                    // those that the query heads read; with fewer KV heads than ranks, ranks hold the same one
  Range feed_forward;                // of the dense branch; empty when there is none
  Range expert_feed_forward;         // of every expert; all of it when experts are too narrow to be divided: then every rank computes them whole
};

struct Shard {
  uint32_t rank = 0;
  uint32_t size = 1;
  Range vocab;
  std::vector<LayerShard> layers;

  bool first() const { return rank == 0; }
};

// The part of rank `rank` of `size`. kInvalidArgument when the model cannot be divided so, with the numbers and the sizes that work.
absl::StatusOr<Shard> MakeShard(const GgufFile& file, const Hparams& hparams, uint32_t rank, uint32_t size);

// The hyper-parameters as a rank's layers see them: its own heads, KV heads and widths; the rest is the whole model's.
Hparams HparamsOf(const Shard& shard, const Hparams& whole);

// Rows of the vocabulary on each rank: the widths of the columns that make a row of logits.
std::vector<int64_t> VocabShares(int64_t vocab, uint32_t size);

}  // namespace holdfast::model

#include "worker/model/activation_bytes.h"

#include <algorithm>

namespace holdfast::model {
namespace {

constexpr uint64_t kFixed = uint64_t{96} << 20;          // uploads and downloads, split prefills (64 MiB), what kernels' code takes as it is loaded
constexpr uint64_t kPartitionKeys = 256;                 // attention's: the least of all head sizes

}  // namespace

uint64_t ActivationBytes(const Hparams& h, uint64_t rows, uint64_t logit_rows, uint64_t sequences, uint64_t tokens) {
  uint64_t q = 0, kv = 0, ff = 0, records = 0, rotated = 0;
  for (const LayerHparams& l : h.layers) {
    const auto width = [&](int32_t heads) { return static_cast<uint64_t>(heads) * static_cast<uint64_t>(l.head_dim); };
    q = std::max(q, width(l.heads));
    kv = std::max(kv, width(l.kv_heads));
    ff = std::max(ff, static_cast<uint64_t>(l.feed_forward));
    rotated = std::max(rotated, static_cast<uint64_t>(l.head_dim));
    const uint64_t seen = l.windowed ? std::min(tokens, sequences * (h.window + kPartitionKeys)) : tokens;
    records = std::max(records, (seen / kPartitionKeys + 2 * sequences) * (width(l.heads) + 2 * static_cast<uint64_t>(l.heads)) * 4);
  }
  const uint64_t dim = static_cast<uint64_t>(h.dim), layers = h.layers.size(), per_layer = static_cast<uint64_t>(h.per_layer_input);
  const uint64_t used = static_cast<uint64_t>(h.experts_used), inner = static_cast<uint64_t>(h.expert_feed_forward);
  // Floats of a row: the model's activations, then the backend's.
  uint64_t floats = 4 * dim + 2 * q + 2 * kv + 2 * ff + static_cast<uint64_t>(h.experts) + 2 * used + per_layer * (2 * layers + 1);
  floats += ff + 2 * rotated + used * (2 * inner + dim);
  // Activations as products take them: three bf16 a value, and a byte and a quarter.
  const uint64_t widest = std::max({dim, q, ff, per_layer * layers});
  const uint64_t panels = 8 * std::max(widest, used * inner);
  // Scratch is taken with a quarter more, so that it seldom grows.
  const uint64_t steps = rows * (floats * 4 + panels) / 4 * 5;
  const uint64_t logits = logit_rows * (static_cast<uint64_t>(h.vocab) * 4 * 2 + dim * 16);
  return kFixed + steps + logits + records / 4 * 5;
}

}  // namespace holdfast::model

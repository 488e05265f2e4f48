#include "worker/model/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "proto/base/check.h"
#include "proto/base/group_memory.h"
#include "proto/base/status_wire.h"
#include "worker/model/families.h"

namespace holdfast::model {
namespace {

// `units` in `size` parts that differ by one at most, the larger ones first.
Range Part(int64_t units, uint32_t rank, uint32_t size) {
  const int64_t each = units / size, more = units % size;
  return {each * rank + std::min<int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

// Values in a block of a matrix's rows; 1 when the file does not have the tensor (the plan will say so).
int64_t BlockOf(const GgufFile& file, const std::string& name) {
  const GgufTensor* t = file.FindTensor(name);
  return t == nullptr ? 1 : kernels::InfoOf(t->type).block_elements;
}

absl::Status ShareHeads(const LayerHparams& l, int64_t heads, int64_t block, uint32_t rank, uint32_t size, LayerShard* out) {
  const int64_t group = heads / l.kv_heads, ranks = size;
  const int64_t aligned = block / std::gcd<int64_t>(block, l.head_dim);   // query heads between two borders of blocks
  if (l.kv_heads >= ranks) {
    const int64_t unit = std::lcm(group, aligned) / group;                // KV heads that go together
    if (l.kv_heads % unit == 0 && l.kv_heads / unit >= ranks) {
      out->kv_heads = Part(l.kv_heads / unit, rank, size).Times(unit);
      out->heads = out->kv_heads.Times(group);
      return absl::OkStatus();
    }
  } else if (ranks % l.kv_heads == 0 && group % aligned == 0 && group / aligned >= ranks / l.kv_heads) {
    const uint32_t sharers = size / static_cast<uint32_t>(l.kv_heads);    // ranks that hold the same KV head
    out->kv_heads = {rank / sharers, 1};
    out->heads = Part(group / aligned, rank % sharers, sharers).Times(aligned);
    out->heads.first += out->kv_heads.first * group;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("{} query heads and {} key-value heads of {}, whose output projection is in blocks of {}", heads,
                                                l.kv_heads, l.head_dim, block));
}

// A hidden width. Equal parts of large units are best for the kernels; any part of whole blocks is right.
absl::Status ShareWidth(int64_t width, int64_t block, uint32_t rank, uint32_t size, Range* out) {
  int64_t unit = 0;
  for (const int64_t candidate : {256, 128, 64, 32}) {
    if (candidate % block == 0 && width % candidate == 0 && width / candidate % size == 0) {
      unit = candidate;
      break;
    }
  }
  if (unit == 0) unit = width % 32 == 0 ? std::max<int64_t>(block, 32) : block;
  if (width % unit != 0 || width / unit < size) {
    return absl::InvalidArgumentError(fmt::format("a feed-forward width of {} in blocks of {}", width, block));
  }
  *out = Part(width / unit, rank, size).Times(unit);
  return absl::OkStatus();
}

constexpr int64_t kVocabUnit = 16;  // rows that a packed layout keeps together

Range ShareVocab(int64_t vocab, uint32_t rank, uint32_t size) {
  const int64_t unit = vocab / kVocabUnit >= size ? kVocabUnit : 1;
  Range r = Part((vocab + unit - 1) / unit, rank, size).Times(unit);
  r.count = std::min(r.count, vocab - r.first);
  return r;
}

Shard Whole(const Hparams& h) {
  Shard shard;
  shard.vocab = {0, h.vocab};
  for (const LayerHparams& l : h.layers) shard.layers.push_back({{0, h.heads}, {0, l.kv_heads}, {0, l.feed_forward}, {0, h.expert_feed_forward}});
  return shard;
}

absl::StatusOr<Shard> Divide(const GgufFile& file, const Hparams& h, uint32_t rank, uint32_t size) {
  Shard shard;
  shard.rank = rank;
  shard.size = size;
  if (h.vocab < size) return absl::InvalidArgumentError(fmt::format("a vocabulary of {}", h.vocab));
  shard.vocab = ShareVocab(h.vocab, rank, size);
  for (int i = 0; i < static_cast<int>(h.layers.size()); ++i) {
    const LayerHparams& l = h.layers[i];
    LayerShard s;
    absl::Status status = ShareHeads(l, h.heads, BlockOf(file, LayerName(i, "attn_output.weight")), rank, size, &s);
    if (status.ok() && l.feed_forward > 0) {
      status = ShareWidth(l.feed_forward, BlockOf(file, LayerName(i, "ffn_down.weight")), rank, size, &s.feed_forward);
    }
    if (status.ok() && h.experts > 0) {
      const int64_t block = BlockOf(file, LayerName(i, "ffn_down_exps.weight"));
      if (!ShareWidth(h.expert_feed_forward, block, rank, size, &s.expert_feed_forward).ok()) s.expert_feed_forward = {0, h.expert_feed_forward};
    }
    if (!status.ok()) return absl::InvalidArgumentError(fmt::format("layer {} has {}", i, MessageOf(status)));
    // A layer that reads another's cache must find the same KV heads there on its rank.
    if (l.kv_source != i) {
      const Range& source = shard.layers[static_cast<size_t>(l.kv_source)].kv_heads;
      if (source.first != s.kv_heads.first || source.count != s.kv_heads.count) {
        return absl::InvalidArgumentError(fmt::format("layer {} reads the cache of layer {}, which is divided in another way", i, l.kv_source));
      }
    }
    shard.layers.push_back(s);
  }
  return shard;
}

}  // namespace

absl::StatusOr<Shard> MakeShard(const GgufFile& file, const Hparams& h, uint32_t rank, uint32_t size) {
  HF_CHECK(rank < size);
  if (size == 1) return Whole(h);  // whether the file fits the hyper-parameters is the plan's to say
  auto shard = Divide(file, h, rank, size);
  if (shard.ok()) return shard;
  std::string works = "1";
  for (uint32_t n = 2; n <= kMaxRanks; ++n) {
    if (Divide(file, h, 0, n).ok()) works += fmt::format(", {}", n);
  }
  return absl::InvalidArgumentError(fmt::format("--tp {}: {} cannot be divided among {} ranks: {}; the numbers of ranks that work are {}", size,
                                                file.path(), size, MessageOf(shard.status()), works));
}

Hparams HparamsOf(const Shard& shard, const Hparams& whole) {
  Hparams h = whole;
  for (size_t i = 0; i < h.layers.size(); ++i) {
    h.layers[i].heads = static_cast<int32_t>(shard.layers[i].heads.count);
    h.layers[i].kv_heads = static_cast<int32_t>(shard.layers[i].kv_heads.count);
    h.layers[i].feed_forward = static_cast<int32_t>(shard.layers[i].feed_forward.count);
  }
  return h;
}

std::vector<int64_t> VocabShares(int64_t vocab, uint32_t size) {
  std::vector<int64_t> out;
  for (uint32_t r = 0; r < size; ++r) out.push_back(ShareVocab(vocab, r, size).count);
  return out;
}

}  // namespace holdfast::model

// Which rank holds what, and that the parts of a file's tensors are the tensors.
#include "worker/model/shard.h"

#include <catch2/catch.hpp>

#include <unistd.h>

#include <numeric>

#include "kernels/ops.h"
#include "kernels/quant_blocks.h"
#include "worker/model/tensor_plan.h"
#include "worker/model/tools/make_model.h"
#include "worker/model/weights.h"

namespace holdfast::test {
namespace {

using model::GgufFile;
using model::Range;

std::unique_ptr<GgufFile> File(std::string bytes) {
  auto file = GgufFile::FromBytes(std::move(bytes), "made.gguf");
  REQUIRE(file.ok());
  return *std::move(file);
}

std::shared_ptr<const model::WeightStore> Load(const GgufFile& file, kernels::Ops& ops, uint32_t rank, uint32_t size) {
  const auto h = model::ReadHparams(file);
  REQUIRE(h.ok());
  const auto shard = model::MakeShard(file, *h, rank, size);
  INFO(shard.status());
  REQUIRE(shard.ok());
  const auto plan = model::TensorPlan::Make(file, *h, *shard);
  REQUIRE(plan.ok());
  model::WeightOptions options;
  options.check_values = true;
  auto store = model::WeightStore::Create(file, *plan, ops, options);
  INFO(store.status());
  REQUIRE(store.ok());
  CHECK((*store)->bytes() == model::WeightStore::BytesNeeded(*plan, ops));
  return *std::move(store);
}

// Row `row` of expert `expert`, in floats (reference layout).
std::vector<float> Row(const kernels::Weight& w, int64_t expert, int64_t row) {
  std::vector<float> out(static_cast<size_t>(w.in));
  kernels::DequantizeRow(w.dtype, w.data + expert * w.expert_stride + row * kernels::RowBytes(w.dtype, w.in), out.data(), w.in);
  return out;
}

}  // namespace

TEST_CASE("the shares of all ranks make the whole, once", "[tp][shard]") {
  model::RandomModelOptions o;
  const auto llama = File(model::RandomLlama(o).Finish());
  o.experts = true;
  o.per_layer = 32;
  const auto gemma = File(model::RandomGemma4(o).Finish());
  for (const GgufFile* file : {llama.get(), gemma.get()}) {
    const auto h = model::ReadHparams(*file);
    REQUIRE(h.ok());
    for (const uint32_t size : {1u, 2u, 4u}) {
      if (size == 4 && h->experts > 0) continue;  // its experts are two blocks wide
      int64_t vocab = 0;
      std::vector<int64_t> heads(h->layers.size()), ff(h->layers.size()), experts(h->layers.size());
      for (uint32_t r = 0; r < size; ++r) {
        const auto shard = model::MakeShard(*file, *h, r, size);
        INFO(shard.status());
        REQUIRE(shard.ok());
        CHECK(shard->vocab.first == vocab);
        vocab += shard->vocab.count;
        CHECK(shard->vocab.count == model::VocabShares(h->vocab, size)[r]);
        const model::Hparams own = model::HparamsOf(*shard, *h);
        for (size_t i = 0; i < h->layers.size(); ++i) {
          const model::LayerShard& s = shard->layers[i];
          CHECK(s.heads.first == heads[i]);
          CHECK(s.feed_forward.first == ff[i]);
          CHECK(s.expert_feed_forward.first == experts[i]);
          heads[i] += s.heads.count;
          ff[i] += s.feed_forward.count;
          experts[i] += s.expert_feed_forward.count;
          CHECK(own.layers[i].heads == s.heads.count);
          // A rank's query heads read the rank's KV heads, evenly.
          const int64_t group = h->heads / h->layers[i].kv_heads;
          CHECK(s.heads.first / group == s.kv_heads.first);
          CHECK((s.heads.first + s.heads.count - 1) / group == s.kv_heads.first + s.kv_heads.count - 1);
          CHECK(s.heads.count % s.kv_heads.count == 0);
        }
      }
      CHECK(vocab == h->vocab);
      for (size_t i = 0; i < h->layers.size(); ++i) {
        CHECK(heads[i] == h->heads);
        CHECK(ff[i] == h->layers[i].feed_forward);
        CHECK(experts[i] == h->expert_feed_forward);
      }
    }
  }
}

TEST_CASE("a rank's weights are rows and columns of the file's", "[tp][shard]") {
  const auto ops = kernels::MakeReferenceOps();
  model::RandomModelOptions o;
  o.type = kernels::DType::kQ4_0;
  o.experts = true;
  const auto file = File(model::RandomGemma4(o).Finish());
  const auto h = model::ReadHparams(*file);
  const auto whole = Load(*file, *ops, 0, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto part = Load(*file, *ops, rank, 2);
    const auto shard = model::MakeShard(*file, *h, rank, 2);
    CHECK(part->bytes() < whole->bytes());
    size_t wrong = 0;
    const auto compare = [&](const std::string& name, int64_t experts, Range rows, Range columns) {
      const kernels::Weight a = whole->matrix(name), b = part->matrix(name);
      CAPTURE(name, rank);
      REQUIRE(a);
      REQUIRE(b);
      if (rows.count == 0) rows = {0, a.out};
      if (columns.count == 0) columns = {0, a.in};
      REQUIRE((b.out == rows.count && b.in == columns.count && b.experts == experts));
      for (int64_t e = 0; e < experts; ++e) {
        for (int64_t r = 0; r < rows.count; ++r) {
          const auto want = Row(a, e, rows.first + r), got = Row(b, e, r);
          wrong += !std::equal(got.begin(), got.end(), want.begin() + columns.first);
        }
      }
      CHECK(wrong == 0);
    };
    compare("token_embd.weight", 1, shard->vocab, {});
    for (int i = 0; i < static_cast<int>(h->layers.size()); ++i) {
      const std::string blk = "blk." + std::to_string(i) + ".";
      const model::LayerShard& s = shard->layers[static_cast<size_t>(i)];
      const int64_t hd = h->layers[static_cast<size_t>(i)].head_dim;
      compare(blk + "attn_q.weight", 1, s.heads.Times(hd), {});
      compare(blk + "attn_k.weight", 1, s.kv_heads.Times(hd), {});
      compare(blk + "attn_output.weight", 1, {}, s.heads.Times(hd));
      compare(blk + "ffn_gate.weight", 1, s.feed_forward, {});
      compare(blk + "ffn_down.weight", 1, {}, s.feed_forward);
      compare(blk + "ffn_gate_inp.weight", 1, {}, {});
      compare(blk + "ffn_down_exps.weight", h->experts, {}, s.expert_feed_forward);
      const kernels::Weight gate_up = part->matrix(blk + "ffn_gate_up_exps.weight");
      if (!gate_up) continue;
      const kernels::Weight all = whole->matrix(blk + "ffn_gate_up_exps.weight");
      const Range f = s.expert_feed_forward;
      REQUIRE(gate_up.out == 2 * f.count);
      for (int64_t e = 0; e < h->experts; ++e) {
        for (int64_t r = 0; r < f.count; ++r) {
          wrong += Row(gate_up, e, r) != Row(all, e, f.first + r);
          wrong += Row(gate_up, e, f.count + r) != Row(all, e, all.out / 2 + f.first + r);
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("weights kept by one rank are not another's", "[tp][shard]") {
  const auto ops = kernels::MakeReferenceOps();
  const auto file = File(model::RandomLlama({}).Finish());
  const auto h = model::ReadHparams(*file);
  const auto zero = Load(*file, *ops, 0, 2);
  for (const uint32_t rank : {0u, 1u}) {
    const auto shard = model::MakeShard(*file, *h, rank, 2);
    const auto plan = model::TensorPlan::Make(*file, *h, *shard);
    const auto attached = model::WeightStore::Attach(UniqueFd(::dup(zero->fd())), *file, *plan, *ops);
    CHECK(attached.ok() == (rank == 0));
  }
}

TEST_CASE("what cannot be divided is refused with the numbers", "[tp][shard]") {
  const auto file = File(model::RandomLlama({}).Finish());
  const auto h = model::ReadHparams(*file);
  const auto shard = model::MakeShard(*file, *h, 0, 3);
  REQUIRE(!shard.ok());
  const std::string why(shard.status().message());
  CAPTURE(why);
  CHECK(why.find("--tp 3: made.gguf cannot be divided among 3 ranks: layer 0 has 4 query heads and 2 key-value heads of 32") == 0);
  CHECK(why.find("the numbers of ranks that work are 1, 2, 4") != std::string::npos);
}

}  // namespace holdfast::test

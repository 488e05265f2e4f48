// How many kernels a layer of a decode step is on the CUDA backend: each costs the device about a microsecond, whatever it computes.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>

#include "tests/support/simt/emulated_ops.h"
#include "worker/exec/kv_storage.h"
#include "worker/model/model.h"
#include "worker/model/tools/make_model.h"

namespace holdfast::test {
namespace {

// Launches of the second step of one row (the first finds out what the backend needs).
uint64_t Launches(const model::GgufWriter& writer) {
  auto ops = kernels::cuda_emulated::MakeOps({}).value();
  const auto file = model::GgufFile::FromBytes(writer.Finish(), "m.gguf").value();
  const auto hparams = model::ReadHparams(*file).value();
  const auto tensors = model::TensorPlan::Make(*file, hparams).value();
  const auto weights = model::WeightStore::Create(*file, tensors, *ops, {}).value();
  const auto plan = model::MakeKvPlan(hparams, *ops, kernels::KvDType::kF16, 16).value();
  const auto model = model::Model::Create(hparams, weights).value();
  kv::CacheShape cache;
  for (const auto& g : plan.groups) cache.groups.push_back({g.window, 4, 4});
  const auto storage = exec::KvStorage::Create(*ops, plan, cache, {}).value();
  uint64_t count = 0;
  for (int32_t position = 0; position < 2; ++position) {
    const uint32_t token = 3;
    const kernels::SequenceSpan span{0, 1, position};
    const int32_t table[] = {0, 1, 2, 3};
    const int32_t* tables[] = {table};
    std::vector<kernels::BlockTables> groups;
    for (const auto& g : plan.groups) groups.push_back({tables, static_cast<int32_t>(g.window)});
    kernels::Batch batch;
    batch.tokens = {&token, 1};
    batch.positions = {&position, 1};
    batch.sequences = {&span, 1};
    batch.groups = groups;
    batch.page_size = 16;
    const uint64_t before = simt::TheCounts().launches;
    model->Forward(*ops, batch, storage->view());
    count = simt::TheCounts().launches - before;
    ops->Sync();
    REQUIRE(ops->Health().ok());
  }
  return count;
}

template <class Make>
uint64_t PerLayer(Make&& make, model::RandomModelOptions options, int32_t fewer, int32_t more) {
  options.layers = fewer;
  const uint64_t few = Launches(make(options));
  options.layers = more;
  const uint64_t many = Launches(make(options));
  REQUIRE((many - few) % static_cast<uint64_t>(more - fewer) == 0);
  return (many - few) / static_cast<uint64_t>(more - fewer);
}

}  // namespace

TEST_CASE("a layer of a decode step is as few kernels as it should be") {
  // Norm with activations, q k v, 2 rotations, KV write, attention, activations, o; norm with activations, gate and up, activations, down.
  CHECK(PerLayer(model::RandomLlama, {}, 1, 3) == 12);
  // A windowed and two more layers, one of them full: 3 head norms, 2 norms of outputs and a factor more than llama.
  CHECK(PerLayer(model::RandomGemma4, {}, 3, 6) == 18);
  // Beside the feed-forward network: norm, scale, activations and product of the router, choice; norm with activations, 2 products with activations
  // between, sum; 2 norms of outputs, an addition.
  model::RandomModelOptions experts;
  experts.experts = true;
  CHECK(PerLayer(model::RandomGemma4, experts, 3, 6) == 31);
}

}  // namespace holdfast::test

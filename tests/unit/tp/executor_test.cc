// The executors of two ranks with an emulated device each: what they draw, by whatever means they sum, and what a step ends with when the
// other rank is gone.
#include "worker/exec/executor.h"

#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <string>

#include "kernels/device_collective.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/ranks.h"
#include "tests/support/simt/emulated_ops.h"
#include "worker/model/tools/make_model.h"
#include "worker/tp/device_group.h"

namespace holdfast::test {
namespace {

struct Rank {
  std::unique_ptr<kernels::Ops> ops;
  model::KvPlan plan;
  std::unique_ptr<exec::Executor> executor;

  Rank(const model::GgufFile& file, tp::Group& group, tp::Collective& host, tp::Collectives wanted) {
    kernels::CudaOptions device;
    device.device = static_cast<int>(group.rank());
    device.devices = static_cast<int>(group.size());
    ops = kernels::cuda_emulated::MakeOps(device).value();
    tp::JoinOptions join;
    join.wanted = wanted;
    join.load = [] { return &FakeNccl(); };
    HF_CHECK(tp::JoinDevices(ops.get(), &host, &group, join).ok());
    HF_CHECK((ops->ranks() != nullptr) == (wanted == tp::Collectives::kNccl));
    const model::Hparams whole = model::ReadHparams(file).value();
    const model::Shard shard = model::MakeShard(file, whole, group.rank(), group.size()).value();
    const model::TensorPlan tensors = model::TensorPlan::Make(file, whole, shard).value();
    const model::Hparams hparams = model::HparamsOf(shard, whole);
    auto weights = model::WeightStore::Create(file, tensors, *ops, {}).value();
    plan = model::MakeKvPlan(hparams, *ops, kernels::KvDType::kF16, 16).value();
    auto net = model::Model::Create(hparams, std::move(weights), &host).value();
    kv::CacheShape cache;
    for (const auto& g : plan.groups) cache.groups.push_back({g.window, 16, 16});
    exec::ExecutorOptions options{64, 4, 8};
    options.ranks = &host;
    executor = exec::Executor::Create(ops.get(), std::move(net), plan, cache, {}, options).value();
  }
};

// Two sequences, each in eight pages of its own: a prompt of each, then a token of each a step.
struct Talk {
  explicit Talk(size_t g) : groups(g) {
    for (const uint64_t id : {1, 2}) {
      exec::SamplingParams params;
      params.temperature = 1.f;
      params.seed = 40 + id;
      table.Add(RequestId(id), params);
    }
  }
  absl::Status Step(exec::Executor& executor) {
    sched::StepPlan plan;
    plan.step = StepNo(++step);
    for (size_t s = 0; s < 2; ++s) {
      sched::StepEntry e;
      e.request = RequestId(s + 1);
      e.start = computed[s];
      e.tokens = std::span(tokens[s]).subspan(computed[s]);
      e.history = tokens[s];
      e.prompt_tokens = prompt[s];
      e.sample = true;
      e.tables.assign(groups, pages[s].data());
      plan.total_tokens += static_cast<uint32_t>(e.tokens.size());
      computed[s] = static_cast<uint32_t>(tokens[s].size());
      plan.entries.push_back(std::move(e));
    }
    const auto ran = executor.Run(plan, table);
    if (!ran.ok()) return ran.status();
    const auto& sampled = (*ran)->result.sampled;
    HF_CHECK(sampled.size() == 2);
    for (size_t s = 0; s < 2; ++s) {
      HF_CHECK(!sampled[s].failed);
      tokens[s].push_back(sampled[s].token);
    }
    return absl::OkStatus();
  }

  size_t groups;
  exec::SamplingTable table;
  uint64_t step = 0;
  std::vector<TokenId> tokens[2] = {{5, 9, 2, 77, 31}, {8, 120, 64}};
  uint32_t prompt[2] = {5, 3}, computed[2] = {0, 0};
  std::vector<int32_t> pages[2] = {{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}};
};

std::unique_ptr<model::GgufFile> File() {
  model::RandomModelOptions options;
  options.type = kernels::DType::kF32;
  return model::GgufFile::FromBytes(model::RandomLlama(options).Finish(), "m.gguf").value();
}

struct TwoDevices {
  TwoDevices() { simt::TheFakeDevice().count = 2; }
  ~TwoDevices() { simt::TheFakeDevice() = {}; }
};

}  // namespace

TEST_CASE("Two ranks draw the same tokens whether their devices sum by themselves or through the host", "[tp]") {
  const TwoDevices devices;
  const auto file = File();
  std::vector<TokenId> said[2][2][2];   // [means][rank][sequence]
  for (const int means : {0, 1}) {
    RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
      Rank r(*file, group, host, means == 0 ? tp::Collectives::kHost : tp::Collectives::kNccl);
      Talk talk(r.plan.groups.size());
      for (int i = 0; i < 8; ++i) HF_CHECK(talk.Step(*r.executor).ok());
      for (int s = 0; s < 2; ++s) said[means][rank][s] = talk.tokens[s];
      HF_CHECK(group.Meet().ok());
    });
  }
  for (int s = 0; s < 2; ++s) {
    CHECK(said[0][0][s].size() == (s == 0 ? 13u : 11u));
    CHECK(said[1][0][s] == said[0][0][s]);
    CHECK(said[1][1][s] == said[0][0][s]);
    CHECK(said[0][1][s] == said[0][0][s]);
  }
}

TEST_CASE("A step whose other rank is gone ends with a lost peer", "[tp]") {
  const TwoDevices devices;
  const auto file = File();
  const uint32_t lost = GENERATE(0u, 1u);
  absl::Status status;
  RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
    Rank r(*file, group, host, tp::Collectives::kNccl);
    Talk talk(r.plan.groups.size());
    for (int i = 0; i < 3; ++i) HF_CHECK(talk.Step(*r.executor).ok());
    if (rank == lost) return;
    status = talk.Step(*r.executor);
  });
  CAPTURE(lost, status);
  CHECK(absl::IsUnavailable(status));
  CHECK(tp::IsPeerFault(status));
}

}  // namespace holdfast::test

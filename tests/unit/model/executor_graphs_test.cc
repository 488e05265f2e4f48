// Decode steps as graphs, seen from the executor: the same tokens and the same log-probabilities to the bit with graphs and without, for steps
// of mixed sizes while pages move and pools are resized.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "tests/support/simt/emulated_ops.h"
#include "worker/exec/executor.h"
#include "worker/model/tools/make_model.h"

namespace holdfast::test {
namespace {

constexpr uint32_t kPages = 192, kReserve = 256;
constexpr int32_t kPageSize = 16;

// One executor and the sequences that it computes; a script makes the same calls on several.
class World {
 public:
  World(const model::GgufWriter& writer, bool graphs, kernels::KvDType kv, std::unique_ptr<kernels::Ops> other = nullptr) : ops_(std::move(other)) {
    if (ops_ == nullptr) {
      kernels::CudaOptions options;
      options.graphs = graphs;
      auto ops = kernels::cuda_emulated::MakeOps(options);
      REQUIRE(ops.ok());
      ops_ = *std::move(ops);
    }
    auto file = model::GgufFile::FromBytes(writer.Finish(), "m.gguf");
    REQUIRE(file.ok());
    auto hparams = model::ReadHparams(**file);
    REQUIRE(hparams.ok());
    auto tensors = model::TensorPlan::Make(**file, *hparams);
    REQUIRE(tensors.ok());
    auto weights = model::WeightStore::Create(**file, *tensors, *ops_, {});
    REQUIRE(weights.ok());
    auto plan = model::MakeKvPlan(*hparams, *ops_, kv, kPageSize);
    REQUIRE(plan.ok());
    plan_ = *plan;
    auto model = model::Model::Create(*hparams, *weights);
    REQUIRE(model.ok());
    kv::CacheShape cache;
    for (const auto& g : plan_.groups) cache.groups.push_back({g.window, kPages, kReserve});
    auto executor = exec::Executor::Create(ops_.get(), *std::move(model), plan_, cache, {}, {128, 6, 8, nullptr});
    INFO(executor.status());
    REQUIRE(executor.ok());
    executor_ = *std::move(executor);
    next_.resize(plan_.groups.size());
  }

  void Add(const std::vector<TokenId>& prompt) {
    Sequence s;
    s.tokens = prompt;
    s.prompt = static_cast<uint32_t>(prompt.size());
    s.pages.resize(plan_.groups.size());
    exec::SamplingParams params;
    params.temperature = sequences_.size() % 2 == 0 ? 0.f : 0.8f;
    params.seed = 5 + sequences_.size();
    params.logprobs = true;
    params.top_logprobs = 2;
    sequences_.push_back(std::move(s));
    table_.Add(RequestId(sequences_.size()), params);
  }
  // A step: up to so many tokens of each of the sequences; those that come to their end draw one.
  void Step(const std::vector<std::pair<size_t, uint32_t>>& shares) {
    sched::StepPlan plan;
    plan.step = StepNo(++step_);
    for (const auto& [index, most] : shares) {
      Sequence& s = sequences_[index];
      const uint32_t rows = std::min<uint32_t>(most, static_cast<uint32_t>(s.tokens.size()) - s.computed);
      sched::StepEntry e;
      e.request = RequestId(index + 1);
      e.start = s.computed;
      e.tokens = std::span(s.tokens).subspan(s.computed, rows);
      e.history = std::span(s.tokens).first(s.computed + rows);
      e.prompt_tokens = s.prompt;
      e.sample = s.computed + rows == s.tokens.size();
      for (size_t g = 0; g < s.pages.size(); ++g) {
        while (s.pages[g].size() * kPageSize < s.computed + rows) s.pages[g].push_back(Take(g));
        const uint32_t window = plan_.groups[g].window;
        if (window > 0 && s.computed + 1 > window) {
          for (size_t b = 0; b < (s.computed + 1 - window) / kPageSize; ++b) s.pages[g][b] = -1;
        }
        e.tables.push_back(s.pages[g].data());
      }
      plan.total_tokens += rows;
      s.computed += rows;
      plan.entries.push_back(std::move(e));
    }
    const auto result = executor_->Run(plan, table_);
    INFO(result.status());
    REQUIRE(result.ok());
    for (const auto& token : (*result)->result.sampled) {
      REQUIRE(!token.failed);
      sequences_[token.request.v - 1].tokens.push_back(token.token);
    }
    for (const auto& lp : (*result)->logprobs) said.push_back(lp.tokens.at(0).logprob);
  }
  void MovePages(size_t index) {
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      for (int32_t& page : sequences_[index].pages[g]) {
        if (page < 0) continue;
        const int32_t to = Take(g);
        executor_->MovePage(static_cast<int>(g), static_cast<uint32_t>(page), static_cast<uint32_t>(to));
        page = to;
      }
    }
  }
  // Shrinks every pool to what is in use, and grows it beyond what it had.
  void Resize(uint32_t pages) {
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      REQUIRE(executor_->SetPages(static_cast<int>(g), static_cast<uint32_t>(next_[g])).ok());
      REQUIRE(executor_->SetPages(static_cast<int>(g), pages).ok());
    }
  }
  std::vector<std::vector<TokenId>> Tokens() const {
    std::vector<std::vector<TokenId>> all;
    for (const Sequence& s : sequences_) all.push_back(s.tokens);
    return all;
  }
  uint32_t computed(size_t index) const { return sequences_[index].computed; }
  std::vector<float> said;         // the log-probability of each token drawn

 private:
  struct Sequence {
    std::vector<TokenId> tokens;
    uint32_t prompt = 0, computed = 0;
    std::vector<std::vector<int32_t>> pages;
  };
  int32_t Take(size_t g) {
    REQUIRE(next_[g] < static_cast<int32_t>(executor_->storage().pages(static_cast<int>(g))));
    return next_[g]++;
  }

  std::unique_ptr<kernels::Ops> ops_;
  model::KvPlan plan_;
  std::unique_ptr<exec::Executor> executor_;
  exec::SamplingTable table_;
  std::vector<Sequence> sequences_;
  std::vector<int32_t> next_;
  uint64_t step_ = 0;
};

// Prompts of several lengths come in chunks beside decodes; then sets of sequences of all sizes decode, in shuffled order.
void Play(World& w, uint32_t seed, size_t longest) {
  std::mt19937 random(seed);
  for (size_t i = 0; i < 9; ++i) {
    std::vector<TokenId> prompt(i == 0 ? longest : 1 + random() % 20);   // the first may end at the border of a partition of attention
    for (TokenId& t : prompt) t = static_cast<TokenId>(20 + random() % 200);
    w.Add(prompt);
  }
  w.Step({{0, 100}, {1, 100}});
  w.Step({{1, 1}, {0, 120}});
  w.Step({{0, 100}, {2, 64}});
  while (w.computed(0) + 120 < longest) w.Step({{1, 1}, {2, 1}, {0, 120}});
  w.Step({{0, 120}, {3, 20}, {4, 20}, {5, 20}, {6, 20}});
  w.Step({{7, 20}, {8, 20}, {0, 1}});
  std::vector<size_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  for (int i = 0; i < 26; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    const size_t n = std::array<size_t, 7>{3, 5, 1, 3, 2, 9, 4}[static_cast<size_t>(i) % 7];
    std::vector<std::pair<size_t, uint32_t>> shares;
    for (size_t k = 0; k < n; ++k) shares.emplace_back(order[k], 1);
    w.Step(shares);
    if (i == 9) w.MovePages(order[0]);
    if (i == 12) w.Resize(kReserve);
    if (i == 18) w.MovePages(0);
  }
}

void Compare(const model::GgufWriter& writer, kernels::KvDType kv, size_t longest, const char* name) {
  INFO(name);
  World without(writer, false, kv), with(writer, true, kv);
  Play(without, 3, longest);
  const uint64_t before = simt::TheCounts().graph_launches;
  Play(with, 3, longest);
  const uint64_t graphs = simt::TheCounts().graph_launches - before;
  CHECK(with.Tokens() == without.Tokens());
  REQUIRE(with.said.size() == without.said.size());
  CHECK(std::memcmp(with.said.data(), without.said.data(), with.said.size() * sizeof(float)) == 0);
  // Five padded sizes (1, 2, 4 within the logits' tile, 8 and 16 beyond it) are called once each, once more with something to combine, and again
  // after scratch memory grew.
  CHECK(graphs >= 8);
  fmt::print("  {}: {} of 26 decode steps were graphs\n", name, graphs);
}

}  // namespace

TEST_CASE("an executor with graphs draws what one without draws", "[executor][graphs]") {
  model::RandomModelOptions options;
  options.layers = 2;
  Compare(model::RandomLlama(options), kernels::KvDType::kQ8_0, 508, "llama");
  options.layers = 3;
  options.experts = true;
  Compare(model::RandomGemma4(options), kernels::KvDType::kF16, 130, "gemma4 with experts");
}

TEST_CASE("kernel launches of a decode step, a layer", "[executor][graphs]") {
  model::RandomModelOptions options;
  uint64_t launches[2];
  for (const int layers : {2, 4}) {
    options.layers = layers;
    World w(model::RandomLlama(options), true, kernels::KvDType::kF16);
    for (TokenId i = 0; i < 3; ++i) w.Add({i + 20, i + 30});
    w.Step({{0, 2}, {1, 2}, {2, 2}});
    const simt::Counts start = simt::TheCounts();
    w.Step({{0, 1}, {1, 1}, {2, 1}});
    const simt::Counts called = simt::TheCounts();
    launches[layers == 4] = called.launches - start.launches;
    w.Step({{0, 1}, {1, 1}, {2, 1}});   // recorded
    const simt::Counts recorded = simt::TheCounts();
    w.Step({{0, 1}, {1, 1}, {2, 1}});
    const simt::Counts again = simt::TheCounts();
    CHECK(again.graph_launches == recorded.graph_launches + 1);
    CHECK(again.launches == recorded.launches);
  }
  fmt::print("  {} kernels a layer and {} beside them as calls; as a graph one launch a step\n", (launches[1] - launches[0]) / 2,
             launches[0] * 2 - launches[1]);
  CHECK(launches[1] > launches[0]);
}

}  // namespace holdfast::test

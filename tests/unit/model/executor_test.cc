// Executor, page storage and flight recorder on made models.
#include "worker/exec/executor.h"

#include <cuda_runtime.h>

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include "tests/support/simt/emulated_ops.h"
#include "tests/unit/model/files.h"
#include "worker/model/tools/make_model.h"

namespace holdfast::test {
namespace {

using model::GgufFile;

struct Rig {
  std::unique_ptr<kernels::Ops> ops = kernels::MakeReferenceOps();
  std::unique_ptr<exec::Executor> executor;
  model::KvPlan plan;

  explicit Rig(const model::GgufWriter& writer, const exec::ExecutorOptions& options = {64, 4, 8}, std::unique_ptr<kernels::Ops> other = nullptr) {
    if (other != nullptr) ops = std::move(other);
    auto file = GgufFile::FromBytes(writer.Finish(), "m.gguf");
    REQUIRE(file.ok());
    auto hparams = model::ReadHparams(**file);
    REQUIRE(hparams.ok());
    auto tensors = model::TensorPlan::Make(**file, *hparams);
    REQUIRE(tensors.ok());
    auto weights = model::WeightStore::Create(**file, *tensors, *ops, {});
    REQUIRE(weights.ok());
    auto made = model::MakeKvPlan(*hparams, *ops, kernels::KvDType::kF16, 16);
    REQUIRE(made.ok());
    plan = *made;
    auto m = model::Model::Create(*hparams, *weights);
    REQUIRE(m.ok());
    kv::CacheShape cache;
    for (const auto& g : plan.groups) cache.groups.push_back({g.window, 8, 16});
    auto e = exec::Executor::Create(ops.get(), *std::move(m), plan, cache, {}, options);
    INFO(e.status());
    REQUIRE(e.ok());
    executor = *std::move(e);
  }
};

// A sequence whose blocks are pages 0, 1, 2, ... of every group.
struct Sequence {
  RequestId id{1};
  std::vector<TokenId> tokens;
  uint32_t prompt = 0;
  uint32_t computed = 0;
  std::vector<int32_t> pages = {0, 1, 2, 3, 4, 5, 6, 7};

  sched::StepPlan Plan(uint64_t step, size_t groups, uint32_t rows, bool prompt_logprobs = false) {
    sched::StepPlan plan;
    plan.step = StepNo(step);
    plan.total_tokens = rows;
    sched::StepEntry e;
    e.request = id;
    e.start = computed;
    e.tokens = std::span(tokens).subspan(computed, rows);
    e.history = std::span(tokens).first(computed + rows);
    e.prompt_tokens = prompt;
    e.sample = computed + rows == tokens.size();
    e.prompt_logprobs = prompt_logprobs;
    for (size_t g = 0; g < groups; ++g) e.tables.push_back(pages.data());
    plan.entries.push_back(std::move(e));
    computed += rows;
    return plan;
  }
};

}  // namespace

TEST_CASE("a script model says its script, greedy and sampled", "[executor]") {
  model::ScriptModelOptions options;
  options.scripts = {{{"one ", "two ", "three"}, false}, {{"ping ", "pong "}, true}};
  model::GgufWriter writer;
  std::string error;
  REQUIRE(model::ScriptModel(options, &writer, &error));
  const TokenId eos = 256, s0 = 258, one = 259, s1 = 262, ping = 263;
  for (const float temperature : {0.f, 1.f}) {
    Rig rig(writer);
    exec::SamplingTable table;
    exec::SamplingParams params;
    params.temperature = temperature;
    params.stop_tokens = {eos};
    table.Add(RequestId(1), params);
    Sequence s;
    s.tokens = {'H', 'i', s0};
    s.prompt = 3;
    std::vector<TokenId> said;
    for (uint64_t step = 1; step <= 4; ++step) {
      const auto plan = s.Plan(step, rig.plan.groups.size(), static_cast<uint32_t>(s.tokens.size()) - s.computed);
      const auto result = rig.executor->Run(plan, table);
      REQUIRE(result.ok());
      const auto& sampled = (*result)->result.sampled;
      REQUIRE(sampled.size() == 1);
      CHECK(!sampled[0].failed);
      CHECK(sampled[0].is_stop == (step == 4));
      CHECK((*result)->prefill_tokens == (step == 1 ? 3u : 0u));
      CHECK((*result)->decode_tokens == (step == 1 ? 0u : 1u));
      said.push_back(sampled[0].token);
      s.tokens.push_back(sampled[0].token);
    }
    CHECK(said == std::vector<TokenId>{one, one + 1, one + 2, eos});
    Sequence loop;
    loop.tokens = {s1};
    loop.prompt = 1;
    table.Add(RequestId(1), params);
    for (uint64_t step = 5; step < 15; ++step) {
      const auto result = rig.executor->Run(loop.Plan(step, rig.plan.groups.size(), 1), table);
      REQUIRE(result.ok());
      CHECK((*result)->result.sampled[0].token == ping + (step - 5) % 2);
      loop.tokens.push_back((*result)->result.sampled[0].token);
    }
    CHECK(rig.executor->flight_recorder().size() == 8);
    CHECK(rig.executor->flight_recorder().At(7).step == 14);
  }
}

// Two sequences decode; each step is launched before the one before it is finished, and its tokens are not in the plan.
TEST_CASE("a step that is launched before its tokens are known draws what it draws afterwards", "[executor]") {
  const bool device = GENERATE(false, true);   // a device draws on itself, and the next step takes the tokens there
  INFO((device ? "device" : "host"));
  const auto ops = [&] { return device ? *kernels::cuda_emulated::MakeOps({}) : kernels::MakeReferenceOps(); };
  model::RandomModelOptions options;
  options.type = kernels::DType::kF32;
  const auto writer = model::RandomLlama(options);
  exec::SamplingTable table;
  for (const uint64_t id : {1, 2}) {
    exec::SamplingParams params;
    params.temperature = 1.f;
    params.seed = 40 + id;
    table.Add(RequestId(id), params);
  }
  constexpr uint64_t kSteps = 8;
  const auto prompts = [] {
    std::vector<Sequence> s(2);
    s[0].tokens = {3, 1, 4, 1, 5};
    s[1] = {RequestId(2), {2, 7, 1}, 0, 0, {7, 6, 5, 4, 3, 2, 1, 0}};
    for (Sequence& q : s) q.prompt = static_cast<uint32_t>(q.tokens.size());
    return s;
  };
  const auto join = [](sched::StepPlan a, sched::StepPlan b, bool b_first) {
    a.total_tokens += b.total_tokens;
    a.entries.insert(b_first ? a.entries.begin() : a.entries.end(), std::move(b.entries[0]));
    return a;
  };
  using Drawn = std::vector<std::pair<uint64_t, TokenId>>;
  const auto drawn = [](const sched::StepResult& result) {
    Drawn tokens;
    for (const sched::SampledToken& t : result.sampled) {
      CHECK(!t.failed);
      tokens.push_back({t.request.v, t.token});
    }
    std::sort(tokens.begin(), tokens.end());
    return tokens;
  };
  std::vector<Drawn> expected;
  {
    Rig rig(writer, {64, 4, 8}, ops());
    auto s = prompts();
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const auto rows = [](const Sequence& q) { return static_cast<uint32_t>(q.tokens.size()) - q.computed; };
      const size_t groups = rig.plan.groups.size();
      const auto ran = rig.executor->Run(join(s[0].Plan(step, groups, rows(s[0])), s[1].Plan(step, groups, rows(s[1])), false), table);
      REQUIRE(ran.ok());
      expected.push_back(drawn((*ran)->result));
      for (const auto& [request, token] : expected.back()) s[request - 1].tokens.push_back(token);
    }
  }
  Rig rig(writer, {64, 4, 8}, ops());
  auto s = prompts();
  const TokenId unknown = 0xffffffff;
  const auto awaiting = [&](Sequence& q, uint64_t step) {
    const uint32_t known = static_cast<uint32_t>(q.tokens.size());
    q.tokens.push_back(unknown);
    auto plan = q.Plan(step, rig.plan.groups.size(), 1);
    plan.entries[0].history = std::span<const TokenId>(q.tokens).first(known);
    plan.entries[0].awaits = plan.entries[0].sample = true;
    return plan;
  };
  for (Sequence& q : s) q.tokens.reserve(64);   // plans point into it
  const size_t groups = rig.plan.groups.size();
  std::vector<sched::StepPlan> plans;
  plans.reserve(kSteps);
  plans.push_back(join(s[0].Plan(1, groups, 5), s[1].Plan(1, groups, 3), false));
  REQUIRE(rig.executor->Launch(plans.back(), table).ok());
  for (uint64_t step = 2; step <= kSteps; ++step) {
    plans.push_back(join(awaiting(s[0], step), awaiting(s[1], step), step % 2 == 0));
    REQUIRE(rig.executor->Launch(plans.back(), table).ok());
    CHECK(rig.executor->launched() == 2);
    if (device) CHECK(rig.ops->DrawsTokens());
    const auto ran = rig.executor->Finish();
    REQUIRE(ran.ok());
    CHECK((*ran)->result.step.v == step - 1);
    CHECK(drawn((*ran)->result) == expected[step - 2]);
    for (const sched::SampledToken& t : (*ran)->result.sampled) {
      auto& tokens = s[t.request.v - 1].tokens;
      tokens[tokens.size() - 1] = t.token;   // as the scheduler does on settling: the awaited one of the newer step stays unknown to it
    }
  }
  const auto ran = rig.executor->Finish();
  REQUIRE(ran.ok());
  CHECK(drawn((*ran)->result) == expected[kSteps - 1]);
  CHECK(rig.executor->flight_recorder().At(7).step == kSteps);
}

// Requests that ask for log-probabilities are drawn by the host, from the same logits.
TEST_CASE("a device draws the tokens that the host draws from its logits, and fails in the same words", "[executor]") {
  struct Source final : exec::ConstraintSource {
    std::vector<TokenId> few;
    std::vector<uint64_t> bits = std::vector<uint64_t>(64, 0x5555555555555555u);
    absl::StatusOr<exec::AllowedTokens> Allowed(RequestId request, std::span<const TokenId> history, uint32_t) override {
      if (request.v == 6 && history.size() > 7) return absl::InvalidArgumentError("no more");
      few = {static_cast<TokenId>(40 + history.size()), static_cast<TokenId>(90 + history.size())};
      exec::AllowedTokens out;
      out.dense = request.v == 5;
      out.bits = bits;
      out.few = few;
      return out;
    }
  };
  std::vector<exec::SamplingParams> params(8);
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].seed = 7 + i;
    params[i].temperature = i == 0 ? 0.f : 1.5f;
  }
  params[1].top_p = 0.8f;
  params[2].top_k = 30;
  params[2].frequency_penalty = 0.9f;
  params[2].repetition_penalty = 1.4f;
  params[3].min_p = 0.2f;
  params[3].logit_bias = {{9, 3.f}, {7, 2.f}, {9, 1.f}};
  params[3].suppress_tokens = {1, 2, 3};
  params[4].constrained = params[5].constrained = params[6].constrained = true;
  params[6].suppress_tokens = {46, 96};   // all that its constraint allows at its second token
  params[7].stop_tokens.resize(200);
  std::iota(params[7].stop_tokens.begin(), params[7].stop_tokens.end(), 0);
  const auto writer = model::RandomLlama({});
  struct Said {
    TokenId token;
    bool failed, refused, stop;
    std::string why;
    bool operator==(const Said&) const = default;
  };
  const auto run = [&](bool by_host) {
    auto cuda = kernels::cuda_emulated::MakeOps({});
    REQUIRE(cuda.ok());
    Rig rig(writer, {64, 3, 8}, *std::move(cuda));
    Source source;
    rig.executor->SetConstraints(&source);
    exec::SamplingTable table;
    std::vector<Sequence> sequences(params.size());
    std::vector<exec::ExecResult> results;
    std::vector<std::vector<Said>> said(params.size());
    for (size_t i = 0; i < params.size(); ++i) {
      exec::SamplingParams p = params[i];
      p.logprobs = by_host;
      Sequence& s = sequences[i];
      s.id = RequestId(i + 1);
      s.tokens = {static_cast<TokenId>(3 + i), 5, 8, 13, 21};
      s.prompt = 5;
      s.pages = {static_cast<int32_t>(i)};
      table.Add(s.id, p, s.tokens);
    }
    for (uint64_t step = 1; step <= 5; ++step) {
      sched::StepPlan plan;
      plan.step = StepNo(step);
      for (Sequence& s : sequences) {
        auto own = s.Plan(step, rig.plan.groups.size(), static_cast<uint32_t>(s.tokens.size()) - s.computed, step == 1 && s.id.v == 2);
        plan.total_tokens += own.total_tokens;
        plan.entries.push_back(std::move(own.entries[0]));
      }
      const auto ran = rig.executor->Run(plan, table);
      INFO(ran.status());
      REQUIRE(ran.ok());
      REQUIRE((*ran)->result.sampled.size() == sequences.size());
      size_t scored = 0;
      for (const auto& lp : (*ran)->logprobs) scored += lp.prompt ? lp.tokens.size() : 0;
      CHECK(scored == (step == 1 ? 4 : 0));
      for (size_t i = 0; i < sequences.size(); ++i) {
        const sched::SampledToken& t = (*ran)->result.sampled[i];
        CHECK(t.request == sequences[i].id);
        said[i].push_back({t.failed ? 0 : t.token, t.failed, t.refused, t.is_stop, t.why});
        sequences[i].tokens.push_back(t.failed ? 1 : t.token);
      }
    }
    return said;
  };
  const auto device = run(false), host = run(true);
  for (size_t i = 0; i < params.size(); ++i) {
    INFO("request " << i + 1);
    for (size_t step = 0; step < device[i].size(); ++step) {
      INFO("step " << step + 1);
      CHECK(device[i][step].token == host[i][step].token);
      CHECK(device[i][step].why == host[i][step].why);
      CHECK(device[i][step] == host[i][step]);
    }
  }
  CHECK(device[5][4].why == "no more");
  CHECK(device[6][1].why == "token 1 could not be drawn: bias and suppression leave no token of those that the constraint allows");
  CHECK(device[6][1].refused);
  CHECK(!device[4][0].failed);
}

TEST_CASE("prompt logprobs score every prompt token, in tiles and across chunks", "[executor]") {
  model::RandomModelOptions options;
  options.type = kernels::DType::kF32;
  options.layers = 3;
  const auto writer = model::RandomGemma4(options);
  exec::SamplingParams params;
  params.logprobs = true;
  params.top_logprobs = 3;
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 23; ++i) prompt.push_back(20 + i * 7 % 300);
  // Tiles have 4 rows: on a device the larger chunks are scored tile by tile, the others when the step is finished.
  const bool device = GENERATE(false, true);
  std::vector<float> whole;
  for (const uint32_t chunk : {23u, 5u, 3u, 1u}) {
    Rig rig(writer, {64, 4, 8}, device ? *kernels::cuda_emulated::MakeOps({}) : nullptr);
    exec::SamplingTable table;
    table.Add(RequestId(1), params, prompt);
    Sequence s;
    s.tokens = prompt;
    s.prompt = 23;
    std::vector<float> got;
    uint32_t next = 1;
    uint64_t step = 0;
    while (s.computed < s.tokens.size()) {
      const uint32_t rows = std::min<uint32_t>(chunk, 23 - s.computed);
      const auto result = rig.executor->Run(s.Plan(++step, rig.plan.groups.size(), rows, true), table);
      REQUIRE(result.ok());
      for (const auto& lp : (*result)->logprobs) {
        if (!lp.prompt) {
          CHECK(lp.first == 23);
          continue;
        }
        CHECK(lp.first == next);
        next += static_cast<uint32_t>(lp.tokens.size());
        for (size_t i = 0; i < lp.tokens.size(); ++i) {
          CHECK(lp.tokens[i].token == prompt[lp.first + i]);
          CHECK(lp.tokens[i].logprob <= lp.top[i][0].logprob);
          CHECK(lp.top[i].size() == 3);
          got.push_back(lp.tokens[i].logprob);
        }
      }
    }
    CHECK(next == 23);
    REQUIRE(got.size() == 22);
    if (whole.empty()) whole = got;
    CHECK(got == whole);
  }
}

TEST_CASE("what a constraint allows is worked out beside the forward pass, and asked for the draw", "[executor]") {
  struct Source final : exec::ConstraintSource {
    std::vector<std::pair<std::thread::id, size_t>> asked;   // by whom, and how much history there was
    std::vector<TokenId> allowed;
    bool fails = false;
    absl::StatusOr<exec::AllowedTokens> Allowed(RequestId, std::span<const TokenId> history, uint32_t) override {
      asked.emplace_back(std::this_thread::get_id(), history.size());
      if (fails) return absl::InvalidArgumentError("no");
      allowed = {static_cast<TokenId>(40 + history.size())};
      exec::AllowedTokens out;
      out.few = allowed;
      return out;
    }
  };
  Source source;
  Rig rig(model::RandomLlama({}));
  rig.executor->SetConstraints(&source);
  exec::SamplingTable table;
  exec::SamplingParams params;
  table.Add(RequestId(1), params);
  Sequence s;
  s.tokens = {1, 2};
  s.prompt = 2;
  const size_t groups = rig.plan.groups.size();
  REQUIRE(rig.executor->Run(s.Plan(1, groups, 2), table).ok());
  CHECK(source.asked.empty());  // it has none
  params.constrained = true;
  table.Add(RequestId(1), params);
  for (uint64_t step = 2; step < 6; ++step) {
    s.tokens.push_back(7);
    source.asked.clear();
    source.fails = step == 5;
    const auto result = rig.executor->Run(s.Plan(step, groups, 1), table);
    REQUIRE(result.ok());
    const auto& sampled = (*result)->result.sampled;
    REQUIRE(sampled.size() == 1);
    CHECK(sampled[0].failed == source.fails);
    if (source.fails) {
      CHECK(sampled[0].why == "no");
    } else {
      CHECK(sampled[0].token == 40 + s.tokens.size());
    }
    REQUIRE(source.asked.size() == 2);
    CHECK(source.asked[0].first != std::this_thread::get_id());
    CHECK(source.asked[1].first == std::this_thread::get_id());
    CHECK(source.asked[0].second == s.tokens.size());
    CHECK(source.asked[1].second == s.tokens.size());
  }
}

TEST_CASE("an entry without parameters is an error in words", "[executor]") {
  Rig rig(model::RandomLlama({}));
  exec::SamplingTable table;
  Sequence s;
  s.tokens = {1, 2};
  const auto result = rig.executor->Run(s.Plan(1, rig.plan.groups.size(), 2), table);
  CHECK(result.status().code() == absl::StatusCode::kInternal);
}

TEST_CASE("page storage keeps addresses through resizes and moves contents", "[executor]") {
  Rig rig(model::RandomGemma4({}));
  auto& executor = *rig.executor;
  const auto before = executor.storage().view().layers[0].base;
  CHECK(executor.SetPages(0, 16).ok());
  CHECK(executor.SetPages(0, 17).code() == absl::StatusCode::kInvalidArgument);
  CHECK(executor.storage().view().layers[0].base == before);
  // Every layer of the group moves.
  const auto& plan = executor.storage().plan();
  for (const int32_t layer : plan.groups[1].layers) {
    const auto& l = executor.storage().view().layers[layer];
    memset(l.base + 3 * l.page_stride, 10 + layer, static_cast<size_t>(plan.layers[layer].page_bytes));
    memset(l.base + 2 * l.page_stride, 1, static_cast<size_t>(plan.layers[layer].page_bytes));
  }
  executor.MovePage(1, 3, 2);
  for (const int32_t layer : plan.groups[1].layers) {
    const auto& l = executor.storage().view().layers[layer];
    CHECK(static_cast<int>(l.base[2 * l.page_stride]) == 10 + layer);
    CHECK(static_cast<int>(l.base[2 * l.page_stride + plan.layers[layer].page_bytes - 1]) == 10 + layer);
  }
  // Shrinking gives memory back (contents beyond are zero after growing again) and leaves the rest alone.
  CHECK(executor.SetPages(1, 3).ok());
  CHECK(executor.SetPages(1, 8).ok());
  const auto& l = executor.storage().view().layers[plan.groups[1].layers[0]];
  CHECK(static_cast<int>(l.base[2 * l.page_stride]) == 10 + plan.groups[1].layers[0]);
  kv::CacheShape wrong;
  wrong.groups = {{0, 8, 8}};
  CHECK(!exec::KvStorage::Create(*rig.ops, plan, wrong, {}).ok());
  kv::CacheShape huge;
  for (const auto& g : plan.groups) huge.groups.push_back({g.window, 0x7fffffff, 0});
  CHECK(exec::KvStorage::Create(*rig.ops, plan, huge, {}).status().code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("a device that fails ends the step with its words, and no token is drawn from what it left", "[executor]") {
  auto cuda = kernels::cuda_emulated::MakeOps({});
  REQUIRE(cuda.ok());
  Rig rig(model::RandomLlama({}), {64, 4, 8}, *std::move(cuda));
  exec::SamplingTable table;
  table.Add(RequestId(1), {});
  Sequence s;
  s.tokens = {1, 2, 3, 4};
  const size_t groups = rig.plan.groups.size();
  REQUIRE(rig.executor->Run(s.Plan(1, groups, 4), table).ok());
  s.tokens.push_back(5);
  simt::TheFakeDevice().next_sync_error = cudaErrorIllegalAddress;
  const auto failed = rig.executor->Run(s.Plan(2, groups, 1), table);
  REQUIRE(!failed.ok());
  CHECK(failed.status().code() == absl::StatusCode::kAborted);
  CHECK(failed.status() == rig.ops->Health());
  s.tokens.push_back(6);
  CHECK(!rig.executor->Run(s.Plan(3, groups, 1), table).ok());
}

TEST_CASE("the flight record is one JSON object a step", "[executor]") {
  TempDir dir;
  exec::FlightRecorder recorder(3);
  for (uint64_t i = 1; i <= 5; ++i) {
    exec::StepRecord& r = recorder.Begin();
    r.step = i;
    r.entries = 1;
    r.shares[0] = {i * 10, 4, 1, i == 5 ? UINT32_MAX : 7};
  }
  REQUIRE(recorder.WriteFile(dir.path() + "/flight"));
  std::ifstream in(dir.path() + "/flight");
  std::stringstream text;
  text << in.rdbuf();
  CHECK(text.str() ==
        "{\"step\":3,\"digest\":0,\"started_us\":0,\"step_us\":0,\"entries\":1,\"prefill_tokens\":0,\"decode_tokens\":0,\"failed\":0,"
        "\"shares\":[{\"request\":30,\"start\":4,\"rows\":1,\"token\":7}]}\n"
        "{\"step\":4,\"digest\":0,\"started_us\":0,\"step_us\":0,\"entries\":1,\"prefill_tokens\":0,\"decode_tokens\":0,\"failed\":0,"
        "\"shares\":[{\"request\":40,\"start\":4,\"rows\":1,\"token\":7}]}\n"
        "{\"step\":5,\"digest\":0,\"started_us\":0,\"step_us\":0,\"entries\":1,\"prefill_tokens\":0,\"decode_tokens\":0,\"failed\":0,"
        "\"shares\":[{\"request\":50,\"start\":4,\"rows\":1}]}\n");
  CHECK(!recorder.WriteFile("/nonexistent/flight"));
}

}  // namespace holdfast::test

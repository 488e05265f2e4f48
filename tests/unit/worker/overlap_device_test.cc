// The whole of a worker's compute with two steps in flight, on the emulated device and on the CPU: decodes that await their token draw what
// decodes with the token in hand draw, whatever stops in between.
#include <catch2/catch.hpp>

#include <deque>
#include <map>

#include "tests/unit/model/files.h"
#include "tests/unit/worker/device_rig.h"
#include "worker/model/tools/make_model.h"
#include "worker/runtime.h"

namespace holdfast::worker {
namespace {

using test::TempDir;

struct Answers {
  std::map<uint64_t, std::vector<TokenId>> tokens;
  std::map<uint64_t, sched::EndReason> ends;
  uint64_t steps = 0, awaited = 0;
};

// Greedy, seeded and penalised requests that come one after the other, stop at some tokens and share a beginning; rounds as the worker's loop has them.
Answers Serve(Runtime& runtime) {
  Answers out;
  auto& scheduler = runtime.scheduler();
  exec::SamplingTable sampling;
  std::deque<const sched::StepPlan*> launched;
  uint64_t id = 0;
  for (int round = 0; round < 500; ++round) {
    if (id < 6 && round % 3 == 0) {
      sched::SubmitCommand c;
      c.request = RequestId(++id);
      for (uint32_t i = 0; i < 20; ++i) c.tokens.push_back(static_cast<TokenId>((i < 16 ? i * 7 : i * 11 + id) % 97 + 1));
      c.prompt_tokens = 20;
      c.max_tokens = static_cast<uint32_t>(6 + 2 * id);
      exec::SamplingParams p;
      p.temperature = id % 3 == 1 ? 0.f : 1.f;
      p.seed = 40 + id;
      if (id == 5) p.repetition_penalty = 1.2f;
      for (TokenId t = 0; t < static_cast<TokenId>(runtime.hparams().vocab); t += 29) p.stop_tokens.push_back(t);
      c.run_ahead = id != 5;
      sampling.Add(c.request, p);
      scheduler.Submit(std::move(c));
    }
    const sched::StepPlan* plan = scheduler.Plan();
    if (plan != nullptr) {
      for (const sched::StepEntry& e : plan->entries) out.awaited += e.awaits;
      const absl::Status status = runtime.executor().Launch(*plan, sampling);
      INFO(status);
      REQUIRE(status.ok());
      launched.push_back(plan);
      ++out.steps;
    }
    if (launched.size() > runtime.overlap_depth() || (plan == nullptr && !launched.empty())) {
      const auto finished = runtime.executor().Finish();
      INFO(finished.status());
      REQUIRE(finished.ok());
      CHECK((*finished)->result.step == launched.front()->step);
      launched.pop_front();
      scheduler.Apply((*finished)->result);
    } else if (plan == nullptr && id == 6) {
      break;
    }
    for (const sched::RequestEvent& e : scheduler.TakeEvents()) {
      if (e.has_token) out.tokens[e.request.v].push_back(e.token);
      if (e.end != sched::EndReason::kNone) out.ends[e.request.v] = e.end;
    }
  }
  CHECK(scheduler.Audit());
  CHECK(scheduler.running() == 0);
  return out;
}

TEST_CASE("answers with two steps in flight are those of steps one by one", "[runtime]") {
  const TempDir dir;
  std::string error;
  REQUIRE(model::RandomGemma4({}).WriteFile(dir.path() + "/model.gguf", &error));
  for (const char* backend : {"cpu", "cuda"}) {
    CAPTURE(backend);
    Answers answers[2];
    for (const uint32_t overlap : {0u, 1u}) {
      WorkerConfig c;
      c.model = dir.path() + "/model.gguf";
      c.backend = backend;
      c.max_running = 4;
      c.prefill_chunk = 64;
      c.num_tokens = 512;
      c.max_seq_len = 256;
      c.overlap = overlap;
      CountedFindings findings;
      auto built = Runtime::Build(c, {}, &findings, Emulated);
      INFO(built.status());
      REQUIRE(built.ok());
      CHECK((*built)->overlap_depth() == overlap);
      answers[overlap] = Serve(**built);
      CHECK(findings.count == 0);
    }
    CHECK(answers[0].awaited == 0);
    CHECK(answers[1].awaited > 10);
    CHECK(answers[0].ends.size() == 6);
    CHECK(answers[1].ends == answers[0].ends);
    CHECK(answers[1].tokens == answers[0].tokens);
  }
}

TEST_CASE("by itself a device with one rank has two steps in flight, the CPU one", "[runtime]") {
  const TempDir dir;
  std::string error;
  REQUIRE(model::RandomLlama({}).WriteFile(dir.path() + "/model.gguf", &error));
  for (const char* backend : {"cpu", "cuda"}) {
    WorkerConfig c;
    c.model = dir.path() + "/model.gguf";
    c.backend = backend;
    c.num_tokens = 512;
    c.max_seq_len = 256;
    c.prefill_chunk = 32;
    CountedFindings findings;
    auto built = Runtime::Build(c, {}, &findings, Emulated);
    INFO(built.status());
    REQUIRE(built.ok());
    CHECK((*built)->overlap_depth() == (std::string(backend) == "cuda" ? 1u : 0u));
  }
}

}  // namespace
}  // namespace holdfast::worker

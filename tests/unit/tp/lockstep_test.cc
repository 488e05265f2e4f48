// Two schedulers that know of each other only through the log, the rounds and the tokens: the same decisions at every step, and a
// difference is seen before the step that it concerns is computed.
#include <catch2/catch.hpp>

#include <deque>
#include <mutex>
#include <random>

#include "tests/support/ranks.h"
#include "worker/sched/scheduler.h"
#include "worker/tp/step_channel.h"

namespace holdfast::test {
namespace {

struct Findings final : FindingSink {
  void Report(Finding finding) override { all.push_back(finding.kind + std::string(": ") + finding.detail); }
  std::vector<std::string> all;
};

sched::SchedulerConfig Config(uint32_t overlap) {
  sched::SchedulerConfig c;
  c.cache.page_size = 4;
  c.cache.groups = {{0, 120, 240}, {16, 60, 120}};
  c.max_running = 4;
  c.prefill_chunk = 24;
  c.max_seq_len = 120;
  c.overlap_depth = overlap;
  c.audit_period = 1;
  return c;
}

// A command of the log, the same for every rank.
struct Command {
  int kind = 0;  // 0 submit, 1 cancel, 2 resize
  sched::SubmitCommand submit;
  RequestId request;
  sched::ResizeCommand resize;
};

std::vector<Command> RandomLog(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  std::vector<Command> log;
  std::vector<TokenId> shared;
  for (int i = 0; i < 40; ++i) shared.push_back(static_cast<TokenId>(below(50)));
  uint64_t id = 0;
  for (int i = 0; i < 120; ++i) {
    Command c;
    const uint64_t what = below(20);
    if (what < 16 || id == 0) {
      c.submit.request = RequestId(++id);
      c.submit.tokens.assign(shared.begin(), shared.begin() + static_cast<ptrdiff_t>(1 + below(shared.size())));
      for (uint64_t n = below(20); n > 0; --n) c.submit.tokens.push_back(static_cast<TokenId>(below(50)));
      c.submit.prompt_tokens = static_cast<uint32_t>(c.submit.tokens.size());
      c.submit.max_tokens = static_cast<uint32_t>(1 + below(30));
      c.submit.run_ahead = i % 4 > 0;
    } else if (what < 19) {
      c.kind = 1;
      c.request = RequestId(1 + below(id));
    } else {
      c.kind = 2;
      c.resize.operation = static_cast<uint64_t>(i) + 1;
      c.resize.full_pages = static_cast<uint32_t>(100 + below(100));
    }
    log.push_back(std::move(c));
  }
  return log;
}

void Take(const Command& c, sched::Scheduler* scheduler) {
  switch (c.kind) {
    case 0: scheduler->Submit(c.submit); break;
    case 1: scheduler->Cancel(c.request); break;
    default: scheduler->Resize(c.resize);
  }
}

struct Outcome {
  uint64_t rounds = 0, steps = 0, awaited = 0, digest = 0;
  bool parted = false;
  uint64_t parted_at = 0;
  std::vector<std::string> findings;
};

// Rank 0 takes commands at its own pace; the log reaches rank 1 ahead of time or late, it does not matter. `spoil` > 0: rank 1 forgets to
// take one command before round `spoil`.
Outcome Drive(uint32_t rank, tp::Group& group, tp::ShmCollective& collective, const std::vector<Command>& log, uint64_t seed, uint64_t spoil, uint32_t overlap) {
  Outcome out;
  Findings findings;
  auto scheduler = *sched::Scheduler::Create(Config(overlap), &findings);
  tp::StepChannel channel(&group);
  std::mt19937_64 pace(seed);
  uint64_t taken = 0;
  std::deque<sched::StepResult> in_flight;
  for (;;) {
    tp::Round lead;
    if (rank == 0) {
      lead.consume_upto = std::min<uint64_t>(log.size(), taken + pace() % 3);
    } else {
      const auto next = channel.Next(std::chrono::seconds(20), &lead);
      if (!next.ok() || !*next) break;
    }
    for (; taken < lead.consume_upto; ++taken) {
      if (rank == 1 && spoil > 0 && out.rounds >= spoil) {
        spoil = 0;
        continue;
      }
      Take(log[taken], scheduler.get());
    }
    scheduler->TakePageMoves();
    const sched::StepPlan* plan = scheduler->Plan();
    const tp::Round own{1, plan == nullptr ? 0 : plan->step.v, taken, scheduler->digest()};
    ++out.rounds;
    if (rank == 0) {
      if (!channel.Publish(own).ok()) break;
    } else if (!(own == lead)) {
      out.parted = true;
      out.parted_at = out.rounds;
      break;
    }
    if (plan != nullptr) {
      ++out.steps;
      // Rank 0 draws.
      std::vector<std::byte> tokens;
      for (const sched::StepEntry& e : plan->entries) {
        out.awaited += e.awaits;
        if (e.sample && rank == 0) tokens.push_back(static_cast<std::byte>(pace() % 50));
      }
      if (!collective.Broadcast(0, &tokens).ok()) break;
      sched::StepResult result;
      result.step = plan->step;
      size_t at = 0;
      for (const sched::StepEntry& e : plan->entries) {
        if (e.sample) result.sampled.push_back({e.request, static_cast<TokenId>(tokens[at]), tokens[at] == std::byte{7}, false}), ++at;
      }
      in_flight.push_back(std::move(result));
    }
    if (in_flight.size() > overlap || (plan == nullptr && !in_flight.empty())) {
      scheduler->Apply(in_flight.front());
      in_flight.pop_front();
    }
    scheduler->TakeEvents();
    if (taken == log.size() && scheduler->running() == 0 && scheduler->waiting() == 0 && in_flight.empty()) break;
  }
  out.digest = scheduler->digest();
  out.findings = findings.all;
  return out;
}

}  // namespace

TEST_CASE("Two ranks that share a log and rounds decide alike at every step", "[tp]") {
  for (const uint64_t seed : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u}) {
    const auto log = RandomLog(seed);
    const uint32_t overlap = seed % 2;
    Outcome outcomes[2];
    RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& c) { outcomes[rank] = Drive(rank, group, c, log, seed * 77, 0, overlap); });
    CAPTURE(seed, outcomes[0].findings, outcomes[1].findings);
    CHECK(outcomes[0].steps > 100);
    CHECK((outcomes[0].awaited > 100) == (overlap > 0));
    CHECK(outcomes[1].steps == outcomes[0].steps);
    CHECK(outcomes[1].rounds == outcomes[0].rounds);
    CHECK(outcomes[1].digest == outcomes[0].digest);
    CHECK(!outcomes[1].parted);
    CHECK(outcomes[1].findings.empty());
  }
}

TEST_CASE("A rank that misses a command parts before it computes with what it does not know", "[tp]") {
  const auto log = RandomLog(3);
  Outcome outcomes[2];
  RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& c) { outcomes[rank] = Drive(rank, group, c, log, 5, 30, 0); });
  CHECK(outcomes[1].parted);
  CHECK(outcomes[1].parted_at >= 30);
  // Rank 0 launched that step at most; it waits for the collective and hears that its peer has left.
  CHECK(outcomes[0].steps <= outcomes[1].steps + 1);
}

}  // namespace holdfast::test

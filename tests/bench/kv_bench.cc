// What the ledger and the scheduler cost, on one core, on random data; numbers only, no assertion about time. Every figure is followed by a
// check that the work was right. kv_bench [--quick]
#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "proto/base/check.h"
#include "proto/base/random.h"
#include "tests/sim/test_peer.h"
#include "worker/sched/scheduler.h"

using namespace holdfast;
using Clock = std::chrono::steady_clock;

namespace {

double Micros(Clock::time_point from) { return std::chrono::duration<double, std::micro>(Clock::now() - from).count(); }

// Processor time of this thread: what the work costs, whoever else uses the machine.
struct Cpu {
  timespec from{};
  Cpu() { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from); }
  double Micros() const {
    timespec to{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return static_cast<double>(to.tv_sec - from.tv_sec) * 1e6 + static_cast<double>(to.tv_nsec - from.tv_nsec) / 1e3;
  }
};

struct Sample {
  std::vector<double> us;
  void Print(const char* what, const char* aim) {
    std::sort(us.begin(), us.end());
    // The least tells what the code costs, the rest what the machine adds.
    fmt::print("{:58} least {:9.2f} us  median {:9.2f} us  p99 {:9.2f} us  n {:6}  aim {}\n", what, us.front(), us[us.size() / 2], us[us.size() * 99 / 100],
               us.size(), aim);
  }
};

std::vector<TokenId> Text(uint64_t seed, uint32_t count) {
  std::vector<TokenId> out(count);
  for (uint32_t i = 0; i < count; ++i) out[i] = static_cast<TokenId>(Mix64(seed << 32 | i) % 100000);
  return out;
}

struct Bench {
  std::unique_ptr<sched::Scheduler> s;
  uint64_t next = 1;
  sched::StepResult result;

  explicit Bench(const sched::SchedulerConfig& c) {
    auto created = sched::Scheduler::Create(c, nullptr);
    HF_CHECKF(created.ok(), "{}", std::string(created.status().message()));
    s = *std::move(created);
  }
  void Submit(std::vector<TokenId> tokens, uint32_t max_tokens) {
    sched::SubmitCommand command;
    command.request = RequestId(next++);
    command.prompt_tokens = static_cast<uint32_t>(tokens.size());
    command.tokens = std::move(tokens);
    command.max_tokens = max_tokens;
    s->Submit(std::move(command));
  }
  // Plan and Apply, timed; 0 when there was nothing to do.
  double Step() {
    const Cpu planned;
    const sched::StepPlan* plan = s->Plan();
    double us = planned.Micros();
    if (plan == nullptr) return 0;
    result.step = plan->step;
    result.sampled.clear();
    for (const sched::StepEntry& e : plan->entries) {
      if (e.sample) result.sampled.push_back({e.request, static_cast<TokenId>(e.history.size()), false, false});
    }
    const Cpu applied;
    s->Apply(result);
    us += applied.Micros();
    s->TakeEvents();
    return us;
  }
};

void StepCost(uint32_t rows, uint32_t tokens, int steps) {
  sched::SchedulerConfig c;
  c.cache.page_size = 16;
  c.cache.groups = {{0, rows * (tokens + 600) / 16, 0}, {1024, rows * 66 + 2048, 0}};
  c.max_running = rows;
  c.prefill_chunk = 16384;
  c.max_seq_len = tokens + 600;
  c.audit_period = 0;
  Bench b(c);
  for (uint32_t r = 0; r < rows; ++r) b.Submit(Text(r + 1, tokens), 590);
  while (b.s->counters().computed_prompt_tokens < static_cast<uint64_t>(rows) * tokens) b.Step();
  Sample sample;
  for (int i = 0; i < steps; ++i) sample.us.push_back(b.Step());
  HF_CHECKF(b.s->running() == rows, "{} run", b.s->running());
  const kv::AuditReport report = sched::TestPeer::ledger(*b.s).Audit();
  HF_CHECKF(report.clean(), "{}: {}", report.problems[0].kind, report.problems[0].detail);
  sample.Print(fmt::format("Plan + Apply, {} decodes with {}-token rows", rows, tokens).c_str(), rows == 256 && tokens == 8192 ? "< 100 us" : "-");
}

void MatchCost(uint32_t tokens, int times) {
  sched::SchedulerConfig c;
  c.cache.page_size = 16;
  c.cache.groups = {{0, 2 * tokens / 16, 0}, {1024, tokens / 16 + 4096, 0}};
  c.max_running = 4;
  c.prefill_chunk = 16384;
  c.max_seq_len = 2 * tokens;
  Bench b(c);
  const std::vector<TokenId> text = Text(7, tokens);
  b.Submit(text, 1);
  while (b.Step() > 0) {
  }
  std::vector<uint64_t> chain;
  uint64_t h = kv::SaltHash("");
  const Cpu hashing;
  for (uint32_t i = 0; i < tokens / 16; ++i) chain.push_back(h = kv::ChainHash(h, &text[i * 16ull], 16));
  fmt::print("{:58} {:9.2f} us, once a request\n", fmt::format("hashing {} tokens", tokens), hashing.Micros());
  kv::Ledger& ledger = sched::TestPeer::ledger(*b.s);
  Sample sample;
  kv::PrefixMatch match;
  for (int i = 0; i < times; ++i) {
    const Cpu at;
    match = ledger.Lookup("", text, chain, (tokens - 1) / 16);
    sample.us.push_back(at.Micros());
  }
  HF_CHECKF(match.blocks == (tokens - 1) / 16, "{} blocks", match.blocks);
  sample.Print(fmt::format("match of a cached {}-token prompt", tokens).c_str(), "< 1000 us");
}

void EvictionCost(uint32_t nodes) {
  sched::SchedulerConfig c;
  c.cache.page_size = 1;
  c.cache.groups = {{0, nodes, 0}, {64, nodes / 4, 0}};
  c.max_running = 4;
  c.prefill_chunk = 8192;
  c.max_seq_len = 1024;
  Bench b(c);
  for (uint64_t r = 0; b.s->index_nodes() + 1000 < nodes; ++r) {
    b.Submit(Text(r + 1, 500), 1);
    b.Step();
  }
  kv::Ledger& ledger = sched::TestPeer::ledger(*b.s);
  const uint64_t before = b.s->index_nodes();
  for (size_t g : {1, 0}) {
    Sample sample;
    // A tenth of them: enough for a median, and every one finds a victim.
    for (uint64_t i = 0; i < before / 10; ++i) {
      const auto at = Clock::now();
      HF_CHECK(ledger.EvictOne(g));
      sample.us.push_back(Micros(at));
    }
    sample.Print(fmt::format("one eviction of a {} page, {} nodes", g == 0 ? "full" : "window", before).c_str(), "< 5 us");
  }
  HF_CHECK(ledger.Audit().clean());
}

void AuditCost(uint32_t pages, int times) {
  sched::SchedulerConfig c;
  c.cache.page_size = 16;
  c.cache.groups = {{0, pages, 0}};
  c.max_running = 64;
  c.prefill_chunk = 16384;
  c.max_seq_len = 9000;
  Bench b(c);
  for (uint64_t r = 0; b.s->index_nodes() + 2000 < pages; ++r) {
    b.Submit(Text(r + 1, 8192), 1);
    b.Step();
  }
  for (uint64_t r = 0; r < 32; ++r) b.Submit(Text(100000 + r, 8192), 100);
  for (int i = 0; i < 40; ++i) b.Step();
  Sample sample;
  for (int i = 0; i < times; ++i) {
    const Cpu at;
    const bool clean = sched::TestPeer::ledger(*b.s).Audit().clean();
    sample.us.push_back(at.Micros());
    HF_CHECK(clean);
  }
  sample.Print(fmt::format("full audit, {} pages, {} nodes, {} rows", pages, b.s->index_nodes(), b.s->running()).c_str(), "< 1000 us");
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  StepCost(4, 8192, quick ? 50 : 400);
  if (!quick) StepCost(64, 8192, 400);
  StepCost(quick ? 32 : 256, quick ? 1024 : 8192, quick ? 50 : 400);
  if (!quick) StepCost(256, 1024, 400);
  MatchCost(quick ? 10000 : 100000, quick ? 20 : 500);
  EvictionCost(quick ? 12000 : 100000);
  AuditCost(quick ? 4096 : 65536, quick ? 20 : 200);
  return 0;
}

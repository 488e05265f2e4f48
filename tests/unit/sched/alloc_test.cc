// A steady-state step allocates nothing: this binary counts every operator new.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "tests/sim/driver.h"

namespace {
bool counting = false;
uint64_t allocations = 0;

void* Allocate(size_t size) {
  if (counting) ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

using namespace holdfast;

TEST_CASE("decode steps allocate nothing, across block borders, commits, slides, evictions and audits") {
  for (const auto& [page_size, overlap] : {std::pair(1u, 0u), std::pair(16u, 0u), std::pair(1u, 1u), std::pair(16u, 1u)}) {
    sched::SchedulerConfig c;
    c.cache.page_size = page_size;
    // Small enough that decoding has to evict what earlier requests left.
    c.cache.groups = {{0, 8 * 420 / page_size, 0}, {64, 8 * (64 / page_size + 4) + 600 / page_size, 0}};
    c.max_running = 8;
    c.prefill_chunk = 256;
    c.max_seq_len = 400;
    c.audit_period = 16;  // full audits among them
    c.overlap_depth = overlap;
    sim::FindingLog log;
    auto created = sched::Scheduler::Create(c, &log);
    REQUIRE(created.ok());
    sched::Scheduler& s = **created;
    // Steps in flight and what they give; settled as the worker's loop does it.
    sched::StepResult results[2];
    for (sched::StepResult& r : results) r.sampled.reserve(16);
    uint64_t launched = 0, settled = 0, awaited = 0;
    const auto step = [&] {
      const sched::StepPlan* plan = s.Plan();
      if (plan != nullptr) {
        sched::StepResult& result = results[launched++ % 2];
        result.step = plan->step;
        result.sampled.clear();
        for (const sched::StepEntry& e : plan->entries) {
          awaited += e.awaits;
          if (e.sample) result.sampled.push_back({e.request, static_cast<TokenId>((e.start + e.tokens.size()) * 7 + e.request.v), false, false});
        }
      }
      if (launched > settled && (plan == nullptr || s.outstanding_steps() > overlap)) s.Apply(results[settled++ % 2]);
      s.TakeEvents();
      return plan != nullptr || s.outstanding_steps() > 0;
    };
    uint64_t id = 1;
    const auto submit = [&](uint32_t prompt, uint32_t max_tokens) {
      sched::SubmitCommand command;
      command.request = RequestId(id++);
      command.tokens = sim::Text(id, prompt);
      command.prompt_tokens = prompt;
      command.max_tokens = max_tokens;
      command.run_ahead = true;
      s.Submit(std::move(command));
    };
    for (int i = 0; i < 40; ++i) submit(200, 60);
    while (step()) {
    }
    for (int i = 0; i < 8; ++i) submit(100, 290);
    for (int i = 0; i < 60; ++i) step();
    const uint64_t audits = s.counters().audits;
    const uint64_t evicted = s.Pools()[0].evictions + s.Pools()[1].evictions;
    allocations = 0;
    counting = true;
    for (int i = 0; i < 180; ++i) step();
    counting = false;
    CAPTURE(page_size, overlap);
    CHECK(allocations == 0);
    CHECK((awaited > 1000) == (overlap > 0));
    CHECK(s.counters().audits > audits);
    CHECK(s.running() == 8);
    CHECK(s.Pools()[0].evictions + s.Pools()[1].evictions > evicted);
    CHECK(log.findings.empty());
    CHECK(s.Audit());
  }
}

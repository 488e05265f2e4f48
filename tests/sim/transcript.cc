#include "tests/sim/transcript.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace holdfast::sim {
namespace {

std::string List(const std::vector<uint32_t>& values) { return values.empty() ? "-" : fmt::format("{}", fmt::join(values, ",")); }

}  // namespace

std::string ConfigLine(const sched::SchedulerConfig& c) {
  std::string out = fmt::format("config {} {} {} {} {} {} {}", c.cache.page_size, c.max_running, c.prefill_chunk, c.overlap_depth, c.max_seq_len,
                                c.max_waiting, c.reserve_tokens);
  for (const kv::GroupShape& g : c.cache.groups) out += fmt::format(" {}:{}:{}", g.window, g.pages, g.reserve_pages);
  return out;
}

std::string SubmitLine(const sched::SubmitCommand& c) {
  return fmt::format("submit {} {} {} {:d} {:d} {:d} {} {} {}", c.request.v, c.prompt_tokens, c.max_tokens, c.no_cache, c.prompt_logprobs, c.run_ahead,
                     c.cache_salt.empty() ? "-" : c.cache_salt, List(c.anchors), List(c.tokens));
}

std::string PlanLine(const sched::StepPlan* plan, const std::function<TokenId(const sched::StepEntry&)>& awaited) {
  if (plan == nullptr) return "plan -";
  std::string out = "plan";
  for (const sched::StepEntry& e : plan->entries) {
    out += fmt::format(" {}:{}:{}:{:d}:{}", e.request.v, e.start, e.tokens.size(), e.sample, e.awaits ? fmt::format("{}", awaited(e)) : "-");
  }
  return out;
}

std::string ApplyLine(const sched::StepResult& result) {
  if (result.sampled.empty()) return "apply -";
  std::string out = "apply";
  for (const sched::SampledToken& t : result.sampled) out += fmt::format(" {}:{}:{:d}:{:d}", t.request.v, t.token, t.is_stop, t.failed);
  return out;
}

std::string StateLine(const sched::Scheduler& s) {
  std::string out = fmt::format("state {:016x} {} {} {}", s.digest(), s.running(), s.waiting(), s.index_nodes());
  for (const kv::PoolView& p : s.Pools()) out += fmt::format(" {}:{}:{}:{}:{}", p.free, p.held, p.evictable, p.retiring, p.quarantined);
  return out;
}

}  // namespace holdfast::sim

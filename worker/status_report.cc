#include "worker/status_report.h"

namespace holdfast::worker {

void FillStatus(Runtime& runtime, proto::StepReport* report) {
  const auto& scheduler = runtime.scheduler();
  const auto pools = scheduler.Pools();
  for (size_t i = 0; i < pools.size(); ++i) {
    const kv::PoolView& v = pools[i];
    auto* p = report->add_pools();
    p->set_name(v.name);
    p->set_window(v.window);
    p->set_capacity(v.capacity);
    p->set_free(v.free);
    p->set_held(v.held);
    p->set_evictable(v.evictable);
    p->set_retiring(v.retiring);
    p->set_quarantined(v.quarantined);
    p->set_unbacked(v.unbacked);
    p->set_reserved(v.reserved);
    p->set_floor(v.floor);
    p->set_recommended(v.recommended);
    p->set_evictions(v.evictions);
    p->set_bytes_per_page(static_cast<uint64_t>(runtime.kv_plan().groups[i].page_bytes));
    p->set_reserve_capacity(v.capacity + v.unbacked);
  }
  const auto& c = scheduler.counters();
  auto* cache = report->mutable_cache();
  cache->set_prompt_tokens(c.prompt_tokens);
  cache->set_cached_tokens(c.cached_tokens);
  cache->set_computed_prompt_tokens(c.computed_prompt_tokens);
  cache->set_lookups(c.lookups);
  cache->set_hits(c.hits);
  cache->set_window_truncated_hits(c.window_truncated_hits);
  cache->set_heals(c.heals);
  cache->set_dedups(c.dedups);
  cache->set_preemptions(c.preemptions);
  cache->set_deferred(c.deferred);
  cache->set_audits(c.audits);
  cache->set_nodes(scheduler.index_nodes());
}

}  // namespace holdfast::worker

#include "supervisor/supervisor_metrics.h"

namespace holdfast::supervisor {
namespace {

constexpr size_t kMaxKinds = 64;  // finding kinds are fixed names; more than this is a worker inventing them

prometheus::Gauge& OneGauge(prometheus::Registry& r, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(r).Add({});
}
prometheus::Counter& OneCounter(prometheus::Registry& r, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(r).Add({});
}

}  // namespace

SupervisorMetrics::SupervisorMetrics(prometheus::Registry& r)
    : pages_(prometheus::BuildGauge().Name("holdfast_pages").Help("KV pages by state; the states of a pool sum to its capacity").Register(r)),
      capacity_(prometheus::BuildGauge().Name("holdfast_pool_capacity_pages").Help("Backed pages of a pool").Register(r)),
      evictions_(prometheus::BuildCounter().Name("holdfast_evictions_total").Help("Pages evicted from the prefix index").Register(r)),
      findings_(prometheus::BuildCounter().Name("holdfast_findings_total").Help("Suspect internal state, by severity and kind").Register(r)),
      restarts_(prometheus::BuildCounter().Name("holdfast_restarts_total").Help("Losses of the worker group, by cause").Register(r)),
      requests_(prometheus::BuildCounter().Name("holdfast_engine_requests_total").Help("Requests by how they ended at the supervisor").Register(r)) {
  auto& state = prometheus::BuildGauge().Name("holdfast_group_state").Help("1 for the state the worker group is in").Register(r);
  for (int s = 0; s < kGroupStates; ++s) {
    states_[static_cast<size_t>(s)] = &state.Add({{"state", std::string(GroupStateName(static_cast<GroupState>(s)))}});
  }
  // Every cause from the start: rates over a counter that appears with its first event miss that event.
  for (int c = 1; c < kLossCauses; ++c) restarts_.Add({{"cause", std::string(LossCauseName(static_cast<LossCause>(c)))}});
  generation_ = &OneGauge(r, "holdfast_generation", "Generation of the worker group");
  queue_ = &OneGauge(r, "holdfast_queue_depth", "Accepted requests that do not run yet");
  running_ = &OneGauge(r, "holdfast_running_requests", "Requests the worker has admitted");
  recovery_ = &OneGauge(r, "holdfast_last_loss_to_first_token_seconds", "From the last loss to the first token after it");
  incidents_ = &OneCounter(r, "holdfast_incidents_total", "Incident bundles");
  auto& weights = prometheus::BuildCounter().Name("holdfast_weight_loads_total").Help("Workers that became ready, by how they came to their weights").Register(r);
  weights_mapped_ = &weights.Add({{"how", "mapped"}});
  weights_loaded_ = &weights.Add({{"how", "loaded"}});
  generated_ = &OneCounter(r, "holdfast_engine_generated_tokens_total", "Tokens routed to sessions");
  fenced_.counter = &OneCounter(r, "holdfast_fenced_messages_total", "Worker messages dropped because their generation is over");
  step_seconds_ = &prometheus::BuildHistogram()
                       .Name("holdfast_step_seconds")
                       .Help("Duration of a scheduler step")
                       .Register(r)
                       .Add({}, prometheus::Histogram::BucketBoundaries{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30});
  auto& prompt = prometheus::BuildCounter().Name("holdfast_engine_prompt_tokens_total").Help("Prompt tokens of admitted requests").Register(r);
  cache_["computed"].counter = &prompt.Add({{"source", "computed"}});
  cache_["cached"].counter = &prompt.Add({{"source", "cached"}});
  const auto add = [&](const char* key, const char* name, const char* help) { cache_[key].counter = &OneCounter(r, name, help); };
  add("lookups", "holdfast_prefix_lookups_total", "Prefix cache look-ups");
  add("hits", "holdfast_prefix_hits_total", "Prefix cache look-ups that found something");
  add("truncated", "holdfast_prefix_window_truncated_total", "Hits shortened because window pages were gone");
  add("heals", "holdfast_prefix_heals_total", "Window pages given back to the index by a reader");
  add("dedups", "holdfast_prefix_dedups_total", "Pages dropped for an identical one in the index");
  add("preemptions", "holdfast_preemptions_total", "Running requests put back into the queue");
  add("deferred", "holdfast_admissions_deferred_total", "Admissions put off for want of pages");
  add("audits", "holdfast_audits_total", "Full audits of the page ledger");
}

void SupervisorMetrics::SetState(GroupState state, Generation generation) {
  for (int s = 0; s < kGroupStates; ++s) states_[static_cast<size_t>(s)]->Set(s == static_cast<int>(state) ? 1 : 0);
  generation_->Set(static_cast<double>(generation.v));
}

void SupervisorMetrics::CountRestart(LossCause cause) { restarts_.Add({{"cause", std::string(LossCauseName(cause))}}).Increment(); }

void SupervisorMetrics::SetQueue(size_t waiting, size_t running) {
  queue_->Set(static_cast<double>(waiting));
  running_->Set(static_cast<double>(running));
}

void SupervisorMetrics::SetFenced(uint64_t total) { fenced_.Report(static_cast<double>(total)); }

void SupervisorMetrics::CountRequest(std::string_view end) { requests_.Add({{"end", std::string(end)}}).Increment(); }

void SupervisorMetrics::CountFinding(std::string_view severity, const std::string& kind) {
  const bool known = finding_kinds_.count(kind) > 0;
  if (!known && finding_kinds_.size() < kMaxKinds) finding_kinds_[kind] = true;
  const std::string label = finding_kinds_.count(kind) > 0 ? kind : "other";
  findings_.Add({{"severity", std::string(severity)}, {"kind", label}}).Increment();
}

void SupervisorMetrics::OnReport(const proto::StepReport& step, bool stepped) {
  if (stepped) step_seconds_->Observe(step.step_us() / 1e6);
  size_t tokens = 0;
  for (const proto::TokenEvent& e : step.events()) tokens += static_cast<size_t>(e.tokens_size());
  generated_->Increment(static_cast<double>(tokens));
  if (step.has_cache()) {
    const proto::CacheCounters& c = step.cache();
    const std::pair<const char*, uint64_t> values[] = {
        {"computed", c.computed_prompt_tokens()}, {"cached", c.cached_tokens()}, {"lookups", c.lookups()},
        {"hits", c.hits()}, {"truncated", c.window_truncated_hits()}, {"heals", c.heals()}, {"dedups", c.dedups()},
        {"preemptions", c.preemptions()}, {"deferred", c.deferred()}, {"audits", c.audits()}};
    for (const auto& [key, value] : values) cache_[key].Report(static_cast<double>(value));
  }
  OnPools(step.pools());
}

void SupervisorMetrics::OnPools(const google::protobuf::RepeatedPtrField<proto::PoolStatus>& pools) {
  constexpr int kMaxPools = 16;
  for (int i = 0; i < std::min(pools.size(), kMaxPools); ++i) {
    const proto::PoolStatus& p = pools[i];
    const std::pair<const char*, uint32_t> states[] = {
        {"free", p.free()}, {"held", p.held()}, {"evictable", p.evictable()}, {"retiring", p.retiring()}, {"quarantined", p.quarantined()}};
    for (const auto& [state, pages] : states) pages_.Add({{"pool", p.name()}, {"state", state}}).Set(pages);
    capacity_.Add({{"pool", p.name()}}).Set(p.capacity());
    Rising& evicted = pool_evictions_[p.name()];
    if (evicted.counter == nullptr) evicted.counter = &evictions_.Add({{"pool", p.name()}});
    evicted.Report(static_cast<double>(p.evictions()));
  }
}

void SupervisorMetrics::OnGroupLost() {
  for (auto& [key, rising] : cache_) rising.last = 0;
  for (auto& [pool, rising] : pool_evictions_) {
    rising.last = 0;
    for (const char* state : {"free", "held", "evictable", "retiring", "quarantined"}) pages_.Add({{"pool", pool}, {"state", state}}).Set(0);
    capacity_.Add({{"pool", pool}}).Set(0);
  }
}

void SupervisorMetrics::SetRecovery(Duration d) { recovery_->Set(static_cast<double>(d.count()) / 1e9); }

}  // namespace holdfast::supervisor

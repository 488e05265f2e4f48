#include "frontend/api/health.h"

#include <cmath>
#include <optional>

#include "frontend/api/error.h"
#include "frontend/api/json_out.h"
#include "frontend/model_view.h"

namespace holdfast::api {
namespace {

const char* ResizeStateName(proto::ResizeReport::State state) {
  switch (state) {
    case proto::ResizeReport::RUNNING:
      return "running";
    case proto::ResizeReport::DONE:
      return "done";
    case proto::ResizeReport::REFUSED:
      return "refused";
    case proto::ResizeReport::CANCELLED:
      return "cancelled";
    default:
      return "unknown";
  }
}

void Resize(const proto::ResizeReport& report, JsonOut* out) {
  out->Begin('{')
      .Member("operation", report.operation())
      .Member("state", ResizeStateName(report.state()))
      .Member("message", report.message())
      .End('}');
}

void Pool(const proto::PoolStatus& pool, JsonOut* out) {
  out->Begin('{')
      .Member("name", pool.name())
      .Member("window", pool.window())
      .Member("capacity", pool.capacity())
      .Member("free", pool.free())
      .Member("held", pool.held())
      .Member("evictable", pool.evictable())
      .Member("retiring", pool.retiring())
      .Member("quarantined", pool.quarantined())
      .Member("unbacked", pool.unbacked())
      .Member("reserved", pool.reserved())
      .Member("floor", pool.floor())
      .Member("recommended", pool.recommended())
      .Member("reserve_capacity", pool.reserve_capacity())
      .Member("bytes_per_page", pool.bytes_per_page())
      .Member("evictions", pool.evictions())
      .End('}');
}

void Counters(const proto::CacheCounters& cache, JsonOut* out) {
  out->Begin('{')
      .Member("prompt_tokens", cache.prompt_tokens())
      .Member("cached_tokens", cache.cached_tokens())
      .Member("computed_prompt_tokens", cache.computed_prompt_tokens())
      .Member("hit_rate", cache.prompt_tokens() ? static_cast<double>(cache.cached_tokens()) / static_cast<double>(cache.prompt_tokens()) : 0.0)
      .Member("lookups", cache.lookups())
      .Member("hits", cache.hits())
      .Member("window_truncated_hits", cache.window_truncated_hits())
      .Member("heals", cache.heals())
      .Member("dedups", cache.dedups())
      .Member("preemptions", cache.preemptions())
      .Member("deferred", cache.deferred())
      .Member("nodes", cache.nodes())
      .Member("audits", cache.audits())
      .End('}');
}

void Health(const EngineState& state, std::string_view name, Instant now, JsonOut* out) {
  out->Member("state", name);
  if (const double age = state.lease().age_seconds(now); age >= 0) out->Member("lease_age_ms", static_cast<int64_t>(age * 1000));
  const proto::HealthStatement* statement = state.lease().statement();
  if (!statement) return;
  out->Member("generation", statement->generation())
      .Member("restarts", statement->restarts())
      .Member("running", statement->running())
      .Member("waiting", statement->waiting());
  if (statement->last_loss_to_first_token_ms()) out->Member("last_loss_to_first_token_ms", statement->last_loss_to_first_token_ms());
  if (statement->ready() || !statement->has_progress()) return;
  const proto::Progress& progress = statement->progress();
  out->Key("progress")
      .Begin('{')
      .Member("phase", progress.phase())
      .Member("done_bytes", progress.done_bytes())
      .Member("total_bytes", progress.total_bytes())
      .End('}');
}

}  // namespace

std::string ReadyBody(const EngineState& state, const std::string& model, Instant now) {
  JsonOut out;
  out.Begin('{').Member("status", "ok").Member("model", model);
  Health(state, "ready", now, &out);
  out.End('}');
  return out.Take();
}

std::string NotReadyBody(const EngineState& state, std::string_view name, const ApiError& error, Instant now) {
  JsonOut out;
  out.Begin('{').Key("error").Raw(ErrorObject(error)).Member("status", "unavailable");
  out.Member("permanent", state.lease().permanent(now));
  Health(state, name, now, &out);
  out.End('}');
  return out.Take();
}

std::string CacheStatusBody(const proto::StatusReply& status) {
  const proto::HealthStatement& health = status.health();
  JsonOut out;
  out.Begin('{')
      .Member("object", "cache.status")
      .Member("state", health.state())
      .Member("generation", health.generation())
      .Member("backend", status.backend())
      .Member("weight_bytes", status.weight_bytes());
  out.Key("limits")
      .Begin('{')
      .Member("max_seq_len", health.limits().max_seq_len())
      .Member("max_running", health.limits().max_running())
      .Member("max_queue", health.limits().max_queue())
      .Member("prefill_chunk", health.limits().prefill_chunk())
      .Member("page_size", health.limits().page_size())
      .Member("max_request_tokens", health.limits().max_request_tokens())
      .End('}');
  out.Key("pools").Begin('[');
  for (const proto::PoolStatus& pool : status.pools()) Pool(pool, &out);
  out.End(']').Key("cache");
  Counters(status.cache(), &out);
  out.Member("running", health.running()).Member("waiting", health.waiting()).Member("queue_depth", status.queue_depth());
  out.Member("max_queue", status.max_queue()).Member("steps", status.steps()).Member("mean_step_us", status.mean_step_us());
  out.Key("findings").Begin('[');
  for (const proto::FindingCount& finding : status.findings()) {
    out.Begin('{').Member("severity", finding.severity()).Member("kind", finding.kind()).Member("count", finding.count()).End('}');
  }
  out.End(']').Key("last_resize");
  if (status.has_last_resize()) Resize(status.last_resize(), &out);
  else out.Null();
  out.End('}');
  return out.Take();
}

std::string RequestsBody(const proto::ListRequestsReply& reply, const std::string& entries) {
  JsonOut out;
  out.Begin('{').Member("object", "list").Key("data").Begin('[');
  for (const proto::RequestInfo& request : reply.requests()) {
    out.Begin('{')
        .Member("id", request.trace_id())
        .Member("state", request.state())
        .Member("prompt_tokens", request.prompt_tokens())
        .Member("cached_tokens", request.cached_tokens())
        .Member("generated_tokens", request.generated_tokens())
        .Member("age_ms", request.age_ms())
        .End('}');
  }
  out.End(']').Raw(entries).End('}');
  return out.Take();
}

namespace {

void PoolPages(const proto::PoolStatus* pool, uint32_t page_size, JsonOut* out) {
  if (!pool) {
    out->Null();
    return;
  }
  out->Begin('{').Member("used_pages", pool->held()).Member("total_pages", pool->capacity()).Member("page_size", page_size).End('}');
}

void NumberOrNull(std::string_view key, const std::optional<double>& value, JsonOut* out) {
  out->Key(key);
  if (value) out->Value(std::round(*value * 10) / 10);
  else out->Null();
}

}  // namespace

std::string StatsBody(const proto::StatusReply& status, const StatsContext& context) {
  const proto::HealthStatement& health = status.health();
  const uint32_t page = health.limits().page_size();
  const proto::PoolStatus *full = nullptr, *window = nullptr;
  uint64_t bytes = status.weight_bytes();
  for (const proto::PoolStatus& pool : status.pools()) {
    (pool.window() == 0 ? full : window) = &pool;
    bytes += pool.bytes_per_page() * pool.capacity();
  }
  JsonOut out;
  out.Begin('{').Member("instance_id", health.instance()).Member("state", health.state());
  out.Key("model").Begin('{').Member("id", context.model).Member("ctx", health.limits().max_seq_len()).Member("attn", window ? "hybrid_swa" : "mha");
  out.Key("sampling").Begin('{');
  if (context.view) {
    const SamplingDefaults& defaults = context.view->sampling();
    if (defaults.temperature) out.Member("temperature", *defaults.temperature);
    if (defaults.top_k) out.Member("top_k", *defaults.top_k);
    if (defaults.top_p) out.Member("top_p", *defaults.top_p);
  }
  out.End('}').End('}').Member("uptime_s", status.uptime_ms() / 1000).Key("kv");
  PoolPages(full, page, &out);
  out.Key("mamba").Null().Key("swa");
  PoolPages(window, page, &out);
  // Weights and pages; on a processor they are in main memory.
  out.Member("vram_bytes", status.backend().starts_with("cuda") ? bytes : 0).Member("memory_bytes", bytes).Member("backend", status.backend());
  out.Key("throughput").Begin('{');
  NumberOrNull("decode_tps", context.rates.generated, &out);
  NumberOrNull("prefill_tps", context.rates.prompt, &out);
  out.End('}').Key("requests").Begin('{');
  out.Member("active", context.totals.active).Member("completed", context.totals.completed);
  NumberOrNull("p95_ms", context.totals.p95_ms, &out);
  NumberOrNull("ttft_mean_ms", context.totals.ttft_mean_ms, &out);
  out.Member("prompt_tokens_total", context.totals.prompt_tokens).Member("completion_tokens_total", context.totals.completion_tokens);
  out.Member("running", health.running()).Member("waiting", health.waiting()).End('}').End('}');
  return out.Take();
}

std::string IncidentsBody(const proto::ListIncidentsReply& reply) {
  JsonOut out;
  out.Begin('{').Member("object", "list").Key("data").Begin('[');
  for (const proto::Incident& incident : reply.incidents()) {
    out.Begin('{')
        .Member("id", incident.id())
        .Member("path", incident.path())
        .Member("unix_ms", incident.unix_ms())
        .Member("generation", incident.generation())
        .Member("rank", incident.rank())
        .Member("cause", incident.cause())
        .Member("phase", incident.phase())
        .Member("detail", incident.detail())
        .End('}');
  }
  out.End(']').End('}');
  return out.Take();
}

std::string QuarantineBody(const proto::ListQuarantineReply& reply) {
  JsonOut out;
  out.Begin('{').Member("object", "list").Key("data").Begin('[');
  for (const proto::QuarantinedRequest& request : reply.requests()) {
    out.Begin('{')
        .Member("fingerprint", request.fingerprint())
        .Member("choice", request.choice())
        .Member("losses", request.losses())
        .Member("position", request.position())
        .Member("remaining_ms", request.remaining_ms())
        .Member("refused", request.refused())
        .End('}');
  }
  out.End(']').End('}');
  return out.Take();
}

std::string ClearedBody(const proto::ClearQuarantineReply& reply) {
  JsonOut out;
  out.Begin('{').Member("object", "quarantine.cleared").Member("cleared", reply.cleared()).End('}');
  return out.Take();
}

std::string ResizeBody(const proto::ResizeReport& report) {
  JsonOut out;
  Resize(report, &out);
  return out.Take();
}

}  // namespace holdfast::api

#pragma once
// The bodies of the health and admin routes: JSON of what the lease and the supervisor say.
#include <string>
#include <string_view>

#include "frontend/api/metrics.h"
#include "frontend/api/request_log.h"
#include "frontend/engine_state.h"
#include "proto/admin.pb.h"

namespace holdfast::api {

// 200 body of /readyz and /health.
std::string ReadyBody(const EngineState& state, const std::string& model, Instant now);
// 503 body: OpenAI's error shape (type unavailable_error) and, beside it, the state's name and the loading progress.
std::string NotReadyBody(const EngineState& state, std::string_view name, const ApiError& error, Instant now);

std::string CacheStatusBody(const proto::StatusReply& status);
// `entries`: RequestEntries of the frontend's own log.
std::string RequestsBody(const proto::ListRequestsReply& reply, const std::string& entries);
struct StatsContext {
  std::string model;
  const ModelView* view = nullptr;     // null before the first card
  RequestLog::Totals totals;
  FrontendMetrics::Rates rates;
};
std::string StatsBody(const proto::StatusReply& status, const StatsContext& context);
std::string IncidentsBody(const proto::ListIncidentsReply& reply);
std::string QuarantineBody(const proto::ListQuarantineReply& reply);
std::string ClearedBody(const proto::ClearQuarantineReply& reply);
std::string ResizeBody(const proto::ResizeReport& report);

}  // namespace holdfast::api

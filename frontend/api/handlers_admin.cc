// Health, metrics and the routes that pass on what the supervisor says.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "frontend/api/error.h"
#include "frontend/api/handlers.h"
#include "frontend/api/health.h"
#include "frontend/api/json_out.h"
#include "frontend/generation_errors.h"
#include "frontend/text/json_value.h"
#include "proto/base/status_wire.h"

namespace holdfast::api {
namespace {

ApiError FromAdmin(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kInvalidArgument || status.code() == absl::StatusCode::kFailedPrecondition ||
      status.code() == absl::StatusCode::kOutOfRange) {
    return Refused(std::string(MessageOf(status)), "");
  }
  if (status.code() == absl::StatusCode::kNotFound) {
    ApiError error = Refused(std::string(MessageOf(status)), "");
    error.status = 404;
    error.code = "not_found";
    return error;
  }
  if (status.code() == absl::StatusCode::kUnimplemented) {
    ApiError error = Refused("The supervisor does not offer this", "");
    error.status = 501;
    return error;
  }
  if (status.code() == absl::StatusCode::kAborted) return Unavailable(std::string(MessageOf(status)), 1);  // it answered: not now
  return Unavailable(fmt::format("The supervisor cannot be reached: {}", MessageOf(status)), 1);
}

// 0 when absent; false when it is no whole number that fits.
bool ReadCount(const text::JsonValue& body, std::string_view key, uint32_t* out) {
  const text::JsonValue* value = body.Find(key);
  if (!value || value->is_null()) return true;
  if (value->kind() != text::JsonValue::Kind::kInt || value->AsInt() < 0 || value->AsInt() > UINT32_MAX) return false;
  *out = static_cast<uint32_t>(value->AsInt());
  return true;
}

// "since=12&limit=5": leaves *out as it is when the key is absent; false when its value is no whole number.
bool ReadQueryCount(std::string_view query, std::string_view key, uint64_t* out) {
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), one.size() + 1));
    if (one.substr(0, one.find('=')) != key) continue;
    const std::string_view value = one.find('=') == std::string_view::npos ? std::string_view() : one.substr(one.find('=') + 1);
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *out);
    if (error != std::errc() || end != value.data() + value.size()) return false;
  }
  return true;
}

}  // namespace

http::Response Json(std::string body, int status) {
  http::Response response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

void Api::Live(const Exchange& exchange) const { exchange->Send(Json(R"({"status":"alive"})")); }

void Api::Ready(const Exchange& exchange) const {
  const Instant now = context_.loop.Now();
  // This process drains: whatever the engine is, nothing new is taken here.
  if (draining_) return exchange->Send(Json(NotReadyBody(context_.state, "draining", Draining(), now), 503));
  if (context_.state.accepting()) return exchange->Send(Json(ReadyBody(context_.state, ModelId(), now)));
  const uint32_t retry = context_.state.lease().retry_after_seconds(now);
  const ApiError error = context_.state.ready() ? Drained(context_.state.reason(), retry) : NotReady(context_.state.state(), context_.state.reason(), retry);
  http::Response response = Json(NotReadyBody(context_.state, context_.state.state(), error, now), 503);
  for (const auto& [name, value] : error.headers) response.headers.push_back({name, value});
  exchange->Send(std::move(response));
}

void Api::Metrics(const Exchange& exchange) {
  admin_.GetMetrics([this, exchange](const absl::Status& status, const proto::MetricsReply& reply) {
    context_.metrics.SetHealth(context_.state.lease().age_seconds(context_.loop.Now()), context_.state.accepting(), status.ok());
    http::Response response = Json(MergeMetricsText(context_.metrics.Text(), reply.text()));
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    exchange->Send(std::move(response));
  });
}

void Api::CacheStatus(const Exchange& exchange) {
  admin_.GetStatus([exchange](const absl::Status& status, const proto::StatusReply& reply) {
    exchange->Send(status.ok() ? Json(CacheStatusBody(reply)) : ErrorResponse(FromAdmin(status)));
  });
}

// The requests at work, as the supervisor knows them, and the last ones this frontend answered (?since=CURSOR&limit=N).
void Api::Requests(const Exchange& exchange) {
  uint64_t since = 0, limit = 100;
  if (!ReadQueryCount(exchange->request().query, "since", &since) || !ReadQueryCount(exchange->request().query, "limit", &limit)) {
    return exchange->Send(ErrorResponse(Refused("since and limit must be whole numbers", "since")));
  }
  limit = std::clamp<uint64_t>(limit, 1, RequestLog::kKept);
  proto::ListRequestsRequest request;
  request.set_limit(1000);
  admin_.ListRequests(request, [this, exchange, since, limit](const absl::Status& status, const proto::ListRequestsReply& reply) {
    // What this process knows is told also while the supervisor is away.
    const std::string entries = RequestEntries(log_->Since(since, limit), ModelId());
    exchange->Send(Json(RequestsBody(status.ok() ? reply : proto::ListRequestsReply(), entries)));
  });
}

void Api::Stats(const Exchange& exchange) {
  admin_.GetStatus([this, exchange](const absl::Status& status, const proto::StatusReply& reply) {
    if (!status.ok()) return exchange->Send(ErrorResponse(FromAdmin(status)));
    const auto view = context_.state.model();
    exchange->Send(Json(StatsBody(reply, {ModelId(), view.get(), log_->Sum(), context_.metrics.TokenRates()})));
  });
}

void Api::Incidents(const Exchange& exchange) {
  proto::ListIncidentsRequest request;
  request.set_limit(100);
  admin_.ListIncidents(request, [exchange](const absl::Status& status, const proto::ListIncidentsReply& reply) {
    exchange->Send(status.ok() ? Json(IncidentsBody(reply)) : ErrorResponse(FromAdmin(status)));
  });
}

void Api::Quarantine(const Exchange& exchange) {
  proto::ListQuarantineRequest request;
  request.set_limit(1000);
  admin_.ListQuarantine(request, [exchange](const absl::Status& status, const proto::ListQuarantineReply& reply) {
    exchange->Send(status.ok() ? Json(QuarantineBody(reply)) : ErrorResponse(FromAdmin(status)));
  });
}

void Api::ClearQuarantine(const Exchange& exchange, const std::string& fingerprint) {
  proto::ClearQuarantineRequest request;
  request.set_fingerprint(fingerprint);
  admin_.ClearQuarantine(request, [exchange](const absl::Status& status, const proto::ClearQuarantineReply& reply) {
    exchange->Send(status.ok() ? Json(ClearedBody(reply)) : ErrorResponse(FromAdmin(status)));
  });
}

void Api::CacheResize(const Exchange& exchange) {
  if (exchange->request().body.size() > 4096) {
    return exchange->Send(ErrorResponse(Refused("The body is an object with full_pages, window_pages, wait_ms: no more than 4096 bytes", "")));
  }
  const auto body = text::ParseJson(exchange->request().body);
  if (!body.ok()) return exchange->Send(ErrorResponse(Refused(std::string(MessageOf(body.status())), "")));
  if (!body->is_object()) return exchange->Send(ErrorResponse(Refused("The body must be a JSON object", "")));
  proto::ResizeCacheRequest request;
  const std::pair<const char*, const char*> kPools[] = {{"full_pages", "full"}, {"window_pages", "window"}};
  for (const auto& [key, pool] : kPools) {
    uint32_t pages = 0;
    if (!ReadCount(*body, key, &pages)) {
      return exchange->Send(ErrorResponse(Refused(fmt::format("{} must be a whole number of pages", key), key)));
    }
    if (pages == 0) continue;
    proto::PoolTarget& target = *request.add_targets();
    target.set_pool(pool);
    target.set_pages(pages);
  }
  uint32_t wait_ms = 10'000;  // most resizes are done in a step; a caller that does not wait says 0
  if (!ReadCount(*body, "wait_ms", &wait_ms) || wait_ms > 600'000) {
    return exchange->Send(ErrorResponse(Refused("wait_ms must be a whole number from 0 to 600000", "wait_ms")));
  }
  request.set_wait_ms(wait_ms);
  const text::JsonValue* cancel = body->Find("cancel");
  if (cancel && !cancel->is_bool()) return exchange->Send(ErrorResponse(Refused("cancel must be true or false", "cancel")));
  request.set_cancel(cancel && cancel->AsBool());
  if (request.targets_size() == 0 && !request.cancel()) {
    return exchange->Send(ErrorResponse(Refused("Nothing to do: give full_pages, window_pages or cancel", "full_pages")));
  }
  admin_.ResizeCache(request, [exchange](const absl::Status& status, const proto::ResizeCacheReply& reply) {
    if (!status.ok()) return exchange->Send(ErrorResponse(FromAdmin(status)));
    if (reply.report().state() == proto::ResizeReport::REFUSED) {
      return exchange->Send(ErrorResponse(Refused(reply.report().message(), "")));
    }
    exchange->Send(Json(ResizeBody(reply.report())));
  });
}

}  // namespace holdfast::api

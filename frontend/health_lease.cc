#include "frontend/health_lease.h"

#include <algorithm>

namespace holdfast::api {

bool HealthLease::Receive(const proto::HealthStatement& statement, Instant now) {
  if (statement_ && statement_->instance() == statement.instance() && statement.sequence() < statement_->sequence()) return false;
  statement_ = statement;
  received_ = now;
  expires_ = now + std::chrono::milliseconds(statement.lease_ms());
  connected_ = true;
  if (statement.has_limits() && statement.limits().max_seq_len() > 0) limits_ = statement.limits();
  return true;
}

std::string HealthLease::state(Instant now) const {
  if (!statement_) return "unknown";
  if (!fresh(now)) return "stale";
  if (statement_->accepting()) return "ready";
  return statement_->state().empty() ? "down" : statement_->state();
}

std::string HealthLease::reason(Instant now) const {
  if (!statement_) return "The engine has not been reached yet";
  if (!fresh(now)) return "The engine has not confirmed its health in time";
  if (statement_->accepting()) return {};
  if (!statement_->reason().empty()) return statement_->reason();
  if (statement_->state() == "loading" || statement_->state() == "warming" || statement_->state() == "spawning") return "Loading model";
  return "The engine is " + state(now);
}

uint32_t HealthLease::retry_after_seconds(Instant now) const {
  uint32_t millis = fresh(now) ? statement_->retry_after_ms() : 0;
  if (millis == 0) millis = 1000;
  return std::clamp<uint32_t>((millis + 999) / 1000, 1, 30);
}

double HealthLease::age_seconds(Instant now) const {
  return statement_ ? std::chrono::duration<double>(now - received_).count() : -1;
}

}  // namespace holdfast::api

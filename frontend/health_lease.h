#pragma once
// What this frontend may say about the engine: the supervisor's last statement, believed only until its lease runs out (counted from
// its receipt on this process's monotonic clock). A stale "ready" cannot be served. Pure: the caller brings the time.
#include <cstdint>
#include <optional>
#include <string>

#include "proto/admin.pb.h"
#include "proto/base/clock.h"

namespace holdfast::api {

class HealthLease final {
 public:
  // A statement of an older sequence of the same instance is ignored (false).
  bool Receive(const proto::HealthStatement& statement, Instant now);
  // The stream of statements ended. What was said stays valid until its lease runs out: a broken pipe is not a dead engine.
  void Disconnected() { connected_ = false; }

  bool connected() const { return connected_; }
  bool fresh(Instant now) const { return statement_.has_value() && now < expires_; }
  // All ranks of one generation are ready, and that was said recently.
  bool ready(Instant now) const { return fresh(now) && statement_->ready(); }
  bool accepting(Instant now) const { return ready(now) && statement_->accepting(); }
  bool permanent(Instant now) const { return fresh(now) && statement_->permanent(); }

  // "ready", the group's state, "stale" or "unknown".
  std::string state(Instant now) const;
  // For people: why not ready; "" when ready.
  std::string reason(Instant now) const;
  // Suggested Retry-After of a refusal, 1..30 s.
  uint32_t retry_after_seconds(Instant now) const;
  // Since the last statement; negative when there was none.
  double age_seconds(Instant now) const;
  // When fresh() turns false by itself.
  Instant expires() const { return expires_; }

  // The last statement, stale or not; null before the first.
  const proto::HealthStatement* statement() const { return statement_ ? &*statement_ : nullptr; }
  // Limits of the last generation that was ready: what a request is checked against, also while the group restarts.
  const proto::Limits& limits() const { return limits_; }

 private:
  std::optional<proto::HealthStatement> statement_;
  proto::Limits limits_;
  Instant received_{};
  Instant expires_{};
  bool connected_ = false;
};

}  // namespace holdfast::api

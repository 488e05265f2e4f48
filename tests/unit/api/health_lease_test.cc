#include "frontend/health_lease.h"

#include <catch2/catch.hpp>

namespace holdfast::api {
namespace {

using std::chrono::milliseconds;

proto::HealthStatement Statement(uint64_t sequence, bool ready, uint32_t lease_ms = 1000, const std::string& instance = "a") {
  proto::HealthStatement s;
  s.set_instance(instance);
  s.set_sequence(sequence);
  s.set_ready(ready);
  s.set_accepting(ready);
  s.set_state(ready ? "serving" : "loading");
  s.set_lease_ms(lease_ms);
  return s;
}

TEST_CASE("a lease is unknown before the first statement") {
  ManualClock clock;
  HealthLease lease;
  CHECK_FALSE(lease.fresh(clock.Now()));
  CHECK_FALSE(lease.ready(clock.Now()));
  CHECK(lease.state(clock.Now()) == "unknown");
  CHECK(lease.age_seconds(clock.Now()) == -1);
  CHECK(lease.retry_after_seconds(clock.Now()) == 1);
}

TEST_CASE("a ready statement is believed until its lease runs out and not a moment longer") {
  ManualClock clock;
  HealthLease lease;
  lease.Receive(Statement(1, true, 1000), clock.Now());
  CHECK(lease.ready(clock.Now()));
  clock.Advance(milliseconds(999));
  CHECK(lease.ready(clock.Now()));
  CHECK(lease.accepting(clock.Now()));
  clock.Advance(milliseconds(1));
  CHECK_FALSE(lease.ready(clock.Now()));
  CHECK_FALSE(lease.accepting(clock.Now()));
  CHECK(lease.state(clock.Now()) == "stale");
  CHECK_FALSE(lease.reason(clock.Now()).empty());
  lease.Receive(Statement(2, true), clock.Now());
  CHECK(lease.ready(clock.Now()));
}

TEST_CASE("a statement that is older than the last of its instance changes nothing") {
  ManualClock clock;
  HealthLease lease;
  lease.Receive(Statement(5, false), clock.Now());
  CHECK_FALSE(lease.Receive(Statement(4, true), clock.Now()));
  CHECK_FALSE(lease.ready(clock.Now()));
  // A new supervisor counts from the beginning.
  CHECK(lease.Receive(Statement(1, true, 1000, "b"), clock.Now()));
  CHECK(lease.ready(clock.Now()));
}

TEST_CASE("a broken stream leaves the lease to run out by itself") {
  ManualClock clock;
  HealthLease lease;
  lease.Receive(Statement(1, true, 500), clock.Now());
  lease.Disconnected();
  CHECK_FALSE(lease.connected());
  CHECK(lease.ready(clock.Now()));
  clock.Advance(milliseconds(500));
  CHECK_FALSE(lease.ready(clock.Now()));
}

TEST_CASE("limits survive statements that have none") {
  ManualClock clock;
  HealthLease lease;
  proto::HealthStatement s = Statement(1, true);
  s.mutable_limits()->set_max_seq_len(4096);
  lease.Receive(s, clock.Now());
  lease.Receive(Statement(2, false), clock.Now());
  CHECK(lease.limits().max_seq_len() == 4096);
}

TEST_CASE("the reason while loading is what clients look for") {
  ManualClock clock;
  HealthLease lease;
  lease.Receive(Statement(1, false), clock.Now());
  CHECK(lease.reason(clock.Now()) == "Loading model");
  proto::HealthStatement s = Statement(2, false);
  s.set_reason("the model file is truncated");
  s.set_permanent(true);
  s.set_retry_after_ms(90'000);
  lease.Receive(s, clock.Now());
  CHECK(lease.reason(clock.Now()) == "the model file is truncated");
  CHECK(lease.permanent(clock.Now()));
  CHECK(lease.retry_after_seconds(clock.Now()) == 30);
}

}  // namespace
}  // namespace holdfast::api

// restart_policy, liveness, sequencer, admission: the small units.
#include <catch2/catch.hpp>
#include <rapidcheck.h>
#include <rapidcheck/catch.h>

#include "supervisor/admission.h"
#include "supervisor/liveness.h"
#include "supervisor/restart_policy.h"
#include "supervisor/sequencer.h"

namespace holdfast::supervisor {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

const Instant kStart{std::chrono::hours(1)};

RestartOptions Exact() {
  RestartOptions o;
  o.jitter = 0;
  return o;
}

TEST_CASE("Restart delays: almost none, then doubling, capped, reset by stable service") {
  RestartOptions o = Exact();
  o.intensity = 1000;
  RestartPolicy policy(o, 1);
  Instant now = kStart;
  Duration last{};
  for (int i = 0; i < 12; ++i) {
    const RestartDecision d = policy.OnLoss(now, LossCause::kSignal);
    REQUIRE(d.verdict == Verdict::kRestart);
    if (i == 0) CHECK(d.delay == o.first_delay);
    if (i == 1) CHECK(d.delay == o.second_delay);
    CHECK(d.delay >= last);
    CHECK(d.delay <= o.max_delay);
    if (i > 1 && last * 2 <= o.max_delay) CHECK(d.delay == last * 2);
    last = d.delay;
    now += d.delay;
  }
  CHECK(last == o.max_delay);
  policy.OnServing(now);
  now += o.stable_after;
  CHECK(policy.OnLoss(now, LossCause::kSignal).delay == o.first_delay);
  policy.OnServing(now);
  CHECK(policy.OnLoss(now + o.stable_after - milliseconds(1), LossCause::kSignal).delay == o.second_delay);
}

TEST_CASE("The breaker opens after too many losses, half opens, and doubles its pause until a trial is stable") {
  const RestartOptions o = Exact();
  RestartPolicy policy(o, 1);
  Instant now = kStart;
  for (uint32_t i = 0; i < o.intensity; ++i) CHECK(policy.OnLoss(now, LossCause::kSignal).verdict == Verdict::kRestart);
  for (const Duration pause : {o.quarantine, o.quarantine * 2, o.quarantine * 4, o.quarantine * 8, o.max_quarantine, o.max_quarantine}) {
    const RestartDecision d = policy.OnLoss(now, LossCause::kSignal);
    CHECK(d.verdict == Verdict::kQuarantine);
    CHECK(d.delay == pause);
    CHECK(policy.half_open());
    now += d.delay;
  }
  policy.OnServing(now);
  now += o.stable_after;
  CHECK(policy.OnLoss(now, LossCause::kSignal).verdict == Verdict::kRestart);
  CHECK_FALSE(policy.half_open());
}

TEST_CASE("Losses outside the window are forgotten, busy devices and operators are not counted") {
  const RestartOptions o = Exact();
  RestartPolicy policy(o, 1);
  Instant now = kStart;
  for (int i = 0; i < 200; ++i) {
    CHECK(policy.OnLoss(now, LossCause::kDeviceBusy).verdict == Verdict::kRestart);
    CHECK(policy.OnLoss(now, LossCause::kOperator).delay == Duration::zero());
  }
  CHECK(policy.losses_in_window() == 0);
  for (int i = 0; i < 200; ++i) {
    CHECK(policy.OnLoss(now, LossCause::kSignal).verdict == Verdict::kRestart);
    now += o.window / o.intensity;
  }
  CHECK(policy.losses_in_window() <= o.intensity);
}

TEST_CASE("Permanent causes") {
  for (int c = 1; c < kLossCauses; ++c) {
    const auto cause = static_cast<LossCause>(c);
    RestartPolicy policy(Exact(), 1);
    const bool permanent = cause == LossCause::kConfig || cause == LossCause::kModel || cause == LossCause::kSpawn;
    CHECK((policy.OnLoss(kStart, cause).verdict == Verdict::kPermanent) == permanent);
    CHECK_FALSE(LossCauseName(cause).empty());
  }
}

TEST_CASE("The safe profile comes with integrity losses and goes after long calm") {
  const RestartOptions o = Exact();
  RestartPolicy policy(o, 1);
  Instant now = kStart;
  CHECK_FALSE(policy.OnLoss(now, LossCause::kIntegrity).safe);
  CHECK_FALSE(policy.OnLoss(now, LossCause::kSignal).safe);
  CHECK(policy.OnLoss(now, LossCause::kIntegrity).safe);
  policy.OnServing(now);
  now += minutes(5);
  CHECK(policy.OnLoss(now, LossCause::kSignal).safe);
  policy.OnServing(now);
  now += o.safe_window;
  CHECK_FALSE(policy.OnLoss(now, LossCause::kSignal).safe);
  policy.Reset();
  CHECK(policy.losses_in_window() == 0);
}

TEST_CASE("Jitter stays within its bounds and differs") {
  rc::prop("within bounds", [](uint64_t seed) {
    RestartOptions o;
    RestartPolicy policy(o, seed);
    const Duration d = policy.OnLoss(kStart, LossCause::kSignal).delay;
    RC_ASSERT(d >= Duration(static_cast<int64_t>(static_cast<double>(o.first_delay.count()) * (1 - o.jitter)) - 1));
    RC_ASSERT(d <= Duration(static_cast<int64_t>(static_cast<double>(o.first_delay.count()) * (1 + o.jitter)) + 1));
  });
  RestartPolicy a(RestartOptions{}, 1), b(RestartOptions{}, 2);
  CHECK(a.OnLoss(kStart, LossCause::kSignal).delay != b.OnLoss(kStart, LossCause::kSignal).delay);
}

TEST_CASE("Liveness: the bound grows with the mean step") {
  LivenessOptions o;
  Liveness l(o);
  l.Reset(kStart, 1);
  l.OnHeartbeat(kStart, Rank(0), 1, true, Duration::zero(), seconds(10));
  Instant now = kStart + seconds(199);
  l.OnHeartbeat(now, Rank(0), 1, true, seconds(199), seconds(10));
  CHECK_FALSE(l.Check(now));
  now += seconds(2);
  l.OnHeartbeat(now, Rank(0), 1, true, seconds(201), seconds(10));
  REQUIRE(l.Check(now));
  CHECK(l.Check(now)->kind == LivenessVerdict::Kind::kHang);
}

TEST_CASE("Liveness: a stalled queue trips the watchdog, from when the work came, not from when the worker last ran") {
  Liveness l(LivenessOptions{});
  l.Reset(kStart, 1);
  l.OnStep(kStart, Rank(0), 9, milliseconds(5));
  Instant now = kStart + std::chrono::hours(5);
  l.OnHeartbeat(now, Rank(0), 9, false, std::chrono::hours(5), milliseconds(5));
  l.SetPending(now, true);
  CHECK_FALSE(l.Check(now));
  now += seconds(31);
  l.OnHeartbeat(now, Rank(0), 9, false, std::chrono::hours(5), milliseconds(5));
  REQUIRE(l.Check(now));
  CHECK(l.Check(now)->kind == LivenessVerdict::Kind::kStalled);
  l.OnStep(now, Rank(0), 10, milliseconds(5));
  CHECK_FALSE(l.Check(now));
}

TEST_CASE("Liveness: a report cannot take a movement back or come from the future") {
  Liveness l(LivenessOptions{});
  l.Reset(kStart, 1);
  const Instant now = kStart + seconds(60);
  l.OnHeartbeat(now, Rank(0), 5, true, milliseconds(1), milliseconds(5));
  l.OnHeartbeat(now, Rank(0), 5, true, seconds(50), milliseconds(5));  // a reordered or lying report
  CHECK_FALSE(l.Check(now));
  l.OnHeartbeat(now, Rank(0), 5, true, seconds(-100), milliseconds(5));
  CHECK(l.NextDeadline() <= now + seconds(31));
}

TEST_CASE("Liveness: steps that are said to end but never reported are a hang, of rank 0 only") {
  for (const uint32_t rank : {0u, 1u}) {
    Liveness l(LivenessOptions{});
    l.Reset(kStart, 2);
    Instant now = kStart;
    for (uint64_t step = 1; now < kStart + seconds(40); ++step) {
      now += seconds(1);
      l.OnHeartbeat(now, Rank(rank), step, false, Duration::zero(), milliseconds(5));
      l.OnHeartbeat(now, Rank(1 - rank), 0, false, Duration::zero(), milliseconds(5));
    }
    REQUIRE(static_cast<bool>(l.Check(now)) == (rank == 0));
    if (rank != 0) continue;
    CHECK(l.Check(now)->kind == LivenessVerdict::Kind::kUnreported);
    l.OnStep(now, Rank(0), 5, milliseconds(5));  // late reports are reports
    CHECK_FALSE(l.Check(now));
  }
}

TEST_CASE("Liveness: Check never changes its mind before NextDeadline") {
  rc::prop("deadline", [] {
    Liveness l(LivenessOptions{});
    l.Reset(kStart, 2);
    Instant now = kStart;
    const auto n = *rc::gen::inRange(0, 20);
    for (int i = 0; i < n; ++i) {
      now += milliseconds(*rc::gen::inRange(0, 9000));
      const Rank rank(*rc::gen::inRange(0u, 2u));
      if (*rc::gen::arbitrary<bool>()) {
        l.OnHeartbeat(now, rank, static_cast<uint64_t>(i), *rc::gen::arbitrary<bool>(), milliseconds(*rc::gen::inRange(0, 40000)),
                      milliseconds(*rc::gen::inRange(0, 3000)));
      } else {
        l.SetPending(now, *rc::gen::arbitrary<bool>());
      }
    }
    if (l.Check(now)) return;
    const Instant deadline = l.NextDeadline();
    RC_ASSERT(deadline > now);
    RC_ASSERT(!l.Check(deadline - std::chrono::nanoseconds(1)));
    RC_ASSERT(static_cast<bool>(l.Check(deadline)));
  });
}

TEST_CASE("Sequencer: numbers rise by one, and a rank cannot consume what was not issued nor take back") {
  Sequencer s;
  s.Reset(2);
  CHECK(s.Next() == CommandSeq(1));
  CHECK(s.Next() == CommandSeq(2));
  CHECK(s.Consumed(Rank(0), CommandSeq(1)));
  CHECK(s.Consumed(Rank(0), CommandSeq(1)));
  CHECK(s.Consumed(Rank(0), CommandSeq(2)));
  CHECK_FALSE(s.Consumed(Rank(0), CommandSeq(1)));
  CHECK_FALSE(s.Consumed(Rank(0), CommandSeq(3)));
  CHECK_FALSE(s.Consumed(Rank(2), CommandSeq(0)));
  CHECK(s.Lag(Rank(0)) == 0);
  CHECK(s.Lag(Rank(1)) == 2);
  s.Reset(2);
  CHECK(s.last() == CommandSeq());
  CHECK(s.Next() == CommandSeq(1));
}

AdmissionView Serving() {
  AdmissionView v;
  v.serving = true;
  v.limits = {1024, 600, 4, 8};
  return v;
}

TEST_CASE("Admission: what can never run is refused at once with the numbers") {
  AdmissionView v = Serving();
  CHECK(Admit(v, {10, 10, 5, false, false}).answer == Admission::kAccept);
  CHECK(Admit(v, {0, 0, 5, false, false}).answer == Admission::kInvalid);
  CHECK(Admit(v, {10, 11, 5, false, false}).answer == Admission::kInvalid);
  CHECK(Admit(v, {10, 10, 0, false, false}).answer == Admission::kInvalid);
  CHECK(Admit(v, {15, 10, 5, false, false}).answer == Admission::kInvalid);  // all five were generated before
  CHECK(Admit(v, {14, 10, 5, false, false}).answer == Admission::kAccept);
  CHECK(Admit(v, {10, 10, 5, false, true}).answer == Admission::kInvalid);
  CHECK(Admit(v, {10, 10, 5, true, false}).answer == Admission::kQuarantined);
  // The pool (600) binds before the context (1024).
  CHECK(Admit(v, {599, 599, 5000, false, false}).answer == Admission::kAccept);
  const AdmissionAnswer long_one = Admit(v, {600, 600, 1, false, false});
  CHECK(long_one.answer == Admission::kTooLong);
  CHECK(long_one.limit == 599);
  CHECK(long_one.message.find("600") != std::string::npos);
  CHECK(long_one.message.find("599") != std::string::npos);
  v.limits.max_request_tokens = 0;
  CHECK(Admit(v, {1023, 1023, 1, false, false}).answer == Admission::kAccept);
  CHECK(Admit(v, {1024, 1024, 1, false, false}).answer == Admission::kTooLong);
}

TEST_CASE("Admission: full, down, draining") {
  AdmissionView v = Serving();
  v.in_flight = 11;
  CHECK(Admit(v, {10, 10, 5, false, false}).answer == Admission::kAccept);
  v.in_flight = 12;
  v.mean_request = seconds(40);
  const AdmissionAnswer full = Admit(v, {10, 10, 5, false, false});
  CHECK(full.answer == Admission::kOverloaded);
  CHECK(full.retry_after_ms == 10000);
  v.mean_request = std::chrono::hours(1);
  CHECK(Admit(v, {10, 10, 5, false, false}).retry_after_ms == 30000);
  v.serving = false;
  v.state_reason = "loading the model";
  v.until_serving = milliseconds(10);
  const AdmissionAnswer down = Admit(v, {10, 10, 5, false, false});
  CHECK(down.answer == Admission::kUnavailable);
  CHECK(down.message == "loading the model");
  CHECK(down.retry_after_ms == 1000);
  v.permanent = true;
  CHECK(Admit(v, {10, 10, 5, false, false}).retry_after_ms == 30000);
  v.permanent = false;
  v.serving = true;
  v.in_flight = 0;
  v.held = true;
  CHECK(Admit(v, {10, 10, 5, false, false}).answer == Admission::kDraining);
  CHECK(Admit(v, {10, 10, 5, false, false, true}).answer == Admission::kAccept);  // it was promised an end
  v.serving = false;
  CHECK(Admit(v, {10, 10, 5, false, false, true}).answer == Admission::kUnavailable);
  v.draining = true;
  CHECK(Admit(v, {10, 10, 5, false, false}).answer == Admission::kDraining);
  CHECK(Admit(v, {0, 0, 5, false, false}).answer == Admission::kInvalid);  // a bad request is bad in any state
}

}  // namespace
}  // namespace holdfast::supervisor

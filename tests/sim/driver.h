#pragma once
// A scheduler with the content engine behind it, driven by hand: what the scenario tests use.
#include <fmt/format.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/fake_engine.h"
#include "tests/sim/test_peer.h"

namespace holdfast::sim {

class Driver {
 public:
  explicit Driver(const sched::SchedulerConfig& config) : config_(config), engine(config.cache) {
    auto created = sched::Scheduler::Create(config, &log);
    if (created.ok()) {
      s = *std::move(created);
    } else {
      error = std::string(created.status().message());
    }
  }

  RequestId Submit(std::vector<TokenId> text, uint32_t max_tokens, std::vector<uint32_t> anchors = {}, std::string salt = {},
                   bool no_cache = false) {
    sched::SubmitCommand c;
    c.request = RequestId(next_++);
    c.prompt_tokens = static_cast<uint32_t>(text.size());
    c.tokens = std::move(text);
    c.max_tokens = max_tokens;
    c.anchors = std::move(anchors);
    c.cache_salt = salt;
    c.no_cache = no_cache;
    c.run_ahead = run_ahead;
    engine.Know(c.request, (salt.empty() ? 0 : Mix64(salt.size() + static_cast<uint64_t>(salt[0]))) + (no_cache ? c.request.v << 20 : 0));
    const RequestId id = c.request;
    s->Submit(std::move(c));
    Take();
    return id;
  }

  // Plans and runs one step; false when there was nothing to do.
  bool Launch() {
    const sched::StepPlan* plan = s->Plan();
    engine.Move(s->TakePageMoves());
    Take();
    if (plan == nullptr) return false;
    ++steps;
    last.clear();
    if (!engine.Run(*plan) && error.empty()) error = fmt::format("step {}: {}", steps, engine.error());
    sched::StepResult result;
    result.step = plan->step;
    for (const sched::StepEntry& e : plan->entries) {
      last.push_back({e.request, e.start, static_cast<uint32_t>(e.tokens.size()), e.sample, e.awaits});
      if (!e.sample) continue;
      const TokenId token = engine.Sample(e);
      engine.Drew(e, token);
      result.sampled.push_back({e.request, token, stop.count(e.request.v) > 0 || stop_at(token), fail.count(e.request.v) > 0});
    }
    queue.push_back(std::move(result));
    return true;
  }

  bool Settle() {
    if (queue.empty()) return false;
    s->Apply(queue.front());
    queue.pop_front();
    Take();
    return true;
  }

  // As the worker's loop: plans; settles the oldest when no more may be in flight or nothing was planned.
  bool Round() {
    const bool launched = Launch();
    const bool settled = (!launched || queue.size() > config_.overlap_depth) && Settle();
    return launched || settled;
  }
  void RunAhead(int at_most = 10000) {
    while (at_most-- > 0 && Round()) {
    }
  }

  // One step, synchronously.
  bool Step() {
    const bool launched = Launch();
    const bool settled = Settle();
    return launched || settled;
  }

  void Run(int at_most = 10000) {
    while (at_most-- > 0 && Step()) {
    }
  }

  // Everything audited now: the first thing wrong, or empty.
  std::string Wrong() {
    if (!error.empty()) return error;
    if (!log.findings.empty()) return log.Text();
    const kv::AuditReport report = sched::TestPeer::ledger(*s).Audit();
    if (!report.clean()) return fmt::format("audit: {} page {}: {}", report.problems[0].kind, report.problems[0].page, report.problems[0].detail);
    if (!sched::TestPeer::ledger(*s).FingerprintsHold()) return "fingerprints";
    return {};
  }

  struct Planned {
    RequestId request;
    uint32_t start, tokens;
    bool sample;
    bool awaits;
  };
  sched::SchedulerConfig config_;
  FindingLog log;
  FakeEngine engine;
  std::unique_ptr<sched::Scheduler> s;
  std::string error;
  std::vector<Planned> last;                       // of the last step launched
  std::deque<sched::StepResult> queue;
  std::map<uint64_t, std::vector<TokenId>> tokens; // delivered
  std::map<uint64_t, sched::RequestEvent> ended;
  std::map<uint64_t, uint32_t> cached;             // of admitted requests
  std::set<uint64_t> stop, fail;                   // requests whose next sample stops or fails
  std::function<bool(TokenId)> stop_at = [](TokenId) { return false; };  // tokens that stop whoever draws them
  bool run_ahead = false;                          // of the requests submitted from now on
  uint64_t steps = 0;

 private:
  void Take() {
    for (sched::RequestEvent& e : s->TakeEvents()) {
      if (e.admitted) cached[e.request.v] = e.cached_tokens;
      if (e.has_token) tokens[e.request.v].push_back(e.token);
      if (e.end != sched::EndReason::kNone) {
        if (ended.count(e.request.v) && error.empty()) error = "ended twice";
        ended[e.request.v] = e;
      }
    }
  }
  uint64_t next_ = 1;
};

inline std::vector<TokenId> Text(uint64_t seed, uint32_t count) {
  std::vector<TokenId> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(static_cast<TokenId>(Mix64(seed * 1000003 + i) % 30000 + 10));
  return out;
}

inline std::vector<TokenId> operator+(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace holdfast::sim

#include "tests/sim/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace holdfast::sim {
namespace {

constexpr TokenId kEnd = 1, kToolCall = 2, kTurn = 7, kAnswer = 8, kResult = 9;

struct Conversation {
  std::vector<TokenId> ids;
  uint32_t system_tokens = 0;
  uint32_t turn = 0, wait = 0;
  RequestId request;
  bool active = false, tool = false;
  uint32_t length = 0, generated = 0;
  std::vector<uint32_t> anchors;
};

class Traffic {
 public:
  explicit Traffic(const TrafficConfig& config)
      : c_(config), rng_(config.seed), engine_(config.scheduler.cache), conversations_(config.conversations) {
    for (uint32_t i = 0; i < c_.system_tokens; ++i) system_.push_back(Word());
    for (Conversation& conversation : conversations_) Start(&conversation);
  }

  TrafficResult Run() {
    auto created = sched::Scheduler::Create(c_.scheduler, &log_);
    if (!created.ok()) {
      result_.error = std::string(created.status().message());
      return result_;
    }
    scheduler_ = *std::move(created);
    uint64_t idle = 0;
    while (result_.error.empty() && result_.finished + result_.cancelled + result_.failed < c_.requests) {
      Submit();
      Resize();
      if (!Step()) ++idle; else idle = 0;
      if (idle > 2000) Error("nothing happens");
      if (log_.findings.size() > 0) Error("finding");
    }
    while (result_.error.empty() && (scheduler_->running() + scheduler_->waiting() + scheduler_->outstanding_steps() > 0)) {
      if (!Step()) break;
    }
    if (result_.error.empty() && !scheduler_->Audit()) Error("audit");
    result_.ok = result_.error.empty();
    result_.counters = scheduler_->counters();
    result_.findings = log_.Text();
    return result_;
  }

 private:
  TokenId Word() { return rng_.Between(10, 30000); }
  void Words(std::vector<TokenId>* out, uint32_t low, uint32_t high) {
    for (uint32_t n = std::max(1u, rng_.Between(low, high) / c_.scale); n > 0; --n) out->push_back(Word());
  }
  void Error(const std::string& what) {
    if (result_.error.empty()) result_.error = fmt::format("step {}: {} {}", result_.steps, what, log_.Text());
  }

  void Start(Conversation* v) {
    *v = Conversation();
    v->ids = system_;
    v->system_tokens = static_cast<uint32_t>(system_.size());
    v->anchors = {v->system_tokens};
    Ask(v, 20, 80);
  }

  // The numbers of the soak are those of a recording of it.
  uint32_t AnswerLength(bool tool) {
    if (c_.soak) return rng_.Percent(80) ? UINT32_MAX : rng_.Between(6, 140);
    return std::max(4u, (tool ? rng_.Between(15, 60) : rng_.Between(20, 200)) / c_.scale);
  }
  uint32_t Pause(uint32_t below) { return c_.soak ? rng_.Between(1, 25) : rng_.Below(below); }  // steps

  void Ask(Conversation* v, uint32_t low, uint32_t high) {
    if (c_.soak) {
      // One of three questions, of which the last words differ.
      constexpr uint32_t kSame[] = {4, 9, 16};
      const uint32_t kind = rng_.Below(3);
      for (uint32_t i = 0; i < kSame[kind]; ++i) v->ids.push_back(31000 + 100 * kind + i);
      low = 6, high = 14;
    }
    Words(&v->ids, low, high);
    v->anchors.push_back(static_cast<uint32_t>(v->ids.size()));
    v->ids.insert(v->ids.end(), {kTurn, kAnswer});
  }

  void Echo(Conversation* v, std::vector<TokenId> answer) {
    if (c_.soak) {
      const uint32_t tokens = static_cast<uint32_t>(answer.size());
      answer.resize(std::min(tokens, rng_.Below(6)));
      Words(&answer, tokens * 14 / 10, tokens * 16 / 10);
      v->ids.insert(v->ids.end(), answer.begin(), answer.end());
      v->anchors.push_back(static_cast<uint32_t>(v->ids.size()));
      return;
    }
    if (rng_.Percent(c_.rewrite_percent) && answer.size() > 6) {
      answer.resize(rng_.Between(4, static_cast<uint32_t>(answer.size()) - 1));
      Words(&answer, 1, 8);
    }
    v->ids.insert(v->ids.end(), answer.begin(), answer.end());
    v->ids.push_back(kResult);
  }

  void Submit() {
    for (Conversation& v : conversations_) {
      if (v.active) {
        if (c_.cancel_per_mille > 0 && rng_.Below(100000) < c_.cancel_per_mille * 2) scheduler_->Cancel(v.request);
        continue;
      }
      if (v.wait > 0) {
        --v.wait;
        continue;
      }
      v.request = RequestId(next_request_++);
      v.active = true;
      v.tool = !c_.soak && rng_.Percent(65);
      result_.tool_calls += v.tool;
      v.length = AnswerLength(v.tool);
      v.generated = 0;
      sched::SubmitCommand command;
      command.request = v.request;
      command.tokens = v.ids;
      command.prompt_tokens = static_cast<uint32_t>(v.ids.size());
      command.max_tokens = c_.max_tokens;
      command.anchors = v.anchors;
      command.run_ahead = Mix64(v.request.v) % 100 < c_.run_ahead_percent;
      prompt_[v.request.v] = v.ids.size();
      engine_.Know(v.request, 0);
      scheduler_->Submit(std::move(command));
    }
  }

  void Resize() {
    if (c_.resize_every == 0 || result_.steps % c_.resize_every != 0 || result_.steps == last_resize_) return;
    last_resize_ = result_.steps;
    sched::ResizeCommand command;
    command.operation = ++operation_;
    const auto pools = scheduler_->Pools();
    if (scheduler_->resize().phase == sched::ResizeState::Phase::kRunning) {
      command.operation = scheduler_->resize().operation;
      command.cancel = true;
    } else {
      for (size_t g = 0; g < pools.size(); ++g) {
        const auto& shape = c_.scheduler.cache.groups[g];
        uint32_t& pages = pools[g].window == 0 ? command.full_pages : command.window_pages;
        const uint32_t low = pools[g].window == 0 ? std::max(pools[g].floor, shape.pages / 2) : pools[g].floor;
        pages = rng_.Between(low, std::max(shape.pages, shape.reserve_pages));
      }
    }
    scheduler_->Resize(command);
    result_.resizes++;
    result_.refused_resizes += scheduler_->resize().phase == sched::ResizeState::Phase::kRefused;
  }

  bool Step() {
    const sched::StepPlan* plan = scheduler_->Plan();
    engine_.Move(scheduler_->TakePageMoves());
    if (plan != nullptr) {
      ++result_.steps;
      if (c_.check_content && !engine_.Run(*plan)) Error(engine_.error());
      sched::StepResult outcome;
      outcome.step = plan->step;
      for (const sched::StepEntry& e : plan->entries) {
        if (!e.sample) continue;
        outcome.sampled.push_back(Sample(e));
        engine_.Drew(e, outcome.sampled.back().token);
        result_.awaited += e.awaits;
      }
      queue_.push_back(std::move(outcome));
    }
    if (!queue_.empty() && (plan == nullptr || queue_.size() > c_.scheduler.overlap_depth)) {
      scheduler_->Apply(queue_.front());
      queue_.pop_front();
    } else if (plan == nullptr) {
      Events();
      return false;
    }
    Events();
    return true;
  }

  Conversation* Of(RequestId request) {
    for (Conversation& v : conversations_) {
      if (v.active && v.request == request) return &v;
    }
    return nullptr;
  }

  sched::SampledToken Sample(const sched::StepEntry& e) {
    sched::SampledToken s;
    s.request = e.request;
    s.token = engine_.Sample(e);
    Conversation* v = Of(e.request);
    if (v == nullptr) return s;
    const uint32_t generated = e.start + static_cast<uint32_t>(e.tokens.size()) - e.prompt_tokens;
    if (v->tool && generated == 3) s.token = kToolCall;
    if (generated >= v->length) {
      s.token = kEnd;
      s.is_stop = true;
    }
    return s;
  }

  void Events() {
    for (const sched::RequestEvent& event : scheduler_->TakeEvents()) {
      Conversation* v = Of(event.request);
      if (v == nullptr) {
        Error("an event of an unknown request");
        return;
      }
      if (event.admitted) {
        result_.cached_tokens += event.cached_tokens;
        result_.prompt_tokens += prompt_[event.request.v];
      }
      if (event.has_token) {
        answers_[event.request.v].push_back(event.token);
        result_.outputs_hash = Mix64(result_.outputs_hash + Mix64(event.request.v << 32 | event.token));
      }
      if (event.end != sched::EndReason::kNone) Finish(v, event);
    }
  }

  void Finish(Conversation* v, const sched::RequestEvent& event) {
    const bool cancelled = event.end == sched::EndReason::kCancelled;
    const bool failed = event.end == sched::EndReason::kFailed || event.end == sched::EndReason::kNeverFits;
    if (failed) Error("a request failed: " + event.message);
    (cancelled ? result_.cancelled : failed ? result_.failed : result_.finished)++;
    std::vector<TokenId> echo = std::move(answers_[event.request.v]);
    answers_.erase(event.request.v);
    engine_.Forget(event.request);
    v->active = false;
    if (!echo.empty() && echo.back() == kEnd) echo.pop_back();
    Echo(v, std::move(echo));
    Ask(v, 40, 300);
    v->wait = Pause(7);
    if (++v->turn >= c_.turns || cancelled || failed) {
      Start(v);
      v->wait = Pause(11);
    }
  }

  TrafficConfig c_;
  Rng rng_;
  FindingLog log_;
  FakeEngine engine_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::vector<TokenId> system_;
  std::vector<Conversation> conversations_;
  std::deque<sched::StepResult> queue_;
  std::map<uint64_t, std::vector<TokenId>> answers_;
  std::map<uint64_t, size_t> prompt_;
  uint64_t next_request_ = 1, operation_ = 0, last_resize_ = UINT64_MAX;
  TrafficResult result_;
};

}  // namespace

TrafficResult RunTraffic(const TrafficConfig& config) { return Traffic(config).Run(); }

}  // namespace holdfast::sim

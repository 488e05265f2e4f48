#include "worker/requests.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace holdfast::worker {
namespace {

using proto::EngineError;

exec::SamplingParams ParamsFromWire(const proto::SamplingParams& p) {
  exec::SamplingParams out;
  out.temperature = p.temperature();
  out.top_p = p.top_p() > 0 ? p.top_p() : 1.f;
  out.top_k = p.top_k();
  out.min_p = p.min_p();
  out.presence_penalty = p.presence_penalty();
  out.frequency_penalty = p.frequency_penalty();
  out.repetition_penalty = p.repetition_penalty();
  for (const auto& b : p.logit_bias()) out.logit_bias.push_back({b.token(), b.bias()});
  out.seed = p.seed();
  out.choice = p.choice();
  out.logprobs = p.logprobs();
  out.top_logprobs = std::min(p.top_logprobs(), 20u);
  out.stop_tokens.assign(p.stop_tokens().begin(), p.stop_tokens().end());
  out.suppress_tokens.assign(p.suppress_tokens().begin(), p.suppress_tokens().end());
  return out;
}

// Its tokens can be drawn without the host: from the logits and the token's place alone.
bool DrawnAlone(const exec::SamplingParams& p) { return !p.constrained && !p.logprobs && !exec::Penalises(p); }

proto::Token TokenOnWire(const exec::StepLogprobs& lp, size_t i) {
  proto::Token token;
  token.set_id(lp.tokens[i].token);
  token.set_logprob(lp.tokens[i].logprob);
  if (i < lp.top.size()) {
    for (const auto& t : lp.top[i]) {
      auto* top = token.add_top();
      top->set_token(t.token);
      top->set_logprob(t.logprob);
    }
  }
  return token;
}

}  // namespace

Requests::Requests(sched::Scheduler* scheduler, Constraints* constraints, uint32_t vocab, uint64_t generation, FindingSink* findings)
    : scheduler_(scheduler), constraints_(constraints), vocab_(vocab), generation_(generation), findings_(findings) {}

void Requests::Refuse(uint64_t id, EngineError::Kind kind, std::string message) {
  proto::TokenEvent event;
  event.set_request_id(id);
  event.set_finish(proto::FINISH_ERROR);
  event.mutable_error()->set_kind(kind);
  event.mutable_error()->set_message(std::move(message));
  refusals_.push_back(std::move(event));
}

bool Requests::TakeConstraint(RequestId id, const proto::GenerateRequest& r, uint32_t prompt) {
  if (r.constraint().program().empty()) return true;
  const std::vector<TokenId> generated(r.tokens().begin() + prompt, r.tokens().end());
  const std::vector<TokenId> stops(r.sampling().stop_tokens().begin(), r.sampling().stop_tokens().end());
  const absl::Status added = constraints_->Add(id, r.constraint().program(), generated, stops);
  if (!added.ok()) Refuse(id.v, EngineError::INVALID, std::string(added.message()));
  return added.ok();
}

void Requests::Submit(const proto::Submit& submit) {
  const proto::GenerateRequest& r = submit.request();
  const RequestId id(r.request_id());
  // engine.proto is open to internal services, so what arrives here is input, not our own bookkeeping.
  const uint32_t prompt = r.prompt_tokens() == 0 ? static_cast<uint32_t>(r.tokens_size()) : r.prompt_tokens();
  if (r.tokens_size() == 0 || prompt > static_cast<uint32_t>(r.tokens_size())) {
    return Refuse(id.v, EngineError::INVALID, fmt::format("tokens holds {} ids, prompt_tokens says {}", r.tokens_size(), prompt));
  }
  for (const uint32_t t : r.tokens()) {
    if (t >= vocab_) return Refuse(id.v, EngineError::INVALID, fmt::format("token id {} is outside the vocabulary of {}", t, vocab_));
  }
  const auto& sp = r.sampling();
  if (!std::isfinite(sp.temperature()) || !std::isfinite(sp.top_p()) || !std::isfinite(sp.min_p()) || !std::isfinite(sp.presence_penalty()) ||
      !std::isfinite(sp.frequency_penalty()) || !std::isfinite(sp.repetition_penalty()) || sp.repetition_penalty() < 0) {
    return Refuse(id.v, EngineError::INVALID, "a sampling parameter is not finite or negative where it must not be");
  }
  if (live_.contains(id)) {
    return findings_->Report({Severity::kStructural, "duplicate_request", fmt::format("request {} was submitted twice", id.v)});
  }
  const uint32_t generated = static_cast<uint32_t>(r.tokens_size()) - prompt;
  if (r.max_tokens() <= generated) {
    return Refuse(id.v, EngineError::INVALID, fmt::format("max_tokens {} with {} tokens already generated", r.max_tokens(), generated));
  }
  if (!TakeConstraint(id, r, prompt)) return;
  Live live;
  live.wire_id = id.v;
  live.wants_logprobs = sp.logprobs();
  live.wants_prompt_logprobs = r.prompt_logprobs();
  live.queued_ms = submit.queued_ms();
  live.submitted = Clock::Real().Now();
  live_.emplace(id, std::move(live));

  sched::SubmitCommand command;
  command.request = id;
  command.tokens.assign(r.tokens().begin(), r.tokens().end());
  command.prompt_tokens = prompt;
  // A pool that shrank or lost pages holds less than the limits the caller knows: the answer may be that much shorter. Only tokens that leave no room
  // for one more are refused, by the scheduler.
  const uint32_t room = scheduler_->max_request_tokens();
  command.max_tokens = static_cast<uint32_t>(r.tokens_size()) < room ? std::min(r.max_tokens(), room - prompt) : r.max_tokens();
  command.anchors.assign(r.anchors().begin(), r.anchors().end());
  command.cache_salt = r.cache_salt();
  command.no_cache = r.no_cache() || r.prompt_logprobs();
  command.prompt_logprobs = r.prompt_logprobs();
  std::vector<TokenId> scored;
  if (r.prompt_logprobs()) {
    scored.assign(command.tokens.begin(), command.tokens.begin() + prompt);
    proto::Token first;
    first.set_id(scored[0]);
    live_[id].prompt.push_back(std::move(first));
  }
  exec::SamplingParams params = ParamsFromWire(sp);
  params.constrained = !r.constraint().program().empty();
  command.run_ahead = DrawnAlone(params) && !r.prompt_logprobs();
  sampling_.Add(id, std::move(params), std::move(scored));
  scheduler_->Submit(std::move(command));
}

void Requests::Forget(RequestId id) {
  sampling_.Remove(id);
  constraints_->Remove(id);
}

void Requests::Collect(const exec::ExecResult& result) {
  step_tokens_.clear();
  for (Ended& e : ended_) {
    if (--e.steps == 0) Forget(e.request);
  }
  std::erase_if(ended_, [](const Ended& e) { return e.steps == 0; });
  for (const sched::SampledToken& sampled : result.result.sampled) {
    if (!sampled.refused) continue;
    if (auto it = live_.find(sampled.request); it != live_.end()) it->second.refused = true;
  }
  for (const exec::StepLogprobs& lp : result.logprobs) {
    if (lp.prompt) {
      auto it = live_.find(lp.request);
      if (it == live_.end()) continue;
      // A preempted request computes its prompt again: positions already collected are skipped.
      for (size_t i = 0; i < lp.tokens.size(); ++i) {
        if (lp.first + i == it->second.prompt.size()) it->second.prompt.push_back(TokenOnWire(lp, i));
      }
    } else if (!lp.tokens.empty()) {
      step_tokens_[lp.request] = TokenOnWire(lp, 0);
    }
  }
}

void Requests::FillEvents(proto::StepReport* report) {
  for (proto::TokenEvent& refusal : refusals_) report->add_events()->Swap(&refusal);
  refusals_.clear();
  for (const sched::RequestEvent& e : scheduler_->TakeEvents()) {
    auto it = live_.find(e.request);
    if (it == live_.end()) continue;
    Live& live = it->second;
    auto* event = report->add_events();
    event->set_request_id(live.wire_id);
    event->set_generation(generation_);
    if (e.admitted) {
      auto* admitted = event->mutable_admitted();
      admitted->set_cached_tokens(e.cached_tokens);
      admitted->set_queue_ms(static_cast<uint32_t>(live.queued_ms + static_cast<uint64_t>(ToMillis(Clock::Real().Now() - live.submitted))));
    }
    if (e.has_token) {
      for (auto& p : live.prompt) event->add_prompt()->Swap(&p);
      live.prompt.clear();
      auto* token = event->add_tokens();
      if (auto t = step_tokens_.find(e.request); live.wants_logprobs && t != step_tokens_.end()) token->Swap(&t->second);
      token->set_id(e.token);
    }
    switch (e.end) {
      case sched::EndReason::kNone: continue;
      case sched::EndReason::kStop: event->set_finish(proto::FINISH_STOP); break;
      case sched::EndReason::kLength: event->set_finish(proto::FINISH_LENGTH); break;
      case sched::EndReason::kCancelled: event->set_finish(proto::FINISH_CANCELLED); break;
      case sched::EndReason::kFailed:
        event->set_finish(proto::FINISH_ERROR);
        event->mutable_error()->set_kind(live.refused ? EngineError::INVALID : EngineError::INTERNAL);
        event->mutable_error()->set_message(e.message);
        break;
      case sched::EndReason::kNeverFits:
        event->set_finish(proto::FINISH_ERROR);
        event->mutable_error()->set_kind(EngineError::TOO_LONG);
        event->mutable_error()->set_message(e.message);
        event->mutable_error()->set_limit(e.limit);
        break;
    }
    if (const uint32_t steps = scheduler_->outstanding_steps(); steps > 0) {
      ended_.push_back({e.request, steps});
    } else {
      Forget(e.request);
    }
    live_.erase(it);
  }
}

}  // namespace holdfast::worker

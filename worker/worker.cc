#include "worker/worker.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "proto/base/exit_code.h"
#include "proto/base/fault.h"
#include "proto/base/log.h"

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

proto::FindingReport::Severity SeverityOnWire(Severity s) { return static_cast<proto::FindingReport::Severity>(s); }

}  // namespace

Worker::Worker(const WorkerConfig& config, Inbox* inbox, StepPulse* pulse, SupervisorLink* link, Lifeline* lifeline, Keeper* keeper)
    : config_(config), inbox_(inbox), pulse_(pulse), link_(link), lifeline_(lifeline), keeper_(keeper) {}

int Worker::Run() {
  if (const int code = Load(); code != 0) return code;
  return Serve();
}

int Worker::Load() {
  RuntimeEvents events;
  events.on_card = [&](const proto::ModelCard& card) {
    proto::WorkerMessage message;
    message.set_model_card(card.SerializeAsString());
    link_->Send(std::move(message));
  };
  events.on_progress = [&](const model::LoadProgress& p) {
    proto::WorkerMessage message;
    auto* progress = message.mutable_progress();
    progress->set_phase(p.phase);
    progress->set_done_bytes(p.done_bytes);
    progress->set_total_bytes(p.total_bytes);
    link_->Send(std::move(message));
    FaultPoint("worker.load.progress");
    // Refused, asked to stop or cut off: nothing of a half-loaded model is worth keeping.
    return TakeInbound();
  };
  events.keeper = keeper_;
  auto built = Runtime::Build(config_, events, this);
  if (!built.ok()) {
    if (exit_code_ != 0 || stopping_) return exit_code_;
    const int code = ExitCodeOf(built.status());
    const std::string why(built.status().message());
    LogError("cannot serve: {}", why);
    proto::WorkerMessage message;
    message.mutable_failure()->set_exit_code(code);
    message.mutable_failure()->set_message(why);
    link_->Send(std::move(message));
    link_->Flush(std::chrono::seconds(2));
    return code;
  }
  runtime_ = *std::move(built);
  runtime_->executor().SetProgress([this] {
    pulse_->Touch();
    FaultPoint("worker.layer");
  });
  if (FaultPoint("worker.warm")) return static_cast<int>(ExitCode::kDevice);

  proto::WorkerMessage message;
  auto* ready = message.mutable_ready();
  auto* limits = ready->mutable_limits();
  auto& scheduler = runtime_->scheduler();
  limits->set_max_seq_len(runtime_->cache_plan().max_seq_len);
  limits->set_max_running(config_.max_running);
  limits->set_max_queue(config_.max_queue);
  limits->set_prefill_chunk(scheduler.effective_chunk());
  limits->set_page_size(config_.page_size);
  limits->set_max_request_tokens(scheduler.max_request_tokens());
  ready->set_backend(runtime_->ops().Describe());
  ready->set_weight_bytes(runtime_->weight_bytes());
  ready->set_load_ms(runtime_->load_ms());
  ready->set_mapped_weights(runtime_->mapped_weights());
  ready->set_weights_ms(runtime_->weights_ms());
  proto::StepReport status;
  FillStatus(&status);
  ready->mutable_pools()->Swap(status.mutable_pools());
  link_->Send(std::move(message));
  link_->StartHeartbeats();
  lifeline_->SetServing();
  LogInfo("ready after {} ms: {} weights, chunk {}, {} sequences of up to {} tokens", runtime_->load_ms(), runtime_->weight_bytes(),
          scheduler.effective_chunk(), config_.max_running, runtime_->cache_plan().max_seq_len);
  return 0;
}

int Worker::Serve() {
  for (;;) {
    if (!TakeInbound()) return exit_code_;
    if (FaultPoint("worker.loop")) return static_cast<int>(ExitCode::kDevice);
    ApplyPageMoves();
    const sched::StepPlan* plan = runtime_->scheduler().Plan();
    if (plan != nullptr) {
      Step(*plan);
      if (exit_code_ != 0) return exit_code_;
    } else {
      proto::StepReport report;
      FillEvents(&report);
      ReportResize();
      if (report.events_size() > 0 || status_stale_) SendReport(std::move(report), true);
      if (stopping_ || (draining_ && live_.empty())) {
        link_->Flush(std::chrono::seconds(1));
        return exit_code_;
      }
      inbox_->Wait(std::chrono::milliseconds(500));
    }
    if (structural_) {
      WriteFlightRecord();
      link_->Flush(std::chrono::seconds(1));
      return static_cast<int>(ExitCode::kIntegrity);
    }
  }
}

bool Worker::TakeInbound() {
  for (Inbound& in : inbox_->TakeAll()) {
    switch (in.kind) {
      case Inbound::Kind::kLinkLost:
        LogWarn("the link to the supervisor broke, leaving");
        exit_code_ = static_cast<int>(ExitCode::kSupervisorGone);
        return false;
      case Inbound::Kind::kTerminate:
        stopping_ = true;
        return false;
      case Inbound::Kind::kMessage: {
        proto::SupervisorMessage& m = *in.message;
        if (m.has_refused()) {
          LogWarn("the supervisor refused this worker: {}", m.refused().why());
          exit_code_ = static_cast<int>(ExitCode::kFenced);
          return false;
        }
        if (m.has_stop()) {
          stopping_ = true;
          return false;
        }
        if (m.has_command()) TakeCommand(std::move(*m.mutable_command()));
        break;
      }
    }
  }
  return true;
}

void Worker::TakeCommand(proto::Command command) {
  if (command.seq() != command_seq_ + 1) {
    Report({Severity::kStructural, "log_gap", fmt::format("command {} follows {}", command.seq(), command_seq_)});
    return;
  }
  command_seq_ = command.seq();
  if (runtime_ == nullptr) return;  // commands before Ready do not happen; a supervisor that sends them gets no answer
  switch (command.kind_case()) {
    case proto::Command::kSubmit: TakeSubmit(command.submit()); break;
    case proto::Command::kCancel: runtime_->scheduler().Cancel(RequestId(command.cancel().request_id())); break;
    case proto::Command::kResize: {
      sched::ResizeCommand resize;
      resize.operation = command.resize().operation();
      resize.cancel = command.resize().cancel();
      for (const auto& t : command.resize().targets()) {
        if (t.pool() == "full") resize.full_pages = t.pages();
        if (t.pool() == "window") resize.window_pages = t.pages();
      }
      runtime_->scheduler().Resize(resize);
      break;
    }
    case proto::Command::kDrain: draining_ = true; break;
    case proto::Command::KIND_NOT_SET: break;
  }
  status_stale_ = true;
}

void Worker::RefuseSubmit(uint64_t id, EngineError::Kind kind, std::string message) {
  proto::TokenEvent event;
  event.set_request_id(id);
  event.set_finish(proto::FINISH_ERROR);
  event.mutable_error()->set_kind(kind);
  event.mutable_error()->set_message(std::move(message));
  refusals_.push_back(std::move(event));
}

void Worker::TakeSubmit(const proto::Submit& submit) {
  const proto::GenerateRequest& r = submit.request();
  const RequestId id(r.request_id());
  const auto vocab = static_cast<uint32_t>(runtime_->hparams().vocab);
  // engine.proto is open to internal services, so what arrives here is input, not our own bookkeeping.
  const uint32_t prompt = r.prompt_tokens() == 0 ? static_cast<uint32_t>(r.tokens_size()) : r.prompt_tokens();
  if (r.tokens_size() == 0 || prompt > static_cast<uint32_t>(r.tokens_size())) {
    return RefuseSubmit(id.v, EngineError::INVALID, fmt::format("tokens holds {} ids, prompt_tokens says {}", r.tokens_size(), prompt));
  }
  for (const uint32_t t : r.tokens()) {
    if (t >= vocab) return RefuseSubmit(id.v, EngineError::INVALID, fmt::format("token id {} is outside the vocabulary of {}", t, vocab));
  }
  const auto& sp = r.sampling();
  if (!std::isfinite(sp.temperature()) || !std::isfinite(sp.top_p()) || !std::isfinite(sp.min_p()) || !std::isfinite(sp.presence_penalty()) ||
      !std::isfinite(sp.frequency_penalty()) || !std::isfinite(sp.repetition_penalty()) || sp.repetition_penalty() < 0) {
    return RefuseSubmit(id.v, EngineError::INVALID, "a sampling parameter is not finite or negative where it must not be");
  }
  if (live_.contains(id)) {
    return Report({Severity::kStructural, "duplicate_request", fmt::format("request {} was submitted twice", id.v)});
  }
  const uint32_t generated = static_cast<uint32_t>(r.tokens_size()) - prompt;
  if (r.max_tokens() <= generated) {
    return RefuseSubmit(id.v, EngineError::INVALID, fmt::format("max_tokens {} with {} tokens already generated", r.max_tokens(), generated));
  }
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
  command.max_tokens = r.max_tokens();
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
  sampling_.Add(id, ParamsFromWire(sp), std::move(scored));
  runtime_->scheduler().Submit(std::move(command));
}

void Worker::Step(const sched::StepPlan& plan) {
  pulse_->Begin(plan.step.v);
  if (FaultPoint("worker.step")) {
    exit_code_ = static_cast<int>(ExitCode::kDevice);
    return;
  }
  const auto ran = runtime_->executor().Run(plan, sampling_);
  if (!ran.ok()) {
    Report({Severity::kStructural, "executor", std::string(ran.status().message())});
    return;
  }
  const exec::ExecResult& result = **ran;
  step_ = plan.step.v;
  last_step_us_ = result.step_us;
  last_prefill_ = result.prefill_tokens;
  last_decode_ = result.decode_tokens;
  mean_step_us_ = mean_step_us_ == 0 ? result.step_us : 0.95 * mean_step_us_ + 0.05 * result.step_us;
  for (const std::string& failure : result.failures) LogWarn({{"step", step_}}, "{}", failure);
  CollectLogprobs(result);
  runtime_->scheduler().Apply(result.result);
  if (FaultPoint("worker.finding")) Report({Severity::kStructural, "fault_point", fmt::format("fault point worker.finding at step {}", step_)});
  pulse_->End(step_, static_cast<uint32_t>(mean_step_us_));
  proto::StepReport report;
  FillEvents(&report);
  status_stale_ = true;
  SendReport(std::move(report), false);
  ReportResize();
  FaultPoint("worker.step.sent");
}

void Worker::CollectLogprobs(const exec::ExecResult& result) {
  step_tokens_.clear();
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

void Worker::FillEvents(proto::StepReport* report) {
  for (proto::TokenEvent& refusal : refusals_) report->add_events()->Swap(&refusal);
  refusals_.clear();
  for (const sched::RequestEvent& e : runtime_->scheduler().TakeEvents()) {
    auto it = live_.find(e.request);
    if (it == live_.end()) continue;
    Live& live = it->second;
    auto* event = report->add_events();
    event->set_request_id(live.wire_id);
    event->set_generation(config_.generation);
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
        event->mutable_error()->set_kind(EngineError::INTERNAL);
        event->mutable_error()->set_message(e.message);
        break;
      case sched::EndReason::kNeverFits:
        event->set_finish(proto::FINISH_ERROR);
        event->mutable_error()->set_kind(EngineError::TOO_LONG);
        event->mutable_error()->set_message(e.message);
        event->mutable_error()->set_limit(e.limit);
        break;
    }
    sampling_.Remove(e.request);
    live_.erase(it);
  }
}

void Worker::FillStatus(proto::StepReport* report) {
  const auto& scheduler = runtime_->scheduler();
  const auto pools = scheduler.Pools();
  for (size_t i = 0; i < pools.size(); ++i) {
    const kv::PoolView& v = pools[i];
    auto* p = report->add_pools();
    p->set_name(v.name);
    p->set_window(v.window);
    p->set_capacity(v.capacity);
    p->set_free(v.free);
    p->set_held(v.held);
    p->set_evictable(v.evictable);
    p->set_retiring(v.retiring);
    p->set_quarantined(v.quarantined);
    p->set_unbacked(v.unbacked);
    p->set_reserved(v.reserved);
    p->set_floor(v.floor);
    p->set_recommended(v.recommended);
    p->set_evictions(v.evictions);
    p->set_bytes_per_page(static_cast<uint64_t>(runtime_->kv_plan().groups[i].page_bytes));
    p->set_reserve_capacity(v.capacity + v.unbacked);
  }
  const auto& c = scheduler.counters();
  auto* cache = report->mutable_cache();
  cache->set_prompt_tokens(c.prompt_tokens);
  cache->set_cached_tokens(c.cached_tokens);
  cache->set_computed_prompt_tokens(c.computed_prompt_tokens);
  cache->set_lookups(c.lookups);
  cache->set_hits(c.hits);
  cache->set_window_truncated_hits(c.window_truncated_hits);
  cache->set_heals(c.heals);
  cache->set_dedups(c.dedups);
  cache->set_preemptions(c.preemptions);
  cache->set_deferred(c.deferred);
  cache->set_audits(c.audits);
  cache->set_nodes(scheduler.index_nodes());
}

// Tokens go out with every step; the pools' numbers at most every 50 ms and whenever the worker falls idle, so that gauges reach zero
// without a new request.
void Worker::SendReport(proto::StepReport report, bool force_status) {
  const auto& scheduler = runtime_->scheduler();
  const Instant now = Clock::Real().Now();
  if (force_status || now - status_sent_ > std::chrono::milliseconds(50)) {
    FillStatus(&report);
    status_sent_ = now;
    status_stale_ = false;
  }
  report.set_generation(config_.generation);
  report.set_step(step_);
  report.set_digest(scheduler.digest());
  report.set_command_seq(command_seq_);
  report.set_running(scheduler.running());
  report.set_waiting(scheduler.waiting());
  report.set_step_us(last_step_us_);
  report.set_prefill_tokens(last_prefill_);
  report.set_decode_tokens(last_decode_);
  last_step_us_ = last_prefill_ = last_decode_ = 0;
  proto::WorkerMessage message;
  message.mutable_step()->Swap(&report);
  link_->Send(std::move(message));
}

void Worker::ApplyPageMoves() {
  for (const sched::PageMove& move : runtime_->scheduler().TakePageMoves()) runtime_->executor().MovePage(move.group, move.from, move.to);
  const auto phase = runtime_->scheduler().resize().phase;
  if (phase == sched::ResizeState::Phase::kNone || (phase == backing_phase_ && phase != sched::ResizeState::Phase::kRunning)) return;
  backing_phase_ = phase;
  // Growing: the new pages must be backed before a plan names them. Shrinking: memory goes back only when the operation is done, since
  // a page above the new end may still be read until then.
  const auto pools = runtime_->scheduler().Pools();
  for (size_t g = 0; g < pools.size(); ++g) {
    const uint32_t backed = runtime_->executor().storage().pages(static_cast<int>(g));
    const bool shrink = pools[g].capacity < backed && phase == sched::ResizeState::Phase::kDone;
    if (pools[g].capacity <= backed && !shrink) continue;
    const absl::Status status = runtime_->executor().SetPages(static_cast<int>(g), pools[g].capacity);
    if (!status.ok()) Report({Severity::kStructural, "backing", std::string(status.message())});
  }
}

void Worker::ReportResize() {
  const sched::ResizeState state = runtime_->scheduler().resize();
  if (state.phase == sched::ResizeState::Phase::kNone || (state.operation == resize_reported_ && state.phase == resize_phase_)) return;
  resize_reported_ = state.operation;
  resize_phase_ = state.phase;
  proto::WorkerMessage message;
  auto* report = message.mutable_resize();
  report->set_operation(state.operation);
  report->set_message(state.message);
  switch (state.phase) {
    case sched::ResizeState::Phase::kNone:
    case sched::ResizeState::Phase::kRunning: report->set_state(proto::ResizeReport::RUNNING); break;
    case sched::ResizeState::Phase::kDone: report->set_state(proto::ResizeReport::DONE); break;
    case sched::ResizeState::Phase::kRefused: report->set_state(proto::ResizeReport::REFUSED); break;
    case sched::ResizeState::Phase::kCancelled: report->set_state(proto::ResizeReport::CANCELLED); break;
  }
  link_->Send(std::move(message));
  status_stale_ = true;
}

void Worker::Report(Finding finding) {
  LogError({{"severity", SeverityName(finding.severity)}, {"kind", finding.kind}, {"step", step_}}, "finding: {}", finding.detail);
  proto::WorkerMessage message;
  auto* f = message.mutable_finding();
  f->set_severity(SeverityOnWire(finding.severity));
  f->set_kind(finding.kind);
  f->set_detail(finding.detail);
  f->set_step(step_);
  link_->Send(std::move(message));
  if (finding.severity == Severity::kStructural) structural_ = true;
}

void Worker::WriteFlightRecord() {
  if (config_.flight_record.empty() || runtime_ == nullptr) return;
  if (!runtime_->executor().flight_recorder().WriteFile(config_.flight_record)) LogWarn("cannot write {}", config_.flight_record);
}

}  // namespace holdfast::worker

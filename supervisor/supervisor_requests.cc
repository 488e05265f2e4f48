// Sessions and requests: admission in, commands out, events back.
#include <fmt/format.h>

#include <algorithm>

#include "proto/base/check.h"
#include "proto/base/log.h"
#include "proto/base/random.h"
#include "supervisor/supervisor.h"

namespace holdfast::supervisor {
namespace {

proto::EngineError::Kind KindOf(Admission answer) {
  switch (answer) {
    case Admission::kAccept: break;
    case Admission::kInvalid: return proto::EngineError::INVALID;
    case Admission::kTooLong: return proto::EngineError::TOO_LONG;
    case Admission::kOverloaded: return proto::EngineError::OVERLOADED;
    case Admission::kUnavailable: return proto::EngineError::UNAVAILABLE;
    case Admission::kDraining: return proto::EngineError::DRAINING;
    case Admission::kQuarantined: return proto::EngineError::QUARANTINED;
  }
  return proto::EngineError::UNKNOWN;
}

std::string_view NameOf(Admission answer) {
  switch (answer) {
    case Admission::kAccept: break;
    case Admission::kInvalid: return "refused_invalid";
    case Admission::kTooLong: return "refused_too_long";
    case Admission::kOverloaded: return "refused_overloaded";
    case Admission::kUnavailable: return "refused_unavailable";
    case Admission::kDraining: return "refused_draining";
    case Admission::kQuarantined: return "refused_quarantined";
  }
  return "accepted";
}

std::string_view NameOf(proto::FinishReason reason) {
  switch (reason) {
    case proto::FINISH_STOP: return "stop";
    case proto::FINISH_LENGTH: return "length";
    case proto::FINISH_CANCELLED: return "cancelled";
    case proto::FINISH_LOST: return "lost";
    default: return "error";
  }
}

// The caller's fingerprint, or one of what it asks: the prompt, the seed and the length.
uint64_t FingerprintOf(const proto::GenerateRequest& request) {
  if (request.fingerprint() != 0) return request.fingerprint();
  const int prompt = request.prompt_tokens() == 0 ? request.tokens_size() : static_cast<int>(request.prompt_tokens());
  uint64_t h = Mix64(static_cast<uint64_t>(prompt));
  for (int i = 0; i < prompt; ++i) h = Mix64(h ^ request.tokens(i));
  return Mix64(h ^ request.sampling().seed() ^ (uint64_t{request.max_tokens()} << 32)) | 1;
}

constexpr size_t kMaxTrace = 200;

}  // namespace

AdmissionView Supervisor::View() const {
  AdmissionView view;
  view.serving = Ready();
  view.held = machine_.held();
  view.draining = machine_.stop_for_good();
  view.permanent = machine_.permanent();
  if (!view.serving) view.state_reason = Reason();
  const Instant now = clock_.Now();
  const Duration load = std::chrono::milliseconds(std::max<uint32_t>(ready_.load_ms(), 1000));
  const auto launch = machine_.next_launch();
  view.until_serving = launch ? std::max(Duration::zero(), *launch - now) + load : load;
  view.in_flight = static_cast<uint32_t>(requests_.size());
  view.mean_request = mean_request_;
  const proto::Limits& l = ready_.limits();
  view.limits = {l.max_seq_len(), l.max_request_tokens(), std::max(1u, l.max_running()), config_.max_queue};
  return view;
}

void Supervisor::On(SessionOpened& opened) { sessions_[opened.session] = std::move(opened.outlet); }

void Supervisor::On(SessionSaid& said) {
  switch (said.request.kind_case()) {
    case proto::SessionRequest::kGenerate: OnGenerate(said.session, *said.request.mutable_generate()); break;
    case proto::SessionRequest::kCancel:
      // Unknown is normal: the request may have ended while the cancel was on its way.
      if (RequestEntry* entry = requests_.Find(said.session, said.request.cancel().request_id())) CancelRequest(*entry);
      break;
    case proto::SessionRequest::KIND_NOT_SET: break;
  }
}

void Supervisor::On(SessionClosed& closed) {
  sessions_.erase(closed.session);
  for (const RequestId id : requests_.OfSession(closed.session)) {
    if (RequestEntry* entry = requests_.Find(id)) CancelRequest(*entry);
  }
}

void Supervisor::OnGenerate(SessionId session, proto::GenerateRequest& request) {
  if (sessions_.count(session) == 0) return;  // closed meanwhile
  RequestEntry entry;
  entry.session = session;
  entry.client_id = request.request_id();
  entry.trace_id = request.trace_id().substr(0, kMaxTrace);
  entry.key = {FingerprintOf(request), request.sampling().choice()};
  RequestShape shape;
  shape.tokens = static_cast<uint64_t>(request.tokens_size());
  shape.prompt_tokens = request.prompt_tokens();
  shape.max_tokens = request.max_tokens();
  shape.duplicate = !requests_.CanAdd(session, request.request_id());
  shape.quarantined = requests_.poison().IsQuarantined(clock_.Now(), entry.key);
  shape.resumed = request.resumes() > 0;
  const AdmissionAnswer answer = Admit(View(), shape);
  if (answer.answer == Admission::kQuarantined) requests_.poison().NoteRefused(entry.key);
  if (answer.answer != Admission::kAccept) return Refuse(session, request.request_id(), answer);

  if (request.prompt_tokens() == 0) request.set_prompt_tokens(static_cast<uint32_t>(request.tokens_size()));
  entry.prompt_tokens = request.prompt_tokens();
  entry.generated = static_cast<uint32_t>(request.tokens_size()) - request.prompt_tokens();
  const RequestEntry& added = requests_.Add(clock_.Now(), std::move(entry));
  if (added.state == RequestState::kHeld) {
    held_[added.id] = std::move(request);
  } else {
    Submit(added.id, std::move(request));
  }
  NoteLoad();
}

void Supervisor::Submit(RequestId id, proto::GenerateRequest request) {
  RequestEntry* entry = requests_.Find(id);
  request.set_request_id(id.v);
  proto::Command command;
  command.mutable_submit()->set_queued_ms(static_cast<uint64_t>(ToMillis(clock_.Now() - entry->accepted)));
  *command.mutable_submit()->mutable_request() = std::move(request);
  entry->command = SendCommand(std::move(command));
}

void Supervisor::CancelRequest(RequestEntry& entry) {
  if (entry.cancelled) return;
  entry.cancelled = true;
  if (entry.state == RequestState::kHeld) {
    const SessionId session = entry.session;
    proto::SessionEvent out;
    proto::TokenEvent* event = out.add_events();
    event->set_request_id(entry.client_id);
    event->set_finish(proto::FINISH_CANCELLED);
    event->set_generation(machine_.generation().v);
    held_.erase(entry.id);
    requests_.End(entry.id, false);
    metrics_.CountRequest("cancelled");
    SendTo(session, std::move(out));
    ReleaseHeld();
    NoteLoad();
    return;
  }
  proto::Command command;
  command.mutable_cancel()->set_request_id(entry.id.v);
  SendCommand(std::move(command));
}

void Supervisor::Refuse(SessionId session, uint64_t client_id, const AdmissionAnswer& answer) {
  metrics_.CountRequest(NameOf(answer.answer));
  proto::SessionEvent out;
  proto::TokenEvent* event = out.add_events();
  event->set_request_id(client_id);
  event->set_finish(proto::FINISH_ERROR);
  event->set_generation(machine_.generation().v);
  proto::EngineError* error = event->mutable_error();
  error->set_kind(KindOf(answer.answer));
  error->set_message(answer.message);
  error->set_retry_after_ms(answer.retry_after_ms);
  error->set_limit(answer.limit);
  SendTo(session, std::move(out));
}

void Supervisor::RouteEvents(proto::StepReport& step) {
  std::map<SessionId, proto::SessionEvent> out;  // one message a session and step
  bool ended = false;
  const Instant now = clock_.Now();
  for (proto::TokenEvent& event : *step.mutable_events()) {
    const RequestId id(event.request_id());
    RequestEntry* entry = requests_.Find(id);
    if (entry == nullptr) {
      LogWarn({{"generation", step.generation()}}, "the worker speaks of request {}, which is not in flight", id.v);
      continue;
    }
    if (event.has_admitted()) {
      requests_.NoteAdmitted(*entry, event.admitted().cached_tokens());
      event.mutable_admitted()->set_queue_ms(static_cast<uint32_t>(ToMillis(now - entry->accepted)));
    }
    if (event.tokens_size() > 0) {
      requests_.NoteTokens(*entry, static_cast<uint32_t>(event.tokens_size()));
      if (lost_at_) {
        recovery_ = now - *lost_at_;
        lost_at_.reset();
        metrics_.SetRecovery(recovery_);
        publish_ = true;
      }
    }
    event.set_request_id(entry->client_id);
    event.set_generation(step.generation());
    const SessionId session = entry->session;
    if (event.finish() != proto::FINISH_NONE) {
      metrics_.CountRequest(NameOf(event.finish()));
      const Duration took = now - entry->accepted;
      mean_request_ = mean_request_ == Duration::zero() ? took : mean_request_ + (took - mean_request_) / 16;
      requests_.End(id, event.finish() != proto::FINISH_CANCELLED);
      ended = true;
    }
    if (sessions_.count(session) > 0) *out[session].add_events() = std::move(event);
  }
  for (auto& [session, events] : out) SendTo(session, std::move(events));
  ReleaseHeld();
  if (ended) NoteLoad();
  metrics_.SetQueue(requests_.waiting(), requests_.running());
}

void Supervisor::ReleaseHeld() {
  if (!Ready()) return;
  while (const auto id = requests_.ReleaseHeld(clock_.Now())) {
    const auto it = held_.find(*id);
    HF_CHECK(it != held_.end());
    proto::GenerateRequest request = std::move(it->second);
    held_.erase(it);
    Submit(*id, std::move(request));
  }
}

void Supervisor::LoseRequests(const std::optional<Loss>& loss) {
  const Instant now = clock_.Now();
  const bool suspicious = loss && loss->cause != LossCause::kOperator && loss->cause != LossCause::kDeviceBusy;
  const WorkerShown shown{sequencer_.consumed(Rank(0)), std::max(1u, ready_.limits().max_running())};
  const std::vector<LostRequest> lost = requests_.LoseAll(now, suspicious, shown);
  held_.clear();
  lost_requests_.clear();
  std::map<SessionId, proto::SessionEvent> out;
  for (const LostRequest& l : lost) {
    if (lost_requests_.size() < 256) {
      lost_requests_.push_back(fmt::format("{} fingerprint {:016x} prompt {} generated {}{}", l.entry.trace_id, l.entry.key.fingerprint,
                                           l.entry.prompt_tokens, l.entry.generated, l.poison ? " quarantined" : ""));
    }
    proto::TokenEvent event;
    event.set_request_id(l.entry.client_id);
    event.set_generation(machine_.generation().v);
    if (l.entry.cancelled) {
      event.set_finish(proto::FINISH_CANCELLED);
    } else if (l.poison) {
      event.set_finish(proto::FINISH_ERROR);
      event.mutable_error()->set_kind(proto::EngineError::QUARANTINED);
      event.mutable_error()->set_message("this request was in flight when the engine was lost, twice; it is not tried again");
      LogWarn({{"request", l.entry.trace_id}}, "request quarantined: in flight at two losses");
    } else {
      event.set_finish(proto::FINISH_LOST);
    }
    metrics_.CountRequest(event.finish() == proto::FINISH_ERROR ? "quarantined" : NameOf(event.finish()));
    if (sessions_.count(l.entry.session) > 0) *out[l.entry.session].add_events() = std::move(event);
  }
  for (auto& [session, events] : out) SendTo(session, std::move(events));
  if (loss && !lost.empty()) lost_at_ = now;
  metrics_.OnGroupLost();
  NoteLoad();
  for (PendingResize& p : resizes_) p.outlet->Fail(10, "the worker group was lost during the resize");
  resizes_.clear();
  if (last_resize_.operation() != 0 && last_resize_.state() == proto::ResizeReport::RUNNING) {
    last_resize_.set_state(proto::ResizeReport::CANCELLED);
    last_resize_.set_message("the worker group was lost; the next one starts with its configured pools");
  }
}

void Supervisor::NoteLoad() {
  metrics_.SetQueue(requests_.waiting(), requests_.running());
  const bool busy = requests_.sent() > 0;
  if (busy == busy_) return;
  busy_ = busy;
  GroupEvent event;
  event.kind = busy ? EventKind::kBusy : EventKind::kIdle;
  Dispatch(std::move(event));
}

void Supervisor::SendTo(SessionId session, proto::SessionEvent event) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  if (it->second->Send(std::move(event))) return;
  LogWarn("a session does not read its events; it is closed and its requests are cancelled");
  SessionClosed closed{session};
  On(closed);
}

}  // namespace holdfast::supervisor

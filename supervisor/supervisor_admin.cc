// Health statements and the Admin service's answers.
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "proto/base/metrics.h"
#include "supervisor/supervisor.h"

namespace holdfast::supervisor {
namespace {

constexpr uint32_t kLeaseMs = 1000;
constexpr Duration kMaxResizeWait = std::chrono::minutes(10);

size_t Limit(uint32_t asked) { return asked == 0 ? 100 : std::min<size_t>(asked, 10000); }

}  // namespace

void Supervisor::On(WatchOpened& opened) {
  opened.outlet->Publish(Statement());
  watchers_[opened.watch] = std::move(opened.outlet);
}

void Supervisor::On(WatchClosed& closed) { watchers_.erase(closed.watch); }

void Supervisor::Publish() {
  publish_ = false;
  next_lease_ = clock_.Now() + kLeasePeriod;
  ++statement_;
  const proto::HealthStatement statement = Statement();
  for (auto& [id, outlet] : watchers_) outlet->Publish(statement);
  server_->SetServing(statement.accepting());
}

std::string Supervisor::Reason() const {
  const auto& loss = machine_.last_loss();
  const std::string last = loss ? fmt::format("{} while {}", loss->detail, loss->phase) : "";
  switch (machine_.state()) {
    case GroupState::kServing: return "";
    case GroupState::kDown:
      if (machine_.permanent()) {
        return fmt::format("the worker cannot run and is not restarted: {}", permanent_message_.empty() ? last : permanent_message_);
      }
      return machine_.stop_for_good() ? "stopped" : "not started";
    case GroupState::kSpawning: return "starting the worker";
    case GroupState::kLoading:
    case GroupState::kWarming: {
      const proto::Progress& p = ranks_[0].progress;
      if (p.total_bytes() == 0) return fmt::format("loading the model{}", p.phase().empty() ? "" : ": " + p.phase());
      return fmt::format("loading the model: {} {} %", p.phase(), p.done_bytes() * 100 / p.total_bytes());
    }
    case GroupState::kDraining:
      return machine_.held() ? "drained by an operator: requests in flight go on, new ones are refused until `holdfast ctl resume`"
                             : "draining: requests in flight may end, new ones are refused";
    case GroupState::kStopping: return machine_.stop_for_good() ? "stopping" : "the worker was lost; its generation is being ended";
    case GroupState::kBackoff: return fmt::format("restarting the worker after: {}", last);
    case GroupState::kQuarantined: return fmt::format("the worker was lost too often; the next try is put off. Last: {}", last);
    case GroupState::kUnkillable: return "a worker process does not die; nothing is started beside it";
  }
  return "";
}

proto::HealthStatement Supervisor::Statement() const {
  proto::HealthStatement s;
  s.set_instance(instance_);
  s.set_sequence(statement_);
  s.set_lease_ms(kLeaseMs);
  const bool serving = machine_.state() == GroupState::kServing;
  s.set_ready(Ready());
  s.set_accepting(serving);
  s.set_state(std::string(GroupStateName(machine_.state())));
  s.set_reason(Reason());
  s.set_generation(machine_.generation().v);
  s.set_card_fingerprint(card_fingerprint_);
  *s.mutable_limits() = ready_.limits();
  s.set_running(static_cast<uint32_t>(requests_.running()));
  s.set_waiting(static_cast<uint32_t>(requests_.waiting()));
  s.set_restarts(machine_.restarts());
  if (machine_.state() == GroupState::kLoading || machine_.state() == GroupState::kWarming) *s.mutable_progress() = ranks_[0].progress;
  s.set_permanent(machine_.permanent());
  if (!serving) s.set_retry_after_ms(machine_.permanent() ? 30000 : RetryAfterMs(View().until_serving));
  s.set_last_loss_to_first_token_ms(static_cast<uint32_t>(ToMillis(recovery_)));
  return s;
}

void Supervisor::On(AdminCall& call) {
  std::visit(
      [&](auto& request) {
        if constexpr (std::is_same_v<std::decay_t<decltype(request)>, proto::ResizeCacheRequest>) {
          AnswerResize(request, call.outlet);
        } else {
          Answer(request, *call.outlet);
        }
      },
      call.request);
}

void Supervisor::Answer(const proto::ModelCardRequest& request, ReplyOutlet& outlet) {
  if (card_.empty()) return outlet.Fail(14, "no worker has sent its model card yet: " + Reason());
  if (!request.fingerprint().empty() && request.fingerprint() != card_fingerprint_) {
    return outlet.Fail(5, fmt::format("the card {} is not here; the current one is {}", request.fingerprint(), card_fingerprint_));
  }
  proto::ModelCardReply reply;
  reply.set_fingerprint(card_fingerprint_);
  reply.set_card(card_);
  outlet.Reply(reply);
}

void Supervisor::Answer(const proto::StatusRequest&, ReplyOutlet& outlet) {
  proto::StatusReply reply;
  *reply.mutable_health() = Statement();
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    const RankRuntime& r = ranks_[i];
    proto::RankStatus* rank = reply.add_ranks();
    rank->set_rank(i);
    rank->set_pid(static_cast<uint32_t>(r.child.pid()));
    rank->set_generation(machine_.generation().v);
    rank->set_state(r.child.running() ? r.phase : "gone");
    rank->set_resident_bytes(r.resident_bytes);
  }
  *reply.mutable_pools() = last_step_.pools();
  *reply.mutable_cache() = last_step_.cache();
  reply.set_backend(ready_.backend());
  reply.set_weight_bytes(ready_.weight_bytes());
  reply.set_mapped_weights(ready_.mapped_weights());
  reply.set_load_ms(ready_.load_ms());
  reply.set_weights_ms(ready_.weights_ms());
  reply.set_uptime_ms(static_cast<uint64_t>(ToMillis(clock_.Now() - started_)));
  reply.set_queue_depth(static_cast<uint32_t>(requests_.waiting()));
  reply.set_max_queue(config_.max_queue);
  reply.set_steps(steps_);
  reply.set_mean_step_us(static_cast<uint32_t>(mean_step_us_));
  reply.set_version(std::string(kVersion));
  reply.set_pid(static_cast<uint32_t>(::getpid()));
  for (const auto& [key, count] : finding_counts_) {
    proto::FindingCount* f = reply.add_findings();
    f->set_severity(key.first);
    f->set_kind(key.second);
    f->set_count(count);
  }
  reply.set_model_path(config_.model);
  *reply.mutable_last_resize() = last_resize_;
  outlet.Reply(reply);
}

void Supervisor::Answer(const proto::MetricsRequest&, ReplyOutlet& outlet) {
  proto::MetricsReply reply;
  reply.set_text(MetricsText());
  outlet.Reply(reply);
}

void Supervisor::Answer(const proto::ListRequestsRequest& request, ReplyOutlet& outlet) {
  proto::ListRequestsReply reply;
  const Instant now = clock_.Now();
  for (const RequestEntry& entry : requests_.List(Limit(request.limit()))) {
    proto::RequestInfo* info = reply.add_requests();
    info->set_trace_id(entry.trace_id);
    info->set_state(entry.state == RequestState::kRunning ? "running" : "queued");
    info->set_prompt_tokens(entry.prompt_tokens);
    info->set_cached_tokens(entry.cached_tokens);
    info->set_generated_tokens(entry.generated);
    info->set_age_ms(static_cast<uint64_t>(ToMillis(now - entry.accepted)));
  }
  outlet.Reply(reply);
}

void Supervisor::Answer(const proto::ListIncidentsRequest& request, ReplyOutlet& outlet) {
  proto::ListIncidentsReply reply;
  for (const IncidentSummary& s : incidents_.List(Limit(request.limit()))) {
    proto::Incident* incident = reply.add_incidents();
    incident->set_id(s.id);
    incident->set_path(s.path);
    incident->set_unix_ms(static_cast<uint64_t>(s.unix_ms));
    incident->set_generation(s.generation);
    incident->set_rank(s.rank);
    incident->set_cause(s.cause);
    incident->set_phase(s.phase);
    incident->set_detail(s.detail);
  }
  outlet.Reply(reply);
}

void Supervisor::Answer(const proto::ListQuarantineRequest& request, ReplyOutlet& outlet) {
  proto::ListQuarantineReply reply;
  const size_t limit = Limit(request.limit());
  for (const QuarantineEntry& entry : requests_.poison().Quarantined(clock_.Now())) {
    if (static_cast<size_t>(reply.requests_size()) >= limit) break;
    proto::QuarantinedRequest* out = reply.add_requests();
    out->set_fingerprint(fmt::format("{:016x}", entry.key.fingerprint));
    out->set_choice(entry.key.choice);
    out->set_losses(entry.losses);
    out->set_position(entry.position);
    out->set_refused(entry.refused);
    out->set_remaining_ms(static_cast<uint64_t>(ToMillis(entry.remaining)));
  }
  outlet.Reply(reply);
}

void Supervisor::Answer(const proto::ClearQuarantineRequest& request, ReplyOutlet& outlet) {
  std::optional<uint64_t> fingerprint;
  if (const std::string& text = request.fingerprint(); !text.empty()) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (error != std::errc() || end != text.data() + text.size()) {
      return outlet.Fail(3, "a fingerprint is up to 16 hexadecimal digits, as the list of the quarantine shows it");
    }
    fingerprint = value;
  }
  const size_t cleared = requests_.poison().Clear(clock_.Now(), fingerprint);
  if (fingerprint && cleared == 0) return outlet.Fail(5, fmt::format("no request with the fingerprint {:016x} is in quarantine", *fingerprint));
  LogInfo({{"cleared", static_cast<uint64_t>(cleared)}}, "quarantine cleared by an operator");
  proto::ClearQuarantineReply reply;
  reply.set_cleared(static_cast<uint32_t>(cleared));
  outlet.Reply(reply);
  ReleaseHeld();
}

void Supervisor::Answer(const proto::DrainRequest& request, ReplyOutlet& outlet) {
  LogInfo("asked to {}", request.stop() ? "drain and stop" : "drain");
  if (request.stop()) dir_.NoteStopAsked();
  outlet.Reply(proto::DrainReply());
  GroupEvent event;
  event.kind = request.stop() ? EventKind::kDrain : EventKind::kHold;
  Dispatch(std::move(event));
}

void Supervisor::Answer(const proto::ResumeRequest&, ReplyOutlet& outlet) {
  if (machine_.stop_for_good()) return outlet.Fail(9, "the supervisor is on its way out");
  LogInfo("asked to resume");
  outlet.Reply(proto::ResumeReply());
  GroupEvent event;
  event.kind = EventKind::kResume;
  Dispatch(std::move(event));
}

void Supervisor::AnswerResize(const proto::ResizeCacheRequest& request, std::shared_ptr<ReplyOutlet> outlet) {
  if (machine_.state() != GroupState::kServing) return outlet->Fail(10, "not serving: " + Reason());
  if (!request.cancel() && request.targets_size() == 0) return outlet->Fail(3, "no targets: name a pool and its pages, or cancel");
  if (request.cancel() && (last_resize_.operation() == 0 || last_resize_.state() != proto::ResizeReport::RUNNING)) {
    return outlet->Fail(9, "no resize is running");
  }
  if (!request.cancel() && last_resize_.operation() != 0 && last_resize_.state() == proto::ResizeReport::RUNNING) {
    return outlet->Fail(9, fmt::format("resize {} is still running: wait for it or cancel it", last_resize_.operation()));
  }
  proto::Command command;
  proto::Resize* resize = command.mutable_resize();
  resize->set_operation(request.cancel() ? last_resize_.operation() : ++resize_operation_);
  resize->set_cancel(request.cancel());
  *resize->mutable_targets() = request.targets();
  last_resize_.set_operation(resize->operation());
  last_resize_.set_state(proto::ResizeReport::RUNNING);
  last_resize_.clear_message();
  const Duration wait = std::min<Duration>(std::chrono::milliseconds(request.wait_ms()), kMaxResizeWait);
  resizes_.push_back({resize->operation(), clock_.Now() + wait, std::move(outlet)});
  SendCommand(std::move(command));
}

}  // namespace holdfast::supervisor

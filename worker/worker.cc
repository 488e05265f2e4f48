#include "worker/worker.h"

#include <fmt/format.h>

#include "proto/base/check.h"
#include "proto/base/exit_code.h"
#include "proto/base/fault.h"
#include "proto/base/log.h"
#include "worker/model/memory.h"
#include "worker/status_report.h"

namespace holdfast::worker {
namespace {

// A command that rank 0 has applied reaches the others over streams of their own.
constexpr Duration kCommandsLate = std::chrono::seconds(60);

proto::FindingReport::Severity SeverityOnWire(Severity s) { return static_cast<proto::FindingReport::Severity>(s); }

sched::ResizeCommand ToResize(const proto::Resize& wire) {
  sched::ResizeCommand resize;
  resize.operation = wire.operation();
  resize.cancel = wire.cancel();
  for (const auto& t : wire.targets()) {
    if (t.pool() == "full") resize.full_pages = t.pages();
    if (t.pool() == "window") resize.window_pages = t.pages();
  }
  return resize;
}

}  // namespace

Worker::Worker(const WorkerConfig& config, Inbox* inbox, StepPulse* pulse, SupervisorLink* link, Lifeline* lifeline, Keeper* keeper,
               tp::Group* group)
    : config_(config), inbox_(inbox), pulse_(pulse), link_(link), lifeline_(lifeline), keeper_(keeper), group_(group) {
  if (group_ == nullptr) return;
  rounds_.emplace(group_);
  // Who waits for a peer is not stuck: the peer is, and for how long this may go on the group's time-out says.
  group_->OnWait([this] {
    pulse_->Touch();
    return !Fetch();
  });
}

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
    return Fetch();
  };
  events.keeper = keeper_;
  events.group = group_;
  auto built = Runtime::Build(config_, events, this);
  if (!built.ok()) {
    if (leaving_) return exit_code_;
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
  requests_.emplace(&runtime_->scheduler(), &runtime_->constraints(), static_cast<uint32_t>(runtime_->hparams().vocab), config_.generation, this);
  runtime_->executor().SetProgress([this] {
    pulse_->Touch();
    FaultPoint("worker.layer");
  });

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
  FillStatus(*runtime_, &status);
  ready->mutable_pools()->Swap(status.mutable_pools());
  link_->Send(std::move(message));
  link_->StartHeartbeats();
  lifeline_->SetServing();
  LogInfo("ready after {} ms: {} weights, chunk {}, {} sequences of up to {} tokens, {} in flight", runtime_->load_ms(), runtime_->weight_bytes(),
          scheduler.effective_chunk(), config_.max_running, runtime_->cache_plan().max_seq_len, runtime_->overlap_depth() == 0 ? "one step" : "two steps");
  return 0;
}

int Worker::Serve() {
  for (;;) {
    if (!Fetch()) return exit_code_;
    if (FaultPoint("worker.loop")) return static_cast<int>(ExitCode::kDevice);
    tp::Round lead;
    if (!leads()) {
      if (!AwaitRound(&lead)) {
        if (leaving_) return exit_code_;
        continue;
      }
      if (lead.vote) {
        if (!Vote()) return exit_code_;
        if (structural_) return LeaveDamaged();
        continue;
      }
    } else {
      lead.consume_upto = RoundEnd();
      if (leaving_) return exit_code_;
    }
    TakeCommands(lead.consume_upto);
    ApplyPageMoves();
    const sched::StepPlan* plan = runtime_->scheduler().Plan();
    if (rounds_ && !Agree(plan, lead)) return exit_code_;
    if (plan != nullptr && !structural_) Launch(*plan);
    if (leaving_ || exit_code_ != 0) return exit_code_;
    const uint32_t in_flight = runtime_->scheduler().outstanding_steps();
    if (!structural_ && (in_flight > runtime_->overlap_depth() || (plan == nullptr && in_flight > 0))) {
      FinishOldest();
      if (leaving_ || exit_code_ != 0) return exit_code_;
    } else if (plan == nullptr || structural_) {
      proto::StepReport report;
      requests_->FillEvents(&report);
      ReportResize();
      if (report.events_size() > 0 || status_stale_) SendReport(std::move(report), true);
      if (draining_ && requests_->empty()) {
        link_->Flush(std::chrono::seconds(1));
        return exit_code_;
      }
      if (leads() && !structural_) inbox_->Wait(std::chrono::milliseconds(500));
    }
    if (structural_) return LeaveDamaged();
  }
}

int Worker::LeaveDamaged() {
  WriteFlightRecord();
  link_->Flush(std::chrono::seconds(1));
  return static_cast<int>(ExitCode::kIntegrity);
}

bool Worker::Fetch() {
  for (Inbound& in : inbox_->TakeAll()) {
    switch (in.kind) {
      case Inbound::Kind::kLinkLost:
        if (leaving_) break;
        LogWarn("the link to the supervisor broke, leaving");
        exit_code_ = static_cast<int>(ExitCode::kSupervisorGone);
        leaving_ = true;
        break;
      case Inbound::Kind::kTerminate: leaving_ = true; break;
      case Inbound::Kind::kMessage: {
        proto::SupervisorMessage& m = *in.message;
        if (m.has_refused()) {
          LogWarn("the supervisor refused this worker: {}", m.refused().why());
          exit_code_ = static_cast<int>(ExitCode::kFenced);
          leaving_ = true;
        }
        if (m.has_stop()) leaving_ = true;
        // Not applied here: a step may be under way, and what lies between two rounds is the same on every rank.
        if (m.has_command()) commands_.push_back(std::move(*m.mutable_command()));
        break;
      }
    }
  }
  return !leaving_;
}

bool Worker::AwaitRound(tp::Round* round) {
  const auto next = rounds_->Next(std::chrono::seconds(1), round);
  if (!next.ok()) {
    LosePeers(next.status());
    return false;
  }
  if (!*next) return false;
  const Instant begin = Clock::Real().Now();
  while (command_seq_ + commands_.size() < round->consume_upto) {
    inbox_->Wait(std::chrono::milliseconds(50));
    if (!Fetch()) return false;
    if (Clock::Real().Now() - begin > kCommandsLate) {
      LosePeers(absl::DeadlineExceededError(fmt::format("rank 0 has command {}, this rank waits for {}", round->consume_upto,
                                                        command_seq_ + commands_.size() + 1)));
      return false;
    }
  }
  return true;
}

uint64_t Worker::RoundEnd() {
  if (!rounds_) return command_seq_ + commands_.size();
  size_t count = 0;
  if (!commands_.empty() && commands_.front().has_resize()) {
    tp::Round question{config_.generation, 0, command_seq_ + 1, runtime_->scheduler().digest(), true};
    if (const absl::Status published = rounds_->Publish(question); !published.ok()) LosePeers(published);
    if (leaving_ || !Vote()) return command_seq_;
    count = 1;
  }
  while (count < commands_.size() && !commands_[count].has_resize()) ++count;
  return command_seq_ + count;
}

bool Worker::Vote() {
  if (commands_.empty() || !commands_.front().has_resize()) {
    Report({Severity::kStructural, "rank_divergence", fmt::format("rank 0 asks for a vote on command {}, which is no resize here", command_seq_ + 1)});
    return true;
  }
  const absl::Status own = RoomFor(ToResize(commands_.front().resize()));
  std::vector<uint64_t> room;
  if (const absl::Status told = runtime_->ranks()->AllGather(own.ok() ? 1 : 0, &room); !told.ok()) {
    LosePeers(told);
    return false;
  }
  voted_on_ = command_seq_ + 1;
  vote_ = own;
  for (size_t rank = 0; rank < room.size() && vote_.ok(); ++rank) {
    if (room[rank] == 0) vote_ = absl::ResourceExhaustedError(fmt::format("rank {} has no memory for the KV cache to grow so far (its log has the numbers)", rank));
  }
  if (!own.ok()) LogWarn("resize: {}", std::string(own.message()));
  return true;
}

bool Worker::Agree(const sched::StepPlan* plan, const tp::Round& lead) {
  tp::Round own{config_.generation, plan == nullptr ? 0 : plan->step.v, command_seq_, runtime_->scheduler().digest()};
  if (FaultPoint("worker.diverge")) own.digest ^= 1;
  if (leads()) {
    const absl::Status published = rounds_->Publish(own);
    if (!published.ok()) LosePeers(published);
    return published.ok();
  }
  if (own == lead) return true;
  Report({Severity::kStructural, "rank_divergence",
          fmt::format("after command {}: step {} and digest {:016x}; rank 0 has step {} and digest {:016x} after command {}", own.consume_upto, own.step,
                      own.digest, lead.step, lead.digest, lead.consume_upto)});
  return true;
}

void Worker::LosePeers(const absl::Status& status) { Leave(ExitCode::kPeerLost, status); }

void Worker::Leave(ExitCode code, const absl::Status& status) {
  if (leaving_) return;
  leaving_ = true;
  exit_code_ = static_cast<int>(code);
  const std::string why(status.message());
  LogError({{"step", step_}}, "leaving: {}", why);
  WriteFlightRecord();
  proto::WorkerMessage message;
  message.mutable_failure()->set_exit_code(exit_code_);
  message.mutable_failure()->set_message(why);
  link_->Send(std::move(message));
  link_->Flush(std::chrono::seconds(1));
}

void Worker::TakeCommands(uint64_t upto) {
  while (!commands_.empty() && command_seq_ < upto) {
    proto::Command command = std::move(commands_.front());
    commands_.pop_front();
    TakeCommand(std::move(command));
    if (structural_) return;
  }
}

void Worker::TakeCommand(proto::Command command) {
  if (command.seq() != command_seq_ + 1) {
    Report({Severity::kStructural, "log_gap", fmt::format("command {} follows {}", command.seq(), command_seq_)});
    return;
  }
  command_seq_ = command.seq();
  switch (command.kind_case()) {
    case proto::Command::kSubmit: requests_->Submit(command.submit()); break;
    case proto::Command::kCancel: runtime_->scheduler().Cancel(RequestId(command.cancel().request_id())); break;
    case proto::Command::kResize: {
      const sched::ResizeCommand resize = ToResize(command.resize());
      HF_CHECK(!rounds_ || voted_on_ == command_seq_);
      if (const absl::Status room = rounds_ ? vote_ : RoomFor(resize); !room.ok()) {
        if (!leads()) break;
        proto::WorkerMessage message;
        message.mutable_resize()->set_operation(resize.operation);
        message.mutable_resize()->set_state(proto::ResizeReport::REFUSED);
        message.mutable_resize()->set_message(std::string(room.message()));
        link_->Send(std::move(message));
        break;
      }
      runtime_->scheduler().Resize(resize);
      break;
    }
    case proto::Command::kDrain: draining_ = true; break;
    case proto::Command::KIND_NOT_SET: break;
  }
  status_stale_ = true;
}

absl::Status Worker::RoomFor(const sched::ResizeCommand& resize) const {
  if (resize.cancel) return absl::OkStatus();
  const exec::KvStorage& storage = runtime_->executor().storage();
  const auto pools = runtime_->scheduler().Pools();
  uint64_t more = 0;
  for (size_t g = 0; g < pools.size(); ++g) {
    const uint32_t wanted = pools[g].window == 0 ? resize.full_pages : resize.window_pages;
    const uint32_t backed = storage.pages(static_cast<int>(g));
    if (wanted > pools[g].capacity + pools[g].unbacked) return absl::OkStatus();  // the scheduler says what the address space allows
    if (wanted > backed) more += static_cast<uint64_t>(storage.plan().groups[g].page_bytes) * (wanted - backed);
  }
  if (more == 0) return absl::OkStatus();
  // The ranks share one machine's memory, and each is about to take as much; a device is a rank's own.
  return storage.RequireRoom(runtime_->ops().HostMemory() ? more * config_.tp : more, "growing the KV cache");
}

void Worker::FailStep(const absl::Status& status) {
  if (absl::IsCancelled(status) || tp::IsPeerFault(status)) return LosePeers(status);
  // What the device left means nothing: the group starts again, and every stream resumes.
  if (const absl::Status device = runtime_->ops().Health(); !device.ok()) return Leave(ExitCode::kDevice, device);
  Report({Severity::kStructural, "executor", std::string(status.message())});
}

void Worker::Launch(const sched::StepPlan& plan) {
  // The pulse is of the oldest step in flight: that one must get on.
  if (runtime_->scheduler().outstanding_steps() == 1) {
    pulse_->Begin(plan.step.v);
  } else {
    pulse_->Touch();
  }
  if (FaultPoint("worker.step")) {
    exit_code_ = static_cast<int>(ExitCode::kDevice);
    return;
  }
  if (const absl::Status launched = runtime_->executor().Launch(plan, requests_->sampling()); !launched.ok()) FailStep(launched);
}

void Worker::FinishOldest() {
  const auto finished = runtime_->executor().Finish();
  if (!finished.ok()) return FailStep(finished.status());
  const exec::ExecResult& result = **finished;
  step_ = result.result.step.v;
  last_step_us_ = result.step_us;
  last_prefill_ = result.prefill_tokens;
  last_decode_ = result.decode_tokens;
  mean_step_us_ = mean_step_us_ == 0 ? result.step_us : 0.95 * mean_step_us_ + 0.05 * result.step_us;
  for (const std::string& failure : result.failures) LogWarn({{"step", step_}}, "{}", failure);
  requests_->Collect(result);
  runtime_->scheduler().Apply(result.result);
  if (FaultPoint("worker.finding")) Report({Severity::kStructural, "fault_point", fmt::format("fault point worker.finding at step {}", step_)});
  pulse_->End(step_, static_cast<uint32_t>(mean_step_us_));
  if (runtime_->scheduler().outstanding_steps() > 0) pulse_->Begin(step_ + 1);
  proto::StepReport report;
  requests_->FillEvents(&report);
  status_stale_ = true;
  SendReport(std::move(report), false);
  ReportResize();
  FaultPoint("worker.step.sent");
}

// Tokens go out with every step; the pools' numbers at most every 50 ms and whenever the worker falls idle, so that gauges reach zero
// without a new request.
void Worker::SendReport(proto::StepReport report, bool force_status) {
  if (!leads()) {  // they say what rank 0 says
    status_stale_ = false;
    return;
  }
  const auto& scheduler = runtime_->scheduler();
  const Instant now = Clock::Real().Now();
  if (force_status || now - status_sent_ > std::chrono::milliseconds(50)) {
    FillStatus(*runtime_, &report);
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
  for (const sched::PageMove& move : runtime_->scheduler().TakePageMoves()) {
    HF_CHECK(runtime_->scheduler().outstanding_steps() == 0);  // tables of a step in flight name the page that moves
    runtime_->executor().MovePage(move.group, move.from, move.to);
  }
  const sched::ResizeState resize = runtime_->scheduler().resize();
  const auto phase = resize.phase;
  // One operation may follow another that ended in the same phase with no step between them.
  const bool seen = resize.operation == backing_operation_ && phase == backing_phase_;
  if (phase == sched::ResizeState::Phase::kNone || (seen && phase != sched::ResizeState::Phase::kRunning)) return;
  backing_operation_ = resize.operation;
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
  if (!leads() || state.phase == sched::ResizeState::Phase::kNone || (state.operation == resize_reported_ && state.phase == resize_phase_)) return;
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

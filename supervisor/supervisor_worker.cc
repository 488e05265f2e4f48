// The loop's half of the worker link: fencing, and turning messages into events.
#include <fmt/format.h>

#include <algorithm>

#include "proto/base/exit_code.h"
#include "proto/base/finding.h"
#include "proto/base/log.h"
#include "supervisor/supervisor.h"

namespace holdfast::supervisor {
namespace {

constexpr size_t kMaxFindings = 100;

// ModelCard's first field, its fingerprint, without parsing the card: tag 1, a length, the bytes. Anything else gets a hash of the bytes.
std::string FingerprintOf(const std::string& card) {
  if (card.size() > 2 && card[0] == 0x0A) {
    const size_t n = static_cast<unsigned char>(card[1]);
    const auto plain = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.' || c == ':'; };
    if (n > 0 && n < 128 && card.size() >= 2 + n && std::all_of(card.begin() + 2, card.begin() + 2 + static_cast<long>(n), plain)) {
      return card.substr(2, n);
    }
  }
  return fmt::format("{:016x}-{}", std::hash<std::string>()(card), card.size());
}

}  // namespace

GroupEvent Supervisor::EventOf(EventKind kind, uint32_t rank) const {
  GroupEvent event;
  event.kind = kind;
  event.generation = machine_.generation();
  event.rank = Rank(rank);
  return event;
}

void Supervisor::On(WorkerSaid& said) {
  if (said.message.kind_case() == proto::WorkerMessage::kHello) return OnHello(said);
  const auto it = std::find_if(ranks_.begin(), ranks_.end(), [&](const RankRuntime& r) { return r.link != nullptr && r.link_id == said.link; });
  if (it == ranks_.end()) {
    // Old, refused or never introduced: whatever it says has no effect.
    said.outlet->Close();
    return;
  }
  RankRuntime& r = *it;
  const uint32_t rank = static_cast<uint32_t>(it - ranks_.begin());
  proto::WorkerMessage& m = said.message;
  switch (m.kind_case()) {
    case proto::WorkerMessage::kModelCard:
      if (rank == 0) {
        card_ = std::move(*m.mutable_model_card());
        card_fingerprint_ = FingerprintOf(card_);
        publish_ = true;
      }
      break;
    case proto::WorkerMessage::kProgress: {
      r.progress = m.progress();
      r.phase = m.progress().phase();
      GroupEvent event = EventOf(EventKind::kProgress, rank);
      event.bytes = m.progress().done_bytes();
      event.warming = m.progress().phase() == "warming";
      Dispatch(std::move(event));
      break;
    }
    case proto::WorkerMessage::kReady: OnReady(rank, m.ready()); break;
    case proto::WorkerMessage::kStep: OnStep(rank, *m.mutable_step()); break;
    case proto::WorkerMessage::kHeartbeat: {
      const proto::Heartbeat& h = m.heartbeat();
      r.resident_bytes = h.resident_bytes();
      GroupEvent event = EventOf(EventKind::kHeartbeat, rank);
      event.generation = Generation(h.generation());
      event.step = h.step();
      event.outstanding = h.step_outstanding();
      event.since_change = std::chrono::milliseconds(h.last_change_ms());
      event.duration = std::chrono::microseconds(h.mean_step_us());
      Dispatch(std::move(event));
      break;
    }
    case proto::WorkerMessage::kFinding: OnFinding(rank, m.finding()); break;
    case proto::WorkerMessage::kResize:
      if (rank == 0) OnResize(m.resize());
      break;
    case proto::WorkerMessage::kFailure: r.failure = m.failure().message(); break;
    case proto::WorkerMessage::kHello:
    case proto::WorkerMessage::KIND_NOT_SET: break;
  }
}

void Supervisor::OnHello(WorkerSaid& said) {
  const proto::Hello& hello = said.message.hello();
  std::string why;
  if (hello.generation() != machine_.generation().v) {
    why = fmt::format("generation {} is over; this is generation {}", hello.generation(), machine_.generation().v);
  } else if (hello.rank() >= ranks_.size()) {
    why = fmt::format("rank {} of a group of {}", hello.rank(), ranks_.size());
  } else if (!ranks_[hello.rank()].child.running() || hello.token() != ranks_[hello.rank()].token) {
    why = "the token is not the one this rank was spawned with";
  } else if (ranks_[hello.rank()].link != nullptr || ranks_[hello.rank()].link_closed) {
    why = fmt::format("rank {} is attached already", hello.rank());
  }
  if (!why.empty()) {
    LogWarn({{"rank", hello.rank()}, {"generation", hello.generation()}, {"pid", hello.pid()}}, "refused a worker: {}", why);
    proto::SupervisorMessage refused;
    refused.mutable_refused()->set_why(why);
    said.outlet->Send(std::move(refused));
    said.outlet->Close();
    return;
  }
  RankRuntime& r = ranks_[hello.rank()];
  r.link = said.outlet;
  r.link_id = said.link;
  r.phase = "attached";
  Dispatch(EventOf(EventKind::kAttached, hello.rank()));
}

void Supervisor::On(WorkerClosed& closed) {
  for (RankRuntime& r : ranks_) {
    if (r.link == nullptr || r.link_id != closed.link) continue;
    r.link_closed = true;
    if (!r.exit) r.ended = clock_.Now();
  }
}

void Supervisor::OnReady(uint32_t rank, const proto::Ready& ready) {
  RankRuntime& r = ranks_[rank];
  r.ready = true;
  r.phase = "ready";
  if (rank == 0) {
    ready_ = ready;
    ready_.mutable_limits()->set_max_queue(config_.max_queue);
    *last_step_.mutable_pools() = ready.pools();
    metrics_.OnPools(ready.pools());
  }
  metrics_.CountWeightLoad(ready.mapped_weights());
  LogInfo({{"rank", rank}, {"generation", machine_.generation().v}, {"load_ms", ready.load_ms()}, {"weights_ms", ready.weights_ms()}},
          "ready: {}, weights {}", ready.backend(), ready.mapped_weights() ? "mapped" : "loaded");
  Dispatch(EventOf(EventKind::kReady, rank));
}

void Supervisor::OnStep(uint32_t rank, proto::StepReport& step) {
  if (step.generation() != machine_.generation().v) {
    Dispatch([&] {
      GroupEvent event = EventOf(EventKind::kStep, rank);
      event.generation = Generation(step.generation());
      return event;
    }());  // counted as fenced, nothing else
    return;
  }
  if (!sequencer_.Consumed(Rank(rank), CommandSeq(step.command_seq()))) {
    proto::FindingReport finding;
    finding.set_severity(proto::FindingReport::STRUCTURAL);
    finding.set_kind("command_log");
    finding.set_detail(fmt::format("rank {} says it consumed command {} of {}", rank, step.command_seq(), sequencer_.last().v));
    finding.set_step(step.step());
    OnFinding(rank, finding);
    return;
  }
  // A report without a new step brings refusals, cancels or fresh numbers only.
  const bool stepped = step.step() > ranks_[rank].last_step;
  if (stepped) {
    ranks_[rank].last_step = step.step();
    GroupEvent event = EventOf(EventKind::kStep, rank);
    event.step = step.step();
    event.duration = std::chrono::microseconds(step.step_us());
    Dispatch(std::move(event));
  }
  if (rank != 0) return;
  metrics_.OnReport(step, stepped);
  if (stepped) {
    ++steps_;
    mean_step_us_ = mean_step_us_ == 0 ? step.step_us() : mean_step_us_ + (step.step_us() - mean_step_us_) / 16;
  }
  RouteEvents(step);
  step.clear_events();
  // Pools and counters come now and then; the last ones stand until then.
  if (step.pools_size() == 0) *step.mutable_pools() = last_step_.pools();
  if (!step.has_cache()) *step.mutable_cache() = last_step_.cache();
  last_step_ = std::move(step);
}

void Supervisor::OnFinding(uint32_t rank, const proto::FindingReport& finding) {
  const auto severity = static_cast<Severity>(std::clamp<int>(finding.severity(), 0, 3));
  const std::string name(SeverityName(severity));
  std::string kind = finding.kind().substr(0, 64);
  metrics_.CountFinding(name, kind);
  if (finding_counts_.size() < 256 || finding_counts_.count({name, kind}) > 0) ++finding_counts_[{name, kind}];
  recent_findings_.push_back(fmt::format("generation {} rank {} step {} {} {}: {}", machine_.generation().v, rank, finding.step(), name, kind,
                                         finding.detail().substr(0, 1000)));
  if (recent_findings_.size() > kMaxFindings) recent_findings_.pop_front();
  LogWarn({{"rank", rank}, {"generation", machine_.generation().v}, {"severity", name}, {"kind", kind}}, "finding: {}", finding.detail().substr(0, 1000));
  GroupEvent event = EventOf(EventKind::kFinding, rank);
  event.severity = severity;
  event.text = fmt::format("{}: {}", kind, finding.detail().substr(0, 1000));
  Dispatch(std::move(event));
}

void Supervisor::OnResize(const proto::ResizeReport& report) {
  last_resize_ = report;
  if (report.state() == proto::ResizeReport::RUNNING) return;
  std::erase_if(resizes_, [&](PendingResize& p) {
    if (p.operation != report.operation()) return false;
    proto::ResizeCacheReply reply;
    *reply.mutable_report() = report;
    p.outlet->Reply(reply);
    return true;
  });
}

CommandSeq Supervisor::SendCommand(proto::Command command) {
  const CommandSeq seq = sequencer_.Next();
  command.set_seq(seq.v);
  proto::SupervisorMessage message;
  *message.mutable_command() = std::move(command);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].link == nullptr) continue;
    const bool last = i + 1 == ranks_.size();
    if (!(last ? ranks_[i].link->Send(std::move(message)) : ranks_[i].link->Send(message))) {
      LogError({{"rank", i}}, "the worker does not read its commands; its stream is closed");
    }
  }
  return seq;
}

}  // namespace holdfast::supervisor

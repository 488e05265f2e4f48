#include "supervisor/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "proto/base/exit_code.h"
#include "proto/base/fault.h"
#include "proto/base/group_memory.h"
#include "proto/base/log.h"
#include "proto/base/random.h"
#include "proto/base/signals.h"

namespace holdfast::supervisor {
namespace {

// A round that begins later than this after it was due means that we stood still (stopped, or the host slept), not the workers.
constexpr Duration kStallTolerance = std::chrono::milliseconds(500);
// What the workers get beyond that: whatever kept us kept them, too, and their messages still have to arrive.
constexpr Duration kStallGrace = std::chrono::seconds(1);
// The end of a process and the end of its stream are two sights of one event; the second gets this long to explain the first.
constexpr Duration kEndsWindow = std::chrono::milliseconds(100);
// systemd waits this much longer than the bound we keep ourselves.
constexpr Duration kManagerSlack = std::chrono::seconds(10);

}  // namespace

Supervisor::Supervisor(SupervisorConfig config, RuntimeDir dir, UniqueFd signals, SystemdNotify notify, const Clock& clock)
    : config_(std::move(config)),
      dir_(std::move(dir)),
      signals_(std::move(signals)),
      notify_(std::move(notify)),
      clock_(clock),
      instance_(fmt::format("{:016x}", EntropySeed())),
      started_(clock.Now()),
      round_(started_),
      machine_(config_.group, EntropySeed()),
      requests_(config_.poison),
      incidents_(dir_.incidents(), config_.incidents),
      ranks_(config_.group.ranks),
      kept_(config_.group.ranks) {}

Supervisor::~Supervisor() = default;

absl::Status Supervisor::Start() {
  // When it cannot be opened, its path is tried at each launch, and the failure is told there.
  worker_binary_.Reset(::open(config_.worker_binary.c_str(), O_PATH | O_CLOEXEC));
  auto server = RpcServer::Start(dir_.socket(), config_.listen, &inbox_);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  LogInfo({{"socket", dir_.socket()}, {"tcp_port", server_->tcp_port()}}, "supervisor {} listens", ::getpid());
  next_lease_ = next_watchdog_ = round_ = clock_.Now();
  metrics_.SetState(machine_.state(), machine_.generation());
  Dispatch({EventKind::kStart, {}, {}, {}, {}, 0, 0, false, false, {}, {}, {}});
  return absl::OkStatus();
}

int Supervisor::Run() {
  round_ = clock_.Now();
  while (!exit_code_) {
    const Duration wait = WaitTime(clock_.Now());
    Poll(wait);
    const Instant now = clock_.Now();
    const Duration late = now - round_ - wait;
    round_ = now;
    if (late > kStallTolerance) {
      LogWarn({{"late_ms", ToMillis(late)}}, "the supervisor stood still; all deadlines move by as much");
      requests_.poison().Shift(late);
      GroupEvent stalled;
      stalled.kind = EventKind::kStalled;
      stalled.duration = late + std::min(late, kStallGrace);
      Dispatch(std::move(stalled));
    }
    if (FaultPoint("supervisor.loop")) exit_code_ = static_cast<int>(ExitCode::kEnvironment);
    ReadSignals();
    for (RankRuntime& r : ranks_) {
      if (r.log && r.log->open()) r.log->Drain();
    }
    for (Kept& kept : kept_) kept.Drain();
    ReapAll();
    for (Inbound& item : inbox_.TakeAll()) {
      std::visit([this](auto& x) { On(x); }, item);
    }
    SettleEnds();
    Tick();
  }
  Finish();
  return *exit_code_;
}

Duration Supervisor::WaitTime(Instant now) const {
  Instant at = std::min(next_lease_, machine_.NextDeadline());
  if (notify_.watchdog_period() > Duration::zero()) at = std::min(at, next_watchdog_);
  for (const RankRuntime& r : ranks_) {
    if (r.exit || (r.link_closed && !r.link_loss_told)) at = std::min(at, r.ended + kEndsWindow);
  }
  for (const PendingResize& p : resizes_) at = std::min(at, p.until);
  return std::clamp<Duration>(at - now, Duration::zero(), kLeasePeriod);
}

void Supervisor::Poll(Duration timeout) {
  std::vector<pollfd> fds{{inbox_.wake_fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  for (const RankRuntime& r : ranks_) {
    if (r.child.running()) fds.push_back({r.child.pid_fd(), POLLIN, 0});
    if (r.log && r.log->open()) fds.push_back({r.log->fd(), POLLIN, 0});
  }
  for (const Kept& kept : kept_) {
    if (kept.poll_fd() >= 0) fds.push_back({kept.poll_fd(), POLLIN, 0});
  }
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count() + 1;
  const timespec ts{static_cast<time_t>(micros / 1000000), static_cast<long>(micros % 1000000 * 1000)};
  ::ppoll(fds.data(), fds.size(), &ts, nullptr);
}

void Supervisor::ReadSignals() {
  while (const int signal = ReadSignal(signals_.get())) {
    if (signal == SIGCHLD) continue;  // pidfds say more; as PID 1, ReapAll looks for strangers
    ++stop_signals_;
    LogInfo({{"signal", signal}}, "{}", stop_signals_ == 1 ? "stopping: requests in flight may end" : "stopping at once");
    GroupEvent event;
    event.kind = stop_signals_ == 1 ? EventKind::kDrain : EventKind::kStopNow;
    Dispatch(std::move(event));
  }
}

void Supervisor::ReapAll() {
  const Instant now = clock_.Now();
  for (RankRuntime& r : ranks_) {
    ExitStatus status;
    if (!r.child.running() || !r.child.Reap(&status)) continue;
    if (!r.link_closed) r.ended = now;
    r.exit = status;
  }
  if (::getpid() != 1) return;
  // Init's duty in a container: orphans that were given to us. Our own children are known and left to their pidfds.
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const bool ours = std::any_of(ranks_.begin(), ranks_.end(), [&](const RankRuntime& r) { return r.child.pid() == info.si_pid; });
    if (ours) break;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
    info = {};
  }
}

void Supervisor::SettleEnds() {
  const Instant now = round_;
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    RankRuntime& r = ranks_[i];
    const bool waited = now - r.ended >= kEndsWindow;
    if (r.exit && (r.link_closed || r.link == nullptr || waited)) {
      const ExitStatus status = *std::exchange(r.exit, std::nullopt);
      if (r.log) r.log->Drain();
      if (r.link) std::exchange(r.link, nullptr)->Close();
      LogInfo({{"rank", i}, {"generation", machine_.generation().v}}, "the worker ended: {}", ToText(status));
      GroupEvent event = EventOf(EventKind::kExited, i);
      event.exit = status;
      // Its own message, or what the library that ended it wrote.
      const bool asked = !status.signalled && status.code == 0;
      const std::string words = !r.failure.empty() ? r.failure : (r.log && !asked ? r.log->LastWords() : "");
      event.text = words.empty() ? ToText(status) : fmt::format("{}: {}", ToText(status), words);
      if (!status.signalled && IsPermanent(status.code)) {
        permanent_code_ = status.code;
        permanent_message_ = event.text;
      }
      Dispatch(std::move(event));
    } else if (!r.exit && r.link_closed && !r.link_loss_told && r.child.running() && waited) {
      r.link_loss_told = true;
      Dispatch(EventOf(EventKind::kLinkLost, i));
    }
  }
}

void Supervisor::Tick() {
  const Instant now = round_;
  if (now >= machine_.NextDeadline()) Dispatch({});
  std::erase_if(resizes_, [&](PendingResize& p) {
    if (now < p.until) return false;
    proto::ResizeCacheReply reply;
    *reply.mutable_report() = last_resize_;
    p.outlet->Reply(reply);
    return true;
  });
  if (publish_ || now >= next_lease_) Publish();
  if (notify_.watchdog_period() > Duration::zero() && now >= next_watchdog_) {
    notify_.Watchdog();
    next_watchdog_ = now + notify_.watchdog_period();
  }
}

void Supervisor::Dispatch(GroupEvent event) {
  events_.push_back(std::move(event));
  if (dispatching_) return;  // the outer call goes on
  dispatching_ = true;
  while (!events_.empty()) {
    const GroupEvent next = std::move(events_.front());
    events_.pop_front();
    const std::vector<Action> actions = machine_.Handle(round_, next);
    for (const Action& action : actions) Execute(action);
    if (machine_.permanent()) {
      for (Kept& kept : kept_) kept.DropWeights();
    }
    if (machine_.permanent() && config_.exit_on_permanent && !exit_code_) {
      const bool environment = machine_.last_loss() && machine_.last_loss()->cause == LossCause::kEnvironment;
      exit_code_ = permanent_code_ != 0 ? permanent_code_ : static_cast<int>(environment ? ExitCode::kEnvironment : ExitCode::kConfig);
    }
  }
  dispatching_ = false;
  metrics_.SetFenced(machine_.fenced());
}

void Supervisor::Execute(const Action& action) {
  switch (action.kind) {
    case ActionKind::kSpawn: Spawn(action); break;
    case ActionKind::kTerm: Term(action); break;
    case ActionKind::kKill:
      LogWarn({{"rank", action.rank.v}, {"generation", action.generation.v}}, "the worker did not go: killing it");
      ranks_[action.rank.v].child.Signal(SIGKILL);
      break;
    case ActionKind::kLoseRequests: LoseRequests(action.loss); break;
    case ActionKind::kOpenAdmission:
    case ActionKind::kCloseAdmission: publish_ = true; break;  // admission asks the machine
    case ActionKind::kWriteIncident: WriteIncident(*action.loss); break;
    case ActionKind::kPublishHealth:
      metrics_.SetState(machine_.state(), machine_.generation());
      publish_ = true;
      notify_.Status(Reason().empty() ? std::string(GroupStateName(machine_.state())) : Reason());
      // A pause that we keep ourselves is not to be cut short by a manager that starts us anew.
      if (const auto next = machine_.next_launch()) notify_.Starting(Reason(), *next - round_ + config_.group.attach_timeout + kManagerSlack);
      break;
    case ActionKind::kNotifyReady:
      LogInfo({{"generation", machine_.generation().v}}, "serving");
      notify_.Ready("serving");
      break;
    case ActionKind::kNotifyStopping: {
      const GroupOptions& g = config_.group;
      notify_.Stopping("stopping", g.drain_timeout + g.drain_grace + g.kill_timeout + kManagerSlack);
      break;
    }
    case ActionKind::kExtendStart: notify_.Starting(Reason(), action.duration + kManagerSlack); break;
    case ActionKind::kFinished: exit_code_ = static_cast<int>(ExitCode::kOk); break;
  }
}

void Supervisor::Spawn(const Action& action) {
  const uint32_t i = action.rank.v;
  RankRuntime& r = ranks_[i];
  r = RankRuntime{};
  if (i == 0) {
    sequencer_.Reset(config_.group.ranks);
    group_memory_ = config_.group.ranks > 1 ? CreateGroupMemory(config_.group.ranks) : UniqueFd();
    if (config_.group.ranks > 1 && !group_memory_) LogError("no memory for the ranks to share: {}", ::strerror(errno));
    last_step_.Clear();
    ready_.Clear();
    permanent_message_.clear();
    permanent_code_ = 0;
  }
  r.token = fmt::format("{:016x}{:016x}", EntropySeed(), EntropySeed());
  r.phase = "spawned";
  LaunchSpec spec;
  spec.binary = config_.worker_binary;
  spec.binary_fd = worker_binary_.get();
  spec.args = {"--supervisor", "unix:" + dir_.socket(), "--rank", std::to_string(i), "--tp", std::to_string(config_.group.ranks),
               "--generation", std::to_string(action.generation.v), "--lifeline-fd", std::to_string(kLifelineFd),
               "--flight-record", dir_.flight_record(action.generation.v, i)};
  spec.args.insert(spec.args.end(), config_.worker_args.begin(), config_.worker_args.end());
  spec.environment = {"HOLDFAST_WORKER_TOKEN=" + r.token};  // not an argument: those are for everybody to read
  if (action.safe) spec.args.push_back("--safe");
  const UniqueFd keep = kept_[i].Open();
  if (keep) {
    spec.keep_fd = keep.get();
    spec.args.insert(spec.args.end(), {"--keep-fd", std::to_string(kKeepFd)});
  }
  if (group_memory_) {
    spec.group_fd = group_memory_.get();
    spec.args.insert(spec.args.end(), {"--group-fd", std::to_string(kGroupFd)});
  }
  absl::StatusOr<ChildProcess> child =
      FaultPoint("supervisor.spawn") ? absl::StatusOr<ChildProcess>(absl::NotFoundError("fault point")) : Launch(spec);
  if (!child.ok()) {
    LogError({{"rank", i}, {"generation", action.generation.v}}, "{}", std::string_view(child.status().message().data(), child.status().message().size()));
    // No memory or no descriptors may pass; a missing binary will not.
    GroupEvent event = EventOf(child.status().code() == absl::StatusCode::kResourceExhausted ? EventKind::kExited : EventKind::kSpawnFailed, i);
    event.generation = action.generation;
    event.exit = {false, static_cast<int>(ExitCode::kEnvironment)};
    event.text = std::string(child.status().message());
    if (event.kind == EventKind::kSpawnFailed) permanent_message_ = event.text;
    events_.push_back(std::move(event));
    return;
  }
  r.child = *std::move(child);
  r.log.emplace(r.child.TakeLog());
  LogInfo({{"rank", i}, {"generation", action.generation.v}, {"pid", r.child.pid()}}, "spawned a worker{}", action.safe ? " (safe profile)" : "");
  GroupEvent event = EventOf(EventKind::kSpawned, i);
  event.generation = action.generation;
  events_.push_back(std::move(event));
}

void Supervisor::Term(const Action& action) {
  RankRuntime& r = ranks_[action.rank.v];
  if (r.link) {
    proto::SupervisorMessage message;
    message.mutable_stop()->set_grace_ms(static_cast<uint32_t>(ToMillis(action.duration)));
    r.link->Send(std::move(message));
  }
  r.child.Signal(SIGTERM);
  r.child.Signal(SIGCONT);  // a stopped process takes TERM only when it goes on
}

void Supervisor::WriteIncident(const Loss& loss) {
  metrics_.CountRestart(loss.cause);
  metrics_.CountIncident();
  IncidentInput input;
  input.loss = loss;
  input.unix_ms = clock_.UnixMillis();
  input.failure_message = ranks_[loss.rank.v].failure;
  input.findings.assign(recent_findings_.begin(), recent_findings_.end());
  input.requests = std::exchange(lost_requests_, {});
  input.command_line = config_.worker_args;
  input.version = std::string(kVersion);
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    RankRuntime& r = ranks_[i];
    if (r.log) r.log->Drain();
    input.log_lines.emplace_back();
    if (r.log) input.log_lines.back().assign(r.log->lines().begin(), r.log->lines().end());
    input.flight_records.push_back(dir_.flight_record(loss.generation.v, i));
    kept_[i].Drain();
    input.recordings.push_back(kept_[i].recording());
  }
  const auto written = incidents_.Write(input);
  LogError({{"generation", loss.generation.v}, {"rank", loss.rank.v}, {"cause", LossCauseName(loss.cause)}, {"phase", loss.phase},
            {"incident", written.ok() ? written->id : std::string(written.status().message())}},
           "the group was lost: {}", loss.detail);
}

void Supervisor::Finish() {
  // A last statement, so that nobody has to wait for a lease to run out.
  Publish();
  inbox_.Close();
  for (auto& [id, outlet] : sessions_) outlet->Close();
  for (auto& [id, outlet] : watchers_) outlet->Close();
  for (RankRuntime& r : ranks_) {
    if (r.link) r.link->Close();
  }
  sessions_.clear();
  watchers_.clear();
  resizes_.clear();
  inbox_.TakeAll();  // unanswered calls answer as they go
  server_->Shutdown(std::chrono::milliseconds(300));
  server_.reset();
  dir_.Clean();
  LogInfo("supervisor stopped");
}

}  // namespace holdfast::supervisor

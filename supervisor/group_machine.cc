#include "supervisor/group_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/check.h"

namespace holdfast::supervisor {

std::string_view GroupStateName(GroupState state) {
  static constexpr std::string_view kNames[kGroupStates] = {"down",     "spawning", "loading", "warming",     "serving",
                                                            "draining", "stopping", "backoff", "quarantined", "unkillable"};
  return kNames[static_cast<size_t>(state)];
}

std::string_view EventName(EventKind kind) {
  static constexpr std::string_view kNames[kEventKinds] = {
      "tick",   "stalled", "spawned", "spawn-failed", "attached", "progress", "ready", "step",    "heartbeat",  "finding",
      "link-lost", "exited", "busy", "idle",    "start",        "drain",    "stop-now", "restart", "hold",       "resume",
      "device-free"};
  return kNames[static_cast<size_t>(kind)];
}

GroupMachine::GroupMachine(GroupOptions options, uint64_t seed)
    : options_(options), policy_(options.restart, seed), liveness_(options.liveness), ranks_(options.ranks) {
  HF_CHECK(options.ranks >= 1);
}

Instant GroupMachine::NextDeadline() const {
  const bool live = state_ == GroupState::kServing || state_ == GroupState::kDraining;
  return live ? std::min(deadline_, liveness_.NextDeadline()) : deadline_;
}

std::optional<Instant> GroupMachine::next_launch() const {
  if (state_ == GroupState::kBackoff || state_ == GroupState::kQuarantined) return deadline_;
  return std::nullopt;
}

// ---- launching ---------------------------------------------------------------------------------------------------------

void GroupMachine::Launch(const GroupEvent&) {
  if (stop_for_good_) return;
  HF_CHECK(AllGone());  // S1
  if (generation_.v > 0) ++restarts_;
  generation_ = generation_.Next();
  permanent_ = false;
  device_wait_ = false;
  loss_.reset();
  last_step_ = 0;
  busy_ = false;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r] = RankInfo{};
    ranks_[r].state = RankState::kSpawnAsked;
    actions_.push_back(Action{ActionKind::kSpawn, Rank(r), generation_, safe_launch_, {}, std::nullopt});
  }
  deadline_ = now_ + options_.attach_timeout;
  Enter(GroupState::kSpawning);
}

void GroupMachine::LaunchIfDue(const GroupEvent& event) {
  if (now_ >= deadline_) Launch(event);
}

void GroupMachine::LaunchFresh(const GroupEvent& event) {
  policy_.Reset();
  safe_launch_ = false;
  Launch(event);
}

void GroupMachine::LaunchOnDevice(const GroupEvent& event) {
  if (device_wait_) Launch(event);
}

void GroupMachine::NoteSpawned(const GroupEvent& event) {
  RankInfo& r = ranks_[event.rank.v];
  if (r.state == RankState::kSpawnAsked) r.state = RankState::kSpawned;
}

void GroupMachine::LoseToSpawn(const GroupEvent& event) {
  ranks_[event.rank.v].state = RankState::kGone;
  Lose(LossCause::kSpawn, event.rank, event.text);
}

void GroupMachine::NoteAttached(const GroupEvent& event) {
  RankInfo& r = ranks_[event.rank.v];
  if (r.state != RankState::kSpawned) return;  // a second Hello changes nothing
  r.state = RankState::kAttached;
  AfterAttach();
}

void GroupMachine::AfterAttach() {
  if (!All(RankState::kAttached)) return;
  deadline_ = now_ + options_.load_timeout;
  const bool warm = std::all_of(ranks_.begin(), ranks_.end(), [](const RankInfo& r) { return r.warming; });
  Enter(warm ? GroupState::kWarming : GroupState::kLoading);
  actions_.push_back(Action{ActionKind::kExtendStart, Rank(), generation_, false, options_.load_timeout, std::nullopt});
}

void GroupMachine::NoteProgress(const GroupEvent& event) {
  RankInfo& r = ranks_[event.rank.v];
  if (r.state < RankState::kAttached) return;
  const bool moved = event.bytes > r.bytes || event.warming != r.warming;
  r.bytes = std::max(event.warming == r.warming ? r.bytes : 0, event.bytes);
  r.warming = event.warming;
  if (!moved) return;  // repeating a number is not progress
  if (state_ == GroupState::kSpawning) return;  // other ranks still owe their Hello by their own deadline
  deadline_ = now_ + options_.load_timeout;
  actions_.push_back(Action{ActionKind::kExtendStart, Rank(), generation_, false, options_.load_timeout, std::nullopt});
  const bool all_warm = std::all_of(ranks_.begin(), ranks_.end(), [](const RankInfo& x) { return x.warming; });
  if (all_warm && state_ == GroupState::kLoading) Enter(GroupState::kWarming);
}

void GroupMachine::NoteReady(const GroupEvent& event) {
  RankInfo& r = ranks_[event.rank.v];
  if (r.state != RankState::kAttached) return;
  r.state = RankState::kReady;
  if (!All(RankState::kReady)) return;
  liveness_.Reset(now_, options_.ranks);
  policy_.OnServing(now_);
  deadline_ = Instant::max();
  if (!hold_) Emit(ActionKind::kOpenAdmission);
  Enter(hold_ ? GroupState::kDraining : GroupState::kServing);
  Emit(ActionKind::kNotifyReady);
}

// ---- serving -----------------------------------------------------------------------------------------------------------

void GroupMachine::NoteStep(const GroupEvent& event) {
  last_step_ = std::max(last_step_, event.step);
  liveness_.OnStep(now_, event.rank, event.step, event.duration);
}

void GroupMachine::NoteHeartbeat(const GroupEvent& event) {
  liveness_.OnHeartbeat(now_, event.rank, event.step, event.outstanding, event.since_change, event.duration);
}

void GroupMachine::NoteBusy(const GroupEvent&) {
  busy_ = true;
  liveness_.SetPending(now_, true);
}

void GroupMachine::NoteIdle(const GroupEvent&) {
  busy_ = false;
  liveness_.SetPending(now_, false);
}

void GroupMachine::NoteFinding(const GroupEvent& event) {
  // The lesser severities are contained by the worker itself; they are counted by the shell.
  if (event.severity == Severity::kStructural) Lose(LossCause::kIntegrity, event.rank, event.text);
}

void GroupMachine::CheckLiveness() {
  const auto verdict = liveness_.Check(now_);
  if (!verdict) return;
  const auto age = ToMillis(verdict->age), bound = ToMillis(verdict->bound);
  switch (verdict->kind) {
    case LivenessVerdict::Kind::kHang:
      Lose(LossCause::kHang, verdict->rank, fmt::format("step {} has not moved for {} ms (bound {} ms)", verdict->step + 1, age, bound));
      break;
    case LivenessVerdict::Kind::kStalled:
      Lose(LossCause::kHang, verdict->rank,
           fmt::format("requests are in flight, but no step ran for {} ms (bound {} ms)", age, bound));
      break;
    case LivenessVerdict::Kind::kUnreported:
      Lose(LossCause::kHang, verdict->rank, fmt::format("step {} has ended, but no report came for {} ms (bound {} ms)", verdict->step, age, bound));
      break;
    case LivenessVerdict::Kind::kSilent:
      Lose(LossCause::kSilent, verdict->rank, fmt::format("no heartbeat for {} ms (bound {} ms)", age, bound));
      break;
  }
}

// ---- deadlines -----------------------------------------------------------------------------------------------------------

void GroupMachine::AttachDeadline(const GroupEvent&) {
  if (now_ < deadline_) return;
  const auto it = std::find_if(ranks_.begin(), ranks_.end(), [](const RankInfo& r) { return r.state < RankState::kAttached; });
  const Rank rank(static_cast<uint32_t>(it - ranks_.begin()));
  Lose(LossCause::kAttachTimeout, rank, fmt::format("did not attach within {} ms", ToMillis(options_.attach_timeout)));
}

void GroupMachine::LoadDeadline(const GroupEvent&) {
  if (now_ < deadline_) return;
  const auto it = std::find_if(ranks_.begin(), ranks_.end(), [](const RankInfo& r) { return r.state != RankState::kReady; });
  const Rank rank(static_cast<uint32_t>(it - ranks_.begin()));
  Lose(LossCause::kLoadTimeout, rank, fmt::format("no progress for {} ms", ToMillis(options_.load_timeout)));
}

void GroupMachine::ServeDeadline(const GroupEvent&) { CheckLiveness(); }

void GroupMachine::DrainDeadline(const GroupEvent& event) {
  if (now_ >= deadline_) {
    StopForGood(event);
  } else {
    CheckLiveness();
  }
}

void GroupMachine::StopDeadline(const GroupEvent&) {
  if (now_ < deadline_) return;
  const bool killed_before = std::any_of(ranks_.begin(), ranks_.end(), [](const RankInfo& r) { return r.told_kill; });
  if (killed_before) {
    deadline_ = now_ + options_.rekill_period;
    Enter(GroupState::kUnkillable);
    return;
  }
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].state == RankState::kGone) continue;
    ranks_[r].told_kill = true;
    actions_.push_back(Action{ActionKind::kKill, Rank(r), generation_, false, {}, std::nullopt});
  }
  deadline_ = now_ + options_.kill_timeout;
}

void GroupMachine::KillAgain(const GroupEvent&) {
  if (now_ < deadline_) return;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].state == RankState::kGone) continue;
    actions_.push_back(Action{ActionKind::kKill, Rank(r), generation_, false, {}, std::nullopt});
  }
  deadline_ = now_ + options_.rekill_period;
  Emit(ActionKind::kPublishHealth);
}

void GroupMachine::Shift(const GroupEvent& event) {
  if (deadline_ != Instant::max()) deadline_ += event.duration;
  liveness_.Shift(event.duration);
  policy_.Shift(event.duration);
}

// ---- losing --------------------------------------------------------------------------------------------------------------

void GroupMachine::Lose(LossCause cause, Rank rank, std::string detail, const ExitStatus* exit) {
  Loss loss;
  loss.cause = cause;
  loss.rank = rank;
  loss.generation = generation_;
  loss.phase = std::string(GroupStateName(state_));
  loss.detail = std::move(detail);
  loss.last_step = last_step_;
  loss.safe_profile = safe_launch_;
  if (exit != nullptr) {
    loss.exit = *exit;
    loss.exit_known = true;
  }
  loss_ = std::move(loss);
  Emit(ActionKind::kCloseAdmission);
  actions_.push_back(Action{ActionKind::kLoseRequests, rank, generation_, false, {}, loss_});
  TellAllToGo(options_.loss_grace);
}

void GroupMachine::TellAllToGo(Duration grace) {
  deadline_ = now_ + grace;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].state == RankState::kGone || ranks_[r].state == RankState::kSpawnAsked) continue;
    ranks_[r].told_term = true;
    actions_.push_back(Action{ActionKind::kTerm, Rank(r), generation_, false, grace, std::nullopt});
  }
  Enter(GroupState::kStopping);
  if (AllGone()) Settle();
}

void GroupMachine::TermLateSpawn(const GroupEvent& event) {
  RankInfo& r = ranks_[event.rank.v];
  if (r.state != RankState::kSpawnAsked) return;
  r.state = RankState::kSpawned;
  r.told_term = true;
  actions_.push_back(Action{ActionKind::kTerm, event.rank, generation_, false, deadline_ - now_, std::nullopt});
}

void GroupMachine::NoteNotSpawned(const GroupEvent& event) {
  ranks_[event.rank.v].state = RankState::kGone;
  if (AllGone()) Settle();
}

void GroupMachine::LoseToLink(const GroupEvent& event) {
  Lose(LossCause::kLinkLost, event.rank, event.text.empty() ? "the link closed" : event.text);
}

void GroupMachine::LoseToExit(const GroupEvent& event) {
  ranks_[event.rank.v].state = RankState::kGone;
  Lose(CauseOf(event.exit), event.rank, event.text, &event.exit);
}

void GroupMachine::NoteGone(const GroupEvent& event) {
  RankInfo& r = ranks_[event.rank.v];
  if (r.state == RankState::kGone) return;
  r.state = RankState::kGone;
  // A closed link or a lost peer is a symptom; the exit that explains it may come a moment later, from this rank or another one.
  const bool symptom = loss_ && (loss_->cause == LossCause::kLinkLost || loss_->cause == LossCause::kPeerLost);
  const bool by_us = (r.told_kill && event.exit.signalled && event.exit.code == 9) ||
                     (r.told_term && ((event.exit.signalled && event.exit.code == 15) || (!event.exit.signalled && event.exit.code == 0)));
  if (symptom && !by_us && CauseOf(event.exit) != LossCause::kPeerLost) {
    loss_->cause = CauseOf(event.exit);
    loss_->rank = event.rank;
    loss_->exit = event.exit;
    loss_->exit_known = true;
    if (!event.text.empty()) loss_->detail = event.text;
  } else if (loss_ && loss_->rank == event.rank && !loss_->exit_known) {
    loss_->exit = event.exit;
    loss_->exit_known = true;
  }
  if (AllGone()) Settle();
}

void GroupMachine::Settle() {
  const LossCause cause = loss_ ? loss_->cause : LossCause::kOperator;
  WriteLoss();
  const RestartDecision decision = policy_.OnLoss(now_, cause);
  if (stop_for_good_) {
    deadline_ = Instant::max();
    Enter(GroupState::kDown);
    Emit(ActionKind::kFinished);
    return;
  }
  safe_launch_ = decision.safe;
  device_wait_ = cause == LossCause::kDevice || cause == LossCause::kDeviceBusy;
  switch (decision.verdict) {
    case Verdict::kPermanent:
      permanent_ = true;
      deadline_ = Instant::max();
      Enter(GroupState::kDown);
      break;
    case Verdict::kQuarantine:
      deadline_ = now_ + decision.delay;
      Enter(GroupState::kQuarantined);
      break;
    case Verdict::kRestart:
      deadline_ = now_ + decision.delay;
      Enter(GroupState::kBackoff);
      break;
  }
}

void GroupMachine::WriteLoss() {
  if (loss_ && loss_->cause != LossCause::kOperator) {
    actions_.push_back(Action{ActionKind::kWriteIncident, loss_->rank, generation_, loss_->safe_profile, {}, loss_});
    last_loss_ = loss_;
  }
  loss_.reset();
}

// ---- stopping --------------------------------------------------------------------------------------------------------------

void GroupMachine::BeginDrain(const GroupEvent& event) {
  stop_for_good_ = true;
  Emit(ActionKind::kCloseAdmission);
  Emit(ActionKind::kNotifyStopping);
  deadline_ = now_ + options_.drain_timeout;
  Enter(GroupState::kDraining);
  if (!busy_) StopForGood(event);
}

void GroupMachine::DrainHeld(const GroupEvent& event) {
  if (!stop_for_good_) BeginDrain(event);
}

void GroupMachine::BeginHold(const GroupEvent&) {
  hold_ = true;
  deadline_ = Instant::max();
  Emit(ActionKind::kCloseAdmission);
  Enter(GroupState::kDraining);
}

void GroupMachine::EndHold(const GroupEvent&) {
  hold_ = false;
  if (stop_for_good_) return;  // it is on its way out
  Emit(ActionKind::kOpenAdmission);
  Enter(GroupState::kServing);
}

void GroupMachine::NoteHold(const GroupEvent&) { hold_ = true; }

void GroupMachine::NoteResume(const GroupEvent&) { hold_ = false; }

void GroupMachine::StopWhenIdle(const GroupEvent& event) {
  NoteIdle(event);
  if (stop_for_good_) StopForGood(event);
}

void GroupMachine::StopForGood(const GroupEvent&) {
  const bool told = std::exchange(stop_for_good_, true);
  Emit(ActionKind::kCloseAdmission);
  if (!told) Emit(ActionKind::kNotifyStopping);
  Emit(ActionKind::kLoseRequests);
  TellAllToGo(options_.drain_grace);
}

void GroupMachine::FinishNow(const GroupEvent&) {
  // In Unkillable there is nothing to wait for: the process does not answer SIGKILL, and the lifeline tells it if it ever wakes.
  stop_for_good_ = true;
  deadline_ = Instant::max();
  for (RankInfo& r : ranks_) r.state = RankState::kGone;
  WriteLoss();
  Emit(ActionKind::kNotifyStopping);
  Enter(GroupState::kDown);
  Emit(ActionKind::kFinished);
}

void GroupMachine::MakeFinal(const GroupEvent&) {
  if (stop_for_good_) return;
  stop_for_good_ = true;
  Emit(ActionKind::kNotifyStopping);
}

void GroupMachine::KillNow(const GroupEvent& event) {
  MakeFinal(event);
  const bool killed_before = std::any_of(ranks_.begin(), ranks_.end(), [](const RankInfo& r) { return r.told_kill; });
  if (killed_before) return;
  deadline_ = now_;
  StopDeadline(event);
}

void GroupMachine::RestartNow(const GroupEvent&) {
  Lose(LossCause::kOperator, Rank(0), "asked for");
}

void GroupMachine::RestartHeld(const GroupEvent& event) {
  if (!stop_for_good_) RestartNow(event);
}

// ---- parts -------------------------------------------------------------------------------------------------------------------

void GroupMachine::Enter(GroupState state) {
  state_ = state;
  Emit(ActionKind::kPublishHealth);
}

bool GroupMachine::AllGone() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankInfo& r) { return r.state == RankState::kGone; });
}

bool GroupMachine::All(RankState at_least) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const RankInfo& r) { return r.state >= at_least; });
}

}  // namespace holdfast::supervisor

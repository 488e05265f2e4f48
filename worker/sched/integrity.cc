// Findings and containment: a ledger that disagrees with itself is repaired from the rows; only requests whose pages are in doubt restart.
#include <fmt/format.h>

#include <algorithm>

#include "worker/sched/scheduler_impl.h"

namespace holdfast::sched {
namespace {

constexpr uint64_t kContainmentWindow = 4096;  // steps
constexpr size_t kMaxContainments = 8;         // in the window; more is structural
constexpr size_t kMaxReported = 8;

}  // namespace

void SchedulerImpl::Report(Severity severity, const char* kind, std::string detail) {
  if (findings_ != nullptr) findings_->Report({severity, kind, std::move(detail)});
}

void SchedulerImpl::CheckStep(bool settled) {
  const char* cause = nullptr;
  if (ledger_.HasEvents()) {
    for (const kv::ArenaEvent& e : ledger_.DrainEvents()) {
      Report(Severity::kPage, e.what, fmt::format("page {}: kind {} ref {} generation {}, step {}", e.page, static_cast<int>(e.word.kind()),
                                                  e.word.ref(), e.word.generation(), next_step_.v));
    }
    cause = "edit";
  } else if (!ledger_.FingerprintsHold()) {
    Report(Severity::kSuspect, "fingerprint", fmt::format("pages, rows and index disagree at step {}", next_step_.v));
    cause = "fingerprint";
  }
  if (settled && steps_to_audit_ > 0) --steps_to_audit_;
  const bool due = settled && steps_to_audit_ == 0 && (config_.audit_period > 0 || audit_soon_);
  if (cause == nullptr && !due) return;
  audit_soon_ = false;
  steps_to_audit_ = config_.audit_period;
  Contain(cause);
}

// Nobody waits for what is done now, and damage is found before the next request meets it.
void SchedulerImpl::AuditWhenIdle() {
  if (config_.audit_period == 0 || audited_at_ == next_step_ || outstanding_ > 0 || !running_.empty() || !waiting_.empty()) return;
  steps_to_audit_ = config_.audit_period;
  Contain(nullptr);
}

bool SchedulerImpl::Audit() {
  contained_now_ = false;
  Contain(nullptr);
  return !contained_now_;
}

void SchedulerImpl::SuspectPage(uint8_t group, uint32_t page) {
  if (group >= ledger_.groups() || page >= ledger_.arena(group).size()) return;
  Report(Severity::kPage, "suspect_page", fmt::format("pool {} page {} at step {}", kv::PoolName(ledger_.window(group)), page, next_step_.v));
  ledger_.Unindex(kv::PageId(group, page));
  ledger_.Quarantine(kv::PageId(group, page));
  std::vector<Sequence*> readers;
  for (Sequence* s : running_) {
    for (uint32_t i = 0; i < s->row.blocks_in(group); ++i) {
      if (s->row.at(group, i) && s->row.at(group, i).page() == page) {
        readers.push_back(s);
        break;
      }
    }
  }
  for (Sequence* s : readers) {
    Report(Severity::kSequence, "replayed", fmt::format("request {} at {} tokens", s->request.v, s->row.settled));
    Restart(s);
  }
  CountContainment();
  KeepPromises();
  RefreshLimits();
}

// What is in flight for it is not waited for: its outcome is dropped, and one stream orders every later use of its pages behind it.
void SchedulerImpl::Restart(Sequence* s) {
  s->epoch++;
  s->inflight = s->pending = 0;
  ReleaseRow(s);
}

// Who ended takes no more pages; then the youngest give way. The oldest never does: alone it has everything else to take from, and if that is too
// little, it is told so when it gets there.
void SchedulerImpl::KeepPromises() {
  if (!ledger_.has_full() || ledger_.Available(0) >= static_cast<int64_t>(reserved_)) return;
  for (Sequence* s : running_) {
    if (s->running()) continue;
    reserved_ -= s->reserved;
    s->reserved = 0;
  }
  while (ledger_.Available(0) < static_cast<int64_t>(reserved_)) {
    Sequence* youngest = nullptr;
    Sequence* oldest = nullptr;
    for (Sequence* s : running_) {
      if (!s->running()) continue;
      if (youngest == nullptr || s->order > youngest->order) youngest = s;
      if (oldest == nullptr || s->order < oldest->order) oldest = s;
    }
    if (youngest == oldest) return;
    counters_.preemptions++;
    Fold(youngest->request.v ^ kFoldPreempt);
    Restart(youngest);
  }
}

void SchedulerImpl::Requeue(Sequence* s) {
  ledger_.Forget(&s->row);
  s->epoch++;
  s->inflight = s->pending = 0;
  LeaveRunning(s);
  if (s->state == SequenceState::kEnded) {
    Recycle(s);
  } else {
    Enqueue(s);
  }
}

void SchedulerImpl::CountContainment() {
  contained_now_ = true;
  const uint64_t now = next_step_.v;
  std::erase_if(containments_, [now](uint64_t step) { return step + kContainmentWindow < now; });
  containments_.push_back(now);
  if (containments_.size() > kMaxContainments) {
    Report(Severity::kStructural, "containments", fmt::format("{} repairs within {} steps", containments_.size(), kContainmentWindow));
  }
  for (size_t g = 0; g < ledger_.groups(); ++g) {
    const uint32_t q = ledger_.arena(g).count(kv::PageKind::kQuarantined);
    if (q > std::max<uint32_t>(4, ledger_.arena(g).limit() / 200)) {
      Report(Severity::kStructural, "quarantine", fmt::format("{} of {} pages of pool {} are quarantined", q, ledger_.arena(g).limit(),
                                                              kv::PoolName(ledger_.window(g))));
    }
  }
}

void SchedulerImpl::Contain(const char* cause) {
  counters_.audits++;
  audited_at_ = next_step_;
  kv::AuditReport report = ledger_.Audit();
  uint64_t reserved = 0;
  for (const Sequence* s : running_) reserved += s->reserved;
  if (reserved != reserved_) {
    Report(Severity::kSuspect, "reserved", fmt::format("{} pages promised, requests count {}", reserved_, reserved));
    reserved_ = reserved;
  }
  if (report.clean() && cause == nullptr) return;
  for (size_t i = 0; i < std::min(report.problems.size(), kMaxReported); ++i) {
    const auto& p = report.problems[i];
    Report(Severity::kPage, p.kind, fmt::format("pool {} page {}: {}", kv::PoolName(ledger_.window(p.group)), p.page, p.detail));
  }
  CountContainment();
  if (report.clean()) return;  // the edit that noticed it also repaired it
  // Requests that may have read wrong KV start again from their tokens; everybody else keeps pages and position.
  for (kv::SeqRow* row : report.suspect_rows) {
    const auto it = std::find_if(running_.begin(), running_.end(), [row](const Sequence* s) { return &s->row == row; });
    if (it == running_.end()) continue;
    Report(Severity::kSequence, "replayed", fmt::format("request {} at {} tokens", (*it)->request.v, (*it)->row.settled));
    Requeue(*it);
  }
  ledger_.RebuildFromRows(report.suspect_pages);
  const kv::AuditReport after = ledger_.Audit();
  if (!after.clean()) {
    Report(Severity::kStructural, "rebuild", fmt::format("{} problems after rebuilding, the first: {} {}", after.count, after.problems[0].kind,
                                                         after.problems[0].detail));
  }
  KeepPromises();
  RefreshLimits();
}

}  // namespace holdfast::sched

// Resizing pools while serving. A pool grows at once. It shrinks in steps: admissions are held to the new size; when what is
// promised fits, pages above retire as they fall free and owned ones are moved down between steps; when none is left the space is given up.
#include <fmt/format.h>

#include <algorithm>

#include "worker/sched/scheduler_impl.h"

namespace holdfast::sched {
namespace {

constexpr uint32_t kMovesPerStep = 256;

}  // namespace

void SchedulerImpl::Resize(const ResizeCommand& command) {
  const bool busy = resize_.phase == ResizeState::Phase::kRunning;
  Fold(command.operation ^ static_cast<uint64_t>(command.full_pages) << 32 ^ static_cast<uint64_t>(command.window_pages) << 8 ^ command.cancel);
  if (command.cancel) {
    if (!busy || (command.operation != 0 && command.operation != resize_.operation)) return;
    for (size_t g = 0; g < targets_.size(); ++g) {
      if (targets_[g].shrink && targets_[g].limit_set) ledger_.SetLimit(g, targets_[g].before);
    }
    targets_.clear();
    RefreshLimits();
    resize_.phase = ResizeState::Phase::kCancelled;
    resize_.message = "cancelled; pools that shrank have their former sizes";
    return;
  }
  ResizeState next;
  next.operation = command.operation;
  next.phase = ResizeState::Phase::kRefused;
  if (busy) {
    // The one that runs keeps its state; its own report is the answer to both.
    Report(Severity::kSuspect, "resize_busy", fmt::format("resize {} came while {} runs", command.operation, resize_.operation));
    return;
  }
  std::vector<Target> targets(ledger_.groups());
  std::vector<uint32_t> usable(ledger_.groups());
  bool shrinks = false, changes = false;
  for (size_t g = 0; g < ledger_.groups(); ++g) {
    const kv::Arena& arena = ledger_.arena(g);
    const uint32_t wanted = ledger_.window(g) == 0 ? command.full_pages : command.window_pages;
    Target& t = targets[g];
    t.before = arena.limit();
    t.limit = wanted == 0 ? arena.limit() : wanted;
    t.shrink = t.limit < arena.limit();
    shrinks |= t.shrink;
    changes |= t.limit != arena.limit();
    if (t.limit > arena.size()) {
      next.message = fmt::format("pool {} can have at most {} pages of {} tokens, asked for {}", kv::PoolName(ledger_.window(g)), arena.size(),
                                 page_size_, t.limit);
      resize_ = next;
      return;
    }
    const uint32_t quarantined = arena.quarantined_below_limit();
    usable[g] = t.limit - std::min(t.limit, quarantined);
  }
  const kv::CapacityAnswer answer = kv::Evaluate(question_, usable);
  if (!answer.ok) {
    next.message = answer.message;
    resize_ = next;
    return;
  }
  if (ledger_.has_full()) {
    uint32_t largest = 0;
    for (const auto* list : {&waiting_, &running_}) {
      for (const Sequence* s : *list) largest = std::max(largest, Pages(s->final_tokens));
    }
    if (largest > usable[0]) {
      next.message = fmt::format("a request in hand needs {} pages, more than the {} the full pool would have: at least {} now", largest, usable[0], largest);
      resize_ = next;
      return;
    }
  }
  for (size_t g = 0; g < targets.size(); ++g) {
    if (targets[g].limit > targets[g].before) {
      ledger_.SetLimit(g, targets[g].limit);
      targets[g].limit_set = true;
    }
  }
  RefreshLimits();
  next.phase = ResizeState::Phase::kDone;
  next.message = changes ? "done" : "the pools have that size already";
  if (answer.chunk < config_.prefill_chunk) next.message += fmt::format("; the prefill chunk is capped at {} of {} tokens", answer.chunk, config_.prefill_chunk);
  resize_ = next;
  if (!shrinks) return;
  targets_ = std::move(targets);
  resize_.phase = ResizeState::Phase::kRunning;
  if (outstanding_ == 0) PumpResize();
}

void SchedulerImpl::PumpResize() {
  std::vector<kv::Ledger::Move> moves;
  const bool idle = running_.empty();
  bool done = true;
  for (size_t g = 0; g < targets_.size(); ++g) {
    Target& t = targets_[g];
    if (!t.shrink) continue;
    if (!t.limit_set) {
      // Not before everything promised fits: taking a page must not fail.
      if (ledger_.window(g) == 0 && ledger_.Available(g, t.limit) < static_cast<int64_t>(reserved_)) {
        done = false;
        continue;
      }
      ledger_.SetLimit(g, t.limit);
      t.limit_set = true;
    }
    ledger_.MoveDown(g, idle ? UINT32_MAX : kMovesPerStep, &moves);
    if (ledger_.arena(g).held_above_limit() > 0) done = false;
  }
  for (const auto& m : moves) {
    moves_.push_back({m.group, m.from, m.to});
    Fold(static_cast<uint64_t>(m.from) << 32 | m.to);
  }
  RefreshLimits();
  if (!done) return;
  for (size_t g = 0; g < targets_.size(); ++g) {
    if (targets_[g].shrink) ledger_.UnbackRetired(g);
  }
  targets_.clear();
  resize_.phase = ResizeState::Phase::kDone;
}

}  // namespace holdfast::sched

#include "supervisor/request_table.h"

#include <algorithm>

#include "proto/base/check.h"

namespace holdfast::supervisor {

RequestEntry& RequestTable::Add(Instant now, RequestEntry entry) {
  HF_CHECK(CanAdd(entry.session, entry.client_id));
  entry.id = last_ = last_.Next();
  entry.accepted = now;
  const bool hold = poison_.OnProbation(now, entry.key) && (!held_.empty() || ProbationInFlight(now));
  entry.state = hold ? RequestState::kHeld : RequestState::kQueued;
  if (hold) held_.push_back(entry.id);
  by_client_[{entry.session.v, entry.client_id}] = entry.id;
  return entries_.emplace(entry.id, std::move(entry)).first->second;
}

RequestEntry* RequestTable::Find(RequestId id) {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second;
}

RequestEntry* RequestTable::Find(SessionId session, uint64_t client_id) {
  const auto it = by_client_.find({session.v, client_id});
  return it == by_client_.end() ? nullptr : Find(it->second);
}

std::vector<RequestId> RequestTable::OfSession(SessionId session) const {
  std::vector<RequestId> out;
  for (auto it = by_client_.lower_bound({session.v, 0}); it != by_client_.end() && it->first.first == session.v; ++it) {
    out.push_back(it->second);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void RequestTable::NoteAdmitted(RequestEntry& entry, uint32_t cached_tokens) {
  if (entry.state == RequestState::kQueued) {
    entry.state = RequestState::kRunning;
    ++running_;
  }
  entry.cached_tokens = cached_tokens;
}

void RequestTable::NoteTokens(RequestEntry& entry, uint32_t tokens) {
  entry.generated += tokens;
  if (tokens > 0) poison_.OnProgress(entry.key, entry.generated);
}

void RequestTable::End(RequestId id, bool by_itself) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  RequestEntry& entry = it->second;
  if (by_itself) poison_.OnEnded(entry.key);
  if (entry.state == RequestState::kRunning) --running_;
  if (entry.state == RequestState::kHeld) std::erase(held_, id);
  by_client_.erase({entry.session.v, entry.client_id});
  entries_.erase(it);
}

bool RequestTable::ProbationInFlight(Instant now) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& kv) {
    return kv.second.state != RequestState::kHeld && poison_.OnProbation(now, kv.second.key);
  });
}

std::optional<RequestId> RequestTable::ReleaseHeld(Instant now) {
  if (held_.empty() || ProbationInFlight(now)) return std::nullopt;
  const RequestId id = held_.front();
  held_.pop_front();
  entries_.at(id).state = RequestState::kQueued;
  return id;
}

std::vector<LostRequest> RequestTable::LoseAll(Instant now, bool suspicious, const WorkerShown& shown) {
  const bool free_slot = running_ < shown.slots;
  std::vector<Suspect> suspects;
  std::vector<LostRequest> out;
  std::vector<size_t> at;
  for (auto& [id, entry] : entries_) {
    // A cancelled request is still in the worker's hands, so it may be the culprit, too. One that is not known to be admitted may be: with a
    // slot free the step that was lost may have begun it, and before it is taken in, its arrival may be what the worker died of.
    const bool touched = entry.state == RequestState::kRunning ||
                         (entry.state == RequestState::kQueued && (free_slot || entry.command > shown.consumed));
    if (suspicious && touched) {
      suspects.push_back({entry.key, entry.generated});
      at.push_back(out.size());
    }
    out.push_back({std::move(entry), false});
  }
  if (!suspects.empty()) {
    const std::vector<bool> poison = poison_.OnLoss(now, suspects);
    for (size_t i = 0; i < at.size(); ++i) out[at[i]].poison = poison[i];
  }
  entries_.clear();
  by_client_.clear();
  held_.clear();
  running_ = 0;
  return out;
}

std::vector<RequestEntry> RequestTable::List(size_t limit) const {
  std::vector<RequestEntry> out;
  for (const auto& [id, entry] : entries_) {
    if (out.size() >= limit) break;
    out.push_back(entry);
  }
  return out;
}

}  // namespace holdfast::supervisor

#include "supervisor/poison.h"

#include <algorithm>
#include <set>

namespace holdfast::supervisor {

bool PoisonRegister::IsQuarantined(Instant now, PoisonKey key) const {
  const auto it = records_.find(key);
  return it != records_.end() && it->second.quarantined && Fresh(now, it->second);
}

bool PoisonRegister::OnProbation(Instant now, PoisonKey key) const {
  const auto it = records_.find(key);
  return it != records_.end() && !it->second.quarantined && Suspicious(it->second) && Fresh(now, it->second);
}

std::vector<bool> PoisonRegister::OnLoss(Instant now, std::span<const Suspect> in_flight) {
  // Several requests of one key (a client's retry beside its first try) are one suspect; the furthest speaks for it.
  std::map<PoisonKey, uint32_t> furthest;
  for (const Suspect& s : in_flight) {
    const auto [it, fresh] = furthest.emplace(s.key, s.position);
    if (!fresh) it->second = std::max(it->second, s.position);
  }
  std::vector<PoisonKey> guilty;
  std::set<PoisonKey> out_of_patience;
  for (const auto& [key, position] : furthest) {
    Record& r = records_[key];
    if (!r.history.empty() && !Fresh(now, r)) r = Record{};
    if (position > r.position) r.losses = 0;
    std::erase_if(r.history, [&](Instant at) { return now - at > options_.memory; });
    if (r.history.size() < options_.total_hard_limit) r.history.push_back(now);
    ++r.losses;
    r.position = position;
    r.at = now;
    if (Suspicious(r)) guilty.push_back(key);
    if (r.losses >= options_.hard_limit || r.history.size() >= options_.total_hard_limit) out_of_patience.insert(key);
  }
  std::set<PoisonKey> condemned = out_of_patience;
  if (guilty.size() == 1) condemned.insert(guilty.front());
  for (const PoisonKey& key : condemned) records_[key].quarantined = true;
  std::vector<bool> out(in_flight.size());
  for (size_t i = 0; i < in_flight.size(); ++i) out[i] = condemned.count(in_flight[i].key) > 0;
  Trim(now);
  return out;
}

bool PoisonRegister::OnProgress(PoisonKey key, uint32_t position) {
  const auto it = records_.find(key);
  if (it == records_.end() || it->second.quarantined || it->second.losses == 0 || position <= it->second.position) return false;
  it->second.losses = 0;
  return true;
}

void PoisonRegister::OnEnded(PoisonKey key) {
  const auto it = records_.find(key);
  if (it != records_.end() && !it->second.quarantined) records_.erase(it);
}

std::vector<QuarantineEntry> PoisonRegister::Quarantined(Instant now) const {
  std::vector<QuarantineEntry> out;
  for (const auto& [key, r] : records_) {
    if (!r.quarantined || !Fresh(now, r)) continue;
    out.push_back({key, static_cast<uint32_t>(r.history.size()), r.position, r.refused, r.at + options_.quarantine - now});
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.remaining > b.remaining; });
  return out;
}

void PoisonRegister::NoteRefused(PoisonKey key) {
  const auto it = records_.find(key);
  if (it != records_.end()) ++it->second.refused;
}

size_t PoisonRegister::Clear(Instant now, std::optional<uint64_t> fingerprint) {
  size_t freed = 0;
  std::erase_if(records_, [&](const auto& kv) {
    if (fingerprint && kv.first.fingerprint != *fingerprint) return false;
    if (kv.second.quarantined && Fresh(now, kv.second)) ++freed;
    return true;
  });
  return freed;
}

void PoisonRegister::Shift(Duration d) {
  for (auto& [key, r] : records_) {
    r.at += d;
    for (Instant& at : r.history) at += d;
  }
}

void PoisonRegister::Trim(Instant now) {
  std::erase_if(records_, [&](const auto& kv) { return !Fresh(now, kv.second); });
  while (records_.size() > options_.max_records) {
    const auto oldest =
        std::min_element(records_.begin(), records_.end(), [](const auto& a, const auto& b) { return a.second.at < b.second.at; });
    records_.erase(oldest);
  }
}

}  // namespace holdfast::supervisor

#pragma once
// Which request kills workers? PURE.
//
// A request in flight at two losses is failed alone and its fingerprint refused for a while; the others must not pay for it. Two facts
// tell the guilty from the bystanders:
//  - a request that got past the position where it stood at its last loss did not cause that loss: its count starts again;
//  - if several stand at their second loss without having advanced, they go on *probation*: the caller lets only one such request be
//    in flight at a time until it advances or ends, so the next loss has one suspect.
// Identity survives the resume and a client's retry: it is the caller's fingerprint and the choice number.
//
// Not thread-safe; owned by the supervisor's loop. Memory: at most `max_records`, oldest first out.
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/base/clock.h"

namespace holdfast::supervisor {

struct PoisonKey {
  uint64_t fingerprint = 0;
  uint32_t choice = 0;
  auto operator<=>(const PoisonKey&) const = default;
};

struct PoisonOptions {
  Duration memory = std::chrono::minutes(10);      // a loss counts against a request for this long
  Duration quarantine = std::chrono::minutes(10);  // a quarantined fingerprint is refused for this long
  uint32_t losses = 2;
  uint32_t hard_limit = 4;                         // quarantined at this many losses without advance, alone or not
  uint32_t total_losses = 5;                       // suspect at this many losses within `memory`, advanced or not
  uint32_t total_hard_limit = 8;                   // quarantined at this many, alone or not
  size_t max_records = 4096;
};

struct Suspect {
  PoisonKey key;
  uint32_t position = 0;  // tokens generated so far, resumed ones included
};

struct QuarantineEntry {
  PoisonKey key;
  uint32_t losses = 0;
  uint32_t position = 0;  // at the last loss
  uint64_t refused = 0;   // times it came again
  Duration remaining{};
};

class PoisonRegister {
 public:
  explicit PoisonRegister(PoisonOptions options) : options_(options) {}

  bool IsQuarantined(Instant now, PoisonKey key) const;
  // The request must not be in flight beside another one on probation.
  bool OnProbation(Instant now, PoisonKey key) const;
  // A loss with these requests in flight: out[i] says whether suspect i is to be failed as poison.
  std::vector<bool> OnLoss(Instant now, std::span<const Suspect> in_flight);
  // The request has generated `position` tokens. True when that cleared it of its losses at one position.
  bool OnProgress(PoisonKey key, uint32_t position);
  // The request ended by itself: it is no poison.
  void OnEnded(PoisonKey key);

  // It came again and was refused.
  void NoteRefused(PoisonKey key);

  // The ones with most time left first.
  std::vector<QuarantineEntry> Quarantined(Instant now) const;
  // Forgets every loss, or those of one fingerprint; how many choices in quarantine went free.
  size_t Clear(Instant now, std::optional<uint64_t> fingerprint = std::nullopt);
  void Shift(Duration d);
  size_t size() const { return records_.size(); }

 private:
  struct Record {
    uint32_t losses = 0;            // at this position
    uint32_t position = 0;
    bool quarantined = false;
    uint64_t refused = 0;
    Instant at{};                   // of the last loss
    std::vector<Instant> history;   // of all losses within `memory`, at most total_hard_limit of them
  };
  bool Suspicious(const Record& r) const { return r.losses >= options_.losses || r.history.size() >= options_.total_losses; }
  bool Fresh(Instant now, const Record& r) const { return now - r.at <= (r.quarantined ? options_.quarantine : options_.memory); }
  void Trim(Instant now);

  PoisonOptions options_;
  std::map<PoisonKey, Record> records_;
};

}  // namespace holdfast::supervisor

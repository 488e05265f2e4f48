#pragma once
// Who is in flight: one entry for every accepted request from admission to its last event. Routes the worker's events to sessions,
// and says what becomes of each request when the group is lost. PURE.
//
// An entry ends exactly once: by its finish event, or by LoseAll. A cancel only marks it; the worker's answer ends it, so that the count
// of requests in flight is the worker's truth. Not thread-safe; owned by the supervisor's loop.
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/ids.h"
#include "supervisor/poison.h"

namespace holdfast::supervisor {

using SessionId = StrongId<struct SessionIdTag, uint64_t>;  // one gRPC call of engine_service; unique for the supervisor's life

enum class RequestState : uint8_t {
  kHeld,     // on probation and waiting for its turn: not sent yet
  kQueued,   // sent; the worker has not admitted it
  kRunning,  // admitted
};

struct RequestEntry {
  RequestId id;
  SessionId session;
  uint64_t client_id = 0;      // the caller's name for it, unique in its session
  std::string trace_id;
  PoisonKey key;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t generated = 0;      // tokens after the prompt, resumed ones included
  RequestState state = RequestState::kQueued;
  CommandSeq command;          // that carried it to the ranks; of the present generation, as every entry is
  bool cancelled = false;
  Instant accepted{};
};

// What the worker had shown by its last report before a loss.
struct WorkerShown {
  CommandSeq consumed;           // it has taken in the commands up to this one
  uint32_t slots = UINT32_MAX;   // requests it computes at once
};

struct LostRequest {
  RequestEntry entry;
  bool poison = false;
};

class RequestTable {
 public:
  explicit RequestTable(PoisonOptions poison) : poison_(poison) {}

  // False when the session already has a live request of that client_id.
  bool CanAdd(SessionId session, uint64_t client_id) const { return by_client_.count({session.v, client_id}) == 0; }
  // entry.id is assigned; entry.state is kHeld when the request must wait for another one's probation to end.
  RequestEntry& Add(Instant now, RequestEntry entry);

  RequestEntry* Find(RequestId id);
  RequestEntry* Find(SessionId session, uint64_t client_id);
  // Live requests of a session, oldest first.
  std::vector<RequestId> OfSession(SessionId session) const;

  // The worker admitted the request / generated `tokens` more for it. Unknown ids are the caller's business.
  void NoteAdmitted(RequestEntry& entry, uint32_t cached_tokens);
  void NoteTokens(RequestEntry& entry, uint32_t tokens);
  // The request is over: by_itself = not by cancel. The entry is gone afterwards.
  void End(RequestId id, bool by_itself);

  // The next held request that may be sent now, which becomes kQueued.
  std::optional<RequestId> ReleaseHeld(Instant now);

  // Every entry ends. `suspicious`: the loss may be a request's fault, so it counts against those in flight; not against one that the worker
  // had taken in and could not begin with, since all slots were in use.
  std::vector<LostRequest> LoseAll(Instant now, bool suspicious, const WorkerShown& shown = {});

  size_t size() const { return entries_.size(); }
  size_t sent() const { return entries_.size() - held_.size(); }
  size_t waiting() const { return entries_.size() - running_; }  // held or queued
  size_t running() const { return running_; }
  // Oldest first.
  std::vector<RequestEntry> List(size_t limit) const;

  PoisonRegister& poison() { return poison_; }
  const PoisonRegister& poison() const { return poison_; }

 private:
  bool ProbationInFlight(Instant now) const;

  PoisonRegister poison_;
  RequestId last_;
  std::map<RequestId, RequestEntry> entries_;  // ordered: ids rise with acceptance
  std::map<std::pair<uint64_t, uint64_t>, RequestId> by_client_;
  std::deque<RequestId> held_;
  size_t running_ = 0;
};

}  // namespace holdfast::supervisor

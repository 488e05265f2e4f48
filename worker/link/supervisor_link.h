#pragma once
// The worker's end of WorkerLink: one bidirectional stream to the supervisor, and the heartbeat that speaks for the step thread.
//
// Threads: Send may be called from any thread; what arrives is posted to the inbox given at construction. gRPC stays in the .cc file.
#include <atomic>
#include <memory>
#include <string>

#include "proto/base/clock.h"
#include "proto/base/ids.h"
#include "proto/base/mailbox.h"
#include "proto/worker.pb.h"

namespace holdfast::worker {

// What reaches the worker's loop from outside.
struct Inbound {
  enum class Kind : uint8_t { kMessage, kLinkLost, kTerminate };
  Kind kind = Kind::kMessage;
  std::unique_ptr<proto::SupervisorMessage> message;  // kMessage
};
using Inbox = Mailbox<Inbound>;

// Written by the step thread, read by the heartbeat: a live I/O thread cannot vouch for a stuck step, because the times in a heartbeat
// are those of the last change made here.
class StepPulse {
 public:
  void Begin(uint64_t step) { Set(step, true); }
  void End(uint64_t step, uint32_t mean_us) {
    mean_us_.store(mean_us, std::memory_order_relaxed);
    Set(step, false);
  }
  // Progress inside a long step (a layer done).
  void Touch() { changed_.store(Clock::Real().Now().time_since_epoch().count(), std::memory_order_relaxed); }

  void Fill(proto::Heartbeat* out) const;

 private:
  void Set(uint64_t step, bool outstanding) {
    step_.store(step, std::memory_order_relaxed);
    outstanding_.store(outstanding, std::memory_order_relaxed);
    Touch();
  }
  std::atomic<uint64_t> step_{0};
  std::atomic<bool> outstanding_{false};
  std::atomic<uint32_t> mean_us_{0};
  std::atomic<int64_t> changed_{Clock::Real().Now().time_since_epoch().count()};
};

class SupervisorLink {
 public:
  struct Options {
    std::string target;            // "unix:/run/holdfast/supervisor.sock"
    Generation generation;
    Rank rank;
    std::string token;
    std::string version;
    Duration heartbeat = std::chrono::milliseconds(250);
  };
  // Opens the stream and says Hello. `inbox` and `pulse` outlive the link.
  SupervisorLink(const Options& options, Inbox* inbox, const StepPulse* pulse);
  ~SupervisorLink();
  SupervisorLink(const SupervisorLink&) = delete;
  SupervisorLink& operator=(const SupervisorLink&) = delete;

  void Send(proto::WorkerMessage message);
  // Heartbeats start here (after Ready): before, progress messages are the sign of life.
  void StartHeartbeats();
  // Waits until everything sent so far was handed to the transport, or the time is up. For last words before an exit.
  void Flush(Duration at_most);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace holdfast::worker

#pragma once
// What gRPC's threads post to the supervisor's loop, and the handles through which the loop answers. Values in, handles out: no callback
// of gRPC touches the loop's state, and the loop never waits for a peer.
#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "proto/admin.pb.h"
#include "proto/base/ids.h"
#include "proto/base/mailbox.h"
#include "proto/engine.pb.h"
#include "proto/worker.pb.h"
#include "supervisor/request_table.h"

namespace holdfast::supervisor {

using LinkId = StrongId<struct LinkIdTag, uint64_t>;    // one Attach call; unique for the supervisor's life
using WatchId = StrongId<struct WatchIdTag, uint64_t>;

// The loop's end of a stream. Thread-safe; sends after the stream ended are dropped; every queue is bounded, and false says that the
// bound was passed and the stream is being closed.
class WorkerOutlet {
 public:
  virtual ~WorkerOutlet() = default;
  virtual bool Send(proto::SupervisorMessage message) = 0;
  virtual void Close() = 0;
};

class SessionOutlet {
 public:
  virtual ~SessionOutlet() = default;
  virtual bool Send(proto::SessionEvent event) = 0;
  virtual void Close() = 0;
};

class WatchOutlet {
 public:
  virtual ~WatchOutlet() = default;
  virtual void Publish(const proto::HealthStatement& statement) = 0;  // the newest statement replaces one that still waits
  virtual void Close() = 0;
};

// Exactly one of the two, once.
class ReplyOutlet {
 public:
  virtual ~ReplyOutlet() = default;
  virtual void Reply(const google::protobuf::Message& reply) = 0;
  virtual void Fail(int status_code, const std::string& message) = 0;
};

struct WorkerSaid {
  LinkId link;
  std::shared_ptr<WorkerOutlet> outlet;
  proto::WorkerMessage message;
};
struct WorkerClosed {
  LinkId link;
};
struct SessionOpened {
  SessionId session;
  std::shared_ptr<SessionOutlet> outlet;
};
struct SessionSaid {
  SessionId session;
  proto::SessionRequest request;
};
struct SessionClosed {
  SessionId session;
};
struct WatchOpened {
  WatchId watch;
  std::shared_ptr<WatchOutlet> outlet;
};
struct WatchClosed {
  WatchId watch;
};
struct AdminCall {
  std::variant<proto::ModelCardRequest, proto::StatusRequest, proto::MetricsRequest, proto::ListRequestsRequest,
               proto::ListIncidentsRequest, proto::ResizeCacheRequest, proto::ListQuarantineRequest, proto::ClearQuarantineRequest,
               proto::DrainRequest, proto::ResumeRequest>
      request;
  std::shared_ptr<ReplyOutlet> outlet;
};

using Inbound =
    std::variant<WorkerSaid, WorkerClosed, SessionOpened, SessionSaid, SessionClosed, WatchOpened, WatchClosed, AdminCall>;
using Inbox = Mailbox<Inbound>;

}  // namespace holdfast::supervisor

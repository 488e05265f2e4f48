#include "supervisor/worker_link.h"

#include <atomic>

#include "proto/worker.grpc.pb.h"
#include "supervisor/stream_queue.h"

namespace holdfast::supervisor {
namespace {

// Commands carry prompts; a worker that takes none while this much waits is dead by other measures.
constexpr size_t kMaxQueuedBytes = 256u << 20;

class LinkStream final : public StreamQueue<grpc::ServerBidiReactor<proto::WorkerMessage, proto::SupervisorMessage>, proto::SupervisorMessage>,
                         public WorkerOutlet,
                         public std::enable_shared_from_this<LinkStream> {
 public:
  LinkStream(LinkId id, Inbox* inbox) : StreamQueue(kMaxQueuedBytes), id_(id), inbox_(inbox) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&in_);
  }
  bool Send(proto::SupervisorMessage message) override { return Push(std::move(message)); }
  void Close() override { StreamQueue::Close(grpc::Status::OK); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      inbox_->Post(WorkerClosed{id_});
      StreamQueue::Close(grpc::Status::OK);
      return;
    }
    inbox_->Post(WorkerSaid{id_, self_, std::move(in_)});
    in_.Clear();
    IfOpen([this] { StartRead(&in_); });
  }
  void OnDone() override { self_.reset(); }  // may delete this

  const LinkId id_;
  Inbox* const inbox_;
  proto::WorkerMessage in_;
  std::shared_ptr<LinkStream> self_;  // gRPC's share of us, from Begin to OnDone
};

class Refusal final : public grpc::ServerBidiReactor<proto::WorkerMessage, proto::SupervisorMessage> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class Service final : public proto::WorkerLink::CallbackService {
 public:
  explicit Service(Inbox* inbox) : inbox_(inbox) {}

  grpc::ServerBidiReactor<proto::WorkerMessage, proto::SupervisorMessage>* Attach(grpc::CallbackServerContext* context) override {
    if (context->peer().rfind("unix:", 0) != 0) {
      return new Refusal(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "workers attach over the unix socket only"));
    }
    auto stream = std::make_shared<LinkStream>(LinkId(++last_), inbox_);
    stream->Begin();
    return stream.get();
  }

 private:
  Inbox* const inbox_;
  std::atomic<uint64_t> last_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerLink(Inbox* inbox) { return std::make_unique<Service>(inbox); }

}  // namespace holdfast::supervisor

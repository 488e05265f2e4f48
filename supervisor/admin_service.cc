#include "supervisor/admin_service.h"

#include <atomic>

#include "proto/admin.grpc.pb.h"
#include "supervisor/stream_queue.h"

namespace holdfast::supervisor {
namespace {

class WatchStream final : public StreamQueue<grpc::ServerWriteReactor<proto::HealthStatement>, proto::HealthStatement>,
                          public WatchOutlet,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  WatchStream(WatchId id, Inbox* inbox) : StreamQueue(1u << 20), id_(id), inbox_(inbox) {}

  void Begin() {
    self_ = shared_from_this();
    if (!inbox_->Post(WatchOpened{id_, self_})) Close();
  }
  void Publish(const proto::HealthStatement& statement) override { PushLatest(statement); }
  void Close() override { StreamQueue::Close(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the supervisor is stopping")); }

 private:
  void OnCancel() override { StreamQueue::Close(grpc::Status::CANCELLED); }
  void OnDone() override {
    inbox_->Post(WatchClosed{id_});
    self_.reset();
  }

  const WatchId id_;
  Inbox* const inbox_;
  std::shared_ptr<WatchStream> self_;
};

class Unary final : public ReplyOutlet {
 public:
  Unary(grpc::ServerUnaryReactor* reactor, google::protobuf::Message* reply) : reactor_(reactor), reply_(reply) {}
  ~Unary() override {
    if (reactor_ != nullptr) reactor_->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the supervisor is stopping"));
  }
  void Reply(const google::protobuf::Message& reply) override {
    reply_->CopyFrom(reply);
    std::exchange(reactor_, nullptr)->Finish(grpc::Status::OK);
  }
  void Fail(int status_code, const std::string& message) override {
    std::exchange(reactor_, nullptr)->Finish(grpc::Status(static_cast<grpc::StatusCode>(status_code), message));
  }

 private:
  grpc::ServerUnaryReactor* reactor_;  // alive until Finish
  google::protobuf::Message* reply_;
};

class Service final : public proto::Admin::CallbackService {
 public:
  explicit Service(Inbox* inbox) : inbox_(inbox) {}

  grpc::ServerWriteReactor<proto::HealthStatement>* Watch(grpc::CallbackServerContext*, const proto::WatchRequest*) override {
    auto stream = std::make_shared<WatchStream>(WatchId(++last_), inbox_);
    stream->Begin();
    return stream.get();
  }
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  Reactor* GetModelCard(Context* c, const proto::ModelCardRequest* q, proto::ModelCardReply* r) override { return Ask(c, *q, r); }
  Reactor* GetStatus(Context* c, const proto::StatusRequest* q, proto::StatusReply* r) override { return Ask(c, *q, r); }
  Reactor* GetMetrics(Context* c, const proto::MetricsRequest* q, proto::MetricsReply* r) override { return Ask(c, *q, r); }
  Reactor* ListRequests(Context* c, const proto::ListRequestsRequest* q, proto::ListRequestsReply* r) override { return Ask(c, *q, r); }
  Reactor* ListIncidents(Context* c, const proto::ListIncidentsRequest* q, proto::ListIncidentsReply* r) override { return Ask(c, *q, r); }
  Reactor* ResizeCache(Context* c, const proto::ResizeCacheRequest* q, proto::ResizeCacheReply* r) override { return Ask(c, *q, r); }
  Reactor* ListQuarantine(Context* c, const proto::ListQuarantineRequest* q, proto::ListQuarantineReply* r) override { return Ask(c, *q, r); }
  Reactor* ClearQuarantine(Context* c, const proto::ClearQuarantineRequest* q, proto::ClearQuarantineReply* r) override { return Ask(c, *q, r); }
  Reactor* Drain(Context* c, const proto::DrainRequest* q, proto::DrainReply* r) override { return Ask(c, *q, r); }
  Reactor* Resume(Context* c, const proto::ResumeRequest* q, proto::ResumeReply* r) override { return Ask(c, *q, r); }

 private:
  template <class Request>
  Reactor* Ask(Context* context, const Request& request, google::protobuf::Message* reply) {
    Reactor* reactor = context->DefaultReactor();
    inbox_->Post(AdminCall{request, std::make_shared<Unary>(reactor, reply)});  // a dropped call answers from its destructor
    return reactor;
  }

  Inbox* const inbox_;
  std::atomic<uint64_t> last_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(Inbox* inbox) { return std::make_unique<Service>(inbox); }

}  // namespace holdfast::supervisor

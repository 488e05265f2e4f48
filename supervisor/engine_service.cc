#include "supervisor/engine_service.h"

#include <atomic>

#include "proto/engine.grpc.pb.h"
#include "supervisor/stream_queue.h"

namespace holdfast::supervisor {
namespace {

// A reader that lets this much wait has stopped reading: one step's events for all its requests are a few kilobytes.
constexpr size_t kMaxQueuedBytes = 32u << 20;

class SessionStream final : public StreamQueue<grpc::ServerBidiReactor<proto::SessionRequest, proto::SessionEvent>, proto::SessionEvent>,
                            public SessionOutlet,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(SessionId id, Inbox* inbox) : StreamQueue(kMaxQueuedBytes), id_(id), inbox_(inbox) {}

  void Begin() {
    self_ = shared_from_this();
    if (!inbox_->Post(SessionOpened{id_, self_})) StreamQueue::Close(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the supervisor is stopping"));
    IfOpen([this] { StartRead(&in_); });
  }
  bool Send(proto::SessionEvent event) override { return Push(std::move(event)); }
  void Close() override { StreamQueue::Close(grpc::Status::OK); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      inbox_->Post(SessionClosed{id_});
      StreamQueue::Close(grpc::Status::OK);
      return;
    }
    inbox_->Post(SessionSaid{id_, std::move(in_)});
    in_.Clear();
    IfOpen([this] { StartRead(&in_); });
  }
  void OnDone() override { self_.reset(); }

  const SessionId id_;
  Inbox* const inbox_;
  proto::SessionRequest in_;
  std::shared_ptr<SessionStream> self_;
};

class GenerateStream final : public StreamQueue<grpc::ServerWriteReactor<proto::TokenEvent>, proto::TokenEvent>,
                             public SessionOutlet,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  GenerateStream(SessionId id, Inbox* inbox) : StreamQueue(kMaxQueuedBytes), id_(id), inbox_(inbox) {}

  void Begin(const proto::GenerateRequest& request) {
    self_ = shared_from_this();
    proto::SessionRequest said;
    *said.mutable_generate() = request;
    const bool open = inbox_->Post(SessionOpened{id_, self_}) && inbox_->Post(SessionSaid{id_, std::move(said)});
    if (!open) StreamQueue::Close(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the supervisor is stopping"));
  }
  bool Send(proto::SessionEvent events) override {
    for (proto::TokenEvent& event : *events.mutable_events()) {
      const bool last = event.finish() != proto::FINISH_NONE;
      if (!Push(std::move(event))) return false;
      if (last) StreamQueue::Close(grpc::Status::OK);
    }
    return true;
  }
  void Close() override { StreamQueue::Close(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the supervisor is stopping")); }

 private:
  void OnCancel() override { StreamQueue::Close(grpc::Status::CANCELLED); }
  void OnDone() override {
    inbox_->Post(SessionClosed{id_});
    self_.reset();
  }

  const SessionId id_;
  Inbox* const inbox_;
  std::shared_ptr<GenerateStream> self_;
};

class Service final : public proto::Engine::CallbackService {
 public:
  explicit Service(Inbox* inbox) : inbox_(inbox) {}

  grpc::ServerBidiReactor<proto::SessionRequest, proto::SessionEvent>* Session(grpc::CallbackServerContext*) override {
    auto stream = std::make_shared<SessionStream>(SessionId(++last_), inbox_);
    stream->Begin();
    return stream.get();
  }
  grpc::ServerWriteReactor<proto::TokenEvent>* Generate(grpc::CallbackServerContext*, const proto::GenerateRequest* request) override {
    auto stream = std::make_shared<GenerateStream>(SessionId(++last_), inbox_);
    stream->Begin(*request);
    return stream.get();
  }

 private:
  Inbox* const inbox_;
  std::atomic<uint64_t> last_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeEngineService(Inbox* inbox) { return std::make_unique<Service>(inbox); }

}  // namespace holdfast::supervisor

#include "frontend/admin_client.h"

#include <mutex>
#include <set>
#include <utility>

#include "frontend/grpc_channel.h"
#include "frontend/grpc_live.h"
#include "proto/admin.grpc.pb.h"
#include "proto/base/status_wire.h"

namespace holdfast::api {
namespace {

constexpr Duration kCallDeadline = std::chrono::seconds(2);
constexpr Duration kCardDeadline = std::chrono::seconds(30);

class WatchStream final : public grpc::ClientReadReactor<proto::HealthStatement> {
 public:
  struct Callbacks {
    std::function<void(proto::HealthStatement)> statement;
    std::function<void()> ended;
  };

  WatchStream(LiveCount* live, Callbacks callbacks) : live_(live), callbacks_(std::move(callbacks)) {}

  void Start(proto::Admin::Stub* stub, std::shared_ptr<WatchStream> self) {
    self_ = std::move(self);
    live_->Add();
    stub->async()->Watch(&context_, &request_, this);
    StartRead(&incoming_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    callbacks_.statement(incoming_);
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status&) override {
    callbacks_.ended();
    LiveCount* const live = live_;
    std::shared_ptr<WatchStream> self = std::move(self_);
    self.reset();  // may destroy this
    live->Remove();
  }

 private:
  grpc::ClientContext context_;
  proto::WatchRequest request_;
  proto::HealthStatement incoming_;
  LiveCount* const live_;
  const Callbacks callbacks_;
  std::shared_ptr<WatchStream> self_;
};

class GrpcAdminClient final : public AdminClient {
 public:
  GrpcAdminClient(Loop& loop, const ChannelOptions& options, AdminEvents events)
      : loop_(loop), retry_(std::chrono::milliseconds(options.min_backoff_ms)), events_(std::move(events)),
        stub_(proto::Admin::NewStub(MakeChannel(options))) {
    Open();
  }

  ~GrpcAdminClient() override {
    alive_.reset();
    if (stream_) stream_->Cancel();
    stream_.reset();
    {
      const std::lock_guard lock(calls_mutex_);
      for (grpc::ClientContext* context : calls_) context->TryCancel();
    }
    live_.WaitForZero();
  }

  void GetModelCard(const proto::ModelCardRequest& request, Done<proto::ModelCardReply> done) override {
    Call(&proto::Admin::StubInterface::async_interface::GetModelCard, request, std::move(done), kCardDeadline);
  }
  void GetStatus(Done<proto::StatusReply> done) override {
    Call(&proto::Admin::StubInterface::async_interface::GetStatus, proto::StatusRequest(), std::move(done), kCallDeadline);
  }
  void GetMetrics(Done<proto::MetricsReply> done) override {
    Call(&proto::Admin::StubInterface::async_interface::GetMetrics, proto::MetricsRequest(), std::move(done), kCallDeadline);
  }
  void ListRequests(const proto::ListRequestsRequest& request, Done<proto::ListRequestsReply> done) override {
    Call(&proto::Admin::StubInterface::async_interface::ListRequests, request, std::move(done), kCallDeadline);
  }
  void ListIncidents(const proto::ListIncidentsRequest& request, Done<proto::ListIncidentsReply> done) override {
    Call(&proto::Admin::StubInterface::async_interface::ListIncidents, request, std::move(done), kCallDeadline);
  }
  void ListQuarantine(const proto::ListQuarantineRequest& request, Done<proto::ListQuarantineReply> done) override {
    Call(&proto::Admin::StubInterface::async_interface::ListQuarantine, request, std::move(done), kCallDeadline);
  }
  void ClearQuarantine(const proto::ClearQuarantineRequest& request, Done<proto::ClearQuarantineReply> done) override {
    Call(&proto::Admin::StubInterface::async_interface::ClearQuarantine, request, std::move(done), kCallDeadline);
  }
  void ResizeCache(const proto::ResizeCacheRequest& request, Done<proto::ResizeCacheReply> done) override {
    const auto deadline = kCallDeadline + std::chrono::milliseconds(request.wait_ms());
    Call(&proto::Admin::StubInterface::async_interface::ResizeCache, request, std::move(done), deadline);
  }

 private:
  template <class Request, class Reply>
  using Method = void (proto::Admin::StubInterface::async_interface::*)(grpc::ClientContext*, const Request*, Reply*,
                                                                          std::function<void(grpc::Status)>);

  template <class Request, class Reply>
  void Call(Method<Request, Reply> method, const Request& request, Done<Reply> done, Duration deadline) {
    struct State {
      grpc::ClientContext context;
      Request request;
      Reply reply;
    };
    auto state = std::make_shared<State>();
    state->request = request;
    state->context.set_deadline(std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(deadline));
    {
      const std::lock_guard lock(calls_mutex_);
      calls_.insert(&state->context);
    }
    live_.Add();
    proto::Admin::StubInterface::async_interface* const async = stub_->async();
    (async->*method)(&state->context, &state->request, &state->reply,
                     [this, state, done = std::move(done), alive = std::weak_ptr(alive_)](const grpc::Status& status) {
                       loop_.Post([alive, state, done, result = StatusFromWire(status.error_code(), status.error_message())] {
                         if (alive.lock()) done(result, state->reply);
                       });
                       {
                         const std::lock_guard lock(calls_mutex_);
                         calls_.erase(&state->context);
                       }
                       live_.Remove();
                     });
  }

  void Open() {
    const uint64_t life = ++life_;
    const auto post = [loop = &loop_, alive = std::weak_ptr(alive_)](std::function<void()> call) {
      loop->Post([alive, call = std::move(call)] {
        if (alive.lock()) call();
      });
    };
    WatchStream::Callbacks callbacks;
    callbacks.statement = [this, post, life](proto::HealthStatement statement) {
      post([this, life, statement = std::move(statement)] {
        if (life == life_) events_.statement(statement);
      });
    };
    callbacks.ended = [this, post, life] {
      post([this, life] {
        if (life != life_) return;
        stream_.reset();
        events_.disconnected();
        reopen_ = loop_.After(retry_, [this] { Open(); });
      });
    };
    stream_ = std::make_shared<WatchStream>(&live_, std::move(callbacks));
    stream_->Start(stub_.get(), stream_);
  }

  Loop& loop_;
  const Duration retry_;
  const AdminEvents events_;
  const std::unique_ptr<proto::Admin::Stub> stub_;
  LiveCount live_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<WatchStream> stream_;
  std::unique_ptr<Timer> reopen_;
  uint64_t life_ = 0;
  std::mutex calls_mutex_;
  std::set<grpc::ClientContext*> calls_;
};

}  // namespace

std::unique_ptr<AdminClient> ConnectAdmin(Loop& loop, const ChannelOptions& options, AdminEvents events) {
  return std::make_unique<GrpcAdminClient>(loop, options, std::move(events));
}

}  // namespace holdfast::api

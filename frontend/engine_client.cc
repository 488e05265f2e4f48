#include "frontend/engine_client.h"

#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "frontend/grpc_channel.h"
#include "frontend/grpc_live.h"
#include "proto/base/log.h"
#include "proto/engine.grpc.pb.h"

namespace holdfast::api {
namespace {

// One life of the stream. Callbacks of gRPC come on its threads and only post; Write comes from the loop.
class Stream final : public grpc::ClientBidiReactor<proto::SessionRequest, proto::SessionEvent> {
 public:
  struct Callbacks {
    std::function<void()> opened;
    std::function<void(std::shared_ptr<proto::SessionEvent>)> event;
    std::function<void(std::string)> ended;
  };

  Stream(LiveCount* live, Callbacks callbacks) : live_(live), callbacks_(std::move(callbacks)) {}

  void Start(proto::Engine::Stub* stub, std::shared_ptr<Stream> self) {
    self_ = std::move(self);  // gRPC's share of the ownership, given back in OnDone
    live_->Add();
    stub->async()->Session(&context_, this);
    AddHold();  // Write is called from outside the callbacks until the read side ends
    incoming_ = std::make_shared<proto::SessionEvent>();
    StartRead(incoming_.get());
    StartCall();
  }

  bool Write(proto::SessionRequest request) {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    outgoing_.push_back(std::move(request));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
    return true;
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) callbacks_.opened();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        const std::lock_guard lock(mutex_);
        closed_ = true;
      }
      RemoveHold();
      return;
    }
    callbacks_.event(std::exchange(incoming_, std::make_shared<proto::SessionEvent>()));
    StartRead(incoming_.get());
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (!ok) closed_ = true;
    if (!closed_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnDone(const grpc::Status& status) override {
    callbacks_.ended(status.ok() ? "the engine closed the session" : status.error_message());
    LiveCount* const live = live_;
    std::shared_ptr<Stream> self = std::move(self_);
    self.reset();  // may destroy this
    live->Remove();
  }

 private:
  grpc::ClientContext context_;
  LiveCount* const live_;
  const Callbacks callbacks_;
  std::shared_ptr<proto::SessionEvent> incoming_;
  std::mutex mutex_;
  std::deque<proto::SessionRequest> outgoing_;  // the front is being written
  std::shared_ptr<Stream> self_;
  bool closed_ = false;
};

class SessionClient final : public EngineClient {
 public:
  SessionClient(Loop& loop, const ChannelOptions& options, std::function<void(bool)> on_connected)
      : loop_(loop), retry_(std::chrono::milliseconds(options.min_backoff_ms)), on_connected_(std::move(on_connected)),
        stub_(proto::Engine::NewStub(MakeChannel(options))) {
    Open();
  }

  ~SessionClient() override {
    alive_.reset();
    if (stream_) stream_->Cancel();
    stream_.reset();
    live_.WaitForZero();
  }

  uint64_t Generate(proto::GenerateRequest request, OnEvent on_event) override {
    const uint64_t id = ++last_id_;
    request.set_request_id(id);
    requests_.emplace(id, std::move(on_event));
    proto::SessionRequest message;
    *message.mutable_generate() = std::move(request);
    if (!stream_) Open();  // the supervisor may be back already; if not, the request is lost with the stream
    if (!stream_->Write(std::move(message))) {
      proto::TokenEvent event;
      event.set_request_id(id);
      event.set_finish(proto::FINISH_ERROR);
      event.mutable_error()->set_kind(proto::EngineError::UNAVAILABLE);
      event.mutable_error()->set_message("The engine cannot be reached");
      Later([this, event] { Deliver(event); });
    }
    return id;
  }

  void Cancel(uint64_t id) override {
    if (requests_.erase(id) == 0 || !stream_) return;
    proto::SessionRequest message;
    message.mutable_cancel()->set_request_id(id);
    stream_->Write(std::move(message));
  }

  bool connected() const override { return connected_; }
  size_t in_flight() const override { return requests_.size(); }

 private:
  // Posts a call that is dropped when this client is gone. Any thread.
  void Later(std::function<void()> call) {
    loop_.Post([alive = std::weak_ptr(alive_), call = std::move(call)] {
      if (alive.lock()) call();
    });
  }

  void Open() {
    const uint64_t life = ++life_;
    // Copied here on the loop thread: gRPC's threads must not touch alive_ while the destructor resets it.
    const auto post = [loop = &loop_, alive = std::weak_ptr(alive_)](std::function<void()> call) {
      loop->Post([alive, call = std::move(call)] {
        if (alive.lock()) call();
      });
    };
    Stream::Callbacks callbacks;
    callbacks.opened = [this, post, life] { post([this, life] { Opened(life); }); };
    callbacks.event = [this, post, life](std::shared_ptr<proto::SessionEvent> event) {
      post([this, life, event] {
        if (life != life_) return;
        Opened(life);
        for (const proto::TokenEvent& one : event->events()) Deliver(one);
      });
    };
    callbacks.ended = [this, post, life](std::string why) { post([this, life, why] { Ended(life, why); }); };
    stream_ = std::make_shared<Stream>(&live_, std::move(callbacks));
    stream_->Start(stub_.get(), stream_);
  }

  void Opened(uint64_t life) {
    if (life != life_ || connected_) return;
    connected_ = true;
    LogInfo("engine session open");
    on_connected_(true);
  }

  void Ended(uint64_t life, const std::string& why) {
    if (life != life_ || !stream_) return;
    const bool was = std::exchange(connected_, false);
    stream_.reset();
    if (was) LogWarn("engine session lost with {} requests in flight: {}", requests_.size(), why);
    auto lost = std::exchange(requests_, {});
    for (auto& [id, on_event] : lost) {
      proto::TokenEvent event;
      event.set_request_id(id);
      event.set_finish(proto::FINISH_LOST);
      on_event(event);
    }
    reopen_ = loop_.After(retry_, [this] {
      if (!stream_) Open();
    });
    if (was) on_connected_(false);
  }

  void Deliver(const proto::TokenEvent& event) {
    const auto found = requests_.find(event.request_id());
    if (found == requests_.end()) return;  // cancelled meanwhile
    if (event.finish() == proto::FINISH_NONE) {
      const OnEvent on_event = found->second;  // the callback may cancel its own request
      on_event(event);
    } else {
      const OnEvent on_event = std::move(found->second);
      requests_.erase(found);
      on_event(event);
    }
  }

  Loop& loop_;
  const Duration retry_;
  const std::function<void(bool)> on_connected_;
  const std::unique_ptr<proto::Engine::Stub> stub_;
  LiveCount live_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<Stream> stream_;
  std::unique_ptr<Timer> reopen_;
  std::map<uint64_t, OnEvent> requests_;
  uint64_t last_id_ = 0;
  uint64_t life_ = 0;
  bool connected_ = false;
};

}  // namespace

std::unique_ptr<EngineClient> ConnectEngine(Loop& loop, const ChannelOptions& options, std::function<void(bool)> on_connected) {
  return std::make_unique<SessionClient>(loop, options, std::move(on_connected));
}

}  // namespace holdfast::api

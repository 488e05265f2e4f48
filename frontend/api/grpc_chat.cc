#include "frontend/api/grpc_chat.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "frontend/api/error.h"
#include "frontend/api/grpc_chat_json.h"
#include "frontend/api/response.h"
#include "frontend/generation_errors.h"
#include "proto/base/log.h"
#include "proto/chat.grpc.pb.h"

namespace holdfast::api {
namespace {

grpc::Status ToGrpc(const ApiError& error) {
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  switch (error.status) {
    case 400:
    case 413:
    case 415:
      code = grpc::StatusCode::INVALID_ARGUMENT;
      break;
    case 401:
      code = grpc::StatusCode::UNAUTHENTICATED;
      break;
    case 404:
      code = grpc::StatusCode::NOT_FOUND;
      break;
    case 429:
      code = grpc::StatusCode::RESOURCE_EXHAUSTED;
      break;
    case 503:
      code = grpc::StatusCode::UNAVAILABLE;
      break;
    default:
      break;
  }
  return grpc::Status(code, error.message, ErrorBody(error));
}

// What the loop and gRPC's thread share of one call. The reactor is destroyed by gRPC in OnDone; the loop may still hold this.
template <class Reactor>
struct Link {
  std::mutex mutex;
  Reactor* reactor = nullptr;                 // null once gRPC is done with it
  std::weak_ptr<Generation> generation;       // loop thread only
  bool cancelled = false;                     // loop thread only
  std::shared_ptr<const void> place;          // of the call's key, until gRPC is done with the reactor
};

// Parses and starts on the loop; `make` gives the sink.
template <class LinkPtr, class MakeSink>
void StartCall(Loop& loop, Api& api, LinkPtr link, std::string body, std::string trace_id, MakeSink make) {
  loop.Post([&api, link, body = std::move(body), trace_id = std::move(trace_id), make] {
    if (link->cancelled) return;
    const auto fail = [&](const ApiError& error) {
      const std::lock_guard lock(link->mutex);
      if (link->reactor) link->reactor->End(ToGrpc(error));
    };
    if (const auto error = api.RefuseNow()) return fail(*error);
    auto parsed = api.Parse(Route::kChat, body);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return fail(*error);
    ValidRequest request = std::get<ValidRequest>(std::move(parsed));
    ResponseHead head = api.MakeHead(request);
    const uint32_t n = request.n;
    link->generation = api.Start(std::move(request), trace_id, make(std::move(head), n));
  });
}

template <class LinkPtr>
void CancelCall(Loop& loop, LinkPtr link) {
  loop.Post([link] {
    link->cancelled = true;
    if (const auto generation = link->generation.lock()) generation->Cancel();
  });
}

class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  using LinkPtr = std::shared_ptr<Link<UnaryCall>>;

  UnaryCall(Loop& loop, proto::ChatReply* reply) : loop_(loop), reply_(reply), link_(std::make_shared<Link<UnaryCall>>()) {
    link_->reactor = this;
  }
  const LinkPtr& link() const { return link_; }
  proto::ChatReply* reply() { return reply_; }
  // Under the link's mutex.
  void End(const grpc::Status& status) {
    if (!std::exchange(ended_, true)) Finish(status);
  }
  void OnCancel() override { 
    CancelCall(loop_, link_);
    const std::lock_guard lock(link_->mutex);
    End(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    {
      const std::lock_guard lock(link_->mutex);
      link_->reactor = nullptr;
      link_->place.reset();
    }
    delete this;
  }

 private:
  Loop& loop_;
  proto::ChatReply* const reply_;
  const LinkPtr link_;
  bool ended_ = false;
};

class StreamCall final : public grpc::ServerWriteReactor<proto::ChatChunk> {
 public:
  using LinkPtr = std::shared_ptr<Link<StreamCall>>;
  static constexpr size_t kMaxQueued = 4096;  // a slower reader is cut off

  explicit StreamCall(Loop& loop) : loop_(loop), link_(std::make_shared<Link<StreamCall>>()) { link_->reactor = this; }
  const LinkPtr& link() const { return link_; }
  // Both under the link's mutex.
  bool Send(proto::ChatChunk chunk) {
    if (ended_ || finishing_) return true;
    if (queue_.size() >= kMaxQueued) return false;
    queue_.push_back(std::move(chunk));
    if (queue_.size() == 1) StartWrite(&queue_.front());
    return true;
  }
  void End(const grpc::Status& status) {
    if (ended_ || finishing_) return;
    finishing_ = true;
    final_ = status;
    MaybeFinish();
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(link_->mutex);
    queue_.pop_front();
    if (!ok) queue_.clear();
    if (!queue_.empty()) StartWrite(&queue_.front());
    else MaybeFinish();
  }
  void OnCancel() override {
    CancelCall(loop_, link_);
    const std::lock_guard lock(link_->mutex);
    End(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    {
      const std::lock_guard lock(link_->mutex);
      link_->reactor = nullptr;
      link_->place.reset();
    }
    delete this;
  }

 private:
  void MaybeFinish() {
    if (!finishing_ || ended_ || !queue_.empty()) return;
    ended_ = true;
    Finish(final_);
  }

  Loop& loop_;
  const LinkPtr link_;
  std::deque<proto::ChatChunk> queue_;  // the front is being written
  bool finishing_ = false, ended_ = false;
  grpc::Status final_;
};

class UnarySink final : public GenerationSink {
 public:
  UnarySink(UnaryCall::LinkPtr link, ResponseHead head, uint32_t choices) : link_(std::move(link)), head_(std::move(head)), results_(choices) {}
  void OnDelta(uint32_t choice, ChoiceDelta delta) override { Append(std::move(delta), &results_[choice]); }
  void OnFinish(uint32_t choice, const ChoiceEnd& end) override { results_[choice].finish = end.reason; }
  void OnDone(const Usage& usage) override {
    const std::lock_guard lock(link_->mutex);
    if (!link_->reactor) return;
    FillReply(head_, results_, usage, link_->reactor->reply());
    link_->reactor->End(grpc::Status::OK);
  }
  void OnError(const ApiError& error) override {
    const std::lock_guard lock(link_->mutex);
    if (link_->reactor) link_->reactor->End(ToGrpc(error));
  }
  void OnSilence() override {}

 private:
  const UnaryCall::LinkPtr link_;
  const ResponseHead head_;
  std::vector<ChoiceResult> results_;
};

class ChunkSink final : public GenerationSink {
 public:
  ChunkSink(StreamCall::LinkPtr link, ResponseHead head) : link_(std::move(link)), head_(std::move(head)) {}
  void OnDelta(uint32_t choice, ChoiceDelta delta) override {
    proto::ChatChunk chunk = NewChunk(head_, choice);
    chunk.set_content(std::move(delta.text));
    chunk.set_reasoning_content(std::move(delta.reasoning));
    if (!delta.tool_calls.empty()) chunk.set_tool_calls_json(ToolCallsJson(delta.tool_calls, false));
    if (head_.logprobs) chunk.set_logprobs_json(LogprobsJson(head_, delta.logprobs));
    Send(std::move(chunk));
  }
  void OnFinish(uint32_t choice, const ChoiceEnd& end) override {
    proto::ChatChunk chunk = NewChunk(head_, choice);
    chunk.set_finish_reason(std::string(FinishReasonName(end.reason)));
    Send(std::move(chunk));
  }
  void OnDone(const Usage& usage) override {
    proto::ChatChunk chunk = NewChunk(head_, 0);
    FillUsage(usage, chunk.mutable_usage());
    Send(std::move(chunk));
    const std::lock_guard lock(link_->mutex);
    if (link_->reactor) link_->reactor->End(grpc::Status::OK);
  }
  void OnError(const ApiError& error) override {
    const std::lock_guard lock(link_->mutex);
    if (link_->reactor) link_->reactor->End(ToGrpc(error));
  }
  void OnSilence() override {}

 private:
  void Send(proto::ChatChunk chunk) {
    const std::lock_guard lock(link_->mutex);
    if (!link_->reactor || link_->reactor->Send(std::move(chunk))) return;
    link_->reactor->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the reader is too slow"));
  }
  const StreamCall::LinkPtr link_;
  const ResponseHead head_;
};

class Service final : public proto::Chat::CallbackService {
 public:
  Service(Loop& loop, Api& api, std::shared_ptr<Keys> keys) : loop_(loop), api_(api), keys_(std::move(keys)) {}

  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context, const proto::ChatRequest* request, proto::ChatReply* reply) override {
    auto* call = new UnaryCall(loop_, reply);
    const auto link = call->link();
    if (!Admit(*context, call)) return call;
    auto body = ToJsonBody(*request, false);
    if (const auto* error = std::get_if<ApiError>(&body)) {
      const std::lock_guard lock(link->mutex);
      call->End(ToGrpc(*error));
      return call;
    }
    StartCall(loop_, api_, link, std::get<std::string>(std::move(body)), TraceId(*context), [link](ResponseHead head, uint32_t choices) {
      return std::make_unique<UnarySink>(link, std::move(head), choices);
    });
    return call;
  }

  grpc::ServerWriteReactor<proto::ChatChunk>* Stream(grpc::CallbackServerContext* context, const proto::ChatRequest* request) override {
    auto* call = new StreamCall(loop_);
    const auto link = call->link();
    if (!Admit(*context, call)) return call;
    auto body = ToJsonBody(*request, true);
    if (const auto* error = std::get_if<ApiError>(&body)) {
      const std::lock_guard lock(link->mutex);
      call->End(ToGrpc(*error));
      return call;
    }
    StartCall(loop_, api_, link, std::get<std::string>(std::move(body)), TraceId(*context), [link](ResponseHead head, uint32_t) {
      return std::make_unique<ChunkSink>(link, std::move(head));
    });
    return call;
  }

 private:
  // False when the call was refused: no key, or one with as much at work as it may have.
  template <class Call>
  bool Admit(const grpc::CallbackServerContext& context, Call* call) {
    if (!keys_) return true;
    const auto found = context.client_metadata().find("authorization");
    const std::string_view given =
        found == context.client_metadata().end() ? std::string_view() : std::string_view(found->second.data(), found->second.size());
    const std::lock_guard lock(call->link()->mutex);
    if (!keys_->Admits(given)) {
      call->End(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "a valid key is needed: authorization: Bearer KEY"));
      return false;
    }
    call->link()->place = keys_->Take(given);
    if (!call->link()->place) call->End(ToGrpc(KeyBusy(keys_->max_running())));
    return call->link()->place != nullptr;
  }
  static std::string TraceId(const grpc::CallbackServerContext& context) {
    const auto found = context.client_metadata().find("x-request-id");
    if (found == context.client_metadata().end() || found->second.size() > 128) return NewResponseId(Route::kChat);
    return std::string(found->second.data(), found->second.size());
  }

  Loop& loop_;
  Api& api_;
  const std::shared_ptr<Keys> keys_;
};

class Server final : public GrpcChat {
 public:
  Server(Loop& loop, Api& api, std::shared_ptr<Keys> keys) : service_(loop, api, std::move(keys)) {}
  ~Server() override {
    // Calls are cancelled at once: the loop that would answer them may not run any more.
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
  }
  absl::Status Start(const GrpcChatOptions& options) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(options.max_message_bytes);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_ || port_ == 0) return absl::UnavailableError("cannot listen for gRPC on " + options.address + ": the address is in use or not ours");
    SetServing(false);
    return absl::OkStatus();
  }
  int port() const override { return port_; }
  void SetServing(bool serving) override {
    auto* const health = server_->GetHealthCheckService();
    if (!health || serving_ == serving) return;  // every call is a message to whoever watches
    serving_ = serving;
    health->SetServingStatus(serving);
    health->SetServingStatus("holdfast.proto.Chat", serving);
  }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<bool> serving_;  // as last told
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcChat>> GrpcChat::Listen(Loop& loop, Api& api, const GrpcChatOptions& options) {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  auto server = std::make_unique<Server>(loop, api, options.keys);
  if (absl::Status status = server->Start(options); !status.ok()) return status;
  return server;
}

}  // namespace holdfast::api

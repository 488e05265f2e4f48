// holdfast-frontend: wires the parts, runs the loop, drains on SIGTERM.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <utility>

#include "frontend/admin_client.h"
#include "frontend/api/grpc_chat.h"
#include "frontend/api/handlers.h"
#include "frontend/api/keys.h"
#include "frontend/api/metrics.h"
#include "frontend/api/router.h"
#include "frontend/config.h"
#include "frontend/engine_client.h"
#include "frontend/engine_state.h"
#include "frontend/generation.h"
#include "frontend/generation_errors.h"
#include "frontend/http/server.h"
#include "frontend/loop.h"
#include "frontend/text_pool.h"
#include "proto/base/exit_code.h"
#include "proto/base/fault.h"
#include "proto/base/log.h"
#include "proto/base/metrics.h"
#include "proto/base/signals.h"
#include "proto/base/status_wire.h"
#include "proto/base/systemd_notify.h"

namespace holdfast::api {
namespace {

constexpr size_t kMaxQueuedTexts = 1024;
constexpr Duration kDrainPoll = std::chrono::milliseconds(20);
constexpr Duration kLastWrites = std::chrono::milliseconds(500);  // for answers that are already on their way
constexpr Duration kManagerSlack = std::chrono::seconds(10);     // systemd waits this much longer than the bound we keep ourselves

Duration Seconds(double s) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)); }

int Complain(ExitCode code, std::string_view message) {
  fmt::print(stderr, "holdfast-frontend: {}\n", message);
  return static_cast<int>(code);
}

// The default soft limit of descriptors is far below max_connections.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

class Frontend final {
 public:
  // keys: null = everybody may ask.
  Frontend(const FrontendConfig& config, std::shared_ptr<Keys> keys, SystemdNotify notify)
      : config_(config), keys_(std::move(keys)), notify_(std::move(notify)), metrics_(MetricsRegistry()), loop_(MakeLoop(io_)), state_(*loop_, pool_, ParserNames{config.tool_call_parser, config.reasoning_parser}),
        pool_(config.text_threads, kMaxQueuedTexts) {
    ChannelOptions channel;
    channel.target = config.engine;
    engine_ = ConnectEngine(*loop_, channel, [](bool) {});
    AdminEvents events;
    events.statement = [this](const proto::HealthStatement& statement) { state_.OnStatement(statement); };
    events.disconnected = [this] { state_.OnDisconnected(); };
    admin_ = ConnectAdmin(*loop_, channel, std::move(events));
    state_.UseCards(admin_.get());
    GenerationOptions generation;
    generation.resume_timeout = Seconds(config.resume_timeout_s);
    generation.keep_alive = Seconds(config.keep_alive_s);
    ApiOptions api;
    api.served_model_name = config.served_model_name;
    api.strict_model = config.strict_model;
    api_ = std::make_unique<Api>(GenerationContext{*loop_, pool_, *engine_, state_, metrics_, generation}, *admin_, api);
    RouterOptions router;
    router.keys = keys_;
    router.cors_origin = config.cors_origin;
    router_ = std::make_unique<Router>(router, &metrics_, [this] { return api_->RefuseNow(); });
    api_->Install(router_.get());
  }

  absl::Status Listen() {
    http::ServerOptions options;
    options.host = config_.host;
    options.port = config_.port;
    options.limits.max_body_bytes = config_.max_body_bytes;
    options.limits.max_total_body_bytes = config_.max_total_body_bytes;
    options.limits.max_connections = config_.max_connections;
    options.tls_certificate_file = config_.tls_certificate_file;
    options.tls_key_file = config_.tls_key_file;
    const bool shared = !config_.admin_port.has_value() && IsLoopback(config_.host);
    const Listener both{true, shared};
    HF_ASSIGN_OR_RETURN(server_, http::Server::Listen(io_, options, router_->Gate(both), router_->Dispatch(both)));
    if (config_.admin_port) {
      options.host = config_.admin_host;
      options.port = *config_.admin_port;
      const Listener admin{false, true};
      HF_ASSIGN_OR_RETURN(admin_server_, http::Server::Listen(io_, options, router_->Gate(admin), router_->Dispatch(admin)));
      LogInfo("admin routes and metrics on {}", admin_server_->address());
    } else if (!shared) {
      LogWarn("{} is no loopback address and there is no --admin-port: metrics and admin routes are not served", config_.host);
    }
    if (!config_.grpc_address.empty()) {
      GrpcChatOptions grpc;
      grpc.address = config_.grpc_address;
      grpc.keys = keys_;
      grpc.max_message_bytes = static_cast<int>(std::min<uint64_t>(config_.max_body_bytes, INT32_MAX));
      HF_ASSIGN_OR_RETURN(grpc_, GrpcChat::Listen(*loop_, *api_, grpc));
      LogInfo({{"port", grpc_->port()}}, "gRPC on {}", config_.grpc_address);
      state_.Subscribe([this] { TellGrpc(); });
    }
    return absl::OkStatus();
  }

  int Run(int signal_fd) {
    fmt::print("ready {}\n", server_->address());
    std::fflush(stdout);
    if (notify_.enabled()) {
      notify_.Ready(told_ = Status());
      state_.Subscribe([this] { TellManager(); });
      Ping();
    }
    signals_.assign(signal_fd);
    WaitForSignal();
    io_.run();
    LogInfo("stopped");
    grpc_.reset();
    return static_cast<int>(ExitCode::kOk);
  }

 private:
  // For `systemctl status`: where, and what a client would be told.
  std::string Status() const {
    if (draining_) return fmt::format("draining: {} requests may finish", api_->active());
    return fmt::format("{}, engine {}", server_->address(), state_.ready() ? "ready" : "not ready: " + state_.reason());
  }

  void TellManager() {
    std::string now = Status();
    if (now != told_) notify_.Status(told_ = std::move(now));
  }

  // From the loop itself: one that does not turn does not ping.
  void Ping() {
    if (notify_.watchdog_period() <= Duration::zero()) return;
    notify_.Watchdog();
    ping_ = loop_->After(notify_.watchdog_period(), [this] { Ping(); });
  }

  void TellGrpc() {
    if (grpc_) grpc_->SetServing(!draining_ && state_.accepting());
  }

  void WaitForSignal() {
    signals_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      while (const int signal = ReadSignal(signals_.native_handle())) OnSignal(signal);
      WaitForSignal();
    });
  }

  void OnSignal(int signal) {
    if (std::exchange(draining_, true)) {
      LogWarn("{} again: stopping at once", strsignal(signal));
      return End();
    }
    LogInfo("{}: no new requests, {} running may finish within {} s", strsignal(signal), api_->active(), config_.drain_timeout_s);
    api_->BeginDrain();
    notify_.Stopping(Status(), Seconds(config_.drain_timeout_s) + kLastWrites + kManagerSlack);
    TellGrpc();
    deadline_ = loop_->After(Seconds(config_.drain_timeout_s), [this] {
      if (api_->active() > 0) LogWarn("{} requests did not finish in time", api_->active());
      End();
    });
    Poll();
  }

  // Until the last request is over the listeners stay, so that newcomers get a 503 and no refused connection.
  void Poll() {
    if (ending_) return;
    if (api_->active() == 0) return End();
    poll_ = loop_->After(kDrainPoll, [this] { Poll(); });
  }

  // Running requests end with an error event; what is being written may still go out.
  void End() {
    if (std::exchange(ending_, true)) {
      io_.stop();
      return;
    }
    api_->FailAll(Draining());
    server_->Drain();
    if (admin_server_) admin_server_->Drain();
    deadline_ = loop_->After(kLastWrites, [this] { io_.stop(); });
    WaitForWrites();
  }

  void WaitForWrites() {
    if (server_->connections() == 0 && (!admin_server_ || admin_server_->connections() == 0)) return io_.stop();
    poll_ = loop_->After(std::chrono::milliseconds(5), [this] { WaitForWrites(); });
  }

  const FrontendConfig config_;
  const std::shared_ptr<Keys> keys_;
  SystemdNotify notify_;
  FrontendMetrics metrics_;
  boost::asio::io_context io_{1};  // outlived by what its last handlers may touch
  std::unique_ptr<Loop> loop_;
  EngineState state_;
  TextPool pool_;          // joined before the state it posts to is gone
  std::unique_ptr<EngineClient> engine_;
  std::unique_ptr<AdminClient> admin_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<http::Server> server_, admin_server_;
  std::unique_ptr<GrpcChat> grpc_;
  boost::asio::posix::stream_descriptor signals_{io_};
  std::unique_ptr<Timer> deadline_, poll_, ping_;
  std::string told_;  // the last status
  bool draining_ = false, ending_ = false;
};

int Main(int argc, char** argv) {
  ExitWhenExhausted("holdfast-frontend");
  FrontendConfig config;
  if (const auto status = ParseConfig(argc, argv, &config)) return *status;
  SetLogContext("frontend");
  SetLogLevel(config.log_level);
  std::string fault_error;
  if (!InitFaults(&fault_error)) return Complain(ExitCode::kConfig, fault_error);
  std::shared_ptr<Keys> keys;
  if (!config.api_key_file.empty()) {
    auto read = ReadKeyFile(config.api_key_file);
    if (!read.ok()) return Complain(ExitCode::kConfig, MessageOf(read.status()));
    keys = std::make_shared<Keys>(*std::move(read), config.max_requests_per_key);
  }
  RaiseDescriptorLimit();
  // Below `holdfast serve` the manager waits for the engine, of which the supervisor tells it.
  SystemdNotify notify = DieWithParentIfAsked() ? SystemdNotify() : SystemdNotify::FromEnvironment();
  // Before any thread: gRPC and the text pool inherit the mask.
  UniqueFd signals = BlockSignals({SIGTERM, SIGINT});
  auto frontend = std::make_unique<Frontend>(config, std::move(keys), std::move(notify));
  if (const absl::Status status = frontend->Listen(); !status.ok()) {
    const bool environment = status.code() == absl::StatusCode::kUnavailable;
    return Complain(environment ? ExitCode::kEnvironment : ExitCode::kConfig, MessageOf(status));
  }
  LeaveProcess(frontend->Run(signals.Release()));
}

}  // namespace
}  // namespace holdfast::api

int main(int argc, char** argv) { return holdfast::api::Main(argc, argv); }

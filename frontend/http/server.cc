#include "frontend/http/server.h"

#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <cerrno>
#include <cstring>

#include "frontend/http/internal/connection.h"
#include "frontend/http/listener.h"
#include "proto/base/log.h"

namespace holdfast::http {
namespace {

namespace asio = boost::asio;
using Descriptor = asio::posix::basic_stream_descriptor<asio::io_context::executor_type>;

// Connections over the limit that are still accepted, to be told 503 instead of waiting unheard in the kernel's queue.
constexpr size_t kPoliteRefusals = 64;
constexpr int kAcceptsPerWake = 64;
constexpr auto kAcceptBackoff = std::chrono::milliseconds(100);

// Takes connections off the listening socket. Shared with its own pending operations: the Server may go while they are in the loop.
class Acceptor final : public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(std::shared_ptr<ServerCore> core, Listener listener, std::shared_ptr<TlsContext> tls)
      : core_(std::move(core)), listener_(std::move(listener)), tls_(std::move(tls)), ready_(core_->loop), backoff_(core_->loop) {
    ready_.assign(listener_->fd());
  }
  ~Acceptor() { Stop(); }

  void Wait() {
    if (!listener_ || waiting_) return;
    if (full()) return;  // Resume is called when a connection ends
    waiting_ = true;
    const auto self = shared_from_this();
    ready_.async_wait(Descriptor::wait_read, [self](const boost::system::error_code& ec) {
      self->waiting_ = false;
      if (!ec) self->AcceptSome();
    });
  }

  void Resume() {
    if (!backing_off_) Wait();
  }

  void Stop() {
    if (!listener_) return;
    ready_.release();  // the descriptor stays the listener's
    backoff_.cancel();
    listener_.reset();
  }

 private:
  bool full() const { return core_->connections.size() >= core_->limits.max_connections + kPoliteRefusals; }

  void AcceptSome() {
    for (int i = 0; i < kAcceptsPerWake && listener_ && !full(); ++i) {
      std::string peer;
      int error = 0;
      UniqueFd fd = listener_->Accept(&peer, &error);
      if (fd) {
        starved_ = false;
        Serve(std::move(fd), std::move(peer));
      } else if (error == EAGAIN || error == EWOULDBLOCK) {
        break;
      } else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        // Waiting for readability would return at once, for ever. Those who are connected are served meanwhile.
        if (!starved_) LogWarn("accept: {}; new connections wait", std::strerror(error));
        starved_ = true;
        return BackOff();
      }  // else: that one connection failed before we took it
    }
    Wait();
  }

  void BackOff() {
    backing_off_ = true;
    backoff_.expires_after(kAcceptBackoff);
    const auto self = shared_from_this();
    backoff_.async_wait([self](const boost::system::error_code&) {
      self->backing_off_ = false;
      self->Wait();
    });
  }

  void Serve(UniqueFd fd, std::string peer) {
    const bool refuse = core_->connections.size() >= core_->limits.max_connections && !EvictIdle();
    const int family = listener_->family();
    auto transport = tls_ ? MakeTlsTransport(core_->loop, std::move(fd), family, tls_)
                          : MakePlainTransport(core_->loop, std::move(fd), family);
    auto connection = std::make_shared<Connection>(core_, std::move(transport), std::move(peer), listener_->is_unix(), refuse);
    connection->Start();
  }

  // A keep-alive connection that waits for nothing makes room for one that wants something.
  bool EvictIdle() {
    Connection* oldest = nullptr;
    for (Connection* c : core_->connections) {
      if (c->idle() && (oldest == nullptr || c->since() < oldest->since())) oldest = c;
    }
    if (oldest == nullptr) return false;
    oldest->shared_from_this()->CloseIdle();
    return true;
  }

  std::shared_ptr<ServerCore> core_;
  std::optional<Listener> listener_;   // empty when stopped
  std::shared_ptr<TlsContext> tls_;
  Descriptor ready_;
  LoopTimer backoff_;
  bool waiting_ = false;
  bool backing_off_ = false;
  bool starved_ = false;
};

class ServerImpl final : public Server {
 public:
  ServerImpl(std::shared_ptr<ServerCore> core, std::shared_ptr<Acceptor> acceptor, uint16_t port, std::string address)
      : core_(std::move(core)), acceptor_(std::move(acceptor)), port_(port), address_(std::move(address)) {
    core_->on_connection_closed = [acceptor = acceptor_.get()] { acceptor->Resume(); };
    acceptor_->Wait();
  }
  ~ServerImpl() override {
    core_->closed = true;
    core_->on_connection_closed = nullptr;
    CloseNow();
  }

  uint16_t port() const override { return port_; }
  std::string address() const override { return address_; }
  size_t connections() const override { return core_->connections.size(); }

  void Drain() override {
    core_->draining = true;
    acceptor_->Stop();
    for (const auto& c : All()) {
      if (c->idle()) c->CloseIdle();
    }
  }

  void CloseNow() override {
    core_->draining = true;
    acceptor_->Stop();
    for (const auto& c : All()) c->CloseNow();
  }

 private:
  std::vector<std::shared_ptr<Connection>> All() const {
    std::vector<std::shared_ptr<Connection>> all;
    for (Connection* c : core_->connections) {
      if (auto alive = c->weak_from_this().lock()) all.push_back(std::move(alive));
    }
    return all;
  }

  std::shared_ptr<ServerCore> core_;
  std::shared_ptr<Acceptor> acceptor_;
  uint16_t port_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Listen(asio::io_context& loop, const ServerOptions& options, HeaderGate gate,
                                                       Handler handler) {
  std::shared_ptr<TlsContext> tls;
  if (!options.tls_certificate_file.empty() || !options.tls_key_file.empty()) {
    if (options.tls_certificate_file.empty() || options.tls_key_file.empty()) {
      return absl::InvalidArgumentError("TLS needs both a certificate file and a key file");
    }
    absl::StatusOr<std::shared_ptr<TlsContext>> loaded = LoadTlsContext(options.tls_certificate_file, options.tls_key_file);
    if (!loaded.ok()) return loaded.status();
    tls = *std::move(loaded);
  }
  absl::StatusOr<Listener> listener = Listener::Open(options.host, options.port);
  if (!listener.ok()) return listener.status();
  const uint16_t port = listener->port();
  const std::string address = listener->is_unix() ? listener->address() : (tls ? "https://" : "http://") + listener->address();
  auto core = std::make_shared<ServerCore>(loop, options.limits, std::move(gate), std::move(handler));
  auto acceptor = std::make_shared<Acceptor>(core, *std::move(listener), std::move(tls));
  return std::unique_ptr<Server>(new ServerImpl(std::move(core), std::move(acceptor), port, address));
}

}  // namespace holdfast::http

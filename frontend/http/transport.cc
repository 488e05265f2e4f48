#include "frontend/http/transport.h"

#include <poll.h>

#include "frontend/http/internal/socket_ops.h"

namespace holdfast::http {
namespace {

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  bool needs_handshake() const override { return false; }
  void Handshake(IoHandler) override {}
  void ReadSome(char* data, size_t size, IoHandler done) override {
    socket_.async_read_some(boost::asio::buffer(data, size), Translate(std::move(done)));
  }
  void WriteSome(std::string_view bytes, IoHandler done) override {
    socket_.async_write_some(boost::asio::const_buffer(bytes.data(), bytes.size()), Translate(std::move(done)));
  }
  void WaitError(IoHandler done) override { socket_.async_wait(Socket::wait_error, Translate(std::move(done))); }
  void ShutdownSend() override { ShutdownSocketSend(socket_); }
  void Close(bool reset) override { CloseSocket(socket_, reset); }
  int fd() const override { return const_cast<Socket&>(socket_).native_handle(); }

 private:
  Socket socket_;
};

}  // namespace

PeerState PollPeer(int fd) {
  pollfd p{fd, POLLRDHUP, 0};
  if (::poll(&p, 1, 0) < 0) return PeerState::kThere;
  if (p.revents & (POLLERR | POLLHUP | POLLNVAL)) return PeerState::kGone;
  return (p.revents & POLLRDHUP) ? PeerState::kFinished : PeerState::kThere;
}

std::unique_ptr<Transport> MakePlainTransport(boost::asio::io_context& loop, UniqueFd fd, int family) {
  return std::make_unique<PlainTransport>(AdoptSocket(loop, std::move(fd), family));
}

}  // namespace holdfast::http

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>

#include "frontend/http/internal/socket_ops.h"
#include "frontend/http/transport.h"

namespace holdfast::http {

namespace ssl = boost::asio::ssl;

class TlsContext final {
 public:
  ssl::context context{ssl::context::tls_server};
};

namespace {

// Offers http/1.1 to clients that ask by ALPN; others are served alike.
int SelectAlpn(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in, unsigned int in_size, void*) {
  static constexpr unsigned char kHttp11[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, out_size, kHttp11, sizeof kHttp11, in, in_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
}

class TlsTransport final : public Transport {
 private:
  // An operation of the composed TLS engine touches the stream until its handler ran.
  auto Hold(IoHandler done) {
    return [stream = stream_, context = context_, done = std::move(done)](const boost::system::error_code& ec, size_t bytes = 0) {
      const bool eof = ec == boost::asio::error::eof || ec == ssl::error::stream_truncated;
      done({bytes, eof, ec && !eof});
    };
  }

 public:
  TlsTransport(Socket socket, std::shared_ptr<TlsContext> context)
      : context_(std::move(context)), stream_(std::make_shared<ssl::stream<Socket>>(std::move(socket), context_->context)) {}

  bool needs_handshake() const override { return true; }
  void Handshake(IoHandler done) override { stream_->async_handshake(ssl::stream_base::server, Hold(std::move(done))); }
  void ReadSome(char* data, size_t size, IoHandler done) override {
    stream_->async_read_some(boost::asio::buffer(data, size), Hold(std::move(done)));
  }
  void WriteSome(std::string_view bytes, IoHandler done) override {
    stream_->async_write_some(boost::asio::const_buffer(bytes.data(), bytes.size()), Hold(std::move(done)));
  }
  void WaitError(IoHandler done) override { stream_->next_layer().async_wait(Socket::wait_error, Hold(std::move(done))); }
  void ShutdownSend() override {
    // close_notify first, so that the client can tell an end from a cut; then FIN whatever became of it.
    stream_->async_shutdown([stream = stream_](const boost::system::error_code&) { ShutdownSocketSend(stream->next_layer()); });
  }
  void Close(bool reset) override { CloseSocket(stream_->next_layer(), reset); }
  int fd() const override { return stream_->next_layer().native_handle(); }

 private:
  std::shared_ptr<TlsContext> context_;
  std::shared_ptr<ssl::stream<Socket>> stream_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<TlsContext>> LoadTlsContext(const std::string& certificate_file, const std::string& key_file) {
  auto made = std::make_shared<TlsContext>();
  boost::system::error_code ec;
  made->context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                            ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  made->context.use_certificate_chain_file(certificate_file, ec);
  if (ec) return absl::InvalidArgumentError(fmt::format("TLS certificate {}: {}", certificate_file, ec.message()));
  made->context.use_private_key_file(key_file, ssl::context::pem, ec);
  if (ec) return absl::InvalidArgumentError(fmt::format("TLS key {}: {}", key_file, ec.message()));
  SSL_CTX* native = made->context.native_handle();
  if (SSL_CTX_check_private_key(native) != 1) {
    return absl::InvalidArgumentError(fmt::format("TLS key {} does not belong to certificate {}", key_file, certificate_file));
  }
  SSL_CTX_set_alpn_select_cb(native, &SelectAlpn, nullptr);
  return made;
}

std::unique_ptr<Transport> MakeTlsTransport(boost::asio::io_context& loop, UniqueFd fd, int family, std::shared_ptr<TlsContext> context) {
  return std::make_unique<TlsTransport>(AdoptSocket(loop, std::move(fd), family), std::move(context));
}

}  // namespace holdfast::http

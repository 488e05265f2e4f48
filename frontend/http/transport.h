#pragma once
// The bytes below HTTP: plain or TLS. One read and one write may be outstanding; handlers run on the loop, never from inside the call that
// started them, also after Close (then as failed). The caller keeps itself alive in the handlers it passes.
#include <absl/status/statusor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "proto/base/unique_fd.h"

namespace boost::asio {
class io_context;
}

namespace holdfast::http {

struct IoResult {
  size_t bytes = 0;
  bool eof = false;      // the peer finished sending
  bool failed = false;   // reset, broken, closed here
};
using IoHandler = std::function<void(IoResult)>;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual bool needs_handshake() const = 0;
  virtual void Handshake(IoHandler done) = 0;
  virtual void ReadSome(char* data, size_t size, IoHandler done) = 0;
  virtual void WriteSome(std::string_view bytes, IoHandler done) = 0;
  // Reports an error or hang-up of the socket without reading from it. May report falsely (urgent data): check with PeerState.
  virtual void WaitError(IoHandler done) = 0;
  virtual void ShutdownSend() = 0;
  virtual void Close(bool reset) = 0;   // reset: RST instead of an orderly end
  virtual int fd() const = 0;
};

enum class PeerState : unsigned char { kThere, kFinished, kGone };  // kFinished: it sent FIN
PeerState PollPeer(int fd);

std::unique_ptr<Transport> MakePlainTransport(boost::asio::io_context& loop, UniqueFd fd, int family);

// Certificate chain and key, loaded once. kInvalidArgument names the file and OpenSSL's reason.
class TlsContext;
absl::StatusOr<std::shared_ptr<TlsContext>> LoadTlsContext(const std::string& certificate_file, const std::string& key_file);
std::unique_ptr<Transport> MakeTlsTransport(boost::asio::io_context& loop, UniqueFd fd, int family, std::shared_ptr<TlsContext> context);

}  // namespace holdfast::http

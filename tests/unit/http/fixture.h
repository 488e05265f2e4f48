#pragma once
// A server on its own thread with a handler that serves the tests:
//   /ok            "fine"                          /echo         the body back
//   /info          method, path, query, body size  /hold         no answer until Release() (or never)
//   /late          "late" after 300 ms             /stream       five chunks "part0;" ... at once
//   /flood         chunks of 16 KiB until the client is gone or 64 MiB          /big   32 MiB with Send
//   /drop          the handler forgets the request /abort        a stream cut after one chunk
//   /gate/<status> refused by the header gate      anything else 404
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "frontend/http/server.h"

namespace holdfast::http_test {

class TestServer final {
 public:
  explicit TestServer(http::ServerOptions options = Quick());
  ~TestServer();

  // Port 0 on loopback with small time-outs.
  static http::ServerOptions Quick();

  uint16_t port() const { return port_; }
  const std::string& address() const { return address_; }
  int handled() const { return handled_; }          // exchanges given to the handler
  int closed() const { return closed_; }            // OnClosed callbacks
  int held() const { return held_; }
  size_t flooded() const { return flooded_; }       // bytes /flood gave to Write
  size_t most_buffered() const { return most_buffered_; }
  size_t connections();                             // asked on the loop
  void Release();                                   // answers everything held with "released"
  void Drain();
  void OnLoop(std::function<void()> fn);            // runs it there and waits

 private:
  struct Loop;
  void Handle(std::shared_ptr<http::Exchange> exchange);
  void Flood(std::shared_ptr<http::Exchange> exchange, size_t left);

  std::unique_ptr<Loop> loop_;
  uint16_t port_ = 0;
  std::string address_;
  std::atomic<int> handled_{0}, closed_{0}, held_{0};
  std::atomic<size_t> flooded_{0}, most_buffered_{0};
};

// Polls until it holds or two seconds are over.
bool Eventually(const std::function<bool()>& holds, int at_most_ms = 2000);

}  // namespace holdfast::http_test

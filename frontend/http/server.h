#pragma once
// The HTTP/1.1 server: reads requests within limits, hands each to a handler on the loop thread, writes what the handler gives it.
// Boost.Beast parses, Asio moves bytes; neither shows here. One loop thread; handlers must not block.
//
// A connection serves one exchange at a time, in order (pipelined requests wait). A client that goes away (FIN after the request is NOT
// going away: half-close still gets its answer; RST or a failed write is) is reported by OnClosed at once, also while nothing is written.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/clock.h"

namespace boost::asio {
class io_context;
}

namespace holdfast::http {

struct Header {
  std::string name;
  std::string value;
};

struct Request {
  std::string method;                 // "GET"
  std::string path;                   // percent-decoded, without the query; one trailing slash removed
  std::string query;                  // raw, without '?'
  std::vector<Header> headers;        // in order, as sent
  std::string body;
  std::string peer;                   // "127.0.0.1:51234" or "unix"
  std::string request_id;             // the client's x-request-id when usable, else a new one; echoed on every response

  std::string_view HeaderValue(std::string_view name) const;  // case-insensitive; "" when absent
};

struct Response {
  int status = 200;
  std::vector<Header> headers;        // Content-Length, Date, Connection and x-request-id are added by the server
  std::string content_type = "application/json";
  std::string body;
};

// One request and the way to answer it. Kept alive by whoever still wants to write; used on the loop thread only.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const Request& request() const = 0;
  // Exactly one of Send, or StartStream ... EndStream. After the client closed, calls are ignored.
  virtual void Send(Response response) = 0;
  virtual void StartStream(int status, std::vector<Header> headers, std::string content_type) = 0;  // chunked; flushed at once
  virtual void Write(std::string_view bytes) = 0;                                                      // one chunk
  virtual void EndStream() = 0;                                                                        // connection reusable
  virtual void Abort() = 0;                                // cut the connection without the chunked terminator
  virtual bool started() const = 0;                        // Send or StartStream was called
  virtual bool closed() const = 0;                         // the client is gone
  virtual size_t buffered_bytes() const = 0;               // written by the handler, not yet taken by the kernel
  virtual void OnClosed(std::function<void()> callback) = 0;   // once, on the loop thread; not called after a finished answer
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

struct ServerLimits {
  size_t max_body_bytes = 16u << 20;
  size_t max_total_body_bytes = 256u << 20;    // of all bodies received and not yet done with; beyond it 503. One alone may always be max_body_bytes
  size_t max_header_bytes = 64u << 10;
  size_t max_headers = 128;
  size_t max_connections = 4096;
  size_t max_stream_buffer_bytes = 1u << 20;   // a slower reader is cut off
  Duration header_timeout = std::chrono::seconds(10);
  Duration body_timeout = std::chrono::seconds(60);       // for the whole body; and at least some bytes every 10 s
  Duration keep_alive_timeout = std::chrono::seconds(75);
  Duration write_timeout = std::chrono::seconds(60);
};

// Decides on the headers alone, before the body is read: non-null = answer with it and close (overload, 401, 404, 405, 415, 413).
using HeaderGate = std::function<std::unique_ptr<Response>(const Request&)>;

struct ServerOptions {
  std::string host = "127.0.0.1";     // IPv4, IPv6 or "unix:/path"
  uint16_t port = 8080;               // 0 = any free port
  ServerLimits limits;
  std::string tls_certificate_file;   // both empty: plain HTTP
  std::string tls_key_file;
};

class Server {
 public:
  // Binds and listens (kUnavailable with address and cause when it cannot). The io_context belongs to the caller and outlives this.
  static absl::StatusOr<std::unique_ptr<Server>> Listen(boost::asio::io_context& loop, const ServerOptions& options, HeaderGate gate,
                                                        Handler handler);
  virtual ~Server() = default;
  virtual uint16_t port() const = 0;             // the real one
  virtual std::string address() const = 0;       // "http://127.0.0.1:8080"
  // Stops accepting; idle connections close, busy ones finish their exchange with Connection: close.
  virtual void Drain() = 0;
  virtual void CloseNow() = 0;
  virtual size_t connections() const = 0;
};

}  // namespace holdfast::http

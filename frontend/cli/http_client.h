#pragma once
// A blocking HTTP/1.1 client for the operator's tool: one request, one connection. Streams the body to a callback as it arrives.
#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/clock.h"

namespace holdfast::cli {

struct Url {
  std::string host;
  std::string port = "80";
  std::string prefix;   // path before /v1, without trailing slash
  std::string socket;   // path of a unix socket; then host and port only fill the Host field
};
// Accepts http://host[:port][/prefix][/v1], IPv6 hosts in brackets, and unix:/path. kInvalidArgument says what would work.
absl::StatusOr<Url> ParseBaseUrl(std::string_view text);

struct HttpReply {
  int status = 0;
  std::string body;     // empty when a callback took it
  std::string request_id;
};

struct HttpCall {
  std::string method = "GET";
  std::string path;
  std::string body;
  std::string bearer;
  Duration timeout = std::chrono::seconds(10);               // until the first byte, and between bytes
  // Called with pieces of a 2xx body; return false to stop and close.
  std::function<bool(std::string_view)> on_body;
  const std::atomic<bool>* cancel = nullptr;                  // polled a few times a second
};

// kUnavailable when the server can't be reached, kDeadlineExceeded, kCancelled; any HTTP status is a reply.
absl::StatusOr<HttpReply> Call(const Url& base, const HttpCall& call);

}  // namespace holdfast::cli

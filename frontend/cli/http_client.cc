#include "frontend/cli/http_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "proto/base/status_wire.h"
#include "proto/base/unique_fd.h"

namespace holdfast::cli {
namespace {

namespace beast_http = boost::beast::http;

absl::StatusOr<UniqueFd> ConnectToSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(fmt::format("unix:{}: the path has {} bytes, at most {} work", path, path.size(), sizeof address.sun_path - 1));
  }
  path.copy(address.sun_path, path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  return absl::UnavailableError(fmt::format("cannot reach unix:{}: {}", path, std::strerror(errno)));
}

absl::StatusOr<UniqueFd> ConnectTo(const Url& url) {
  if (!url.socket.empty()) return ConnectToSocket(url.socket);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int rc = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found); rc != 0) {
    return absl::UnavailableError(fmt::format("{}: {}", url.host, ::gai_strerror(rc)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  int error = 0;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (fd && ::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return fd;
    error = errno;
  }
  return absl::UnavailableError(fmt::format("cannot reach {}:{}: {}", url.host, url.port, std::strerror(error)));
}

absl::Status SendAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError(fmt::format("the connection broke while sending: {}", std::strerror(errno)));
    text.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// Waits for bytes, in slices so that a cancel is seen soon.
absl::Status WaitReadable(int fd, const HttpCall& call) {
  const Instant end = Clock::Real().Now() + call.timeout;
  for (;;) {
    if (call.cancel != nullptr && call.cancel->load()) return absl::CancelledError("cancelled");
    pollfd p{fd, POLLIN, 0};
    const int rc = ::poll(&p, 1, 100);
    if (rc > 0) return absl::OkStatus();
    if (rc < 0 && errno != EINTR) return absl::UnavailableError(std::strerror(errno));
    if (Clock::Real().Now() >= end) return absl::DeadlineExceededError(fmt::format("no answer within {} ms", ToMillis(call.timeout)));
  }
}

}  // namespace

absl::StatusOr<Url> ParseBaseUrl(std::string_view text) {
  const std::string original(text);
  const auto bad = [&] {
    return absl::InvalidArgumentError(fmt::format("{:?} is no base URL; expected something like http://127.0.0.1:8080 or unix:/path/of/socket", original));
  };
  if (text.substr(0, 6) == "unix:/") {
    Url url;
    url.host = "localhost";
    url.socket = std::string(text.substr(5));
    return url;
  }
  constexpr std::string_view kScheme = "http://";
  if (text.substr(0, 8) == "https://") {
    return absl::InvalidArgumentError(fmt::format("{:?}: this tool speaks plain HTTP; use http:// on the server's own machine", original));
  }
  if (text.substr(0, kScheme.size()) == kScheme) text.remove_prefix(kScheme.size());
  const size_t slash = text.find('/');
  std::string_view authority = text.substr(0, slash);
  std::string_view path = slash == std::string_view::npos ? std::string_view{} : text.substr(slash);
  Url url;
  if (!authority.empty() && authority.front() == '[') {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return bad();
    url.host = std::string(authority.substr(1, close - 1));
    authority.remove_prefix(close + 1);
    if (!authority.empty() && authority.front() != ':') return bad();
    if (!authority.empty()) url.port = std::string(authority.substr(1));
  } else {
    const size_t colon = authority.find(':');
    url.host = std::string(authority.substr(0, colon));
    if (colon != std::string_view::npos) url.port = std::string(authority.substr(colon + 1));
  }
  if (url.host.empty() || url.port.empty() || url.port.find_first_not_of("0123456789") != std::string::npos) return bad();
  if (url.host == "0.0.0.0") url.host = "127.0.0.1";
  if (url.host == "::") url.host = "::1";
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  if (path.size() >= 3 && path.substr(path.size() - 3) == "/v1") path.remove_suffix(3);
  url.prefix = std::string(path);
  return url;
}

absl::StatusOr<HttpReply> Call(const Url& base, const HttpCall& call) {
  HF_ASSIGN_OR_RETURN(const UniqueFd fd, ConnectTo(base));
  std::string request = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n", call.method, base.prefix, call.path,
                                    base.host.find(':') == std::string::npos ? base.host : "[" + base.host + "]", base.port);
  if (!call.bearer.empty()) request += fmt::format("Authorization: Bearer {}\r\n", call.bearer);
  if (call.method != "GET") {
    request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  }
  request += "\r\n";
  request += call.body;
  HF_RETURN_IF_ERROR(SendAll(fd.get(), request));

  beast_http::response_parser<beast_http::string_body> parser;
  parser.body_limit(boost::none);
  HttpReply reply;
  size_t handed_over = 0;
  std::string pending;
  char chunk[16384];
  bool at_end = false;
  while (!parser.is_done()) {
    if (!at_end) {
      HF_RETURN_IF_ERROR(WaitReadable(fd.get(), call));
      const ssize_t n = ::recv(fd.get(), chunk, sizeof chunk, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return absl::UnavailableError(fmt::format("the connection broke: {}", std::strerror(errno)));
      at_end = n == 0;
      pending.append(chunk, static_cast<size_t>(n));
    }
    boost::system::error_code ec;
    while (!pending.empty() && !parser.is_done()) {
      const size_t used = parser.put(boost::asio::buffer(pending), ec);
      pending.erase(0, used);
      if (ec == beast_http::error::need_more) {
        ec = {};
        if (used == 0) break;
      }
      if (ec) return absl::DataLossError(fmt::format("not an HTTP answer: {}", ec.message()));
    }
    if (call.on_body && parser.is_header_done() && parser.get().result_int() / 100 == 2) {
      std::string& body = parser.get().body();
      if (body.size() > handed_over) {
        if (!call.on_body(std::string_view(body).substr(handed_over))) break;
        handed_over = body.size();
      }
    }
    if (at_end && !parser.is_done()) {
      parser.put_eof(ec);
      if (ec) return absl::UnavailableError("the server closed the connection in the middle of its answer");
    }
  }
  reply.status = static_cast<int>(parser.get().result_int());
  const auto id = parser.get()["x-request-id"];
  reply.request_id.assign(id.data(), id.size());
  if (!call.on_body || reply.status / 100 != 2) reply.body = std::move(parser.get().body());
  return reply;
}

}  // namespace holdfast::cli

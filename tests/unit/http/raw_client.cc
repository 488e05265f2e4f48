#include "tests/unit/http/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

namespace holdfast::http_test {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

RawClient::RawClient(uint16_t port, int receive_buffer) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  REQUIRE(fd_);
  if (receive_buffer > 0) setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  const int on = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
}

RawClient RawClient::Unix(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::strncpy(to.sun_path, path.c_str(), sizeof to.sun_path - 1);
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  return RawClient(std::move(fd));
}

RawClient RawClient::V6(uint16_t port) {
  UniqueFd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(port);
  to.sin6_addr = in6addr_loopback;
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  return RawClient(std::move(fd));
}

bool RawClient::Send(std::string_view bytes) {
  const auto until = steady_clock::now() + std::chrono::seconds(4);
  while (!bytes.empty()) {
    const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    if (errno != EAGAIN || steady_clock::now() > until) return false;
    pollfd p{fd_.get(), POLLOUT, 0};
    poll(&p, 1, 100);
  }
  return true;
}

bool RawClient::Fill(steady_clock::time_point until) {
  if (ended_) return false;
  pollfd p{fd_.get(), POLLIN, 0};
  const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now()).count();
  if (left < 0 || poll(&p, 1, static_cast<int>(left)) <= 0) return false;
  char chunk[65536];
  const ssize_t n = recv(fd_.get(), chunk, sizeof chunk, 0);
  if (n <= 0) {
    ended_ = true;
    return false;
  }
  buffer_.append(chunk, static_cast<size_t>(n));
  return true;
}

RawResponse RawClient::Read(milliseconds wait, bool head) {
  const auto until = steady_clock::now() + wait;
  RawResponse r;
  size_t end;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!Fill(until)) return r;
  }
  const std::string text = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  if (text.compare(0, 9, "HTTP/1.1 ") != 0) return r;
  r.status = std::atoi(text.c_str() + 9);
  for (size_t at = text.find("\r\n") + 2; at < text.size();) {
    const size_t eol = text.find("\r\n", at), colon = text.find(": ", at);
    std::string name = text.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    r.headers[name] = text.substr(colon + 2, eol - colon - 2);
    at = eol + 2;
  }
  if (head || r.status < 200 || r.status == 204) {
    r.complete = true;
    return r;
  }
  if (r.headers.count("content-length")) {
    const size_t n = std::stoul(r.headers["content-length"]);
    while (buffer_.size() < n) {
      if (!Fill(until)) break;
    }
    r.complete = buffer_.size() >= n;
    r.body = buffer_.substr(0, n);
    buffer_.erase(0, r.body.size());
    return r;
  }
  if (r.headers.count("transfer-encoding")) {
    for (;;) {
      size_t eol;
      while ((eol = buffer_.find("\r\n")) == std::string::npos) {
        if (!Fill(until)) return r;
      }
      const size_t n = std::stoul(buffer_.substr(0, eol), nullptr, 16);
      while (buffer_.size() < eol + 2 + n + 2) {
        if (!Fill(until)) return r;
      }
      r.body += buffer_.substr(eol + 2, n);
      buffer_.erase(0, eol + 2 + n + 2);
      if (n == 0) {
        r.complete = true;
        return r;
      }
    }
  }
  while (Fill(until)) {
  }
  r.body.swap(buffer_);
  r.complete = ended_;
  return r;
}

std::string RawClient::ReadRaw(size_t at_most, milliseconds wait) {
  const auto until = steady_clock::now() + wait;
  while (buffer_.size() < at_most && Fill(until)) {
  }
  std::string out = buffer_.substr(0, at_most);
  buffer_.erase(0, out.size());
  return out;
}

bool RawClient::WaitEnd(milliseconds wait) {
  const auto until = steady_clock::now() + wait;
  while (Fill(until)) buffer_.clear();
  return ended_;
}

void RawClient::FinishSending() { shutdown(fd_.get(), SHUT_WR); }

void RawClient::Reset() {
  const linger hard{1, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  fd_.Reset();
}

RawResponse Once(uint16_t port, std::string_view raw) {
  RawClient client(port);
  client.Send(raw);
  return client.Read();
}

std::string Get(std::string_view path) { return "GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n\r\n"; }

std::string Post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

}  // namespace holdfast::http_test

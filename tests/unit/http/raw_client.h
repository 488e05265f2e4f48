#pragma once
// A blocking client of raw bytes with a deadline on every read: what a test needs to be rude.
#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "proto/base/unique_fd.h"

namespace holdfast::http_test {

struct RawResponse {
  int status = 0;                              // 0: none came (EOF, reset or time-out)
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool complete = false;                       // the framing said the body is whole
};

class RawClient final {
 public:
  // Dies (Catch FAIL) when the connection can't be made.
  explicit RawClient(uint16_t port, int receive_buffer = 0);
  explicit RawClient(UniqueFd fd) : fd_(std::move(fd)) {}
  static RawClient Unix(const std::string& path);
  static RawClient V6(uint16_t port);

  int fd() const { return fd_.get(); }
  bool Send(std::string_view bytes);              // false when the peer refused
  // Next response, interim 1xx ones included. `head`: it answers HEAD, no body follows.
  RawResponse Read(std::chrono::milliseconds wait = std::chrono::milliseconds(3000), bool head = false);
  std::string ReadRaw(size_t at_most, std::chrono::milliseconds wait);    // whatever comes
  // True when the server ended the connection (FIN or RST) within the wait; what comes before is thrown away.
  bool WaitEnd(std::chrono::milliseconds wait = std::chrono::milliseconds(3000));
  void FinishSending();
  void Reset();                                   // RST
  void Close() { fd_.Reset(); }

 private:
  bool Fill(std::chrono::steady_clock::time_point until);

  UniqueFd fd_;
  std::string buffer_;
  bool ended_ = false;
};

// One request on a fresh connection.
RawResponse Once(uint16_t port, std::string_view raw);
std::string Get(std::string_view path);
std::string Post(std::string_view path, std::string_view body);

}  // namespace holdfast::http_test

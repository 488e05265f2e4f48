#include "frontend/http/head_scanner.h"

namespace holdfast::http {

HeadScanner::Result HeadScanner::Bad(const char* problem) {
  problem_ = problem;
  return Result::kBad;
}

HeadScanner::Result HeadScanner::Feed(std::string_view buffer) {
  constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n";
  if (!buffer.empty() && buffer[0] == 0x16) return Result::kNotHttp;  // TLS record type "handshake"
  if (buffer.substr(0, kHttp2Preface.size()) == kHttp2Preface) return Result::kNotHttp;

  for (; position_ < buffer.size();) {
    if (position_ >= max_bytes_) return Result::kTooLarge;
    const unsigned char c = static_cast<unsigned char>(buffer[position_++]);
    if (after_cr_) {
      if (c != '\n') return Bad("a carriage return without a line feed in the request head");
      after_cr_ = false;
      const size_t length = position_ - 2 - line_start_;
      if (length == 0 && lines_ > 0) return Result::kComplete;
      line_start_ = position_;
      ++lines_;
      continue;
    }
    if (c == '\r') {
      after_cr_ = true;
      continue;
    }
    if (c == '\n') return Bad("a line feed without a carriage return in the request head");
    if (c == 0) return Bad("a NUL byte in the request head");
    if ((c < 0x20 && c != '\t') || c == 0x7f) return Bad("a control character in the request head");
    if (position_ - 1 == line_start_) {
      // RFC 9112 5.2: a server must refuse folded lines; white space before the first header is smuggling material as well.
      if (c == ' ' || c == '\t') return Bad(lines_ == 0 ? "white space before the request line" : "a folded header line");
    }
  }
  return buffer.size() > max_bytes_ ? Result::kTooLarge : Result::kNeedMore;
}

}  // namespace holdfast::http

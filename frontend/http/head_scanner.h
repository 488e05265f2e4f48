#pragma once
// Finds the end of a request head while its bytes trickle in, and refuses at the first byte what no lenient parser may see: bare LF or
// CR, NUL and other controls, folded header lines, heads over the limit, and peers that do not speak HTTP/1 at all. RFC 9112 sections 2-5.
#include <cstddef>
#include <string_view>

namespace holdfast::http {

class HeadScanner final {
 public:
  enum class Result : unsigned char {
    kNeedMore,
    kComplete,   // head_bytes() holds the head, empty line included
    kBad,        // problem() says what: 400
    kTooLarge,   // 431
    kNotHttp,    // a TLS ClientHello or an HTTP/2 preface: close without a word
  };

  explicit HeadScanner(size_t max_bytes) : max_bytes_(max_bytes) {}

  // `buffer` begins with the head's first byte and only grows between calls. Linear over all calls together.
  Result Feed(std::string_view buffer);

  size_t head_bytes() const { return position_; }
  const char* problem() const { return problem_; }

 private:
  Result Bad(const char* problem);

  size_t max_bytes_;
  size_t position_ = 0;     // bytes looked at
  size_t line_start_ = 0;
  size_t lines_ = 0;
  bool after_cr_ = false;
  const char* problem_ = "";
};

}  // namespace holdfast::http

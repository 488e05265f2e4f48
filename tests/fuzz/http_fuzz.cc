// Any bytes as a connection's input: heads found and parsed, bodies taken, cut into pieces whose sizes the first byte chooses.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "frontend/http/head_scanner.h"
#include "frontend/http/request_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using holdfast::http::HeadScanner;
  if (size < 2) return 0;
  const size_t piece = data[0] % 64 + 1;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  holdfast::http::ServerLimits limits;
  limits.max_body_bytes = 1000;
  limits.max_header_bytes = 2000;
  limits.max_headers = 16;
  HeadScanner scanner(limits.max_header_bytes);
  HeadScanner::Result result = HeadScanner::Result::kNeedMore;
  size_t seen = 0;
  while (result == HeadScanner::Result::kNeedMore && seen < input.size()) {
    seen = std::min(seen + piece, input.size());
    result = scanner.Feed(input.substr(0, seen));
  }
  if (result != HeadScanner::Result::kComplete) return 0;
  holdfast::http::RequestParser parser(limits);
  if (parser.PutHead(input.substr(0, scanner.head_bytes()))) return 0;
  size_t begin = scanner.head_bytes();
  while (!parser.done()) {
    size_t taken = 0;
    if (parser.PutBody(input.substr(begin, seen - begin), &taken)) return 0;
    if (taken > seen - begin) __builtin_trap();
    begin += taken;
    if (taken > 0 && begin < seen) continue;
    if (seen == input.size()) break;
    seen = std::min(seen + piece, input.size());
  }
  if (parser.request().body.size() > limits.max_body_bytes) __builtin_trap();
  return 0;
}

#pragma once
// What the server decides from a parsed request head: target, framing, persistence. Pure; every refusal is an HttpProblem.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "frontend/http/server.h"

namespace holdfast::http {

// Why a request is refused by the HTTP layer itself. status 0: nothing wrong.
struct HttpProblem {
  int status = 0;
  std::string message;
  std::string code;      // OpenAI's error code, "" = null
  explicit operator bool() const { return status != 0; }
};

struct HeadFacts {
  bool http11 = true;
  bool keep_alive = true;
  bool expect_continue = false;
  bool chunked = false;
  std::optional<uint64_t> content_length;
  bool has_body() const { return chunked || (content_length && *content_length > 0); }
};

// Fills request->path, query and request_id from `target` and request->headers; `version` is 10 or 11. RFC 9112 sections 3, 6, 7 and 9.
HttpProblem AnalyseHead(std::string_view target, int version, Request* request, HeadFacts* facts);

// Percent-decodes; false on a bad escape or an encoded NUL.
bool PercentDecode(std::string_view in, std::string* out);

// The client's id when it is 1-128 printable ASCII characters, else a fresh "req-" and 24 hex digits.
std::string UsableRequestId(std::string_view given);

bool EqualsIgnoreCase(std::string_view a, std::string_view b);

}  // namespace holdfast::http

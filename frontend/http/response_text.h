#pragma once
// The text of response heads and of the HTTP layer's own errors.
#include <string>
#include <string_view>

#include "frontend/http/request_head.h"
#include "frontend/http/server.h"

namespace holdfast::http {

enum class BodyFraming : unsigned char { kLength, kChunked, kUntilClose, kNone };
enum class Persistence : unsigned char { kKeepAlive, kKeepAlive10, kClose };  // kKeepAlive10: said aloud, for HTTP/1.0

struct ResponseHead {
  int status = 200;
  std::string_view content_type;       // "" = no Content-Type
  BodyFraming framing = BodyFraming::kLength;
  size_t content_length = 0;
  Persistence persistence = Persistence::kKeepAlive;
  std::string_view request_id;
};

// Status line, headers and the empty line. Names and values of `headers` lose control characters, so a value can't start a new header;
// those the server owns (Content-Length, Transfer-Encoding, Connection, Date, x-request-id) are dropped.
void AppendResponseHead(const ResponseHead& head, const std::vector<Header>& headers, std::string* out);

std::string_view ReasonPhrase(int status);

// {"error":{"message","type","param":null,"code"}} with the type OpenAI uses for this status.
Response ProblemResponse(const HttpProblem& problem);

// True for 1xx, 204 and 304: no body, no Content-Length.
bool StatusHasNoBody(int status);

}  // namespace holdfast::http

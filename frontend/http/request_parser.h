#pragma once
// One request through Beast's push parser. The head is given whole (HeadScanner found its end), the body as it comes. Not reusable.
#include <memory>
#include <string>
#include <string_view>

#include "frontend/http/request_head.h"
#include "frontend/http/server.h"

namespace holdfast::http {

class RequestParser final {
 public:
  explicit RequestParser(const ServerLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // The whole head, empty line included. Afterwards request() has everything but the body; on a problem at least a request_id.
  HttpProblem PutHead(std::string_view head);

  // Takes what it can of `bytes` into request().body and says how much; call again with the rest and more. A chunk-size line must lie whole
  // in `bytes` to be taken. Problem 413 when the body outgrows the limit, 400 for broken framing.
  HttpProblem PutBody(std::string_view bytes, size_t* taken);

  bool done() const;                      // body complete (or none)
  const HeadFacts& facts() const;
  Request& request();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::http

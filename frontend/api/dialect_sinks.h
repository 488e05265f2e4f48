#pragma once
// How a generation speaks the Responses API and Anthropic's Messages API over HTTP: as one JSON body, or as named server-sent events. As in
// chat, the status of a stream is held back until the first token or the first silence, so that an early error still gets its own status.
#include <cstdint>
#include <functional>
#include <memory>

#include "frontend/api/response.h"
#include "frontend/api/valid_request.h"
#include "frontend/generation.h"
#include "frontend/http/server.h"

namespace holdfast::api {

// `unix_seconds` tells the time when the answer is complete.
std::unique_ptr<GenerationSink> MakeResponsesSink(std::shared_ptr<http::Exchange> exchange, const ValidRequest& request, ResponseHead head,
                                                  std::function<int64_t()> unix_seconds);

std::unique_ptr<GenerationSink> MakeMessagesSink(std::shared_ptr<http::Exchange> exchange, const ValidRequest& request, ResponseHead head);

}  // namespace holdfast::api

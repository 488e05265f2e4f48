#pragma once
// How a generation speaks HTTP: as one JSON body when it is over, or as server-sent events while it runs.
#include <memory>

#include "frontend/api/response.h"
#include "frontend/generation.h"
#include "frontend/http/server.h"

namespace holdfast::api {

// One answer at the end: 200 with all choices, or the error's status.
std::unique_ptr<GenerationSink> MakeBodySink(std::shared_ptr<http::Exchange> exchange, ResponseHead head, uint32_t choices);

// The status is held back until the first token (or the first silence after the engine accepted), so that an early error still gets its own
// status. Afterwards an error is an event of its own, without finish chunk and [DONE].
std::unique_ptr<GenerationSink> MakeStreamSink(std::shared_ptr<http::Exchange> exchange, ResponseHead head, uint32_t choices,
                                               bool include_usage);

}  // namespace holdfast::api

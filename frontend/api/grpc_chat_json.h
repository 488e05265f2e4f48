#pragma once
// chat.proto's messages to the JSON of /v1/chat/completions and back.
#include <string>
#include <variant>
#include <vector>

#include "frontend/api/response.h"
#include "frontend/api/valid_request.h"
#include "proto/chat.pb.h"

namespace holdfast::api {

// The request's JSON body. An error when one of the *_json fields is no JSON of its kind.
std::variant<std::string, ApiError> ToJsonBody(const proto::ChatRequest& request, bool stream);

void FillUsage(const Usage& usage, proto::Usage* out);
void FillReply(const ResponseHead& head, const std::vector<ChoiceResult>& choices, const Usage& usage, proto::ChatReply* out);
proto::ChatChunk NewChunk(const ResponseHead& head, uint32_t choice);

}  // namespace holdfast::api

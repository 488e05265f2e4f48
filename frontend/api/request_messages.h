#pragma once
// messages[] of a chat request, checked and brought into the one form templates see. Internal to request*.cc.
#include "frontend/api/request.h"
#include "frontend/api/request_fields.h"

namespace holdfast::api {

// Each message becomes {role, content?, name?, tool_call_id?, tool_calls?, reasoning_content?, reasoning?, thinking?}: developer is system;
// parts of text are joined by a newline; an assistant's missing content is "" or, beside tool_calls, absent; arguments that are the text of a
// JSON object become that object (what templates expect), other text stays as it is. Members not listed are dropped.
void ReadMessages(FieldReader* in, const RequestContext& context, ValidRequest* out);

}  // namespace holdfast::api

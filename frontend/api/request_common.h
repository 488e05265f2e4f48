#pragma once
// What chat and completions share: model, sampling, stop, n, streaming, response_format. Internal to request*.cc.
#include "frontend/api/request.h"
#include "frontend/api/request_fields.h"

namespace holdfast::api {

void ReadCommon(FieldReader* in, const RequestContext& context, ValidRequest* out);

// A token id, checked against the vocabulary.
bool AsTokenId(const text::JsonValue& value, const RequestContext& context, uint32_t* out);
std::string TokenIdRange(const RequestContext& context);   // "0 to 151935"

}  // namespace holdfast::api

#pragma once
// ApiError to JSON, in OpenAI's shape, and the refusals the request parser makes. Errors of the engine's state are in
// frontend/generation_errors.h.
#include <string>
#include <string_view>

#include "frontend/api/valid_request.h"
#include "frontend/http/server.h"

namespace holdfast::api {

// {"message","type","param","code", extra...}: all four keys always; an empty param or code is null. Invalid UTF-8 becomes U+FFFD.
std::string ErrorObject(const ApiError& error);

// {"error": ErrorObject}: the body of an HTTP error, and the data of an SSE error event.
std::string ErrorBody(const ApiError& error);

// Status, headers and body.
http::Response ErrorResponse(const ApiError& error);

// 400. `param` is the path of the field: "messages[2].content".
ApiError InvalidRequest(std::string message, std::string param, std::string code = "");

// 400 for a field that is part of OpenAI's API and that this server does not do yet.
ApiError NotYetSupported(std::string_view field, std::string_view advice);

// 404, as OpenAI words it; agents look for the code.
ApiError ModelNotFound(std::string_view model, std::string_view served);

// `text` cut to at most `max` bytes at a character boundary, for messages that quote the client.
std::string Quoted(std::string_view text, size_t max = 64);

}  // namespace holdfast::api

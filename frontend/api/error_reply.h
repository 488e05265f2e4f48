#pragma once
// An ApiError on the wire, in OpenAI's shape: all four members are always there, null when they have nothing to say.
#include <string>

#include "frontend/api/valid_request.h"
#include "frontend/http/server.h"

namespace holdfast::api {

// {"message":...,"type":...,"param":...,"code":...,<extra numbers>}
std::string ErrorObject(const ApiError& error);
// {"error":{...}}
std::string ErrorBody(const ApiError& error);
// With the status and the error's headers.
http::Response ErrorResponse(const ApiError& error);

}  // namespace holdfast::api

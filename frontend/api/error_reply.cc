#include "frontend/api/error_reply.h"

#include "frontend/api/json_out.h"

namespace holdfast::api {

std::string ErrorObject(const ApiError& error) {
  const auto text_or_null = [](JsonOut* out, std::string_view key, const std::string& text) {
    out->Key(key);
    if (text.empty()) out->Null();
    else out->Value(text);
  };
  JsonOut out;
  out.Begin('{').Member("message", error.message).Member("type", error.type);
  text_or_null(&out, "param", error.param);
  text_or_null(&out, "code", error.code);
  for (const auto& [key, number] : error.extra) out.Member(key, number);
  out.End('}');
  return out.Take();
}

std::string ErrorBody(const ApiError& error) { return "{\"error\":" + ErrorObject(error) + "}"; }

http::Response ErrorResponse(const ApiError& error) {
  http::Response response;
  response.status = error.status;
  response.body = ErrorBody(error);
  for (const auto& [name, value] : error.headers) response.headers.push_back({name, value});
  return response;
}

}  // namespace holdfast::api

#include "frontend/api/error.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "proto/base/log.h"

namespace holdfast::api {
namespace {

void AppendStringOrNull(std::string_view text, std::string* out) {
  if (text.empty()) {
    *out += "null";
    return;
  }
  *out += '"';
  AppendJsonEscaped(text, out);
  *out += '"';
}

}  // namespace

std::string ErrorObject(const ApiError& error) {
  std::string out = R"({"message":")";
  AppendJsonEscaped(error.message, &out);
  out += R"(","type":")";
  AppendJsonEscaped(error.type, &out);
  out += R"(","param":)";
  AppendStringOrNull(error.param, &out);
  out += R"(,"code":)";
  AppendStringOrNull(error.code, &out);
  for (const auto& [key, value] : error.extra) {
    out += ",\"";
    AppendJsonEscaped(key, &out);
    fmt::format_to(std::back_inserter(out), "\":{}", value);
  }
  out += '}';
  return out;
}

std::string ErrorBody(const ApiError& error) { return "{\"error\":" + ErrorObject(error) + "}"; }

http::Response ErrorResponse(const ApiError& error) {
  http::Response response;
  response.status = error.status;
  for (const auto& [name, value] : error.headers) response.headers.push_back({name, value});
  response.body = ErrorBody(error);
  return response;
}

ApiError InvalidRequest(std::string message, std::string param, std::string code) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  error.code = std::move(code);
  return error;
}

ApiError NotYetSupported(std::string_view field, std::string_view advice) {
  return InvalidRequest(fmt::format("'{}' is not yet supported by this server{}{}", field, advice.empty() ? "" : ": ", advice),
                        std::string(field), "unsupported_parameter");
}

ApiError ModelNotFound(std::string_view model, std::string_view served) {
  ApiError error = InvalidRequest(fmt::format("The model '{}' does not exist here; this server serves '{}'", Quoted(model), served), "model",
                                  "model_not_found");
  error.status = 404;
  return error;
}

std::string Quoted(std::string_view text, size_t max) {
  if (text.size() <= max) return std::string(text);
  while (max > 0 && (static_cast<unsigned char>(text[max]) & 0xC0) == 0x80) --max;
  return std::string(text.substr(0, max)) + "...";
}

}  // namespace holdfast::api

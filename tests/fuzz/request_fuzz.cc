// Any bytes as a request body: parsed and refused, or a ValidRequest; the first byte chooses the route ('0' ... '4') and how strict it is.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "frontend/api/error.h"
#include "frontend/api/request.h"

namespace api = holdfast::api;
namespace text = holdfast::text;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto body = text::ParseJson(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  if (!body.ok()) return 0;
  api::RequestContext context;
  context.served_model = "served";
  context.vocab_size = 1000;
  context.strict_model = (data[0] & 8) != 0;
  using Parse = api::ParsedRequest (*)(const text::JsonValue&, const api::RequestContext&);
  constexpr Parse kRoutes[] = {api::ParseChatRequest, api::ParseCompletionsRequest, api::ParseResponsesRequest, api::ParseMessagesRequest,
                               api::ParseCountTokensRequest};
  const api::ParsedRequest parsed = kRoutes[(data[0] & 7) % std::size(kRoutes)](*body, context);
  if (const auto* error = std::get_if<api::ApiError>(&parsed)) {
    if (error->status < 400 || error->status > 499 || !text::ParseJson(api::ErrorBody(*error)).ok()) __builtin_trap();
  } else if (const auto& r = std::get<api::ValidRequest>(parsed); r.n < 1 || r.n > context.max_n || r.sampling.top_logprobs > 20) {
    __builtin_trap();
  }
  return 0;
}

// The routes of the other dialects: OpenAI's Responses API and Anthropic's Messages API.
#include <fmt/format.h>

#include <utility>

#include "frontend/api/anthropic_events.h"
#include "frontend/api/dialect_sinks.h"
#include "frontend/api/handlers.h"
#include "frontend/generation_errors.h"
#include "frontend/model_view.h"
#include "proto/base/status_wire.h"

namespace holdfast::api {
namespace {

http::Response AnthropicRefusal(const ApiError& error, const http::Request& request) { return AnthropicErrorResponse(error, request.request_id); }

}  // namespace

void Api::InstallDialects(Router* router) {
  GeneratingRoute responses;
  responses.parse = ParseResponsesRequest;
  responses.sink = [loop = &context_.loop](const Exchange& exchange, const ValidRequest& request, ResponseHead head) {
    return MakeResponsesSink(exchange, request, std::move(head), [loop] { return loop->UnixMillis() / 1000; });
  };
  AddGenerating(router, "/v1/responses", std::move(responses));

  GeneratingRoute messages;
  messages.parse = ParseMessagesRequest;
  messages.sink = [](const Exchange& exchange, const ValidRequest& request, ResponseHead head) {
    return MakeMessagesSink(exchange, request, std::move(head));
  };
  messages.refuse = AnthropicRefusal;
  AddGenerating(router, "/v1/messages", std::move(messages));

  RouteEntry count;
  count.method = "POST";
  count.path = "/v1/messages/count_tokens";
  count.refuse = AnthropicRefusal;
  count.handler = [this](const Exchange& exchange) { CountTokens(exchange); };
  router->Add(std::move(count));
}

// What the same message would be charged: the prompt as it would be sent, tools and all.
void Api::CountTokens(const Exchange& exchange) {
  auto view = ModelOr503(exchange, AnthropicRefusal);
  if (!view) return;
  auto work = [body = &exchange->request().body, id = exchange->request().request_id, view = std::move(view), context = MakeContext(),
               now = context_.loop.UnixMillis() / 1000]() -> std::variant<http::Response, ApiError> {
    auto parsed = ParseBody(ParseCountTokensRequest, *body, context);
    if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
    const auto encoded = view->EncodeChat(std::get<ValidRequest>(parsed), now);
    if (!encoded.ok()) return Refused(std::string(MessageOf(encoded.status())), "messages");
    http::Response response;
    response.headers.push_back({"request-id", id});
    response.body = fmt::format(R"({{"input_tokens":{}}})", encoded->tokens.size());
    return response;
  };
  // OnPool holds the exchange, and with it the body, while the work runs.
  OnPool(exchange, std::move(work), AnthropicRefusal);
}

}  // namespace holdfast::api

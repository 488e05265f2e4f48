// /tokenize and /detokenize, in both dialects: llama.cpp's {content, add_special, parse_special, with_pieces} and vLLM's
// {prompt | messages, add_special_tokens}.
#include <fmt/format.h>

#include <utility>

#include "frontend/api/error.h"
#include "frontend/api/handlers.h"
#include "frontend/api/json_out.h"
#include "frontend/generation_errors.h"
#include "frontend/model_view.h"
#include "frontend/text/json_value.h"
#include "frontend/text/tokenizer.h"
#include "frontend/text/utf8.h"
#include "proto/base/status_wire.h"

namespace holdfast::api {
namespace {

using Result = std::variant<http::Response, ApiError>;
using text::JsonValue;

http::Response Json(std::string body) {
  http::Response response;
  response.body = std::move(body);
  return response;
}

// False when the member is there and no boolean.
bool ReadFlag(const JsonValue& body, std::string_view key, bool otherwise, bool* out) {
  const JsonValue* value = body.Find(key);
  *out = otherwise;
  if (!value || value->is_null()) return true;
  if (!value->is_bool()) return false;
  *out = value->AsBool();
  return true;
}

ApiError NoFlag(const char* key) { return Refused(fmt::format("{} must be true or false", key), key); }

std::variant<JsonValue, ApiError> ParseObject(const std::string& text) {
  auto body = text::ParseJson(text);
  if (!body.ok()) return Refused(std::string(MessageOf(body.status())), "");
  if (!body->is_object()) return Refused("The body must be a JSON object", "");
  return *std::move(body);
}

// A piece as llama.cpp writes it: a string, or its bytes when it is no UTF-8 by itself.
void Piece(std::string_view bytes, JsonOut* out) {
  if (text::IsValidUtf8(bytes)) {
    out->Value(bytes);
    return;
  }
  out->Begin('[');
  for (const char c : bytes) out->Value(static_cast<unsigned>(static_cast<unsigned char>(c)));
  out->End(']');
}

Result TokensAnswer(const std::vector<uint32_t>& tokens, const ModelView& view, bool llama_dialect, bool with_pieces, uint32_t max_model_len) {
  JsonOut out;
  out.Begin('{').Key("tokens").Begin('[');
  for (const uint32_t id : tokens) {
    if (!with_pieces) {
      out.Value(id);
      continue;
    }
    out.Begin('{').Member("id", id).Key("piece");
    Piece(view.PieceOf(id), &out);
    out.End('}');
  }
  out.End(']');
  if (!llama_dialect) out.Member("count", tokens.size()).Member("max_model_len", max_model_len);
  out.End('}');
  return Json(out.Take());
}

}  // namespace

void Api::OnPool(const Exchange& exchange, std::function<Result()> work) {
  // The exchange travels to the pool and back: the last reference must not be dropped on a thread of the pool.
  auto run = [exchange, work = std::move(work), loop = &context_.loop]() mutable {
    auto result = std::make_shared<Result>(work());
    loop->Post([exchange = std::move(exchange), result] {
      if (auto* error = std::get_if<ApiError>(result.get())) exchange->Send(ErrorResponse(*error));
      else exchange->Send(std::get<http::Response>(std::move(*result)));
    });
  };
  if (!context_.pool.Run(std::move(run))) exchange->Send(ErrorResponse(Overloaded("Too many texts wait to be tokenised", 1)));
}

std::shared_ptr<const ModelView> Api::ModelOr503(const Exchange& exchange) const {
  auto model = context_.state.model();
  if (!model) {
    const EngineState& state = context_.state;
    exchange->Send(ErrorResponse(NotReady(state.state(), state.reason(), state.lease().retry_after_seconds(context_.loop.Now()))));
  }
  return model;
}

void Api::Tokenize(const Exchange& exchange) {
  const auto view = ModelOr503(exchange);
  if (!view) return;
  auto parsed = ParseObject(exchange->request().body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return exchange->Send(ErrorResponse(*error));
  const JsonValue body = std::get<JsonValue>(parsed);
  const auto refuse = [&](const ApiError& error) { exchange->Send(ErrorResponse(error)); };
  const uint32_t limit = context_.state.lease().limits().max_seq_len();
  const uint32_t max_len = limit ? limit : view->context_length();
  const JsonValue* const content = body.Find("content");
  const JsonValue* const prompt = body.Find("prompt");
  const JsonValue* const messages = body.Find("messages");
  if (static_cast<int>(content != nullptr) + (prompt != nullptr) + (messages != nullptr) != 1) {
    return refuse(Refused("Give one of content (a string), prompt (a string) or messages (an array)", "content"));
  }
  bool add_special = false, parse_special = true, with_pieces = false;
  if (content) {
    if (!content->is_string()) return refuse(Refused("content must be a string", "content"));
    if (!ReadFlag(body, "add_special", false, &add_special)) return refuse(NoFlag("add_special"));
    if (!ReadFlag(body, "parse_special", true, &parse_special)) return refuse(NoFlag("parse_special"));
    if (!ReadFlag(body, "with_pieces", false, &with_pieces)) return refuse(NoFlag("with_pieces"));
    // The value is captured, not the pointer: the body is gone when the pool runs this.
    return OnPool(exchange, [=, value = *content]() -> Result {
      return TokensAnswer(view->tokenizer().EncodePlain(value.AsString(), add_special, parse_special), *view, true, with_pieces, max_len);
    });
  }
  if (!ReadFlag(body, "add_special_tokens", prompt != nullptr, &add_special)) return refuse(NoFlag("add_special_tokens"));
  if (prompt) {
    if (!prompt->is_string()) return refuse(Refused("prompt must be a string", "prompt"));
    return OnPool(exchange, [=, value = *prompt]() -> Result {
      return TokensAnswer(view->tokenizer().EncodePlain(value.AsString(), add_special, true), *view, false, false, max_len);
    });
  }
  auto request = Parse(Route::kChat, exchange->request().body);
  if (const auto* error = std::get_if<ApiError>(&request)) return refuse(*error);
  auto chat = std::make_shared<const ValidRequest>(std::get<ValidRequest>(std::move(request)));
  // The ids a chat request with these messages would send: the template's own BOS counts whatever add_special_tokens says.
  OnPool(exchange, [=, now = context_.loop.UnixMillis() / 1000]() -> Result {
    const auto encoded = view->EncodeChat(*chat, now);
    if (!encoded.ok()) return Refused(std::string(MessageOf(encoded.status())), "messages");
    return TokensAnswer(encoded->tokens, *view, false, false, max_len);
  });
}

void Api::Detokenize(const Exchange& exchange) {
  const auto view = ModelOr503(exchange);
  if (!view) return;
  auto parsed = ParseObject(exchange->request().body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return exchange->Send(ErrorResponse(*error));
  const JsonValue* const tokens = std::get<JsonValue>(parsed).Find("tokens");
  if (!tokens || !tokens->is_array()) return exchange->Send(ErrorResponse(Refused("tokens must be an array of token ids", "tokens")));
  std::vector<uint32_t> ids;
  ids.reserve(tokens->AsArray().size());
  for (const JsonValue& one : tokens->AsArray()) {
    if (one.kind() != JsonValue::Kind::kInt || one.AsInt() < 0 || one.AsInt() >= static_cast<int64_t>(view->vocab_size())) {
      return exchange->Send(ErrorResponse(Refused(
          fmt::format("tokens[{}] is no token id: whole numbers from 0 to {} are", ids.size(), view->vocab_size() - 1), "tokens")));
    }
    ids.push_back(static_cast<uint32_t>(one.AsInt()));
  }
  OnPool(exchange, [view, ids = std::move(ids)]() -> Result {
    const std::string text = view->Decode(ids);
    JsonOut out;
    out.Begin('{').Member("content", text).Member("prompt", text).End('}');
    return Json(out.Take());
  });
}

}  // namespace holdfast::api

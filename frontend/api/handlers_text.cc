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

// What a request to /tokenize is answered with, on the text pool.
struct TokenizeContext {
  std::shared_ptr<const ModelView> view;
  RequestContext request;
  uint32_t max_model_len = 0;
  int64_t now = 0;               // Unix seconds
};

Result TokenizeBody(const std::string& text, const TokenizeContext& context) {
  const ModelView& view = *context.view;
  auto parsed = ParseObject(text);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  const JsonValue& body = std::get<JsonValue>(parsed);
  const JsonValue* const content = body.Find("content");
  const JsonValue* const prompt = body.Find("prompt");
  const JsonValue* const messages = body.Find("messages");
  if (static_cast<int>(content != nullptr) + (prompt != nullptr) + (messages != nullptr) != 1) {
    return Refused("Give one of content (a string), prompt (a string) or messages (an array)", "content");
  }
  bool add_special = false, parse_special = true, with_pieces = false;
  if (content) {
    if (!content->is_string()) return Refused("content must be a string", "content");
    if (!ReadFlag(body, "add_special", false, &add_special)) return NoFlag("add_special");
    if (!ReadFlag(body, "parse_special", true, &parse_special)) return NoFlag("parse_special");
    if (!ReadFlag(body, "with_pieces", false, &with_pieces)) return NoFlag("with_pieces");
    return TokensAnswer(view.tokenizer().EncodePlain(content->AsString(), add_special, parse_special), view, true, with_pieces,
                        context.max_model_len);
  }
  if (!ReadFlag(body, "add_special_tokens", prompt != nullptr, &add_special)) return NoFlag("add_special_tokens");
  if (prompt) {
    if (!prompt->is_string()) return Refused("prompt must be a string", "prompt");
    return TokensAnswer(view.tokenizer().EncodePlain(prompt->AsString(), add_special, true), view, false, false, context.max_model_len);
  }
  auto request = ParseBody(Route::kChat, text, context.request);
  if (auto* error = std::get_if<ApiError>(&request)) return std::move(*error);
  // The ids a chat request with these messages would send: the template's own BOS counts whatever add_special_tokens says.
  const auto encoded = view.EncodeChat(std::get<ValidRequest>(request), context.now);
  if (!encoded.ok()) return Refused(std::string(MessageOf(encoded.status())), "messages");
  return TokensAnswer(encoded->tokens, view, false, false, context.max_model_len);
}

Result DetokenizeBody(const std::string& body, const ModelView& view) {
  auto parsed = ParseObject(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  const JsonValue* const tokens = std::get<JsonValue>(parsed).Find("tokens");
  if (!tokens || !tokens->is_array()) return Refused("tokens must be an array of token ids", "tokens");
  std::vector<uint32_t> ids;
  ids.reserve(tokens->AsArray().size());
  for (const JsonValue& one : tokens->AsArray()) {
    if (one.kind() != JsonValue::Kind::kInt || one.AsInt() < 0 || one.AsInt() >= static_cast<int64_t>(view.vocab_size())) {
      return Refused(fmt::format("tokens[{}] is no token id: whole numbers from 0 to {} are", ids.size(), view.vocab_size() - 1), "tokens");
    }
    ids.push_back(static_cast<uint32_t>(one.AsInt()));
  }
  const std::string text = view.Decode(ids);
  JsonOut out;
  out.Begin('{').Member("content", text).Member("prompt", text).End('}');
  return Json(out.Take());
}

}  // namespace

void Api::OnPool(const Exchange& exchange, std::function<Result()> work, RefusalWriter refuse) {
  // The exchange travels to the pool and back: the last reference must not be dropped on a thread of the pool.
  auto run = [exchange, refuse, work = std::move(work), loop = &context_.loop]() mutable {
    auto result = std::make_shared<Result>(work());
    loop->Post([exchange = std::move(exchange), refuse = std::move(refuse), result] {
      if (auto* error = std::get_if<ApiError>(result.get())) exchange->Send(refuse(*error, exchange->request()));
      else exchange->Send(std::get<http::Response>(std::move(*result)));
    });
  };
  if (!context_.pool.Run(std::move(run))) exchange->Send(refuse(Overloaded("Too many texts wait to be tokenised", 1), exchange->request()));
}

std::shared_ptr<const ModelView> Api::ModelOr503(const Exchange& exchange, const RefusalWriter& refuse) const {
  auto model = context_.state.model();
  if (!model) {
    const EngineState& state = context_.state;
    exchange->Send(refuse(NotReady(state.state(), state.reason(), state.lease().retry_after_seconds(context_.loop.Now())), exchange->request()));
  }
  return model;
}

void Api::Tokenize(const Exchange& exchange) {
  TokenizeContext context;
  context.view = ModelOr503(exchange);
  if (!context.view) return;
  const uint32_t limit = context_.state.lease().limits().max_seq_len();
  context.max_model_len = limit ? limit : context.view->context_length();
  context.request = MakeContext();
  context.now = context_.loop.UnixMillis() / 1000;
  // OnPool holds the exchange, and with it the body, while this runs.
  OnPool(exchange, [body = &exchange->request().body, context = std::move(context)] { return TokenizeBody(*body, context); });
}

void Api::Detokenize(const Exchange& exchange) {
  auto view = ModelOr503(exchange);
  if (!view) return;
  OnPool(exchange, [body = &exchange->request().body, view = std::move(view)] { return DetokenizeBody(*body, *view); });
}

}  // namespace holdfast::api

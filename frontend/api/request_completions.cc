#include <fmt/format.h>

#include <cstdint>

#include "frontend/api/request.h"
#include "frontend/api/request_common.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

void AddText(FieldReader* in, const JsonValue& value, const std::string& path, ValidRequest* out) {
  if (value.AsString().empty()) return in->Fail(InvalidRequest(fmt::format("'{}' must not be empty", path), path));
  ValidRequest::Prompt prompt;
  prompt.text = value.AsString();
  out->prompts.push_back(std::move(prompt));
}

void AddTokens(FieldReader* in, const JsonValue::Array& ids, const std::string& path, const RequestContext& context, ValidRequest* out) {
  if (ids.empty()) return in->Fail(InvalidRequest(fmt::format("'{}' must not be empty", path), path));
  ValidRequest::Prompt prompt;
  prompt.is_tokens = true;
  prompt.tokens.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    uint32_t id = 0;
    if (!AsTokenId(ids[i], context, &id)) {
      const std::string at = fmt::format("{}[{}]", path, i);
      return in->Fail(InvalidRequest(fmt::format("'{}' is no token id: integers from {} are", at, TokenIdRange(context)), at));
    }
    prompt.tokens.push_back(id);
  }
  out->prompts.push_back(std::move(prompt));
}

void ReadPrompt(FieldReader* in, const RequestContext& context, ValidRequest* out) {
  constexpr std::string_view kForms = "a string, an array of strings, an array of token ids, or an array of arrays of token ids";
  const JsonValue* prompt = in->Get("prompt");
  if (!prompt) return in->Fail("prompt", fmt::format("'prompt' is required: {}", kForms));
  if (prompt->is_string()) return AddText(in, *prompt, "prompt", out);
  if (!prompt->is_array()) return in->Fail("prompt", fmt::format("'prompt' must be {}, not {}", kForms, KindName(*prompt)));
  const JsonValue::Array& all = prompt->AsArray();
  if (all.empty()) return in->Fail("prompt", "'prompt' must not be empty");
  if (all[0].is_number()) return AddTokens(in, all, "prompt", context, out);
  if (all.size() > context.max_prompts) {
    return in->Fail("prompt", fmt::format("'prompt' has {} prompts, the limit of a request is {}", all.size(), context.max_prompts));
  }
  for (size_t i = 0; i < all.size() && !in->failed(); ++i) {
    const std::string path = fmt::format("prompt[{}]", i);
    if (all[i].kind() != all[0].kind() || !(all[i].is_string() || all[i].is_array())) {
      return in->Fail(InvalidRequest(fmt::format("'{}' is {}; 'prompt' must be {}", path, KindName(all[i]), kForms), path));
    }
    if (all[i].is_string()) AddText(in, all[i], path, out);
    else AddTokens(in, all[i].AsArray(), path, context, out);
  }
}

}  // namespace

ParsedRequest ParseCompletionsRequest(const JsonValue& body, const RequestContext& context) {
  if (!body.is_object()) return InvalidRequest(fmt::format("The body must be a JSON object, not {}", KindName(body)), "");
  ValidRequest out;
  out.route = Route::kCompletions;
  out.input_param = "prompt";
  FieldReader in(body);
  ReadPrompt(&in, context, &out);
  ReadCommon(&in, context, &out);
  in.Bool("echo", &out.echo);

  // 0 means "only look at the prompt": sensible with echo alone, and what evaluation tools send.
  int64_t max_tokens = context.default_completion_tokens;
  in.Integer("max_tokens", out.echo ? 0 : 1, INT32_MAX, true, &max_tokens);
  in.Integer("max_completion_tokens", out.echo ? 0 : 1, INT32_MAX, true, &max_tokens);
  out.max_tokens = static_cast<uint32_t>(max_tokens);

  if (in.Get("logprobs")) {
    int64_t logprobs = 0;
    in.Integer("logprobs", 0, 5, false, &logprobs);
    out.sampling.logprobs = true;
    out.sampling.top_logprobs = static_cast<uint32_t>(logprobs);
  }
  std::string suffix;
  in.String("suffix", SIZE_MAX, &suffix);
  if (!suffix.empty()) in.Fail(NotYetSupported("suffix", "put the whole prompt into 'prompt'"));

  if (in.failed()) return in.TakeError();
  return out;
}

}  // namespace holdfast::api

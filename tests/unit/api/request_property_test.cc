// Whatever JSON comes: a ValidRequest that keeps its promises or a 4xx that names what is wrong; never a crash.
#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <rapidcheck/catch.h>
#include <string>
#include <vector>

#include "frontend/api/error.h"
#include "frontend/api/request.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

const char* const kKeys[] = {
    "messages", "model", "stop", "n", "best_of", "seed", "stream", "stream_options", "include_usage", "temperature", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "max_tokens", "max_completion_tokens",
    "tools", "tool_choice", "allowed_tools", "mode", "parallel_tool_calls", "strict", "parameters", "description", "functions", "function_call", "response_format", "json_schema", "schema",
    "pattern", "guided_json", "guided_regex", "guided_choice", "structured_outputs", "reasoning_format", "chat_template_kwargs", "enable_thinking", "reasoning_effort",
    "continue_final_message", "add_generation_prompt", "prompt", "echo", "suffix", "ignore_eos", "cache_prompt", "cache_salt", "role", "content",
    "type", "text", "tool_calls", "function", "name", "arguments", "id", "reasoning", "refusal", "5", "unknown"};
const char* const kStrings[] = {"", "user", "assistant", "system", "tool", "developer", "text", "image_url", "function", "none", "auto", "required",
                                "json_object", "json_schema", "regex", "allowed_tools", "{}", "{\"a\":1}", "{", "hi", "\xC3\xA9"};

// Any JSON, made of the words the parser knows so that it gets past the first check.
JsonValue Draw(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 9 : 6)) {
    case 0: return {};
    case 1: return *rc::gen::arbitrary<bool>();
    case 2: return static_cast<int64_t>(*rc::gen::element<int64_t>(0, 1, -1, 2, 4, 5, 21, 1000, 999, INT64_MAX, INT64_MIN));
    case 3: return *rc::gen::element(0.0, 0.5, 1.0, 1.5, -2.0, 2.1, 1e300, -1e300, 9223372036854775808.0);
    case 4:
    case 5: return std::string(kStrings[*rc::gen::inRange<size_t>(0, std::size(kStrings))]);
    case 6: {
      JsonValue::Array a;
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i) a.push_back(Draw(depth - 1));
      return a;
    }
    default: {
      JsonValue::Object o;
      for (int i = *rc::gen::inRange(0, 6); i > 0; --i) {
        const std::string key = kKeys[*rc::gen::inRange<size_t>(0, std::size(kKeys))];
        if (!JsonValue(o).Find(key)) o.emplace_back(key, Draw(depth - 1));
      }
      return o;
    }
  }
}

void CheckPromises(const ParsedRequest& parsed, const RequestContext& context) {
  if (const auto* e = std::get_if<ApiError>(&parsed)) {
    RC_ASSERT(e->status == 400 || e->status == 404);
    RC_ASSERT(!e->message.empty());
    RC_ASSERT(text::ParseJson(ErrorBody(*e)).ok());
    return;
  }
  const auto& r = std::get<ValidRequest>(parsed);
  RC_ASSERT(r.model == context.served_model);
  RC_ASSERT(r.n >= 1u && r.n <= context.max_n);
  RC_ASSERT(r.sampling.temperature >= 0 && r.sampling.temperature <= 2);
  RC_ASSERT(r.sampling.top_p >= 0 && r.sampling.top_p <= 1);
  RC_ASSERT(r.sampling.top_logprobs <= 20u);
  RC_ASSERT(r.sampling.top_logprobs == 0u || r.sampling.logprobs);
  RC_ASSERT(r.stop.size() <= context.max_stop);
  for (const auto& s : r.stop) RC_ASSERT(!s.empty());
  for (const auto& [id, bias] : r.sampling.logit_bias) RC_ASSERT(id < context.vocab_size && bias >= -100 && bias <= 100);
  RC_ASSERT(!r.include_usage || r.stream);
  RC_ASSERT(!(r.continue_final_message && r.add_generation_prompt));
  RC_ASSERT(r.tools.size() == r.tool_paths.size());
  RC_ASSERT(r.policy.mode != tools::Mode::kRequired || !r.tools.empty());
  // In parentheses: RC_ASSERT evaluates both sides of an || of its own.
  RC_ASSERT((r.template_tools.is_null() || r.template_tools.AsArray().size() == r.tools.size()));
  if (r.route == Route::kCompletions) {
    RC_ASSERT(!r.prompts.empty());
    for (const auto& p : r.prompts) {
      RC_ASSERT((p.is_tokens ? !p.tokens.empty() : !p.text.empty()));
      for (uint32_t id : p.tokens) RC_ASSERT(id < context.vocab_size);
    }
    return;
  }
  RC_ASSERT(!r.messages.AsArray().empty());
  for (const JsonValue& m : r.messages.AsArray()) {
    const std::string& role = m.Find("role")->AsString();
    RC_ASSERT(role == "system" || role == "user" || role == "assistant" || role == "tool");
    const JsonValue* content = m.Find("content");
    RC_ASSERT((content ? content->is_string() : role == "assistant" && m.Find("tool_calls")));
  }
}

RequestContext Context() {
  RequestContext c;
  c.served_model = "served";
  c.vocab_size = 1000;
  return c;
}

TEST_CASE("Arbitrary JSON is accepted with its promises kept or refused with a 4xx") {
  rc::prop("any value", [] {
    const JsonValue body = Draw(4);
    CheckPromises(ParseChatRequest(body, Context()), Context());
    CheckPromises(ParseCompletionsRequest(body, Context()), Context());
  });
}

TEST_CASE("A good request with members replaced by anything") {
  rc::prop("mutated members", [] {
    JsonValue::Object body{{"messages", JsonValue::Array{JsonValue::Object{{"role", "user"}, {"content", "hi"}}}}, {"prompt", "p"}};
    for (int i = *rc::gen::inRange(0, 6); i > 0; --i) {
      const std::string key = kKeys[*rc::gen::inRange<size_t>(0, std::size(kKeys))];
      JsonValue value = Draw(3);
      bool replaced = false;
      for (auto& member : body) {
        if (member.first != key) continue;
        member.second = value;
        replaced = true;
      }
      if (!replaced) body.emplace_back(key, value);
    }
    CheckPromises(ParseChatRequest(body, Context()), Context());
    CheckPromises(ParseCompletionsRequest(body, Context()), Context());
  });
}

TEST_CASE("Bytes of a request changed at random") {
  const std::string good =
      R"({"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"h\u00e9"}]},{"role":"assistant",)"
      R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}],"stop":["a"],"n":2,"seed":-5,)"
      R"("logit_bias":{"5":1.5},"stream":true,"stream_options":{"include_usage":true},"temperature":0.7,"prompt":[[1,2],[3]]})";
  rc::prop("mutated text", [&] {
    std::string bytes = good;
    for (int i = *rc::gen::inRange(1, 5); i > 0; --i) {
      const size_t at = *rc::gen::inRange<size_t>(0, bytes.size());
      switch (*rc::gen::inRange(0, 3)) {
        case 0: bytes[at] = *rc::gen::arbitrary<char>(); break;
        case 1: bytes.erase(at, *rc::gen::inRange<size_t>(1, 8)); break;
        default: bytes.insert(at, 1, *rc::gen::element('"', '{', '}', '[', ']', ',', ':', '0', '-', '\\', 'e')); break;
      }
      if (bytes.empty()) bytes = "0";
    }
    const auto body = text::ParseJson(bytes);
    if (!body.ok()) return;
    CheckPromises(ParseChatRequest(*body, Context()), Context());
    CheckPromises(ParseCompletionsRequest(*body, Context()), Context());
  });
}

}  // namespace
}  // namespace holdfast::api

// /v1/chat/completions, row by row of the conformance table (A-01 ... A-40; B040, B127, B131, B139). Rows that need an engine are elsewhere.
#include "frontend/api/request.h"

#include <catch2/catch.hpp>
#include <string>

namespace holdfast::api {
namespace {

using text::JsonValue;

const char* const kUser = R"("messages":[{"role":"user","content":"hi"}])";

RequestContext Context() {
  RequestContext c;
  c.served_model = "served";
  c.vocab_size = 1000;
  return c;
}

ParsedRequest Parse(const std::string& body, const RequestContext& context = Context()) {
  const auto json = text::ParseJson(body);
  INFO(body);
  REQUIRE(json.ok());
  return ParseChatRequest(*json, context);
}

// Fails the test unless the body is accepted.
ValidRequest Good(const std::string& body, const RequestContext& context = Context()) {
  ParsedRequest r = Parse(body, context);
  INFO(body);
  if (const auto* e = std::get_if<ApiError>(&r)) FAIL("refused: " << e->message);
  return std::get<ValidRequest>(std::move(r));
}

ApiError Bad(const std::string& body, const RequestContext& context = Context()) {
  ParsedRequest r = Parse(body, context);
  INFO(body);
  REQUIRE(std::holds_alternative<ApiError>(r));
  const ApiError& e = std::get<ApiError>(r);
  CHECK(e.status >= 400);
  CHECK(e.status < 500);
  CHECK(e.type == "invalid_request_error");
  CHECK_FALSE(e.message.empty());
  return e;
}

// One more member beside a fine `messages`.
std::string With(const std::string& members) { return std::string("{") + kUser + "," + members + "}"; }
std::string Messages(const std::string& list) { return "{\"messages\":" + list + "}"; }
std::string Normal(const std::string& list) { return Good(Messages(list)).messages.Dump(); }

struct Refused { const char* body; const char* param; };

void CheckRefused(std::initializer_list<Refused> rows) {
  for (const auto& row : rows) {
    INFO(row.body);
    CHECK(Bad(row.body).param == row.param);
  }
}

TEST_CASE("A-01 malformed messages name their path") {
  CheckRefused({
      {"{}", "messages"},
      {R"({"messages":null})", "messages"},
      {R"({"messages":"hi"})", "messages"},
      {R"({"messages":{}})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":[123]})", "messages[0]"},
      {R"({"messages":[null]})", "messages[0]"},
      {R"({"messages":[{}]})", "messages[0].role"},
      {R"({"messages":[{"role":1,"content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":null,"content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":5}]})", "messages[1].content"},
      {R"({"messages":[{"role":"user","content":{"text":"x"}}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":true}]})", "messages[0].content"},
  });
  for (const char* body : {"null", "[]", "\"x\"", "5", "true"}) CHECK(Bad(body).message.find("object") != std::string::npos);
}

TEST_CASE("A-02 an assistant may say nothing") {
  const std::string call = R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}])";
  const std::string normal_call = R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{}}}])";
  CHECK(Normal(R"([{"role":"assistant","content":null,)" + call + "}]") == R"([{"role":"assistant",)" + normal_call + "}]");
  CHECK(Normal(R"([{"role":"assistant",)" + call + "}]") == R"([{"role":"assistant",)" + normal_call + "}]");
  CHECK(Normal(R"([{"role":"assistant","content":"",)" + call + "}]") == R"([{"role":"assistant","content":"",)" + normal_call + "}]");
  CHECK(Normal(R"([{"role":"assistant","content":null}])") == R"([{"role":"assistant","content":""}])");
  CHECK(Normal(R"([{"role":"assistant"}])") == R"([{"role":"assistant","content":""}])");
}

TEST_CASE("A-03 null or absent content of others is 400") {
  CheckRefused({
      {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"system","content":null}]})", "messages[0].content"},
      {R"({"messages":[{"role":"developer"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"tool","content":null}]})", "messages[0].content"},
  });
}

TEST_CASE("A-04 content parts") {
  CHECK(Normal(R"([{"role":"user","content":[{"type":"text","text":"a"}]}])") == R"([{"role":"user","content":"a"}])");
  CHECK(Normal(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])") ==
        R"([{"role":"user","content":"a\nb"}])");
  CHECK(Normal(R"([{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}])") == R"([{"role":"assistant","content":"no"}])");
  CHECK(Normal(R"([{"role":"assistant","content":[]}])") == R"([{"role":"assistant","content":""}])");
  CheckRefused({
      {R"({"messages":[{"role":"user","content":[]}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":["a"]}]})", "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":null}]}]})", "messages[0].content[0].text"},
      {R"({"messages":[{"role":"user","content":[{"text":"a"}]}]})", "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"smell"}]}]})", "messages[0].content[1]"},
  });
  const struct { const char* type; const char* modality; } rows[] = {
      {"image_url", "image"}, {"input_image", "image"}, {"input_audio", "audio"}, {"video_url", "video"}, {"file", "file"}};
  for (const auto& row : rows) {
    const ApiError e = Bad(Messages(R"([{"role":"user","content":[{"type":")" + std::string(row.type) + R"(","x":"file:///etc/passwd"}]}])"));
    CHECK(e.message.find(std::string("no ") + row.modality + " input") != std::string::npos);
  }
}

TEST_CASE("A-05 A-06 A-09 roles and order") {
  CHECK(Normal(R"([{"role":"developer","content":"d"}])") == R"([{"role":"system","content":"d"}])");
  CHECK(Normal(R"([{"role":"tool","tool_call_id":"c1","content":"42"},{"role":"tool","content":[{"type":"text","text":"x"}]}])") ==
        R"([{"role":"tool","content":"42","tool_call_id":"c1"},{"role":"tool","content":"x"}])");
  CHECK(Normal(R"([{"role":"tool","tool_call_id":"c1","name":"f","content":"42"}])") ==
        R"([{"role":"tool","content":"42","name":"f","tool_call_id":"c1"}])");
  CHECK(Bad(Messages(R"([{"role":"tool","tool_call_id":7,"content":"x"}])")).param == "messages[0].tool_call_id");
  CHECK(Bad(Messages(R"([{"role":"function","name":"f","content":"x"}])")).message.find("tool") != std::string::npos);
  Good(Messages(R"([{"role":"system","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"c"},{"role":"user","content":"d"}])"));
  Good(Messages(R"([{"role":"assistant","content":"first"},{"role":"system","content":"middle"},{"role":"user","content":"c"}])"));
}

TEST_CASE("A-07 A-08 tool calls of the history") {
  CHECK(Normal(R"([{"role":"assistant","content":"x","tool_calls":[]}])") == R"([{"role":"assistant","content":"x"}])");
  CHECK(Normal(R"([{"role":"assistant","content":"x","tool_calls":null}])") == R"([{"role":"assistant","content":"x"}])");
  const auto arguments = [](const std::string& json) {
    const JsonValue messages = Good(Messages(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" + json + "}}]}]")).messages;
    return messages.AsArray()[0].Find("tool_calls")->AsArray()[0].Find("function")->Find("arguments")->Dump();
  };
  CHECK(arguments(R"("{\"b\":1,\"a\":0.7}")") == R"({"b":1,"a":0.7})");
  CHECK(arguments(R"({"b":1})") == R"({"b":1})");
  CHECK(arguments(R"("")") == "{}");
  CHECK(arguments("null") == "{}");
  CHECK(arguments(R"("{broken")") == R"("{broken")");
  CHECK(arguments(R"("[1]")") == R"("[1]")");
  CheckRefused({
      {R"({"messages":[{"role":"assistant","tool_calls":{}}]})", "messages[0].tool_calls"},
      {R"({"messages":[{"role":"assistant","tool_calls":[5]}]})", "messages[0].tool_calls[0]"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls[0].function"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})", "messages[0].tool_calls[0].function"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":5,"function":{"name":"f"}}]}]})", "messages[0].tool_calls[0].id"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"type":"x","function":{"name":"f"}}]}]})", "messages[0].tool_calls[0].type"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
  });
}

TEST_CASE("A-10 a last assistant message starts a new turn unless it is to be continued") {
  const std::string prefill = R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":"The"}])";
  CHECK(Good("{" + prefill + "}").add_generation_prompt);
  const ValidRequest r = Good("{" + prefill + R"(,"continue_final_message":true})");
  CHECK(r.continue_final_message);
  CHECK_FALSE(r.add_generation_prompt);
  CHECK_FALSE(Good("{" + prefill + R"(,"add_generation_prompt":false})").add_generation_prompt);
  CHECK(Bad("{" + prefill + R"(,"continue_final_message":true,"add_generation_prompt":true})").param == "continue_final_message");
  CHECK(Bad(With(R"("continue_final_message":true)")).param == "continue_final_message");
}

TEST_CASE("A-20 B040 stop") {
  const auto stop = [](const std::string& json) { return Good(With("\"stop\":" + json)).stop; };
  using Strings = std::vector<std::string>;
  CHECK(stop("null").empty());
  CHECK(stop("\"\"").empty());
  CHECK(stop("[]").empty());
  CHECK(stop("[\"\"]").empty());
  CHECK(stop("\"END\"") == Strings{"END"});
  CHECK(stop(R"(["a","b","c","d"])") == Strings{"a", "b", "c", "d"});
  CHECK(stop(R"(["a","a","é"])") == Strings{"a", "é"});
  CHECK(Bad(With(R"("stop":["a","b","c","d","e"])")).param == "stop");
  CHECK(Bad(With(R"("stop":5)")).param == "stop");
  CHECK(Bad(With(R"("stop":{})")).param == "stop");
  CHECK(Bad(With(R"("stop":["a",5])")).param == "stop[1]");
  CHECK(Bad(With(R"("stop":["a",null])")).param == "stop[1]");
  CHECK(Bad(With("\"stop\":\"" + std::string(1 << 20, 'x') + "\"")).param == "stop");
  std::string thousand = "\"s\"";
  for (int i = 0; i < 999; ++i) thousand += ",\"s\"";
  CHECK(Bad(With("\"stop\":[" + thousand + "]")).param == "stop");
}

TEST_CASE("A-21 the number of tokens") {
  const auto max = [](const std::string& members) { return Good(With(members)).max_tokens; };
  CHECK_FALSE(Good(With("\"x\":1")).max_tokens.has_value());
  CHECK_FALSE(max(R"("max_tokens":null,"max_completion_tokens":null)").has_value());
  CHECK(max(R"("max_tokens":5)") == 5u);
  CHECK(max(R"("max_completion_tokens":7)") == 7u);
  CHECK(max(R"("max_completion_tokens":7,"max_tokens":5)") == 7u);
  CHECK(max(R"("max_tokens":1.0)") == 1u);
  CHECK(max(R"("max_tokens":1000000000)") == 1000000000u);
  CHECK(max(R"("max_tokens":99999999999999999999999999)") == 2147483647u);
  CHECK(max(R"("max_tokens":1e300)") == 2147483647u);
  for (const char* bad : {"0", "-1", "1.5", "\"5\"", "true", "[]", "{}", "-1e300", "-9223372036854775808"}) {
    for (const char* key : {"max_tokens", "max_completion_tokens"}) {
      CHECK(Bad(With("\"" + std::string(key) + "\":" + bad)).param == key);
    }
  }
}

TEST_CASE("A-22 B139 n and best_of") {
  CHECK(Good(With(R"("n":null)")).n == 1);
  CHECK(Good(With(R"("n":128)")).n == 128);
  CHECK(Good(With(R"("n":2.0,"stream":true)")).n == 2);
  for (const char* bad : {"0", "-1", "129", "1000000", "2147483648", "9223372036854775808", "1e30", "\"4\"", "1.5", "true"}) {
    CHECK(Bad(With("\"n\":" + std::string(bad))).param == "n");
    CHECK(Bad(With("\"best_of\":" + std::string(bad))).param == "best_of");
  }
  CHECK(Good(With(R"("best_of":1)")).n == 1);
  Good(With(R"("best_of":null)"));
}

TEST_CASE("A-23 sampling ranges, defaults of the context") {
  RequestContext context = Context();
  context.defaults.temperature = 0.6;
  context.defaults.top_k = 20;
  const ValidRequest plain = Good(With(R"("temperature":null)"), context);
  CHECK(plain.sampling.temperature == 0.6);
  CHECK(plain.sampling.top_k == 20);
  CHECK(plain.sampling.top_p == 1.0);
  const struct { const char* key; std::vector<const char*> good, bad; } rows[] = {
      {"temperature", {"0", "0.0", "1", "2", "2.0", "1e-9"}, {"2.1", "-0.1", "\"0.7\"", "true", "[]"}},
      {"top_p", {"0", "1", "0.5"}, {"1.01", "-0.1", "\"1\"", "{}"}},
      {"min_p", {"0", "1", "0.05"}, {"1.01", "-0.1"}},
      {"top_k", {"-1", "0", "1", "40", "1e9", "99999999999999999999"}, {"-2", "1.5", "\"40\""}},
      {"presence_penalty", {"-2", "2", "0"}, {"2.01", "-2.01", "\"0\""}},
      {"frequency_penalty", {"-2", "2", "0"}, {"2.01", "-2.01"}},
      {"repetition_penalty", {"1", "1.3", "0.5"}, {"0", "-1", "11"}},
  };
  for (const auto& row : rows) {
    for (const char* v : row.good) Good(With("\"" + std::string(row.key) + "\":" + v));
    for (const char* v : row.bad) CHECK(Bad(With("\"" + std::string(row.key) + "\":" + v)).param == row.key);
    Good(With("\"" + std::string(row.key) + "\":null"));
  }
  CHECK(Good(With(R"("top_k":-1)")).sampling.top_k == 0);
  CHECK(Good(With(R"("temperature":0)")).sampling.temperature == 0);
}

TEST_CASE("A-24 B127 seed") {
  const auto seed = [](const std::string& json) { return Good(With("\"seed\":" + json)).sampling.seed; };
  CHECK_FALSE(seed("null").has_value());
  CHECK(seed("0") == uint64_t{0});
  CHECK(seed("42.0") == uint64_t{42});
  CHECK(seed("-1") == ~uint64_t{0});
  CHECK(seed("2147483648") == uint64_t{1} << 31);
  CHECK(seed("9223372036854775807") == (uint64_t{1} << 63) - 1);
  CHECK(seed("-9223372036854775808") == uint64_t{1} << 63);
  for (const char* bad : {"9223372036854775808", "18446744073709551616", "1e30", "-1e30", "1.5", "\"42\"", "true"}) {
    CHECK(Bad(With("\"seed\":" + std::string(bad))).param == "seed");
  }
}

TEST_CASE("A-25 logprobs") {
  CHECK_FALSE(Good(With(R"("logprobs":false,"top_logprobs":0)")).sampling.logprobs);
  CHECK(Good(With(R"("logprobs":true)")).sampling.logprobs);
  CHECK(Good(With(R"("logprobs":true,"top_logprobs":20)")).sampling.top_logprobs == 20);
  CHECK(Bad(With(R"("logprobs":true,"top_logprobs":21)")).param == "top_logprobs");
  CHECK(Bad(With(R"("logprobs":true,"top_logprobs":-1)")).param == "top_logprobs");
  CHECK(Bad(With(R"("top_logprobs":5)")).param == "top_logprobs");
  CHECK(Bad(With(R"("logprobs":false,"top_logprobs":5)")).param == "top_logprobs");
  CHECK(Bad(With(R"("logprobs":1)")).param == "logprobs");
}

TEST_CASE("A-26 B131 logit_bias") {
  const auto bias = Good(With(R"("logit_bias":{"0":-100,"999":100,"5":0.5})")).sampling.logit_bias;
  REQUIRE(bias.size() == 3);
  CHECK(bias[0] == std::pair<uint32_t, float>(0, -100.f));
  CHECK(bias[2] == std::pair<uint32_t, float>(5, 0.5f));
  CHECK(Good(With(R"("logit_bias":{})")).sampling.logit_bias.empty());
  for (const char* bad : {R"({"1000":1})", R"({"-1":1})", R"({"2147483648":1})", R"({"99999999999":1})", R"({"abc":1})", R"({"":1})", R"({"1 ":1})",
                          R"({"01":1})", R"({"+1":1})", R"({"1.0":1})", R"({"1":101})", R"({"1":-101})", R"({"1":"x"})", R"({"1":null})", "[]", "\"x\""}) {
    CHECK(Bad(With("\"logit_bias\":" + std::string(bad))).param == "logit_bias");
  }
  std::string many = "\"0\":1";
  for (int i = 1; i < 10000; ++i) many += ",\"" + std::to_string(i) + "\":1";
  RequestContext large = Context();
  large.vocab_size = 0;
  CHECK(Bad(With("\"logit_bias\":{" + many + "}"), large).param == "logit_bias");
  CHECK(Good(With(R"("logit_bias":{"4294967295":1})"), large).sampling.logit_bias[0].first == 4294967295u);
}

TEST_CASE("A-28 A-30 streaming options and wrong types") {
  CHECK(Good(With(R"("stream":true)")).stream);
  CHECK_FALSE(Good(With(R"("stream":null)")).stream);
  CHECK(Good(With(R"("stream":true,"stream_options":{"include_usage":true})")).include_usage);
  CHECK_FALSE(Good(With(R"("stream":true,"stream_options":{"include_usage":false,"other":1})")).include_usage);
  CHECK_FALSE(Good(With(R"("stream":true,"stream_options":{"include_usage":null})")).include_usage);
  Good(With(R"("stream_options":null)"));
  CHECK(Bad(With(R"("stream_options":{"include_usage":true})")).param == "stream_options");
  CHECK(Bad(With(R"("stream":false,"stream_options":{})")).param == "stream_options");
  CHECK(Bad(With(R"("stream":true,"stream_options":[])")).param == "stream_options");
  CHECK(Bad(With(R"("stream":true,"stream_options":{"include_usage":1})")).param == "stream_options.include_usage");
  CHECK(Bad(With(R"("stream":"true")")).param == "stream");
  CHECK(Bad(With(R"("stream":1)")).param == "stream");
}

TEST_CASE("A-29 unknown fields are ignored, whatever they hold") {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "[";
  deep += std::string(100, ']');
  Good(With(R"("store":true,"metadata":{"a":"b"},"user":"u","service_tier":"auto","prompt_cache_key":"k","safety_identifier":"s",
               "verbosity":"low","web_search_options":{},"guided_json":{},"min_tokens":3,"repetition_detection":null,"x":)" + deep));
  Good(With("\"blob\":\"" + std::string(1 << 20, 'y') + "\""));
}

TEST_CASE("A-31 of duplicate keys the last one counts") {
  CHECK(Good(With(R"("max_tokens":1,"max_tokens":2)")).max_tokens == 2u);
  CHECK(Good(With(R"("max_tokens":"bad","max_tokens":2)")).max_tokens == 2u);
}

TEST_CASE("A-32 the model's name") {
  for (const char* member : {"\"x\":0", "\"model\":null", "\"model\":\"\"", "\"model\":\"gpt-4o\"", "\"model\":\"org/name:tag\"", "\"model\":\"served\""}) {
    CHECK(Good(With(member)).model == "served");
  }
  CHECK(Good(With("\"model\":\"" + std::string(5000, 'm') + "\"")).model == "served");
  CHECK(Bad(With(R"("model":5)")).param == "model");
  RequestContext strict = Context();
  strict.strict_model = true;
  strict.aliases = {"org/alias"};
  CHECK(Good(With(R"("model":"served")"), strict).model == "served");
  CHECK(Good(With(R"("model":"org/alias")"), strict).model == "served");
  CHECK(Bad(With("\"x\":0"), strict).status == 400);
  CHECK(Bad(With("\"model\":null"), strict).status == 400);
  const ApiError e = Bad(With("\"model\":\"" + std::string(5000, 'm') + "\""), strict);
  CHECK(e.status == 404);
  CHECK(e.code == "model_not_found");
  CHECK(e.message.size() < 300);
  CHECK(e.message.find("served") != std::string::npos);
}

TEST_CASE("A-33 template variables, what the server sets is out of reach") {
  CHECK(Good(With(R"("chat_template_kwargs":null)")).template_kwargs.is_null());
  CHECK(Good(With(R"("chat_template_kwargs":{"a":1,"b":[true]})")).template_kwargs.Dump() == R"({"a":1,"b":[true]})");
  CHECK(Good(With(R"("enable_thinking":false,"reasoning_effort":"low")")).template_kwargs.Dump() ==
        R"({"enable_thinking":false,"reasoning_effort":"low"})");
  CHECK(Good(With(R"("enable_thinking":false,"chat_template_kwargs":{"enable_thinking":true})")).template_kwargs.Dump() ==
        R"({"enable_thinking":true})");
  for (const char* name : {"messages", "tools", "add_generation_prompt", "bos_token", "raise_exception", "chat_template"}) {
    CHECK(Bad(With(R"("chat_template_kwargs":{")" + std::string(name) + "\":1}")).param == "chat_template_kwargs");
  }
  CHECK(Bad(With(R"("chat_template_kwargs":[])")).param == "chat_template_kwargs");
  CHECK(Bad(With(R"("enable_thinking":"no")")).param == "enable_thinking");
  CHECK(Bad(With(R"("reasoning_effort":3)")).param == "reasoning_effort");
}

TEST_CASE("A-34 A-35 reasoning is handed on, an SDK's own message objects come back unchanged") {
  CHECK(Normal(R"([{"role":"assistant","content":"a","reasoning_content":"r"}])") ==
        R"([{"role":"assistant","content":"a","reasoning_content":"r"}])");
  CHECK(Normal(R"([{"role":"assistant","content":"a","reasoning":"r"}])") ==
        R"([{"role":"assistant","content":"a","reasoning_content":"r","reasoning":"r"}])");
  CHECK(Normal(R"([{"role":"assistant","content":"a","thinking":"t"}])") == R"([{"role":"assistant","content":"a","thinking":"t"}])");
  CHECK(Normal(R"([{"role":"assistant","content":"a","refusal":null,"audio":null,"annotations":[],"function_call":null,"tool_calls":null,"name":null}])") ==
        R"([{"role":"assistant","content":"a"}])");
  CHECK(Normal(R"([{"role":"assistant","content":null,"refusal":"no"}])") == R"([{"role":"assistant","content":"no"}])");
  CHECK(Normal(R"([{"role":"user","content":"a","name":"bob"}])") == R"([{"role":"user","content":"a"}])");
}

TEST_CASE("A-36 many and large messages") {
  std::string list = "[";
  for (int i = 0; i < 1000; ++i) list += R"({"role":"user","content":"m"},)";
  list += R"({"role":"user","content":")" + std::string(10 << 20, 'x') + "\"}]";
  CHECK(Good(Messages(list)).messages.AsArray().size() == 1001);
  RequestContext few = Context();
  few.max_messages = 1000;
  CHECK(Bad(Messages(list), few).param == "messages");
}

TEST_CASE("B046 text survives as it is") {
  const std::string text = R"(\u0000 \ud83d\ude00 é 日本 <|im_end|> \" \\ \n)";
  const JsonValue messages = Good(Messages(R"([{"role":"user","content":")" + text + "\"}]")).messages;
  CHECK(messages.AsArray()[0].Find("content")->AsString() == std::string("\0", 1) + " \xF0\x9F\x98\x80 é 日本 <|im_end|> \" \\ \n");
  CHECK_FALSE(text::ParseJson(R"({"x":"\ud83d"})").ok());
  CHECK_FALSE(text::ParseJson("{\"x\":\"\xff\"}").ok());
}

TEST_CASE("Extensions") {
  const ValidRequest r = Good(With(R"("ignore_eos":true,"cache_prompt":false,"cache_salt":"tenant")"));
  CHECK(r.ignore_eos);
  CHECK(r.no_cache);
  CHECK(r.cache_salt == "tenant");
  CHECK(r.route == Route::kChat);
  CHECK_FALSE(Good(With("\"cache_prompt\":true")).no_cache);
  CHECK(Bad(With("\"ignore_eos\":1")).param == "ignore_eos");
  CHECK(Bad(With("\"cache_salt\":\"" + std::string(257, 's') + "\"")).param == "cache_salt");
}

}  // namespace
}  // namespace holdfast::api

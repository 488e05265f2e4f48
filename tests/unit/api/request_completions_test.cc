// /v1/completions (A-79, B139, B140) and how errors look (A.0).
#include <catch2/catch.hpp>
#include <string>

#include "frontend/api/error.h"
#include "frontend/api/request.h"

namespace holdfast::api {
namespace {

RequestContext Context() {
  RequestContext c;
  c.served_model = "served";
  c.vocab_size = 1000;
  return c;
}

ParsedRequest Parse(const std::string& body) {
  const auto json = text::ParseJson(body);
  INFO(body);
  REQUIRE(json.ok());
  return ParseCompletionsRequest(*json, Context());
}

ValidRequest Good(const std::string& body) {
  ParsedRequest r = Parse(body);
  INFO(body);
  if (const auto* e = std::get_if<ApiError>(&r)) FAIL("refused: " << e->message);
  return std::get<ValidRequest>(std::move(r));
}

ApiError Bad(const std::string& body) {
  ParsedRequest r = Parse(body);
  INFO(body);
  REQUIRE(std::holds_alternative<ApiError>(r));
  CHECK(std::get<ApiError>(r).status == 400);
  return std::get<ApiError>(r);
}

TEST_CASE("A-79 the four forms of a prompt") {
  const auto text = Good(R"({"prompt":"a"})").prompts;
  REQUIRE(text.size() == 1);
  CHECK(text[0].text == "a");
  CHECK_FALSE(text[0].is_tokens);
  const auto texts = Good(R"({"prompt":["a","b"]})").prompts;
  REQUIRE(texts.size() == 2);
  CHECK(texts[1].text == "b");
  const auto ids = Good(R"({"prompt":[0,999,5]})").prompts;
  REQUIRE(ids.size() == 1);
  CHECK(ids[0].is_tokens);
  CHECK(ids[0].tokens == std::vector<uint32_t>{0, 999, 5});
  const auto lists = Good(R"({"prompt":[[1],[2,3]]})").prompts;
  REQUIRE(lists.size() == 2);
  CHECK(lists[1].tokens == std::vector<uint32_t>{2, 3});
  CHECK(Good(R"({"prompt":"a"})").route == Route::kCompletions);
}

TEST_CASE("B140 prompts that are none") {
  const struct { const char* prompt; const char* param; } rows[] = {
      {"\"\"", "prompt"}, {"[]", "prompt"}, {"[\"\"]", "prompt[0]"}, {"[[]]", "prompt[0]"}, {"[null]", "prompt[0]"}, {"null", "prompt"},
      {"[[-1]]", "prompt[0][0]"}, {"[[2147483648]]", "prompt[0][0]"}, {"[[1000]]", "prompt[0][0]"}, {"[1.5]", "prompt[0]"},
      {"[1,\"a\"]", "prompt[1]"}, {"[\"a\",1]", "prompt[1]"}, {"[\"a\",[1]]", "prompt[1]"}, {"[[1],\"a\"]", "prompt[1]"}, {"[[1],[]]", "prompt[1]"},
      {"[[1],[\"a\"]]", "prompt[1][0]"}, {"[true]", "prompt[0]"}, {"{}", "prompt"}, {"5", "prompt"}, {"[1,99999999999999999999]", "prompt[1]"},
      {"[[[1]]]", "prompt[0][0]"}, {"[{}]", "prompt[0]"},
  };
  for (const auto& row : rows) {
    INFO(row.prompt);
    CHECK(Bad("{\"prompt\":" + std::string(row.prompt) + "}").param == row.param);
  }
  CHECK(Bad("{}").param == "prompt");
  for (const char* body : {"null", "[]", "\"x\""}) Bad(body);
  std::string many = "[\"p\"";
  for (int i = 0; i < 2000; ++i) many += ",\"p\"";
  CHECK(Bad("{\"prompt\":" + many + "]}").param == "prompt");
}

TEST_CASE("A-79 echo, logprobs, max_tokens, suffix, best_of, n") {
  const auto with = [](const std::string& members) { return R"({"prompt":"a",)" + members + "}"; };
  CHECK(Good(R"({"prompt":"a"})").max_tokens == 16u);
  CHECK(Good(with(R"("max_tokens":null)")).max_tokens == 16u);
  CHECK(Good(with(R"("max_tokens":5)")).max_tokens == 5u);
  const ValidRequest eval = Good(with(R"("echo":true,"logprobs":1,"max_tokens":0)"));
  CHECK(eval.echo);
  CHECK(eval.max_tokens == 0u);
  CHECK(eval.sampling.logprobs);
  CHECK(eval.sampling.top_logprobs == 1);
  CHECK(Bad(with(R"("max_tokens":0)")).param == "max_tokens");
  CHECK(Bad(with(R"("echo":true,"max_tokens":-1)")).param == "max_tokens");
  CHECK(Bad(with(R"("echo":"yes")")).param == "echo");
  const ValidRequest zero = Good(with(R"("logprobs":0)"));
  CHECK(zero.sampling.logprobs);
  CHECK(zero.sampling.top_logprobs == 0);
  CHECK_FALSE(Good(with(R"("logprobs":null)")).sampling.logprobs);
  for (const char* bad : {"6", "-1", "true", "\"1\"", "1.5"}) CHECK(Bad(with("\"logprobs\":" + std::string(bad))).param == "logprobs");
  Good(with(R"("suffix":null)"));
  Good(with(R"("suffix":"")"));
  CHECK(Bad(with(R"("suffix":"end")")).param == "suffix");
  Good(with(R"("best_of":1)"));
  CHECK(Bad(with(R"("best_of":2,"n":2)")).param == "best_of");
  CHECK(Good(with(R"("n":3)")).n == 3);
  for (const char* bad : {"0", "-1", "129", "1000000", "9223372036854775808", "\"4\"", "1.5"}) {
    CHECK(Bad(with("\"n\":" + std::string(bad))).param == "n");
  }
  CHECK(Good(with(R"("stream":true,"stream_options":{"include_usage":true},"stop":["x"],"seed":1,"temperature":0)")).include_usage);
  CHECK(Good(with(R"("response_format":{"type":"json_object"})")).response_format.kind == grammar::ResponseFormat::Kind::kJsonObject);
  CHECK(Good(with(R"("guided_regex":"[ab]+")")).response_format.pattern == "[ab]+");
  CHECK(Bad(with(R"("response_format":{"type":"xml"})")).param == "response_format");
}

TEST_CASE("A.0 an error has all four keys, null where empty, and parses") {
  ApiError e = InvalidRequest("say \"no\"\n\xff", "messages[0]");
  CHECK(ErrorBody(e) == "{\"error\":{\"message\":\"say \\\"no\\\"\\n\xEF\xBF\xBD\",\"type\":\"invalid_request_error\",\"param\":\"messages[0]\",\"code\":null}}");
  e = ApiError{};
  e.status = 503;
  e.message = "m";
  e.type = "unavailable_error";
  e.code = "c";
  e.extra = {{"n_prompt_tokens", 10}, {"n_ctx", -5}};
  e.headers = {{"Retry-After", "3"}};
  CHECK(ErrorBody(e) == R"({"error":{"message":"m","type":"unavailable_error","param":null,"code":"c","n_prompt_tokens":10,"n_ctx":-5}})");
  const http::Response r = ErrorResponse(e);
  CHECK(r.status == 503);
  REQUIRE(r.headers.size() == 1);
  CHECK(r.headers[0].name == "Retry-After");
  CHECK(r.content_type == "application/json");
  CHECK(text::ParseJson(r.body).ok());
}

TEST_CASE("Quotes of the client's words are short and whole characters") {
  CHECK(Quoted("abc", 3) == "abc");
  CHECK(Quoted("abcd", 3) == "abc...");
  CHECK(Quoted("aéé", 2) == "a...");
  CHECK(Quoted("éé", 2) == "é...");
  CHECK(Quoted(std::string(10, '\x80'), 4) == "...");
}

}  // namespace
}  // namespace holdfast::api

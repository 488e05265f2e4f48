#include "frontend/api/response.h"

#include <catch2/catch.hpp>
#include <limits>

#include "frontend/api/metrics.h"
#include "frontend/text/json_value.h"

namespace holdfast::api {
namespace {

text::JsonValue Parse(const std::string& json) {
  auto value = text::ParseJson(json);
  INFO(json);
  REQUIRE(value.ok());
  return *value;
}

ResponseHead Head(Route route) {
  ResponseHead head;
  head.route = route;
  head.id = NewResponseId(route);
  head.created = 1700000000;
  head.model = "m/\"x\"";
  head.fingerprint = "fp_1";
  return head;
}

TEST_CASE("A-44 ids are unique and say what they are of") {
  const std::string a = NewResponseId(Route::kChat), b = NewResponseId(Route::kChat);
  CHECK(a != b);
  CHECK(a.rfind("chatcmpl-", 0) == 0);
  CHECK(NewResponseId(Route::kCompletions).rfind("cmpl-", 0) == 0);
}

TEST_CASE("a chat body has every member that SDKs require") {
  ChoiceResult choice;
  choice.text = "say \"hi\"\n\xF0\x9F\x98\x80 data: [DONE]\n\n";
  choice.finish = FinishReason::kLength;
  const auto body = Parse(ResponseBody(Head(Route::kChat), {choice}, {10, 3, 4, 0}));
  CHECK(body.Find("object")->AsString() == "chat.completion");
  CHECK(body.Find("model")->AsString() == "m/\"x\"");
  const auto& one = body.Find("choices")->AsArray()[0];
  CHECK(one.Find("message")->Find("content")->AsString() == choice.text);
  CHECK(one.Find("finish_reason")->AsString() == "length");
  CHECK(one.Find("logprobs")->is_null());
  const auto* usage = body.Find("usage");
  CHECK(usage->Find("total_tokens")->AsInt() == 13);
  CHECK(usage->Find("prompt_tokens_details")->Find("cached_tokens")->AsInt() == 4);
}

TEST_CASE("A-42 A-53 a stream chunk is one line whatever the text, and never has a member named error") {
  ChoiceDelta delta;
  delta.text = "data: [DONE]\n\n\r\n{\"error\":1}";
  const std::string event = DeltaEvents(Head(Route::kChat), 0, delta);
  CHECK(event.rfind("data: ", 0) == 0);
  CHECK(event.find('\n') == event.size() - 2);
  CHECK(event.find('\r') == std::string::npos);
  CHECK(Parse(event.substr(6)).Find("error") == nullptr);
  const auto finish = Parse(FinishChunk(Head(Route::kChat), 1, FinishReason::kStop)).Find("choices")->AsArray()[0];
  CHECK(finish.Find("delta")->AsObject().empty());
  CHECK(finish.Find("finish_reason")->AsString() == "stop");
}

TEST_CASE("B130 log-probabilities of zero and worse are clamped to numbers") {
  ResponseHead head = Head(Route::kChat);
  head.logprobs = true;
  head.top_logprobs = 2;
  TokenInfo info;
  info.bytes = "\xF0\x9F";
  info.logprob = -std::numeric_limits<float>::infinity();
  info.top = {{"a", std::numeric_limits<float>::quiet_NaN()}, {"b", -1e30f}};
  const auto entry = Parse(LogprobsJson(head, {info})).Find("content")->AsArray()[0];
  CHECK(entry.Find("logprob")->AsDouble() == -9999);
  CHECK(entry.Find("bytes")->AsArray().size() == 2);
  for (const auto& top : entry.Find("top_logprobs")->AsArray()) CHECK(top.Find("logprob")->AsDouble() == -9999);
}

TEST_CASE("A-79 completions' logprobs have four lists of one length") {
  ResponseHead head = Head(Route::kCompletions);
  head.logprobs = true;
  head.top_logprobs = 1;
  TokenInfo first, second;
  first.bytes = "Hi";
  second.bytes = "\xC3";
  second.logprob = -1.5f;
  second.top = {{"x", -0.5f}};
  second.text_offset = 2;
  const auto out = Parse(LogprobsJson(head, {first, second}));
  CHECK(out.Find("tokens")->AsArray()[1].AsString() == "bytes:\\xc3");
  CHECK(out.Find("token_logprobs")->AsArray()[0].is_null());
  CHECK(out.Find("token_logprobs")->AsArray()[1].AsDouble() == -1.5);
  CHECK(out.Find("top_logprobs")->AsArray()[0].is_null());
  CHECK(out.Find("top_logprobs")->AsArray()[1].AsObject().size() == 2);  // the best one and the chosen one
  CHECK(out.Find("text_offset")->AsArray()[1].AsInt() == 2);
}

TEST_CASE("A-86 merged metrics describe every family once") {
  const std::string own = "# HELP a_total A\n# TYPE a_total counter\na_total 1\n";
  const std::string engine =
      "# HELP a_total other\n# TYPE a_total counter\na_total 99\n# HELP b B\n# TYPE b histogram\nb_bucket{le=\"+Inf\"} 2\nb_sum 1\nb_count 2\n"
      "garbage\n<html>\n# a comment\nc{x=\"y\"} 3";
  const std::string merged = MergeMetricsText(own, engine);
  CHECK(merged == own + "# HELP b B\n# TYPE b histogram\nb_bucket{le=\"+Inf\"} 2\nb_sum 1\nb_count 2\nc{x=\"y\"} 3\n");
  CHECK(MergeMetricsText(own, "") == own);
}

}  // namespace
}  // namespace holdfast::api

#include <catch2/catch.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "frontend/cli/answer_stream.h"

namespace holdfast::cli {
namespace {

// What was shown, neighbouring pieces of one kind joined.
struct Seen final : AnswerSink {
  std::vector<std::pair<char, std::string>> parts;
  void Add(char kind, std::string_view text) {
    CHECK_FALSE(text.empty());
    if (parts.empty() || parts.back().first != kind || kind == 'c') parts.emplace_back(kind, "");
    parts.back().second += text;
  }
  void OnText(std::string_view text) override { Add('t', text); }
  void OnThought(std::string_view text) override { Add('r', text); }
  void OnCall(std::string_view name) override { Add('c', name); }
  void OnArguments(std::string_view text) override { Add('a', text); }
};

std::string Event(const std::string& delta, const std::string& finish = "null") {
  return R"(data: {"choices":[{"index":0,"delta":)" + delta + R"(,"finish_reason":)" + finish + "}]}\n\n";
}

const std::string kTwoCalls =
    ": keep-alive\n\n" + Event(R"({"role":"assistant","content":""})") + Event(R"({"reasoning_content":"hm"})") + Event(R"({"content":"Let "})") +
    Event("{\"content\":\"me: \xC3\xA9\\n\"}") +
    Event(R"({"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"get_time","arguments":""}}]})") +
    Event(R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]})") + Event(R"({"tool_calls":[{"index":0,"function":{"arguments":"\"Rome\"}"}}]})") +
    Event(R"({"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"get_time","arguments":"{}"}}]})");

TEST_CASE("an answer is the same however its bytes are cut") {
  const std::string whole = kTwoCalls + Event("{}", "\"tool_calls\"") + "data: {\"choices\":[],\"usage\":{\"completion_tokens\":17}}\n\ndata: [DONE]\n\n";
  for (size_t size = 1; size <= whole.size(); size = size < 9 ? size + 1 : size * 2) {
    INFO(size);
    Seen seen;
    AnswerStream answer(&seen);
    for (size_t at = 0; at < whole.size(); at += size) answer.Take(std::string_view(whole).substr(at, size));
    CHECK(seen.parts == std::vector<std::pair<char, std::string>>{
                            {'r', "hm"}, {'t', "Let me: \xC3\xA9\n"}, {'c', "get_time"}, {'a', R"({"city":"Rome"})"}, {'c', "get_time"}, {'a', "{}"}});
    CHECK(answer.finish() == "tool_calls");
    CHECK(answer.completion_tokens() == 17);
    CHECK(answer.Message().Dump() ==
          "{\"role\":\"assistant\",\"content\":\"Let me: \xC3\xA9\\n\",\"tool_calls\":["
          R"({"id":"call_1","type":"function","function":{"name":"get_time","arguments":"{\"city\":\"Rome\"}"}},)"
          R"({"id":"call_2","type":"function","function":{"name":"get_time","arguments":"{}"}}]})");
  }
}

TEST_CASE("calls of an answer that was cut are not to be answered") {
  for (const char* end : {"\"length\"", "null"}) {
    Seen seen;
    AnswerStream answer(&seen);
    answer.Take(kTwoCalls + Event("{}", end));
    CHECK(answer.calls().empty());
    CHECK(answer.Message().Find("tool_calls") == nullptr);
    CHECK(answer.text() == "Let me: \xC3\xA9\n");
  }
}

TEST_CASE("an error in the stream is told in its own words") {
  Seen seen;
  AnswerStream answer(&seen);
  answer.Take(Event(R"({"content":"Hi"})") + "data: {\"error\":{\"message\":\"the engine is gone\",\"code\":null}}\r\n\r\n");
  CHECK(answer.error() == "the engine is gone");
  CHECK(answer.finish().empty());
}

TEST_CASE("events that are none, or of another shape, change nothing") {
  Seen seen;
  AnswerStream answer(&seen);
  answer.Take("data: {\ndata: []\ndata: {\"choices\":null}\ndata: {\"choices\":[{}]}\ndata: {\"choices\":[{\"delta\":{\"content\":7,\"tool_calls\":[{}]}}]}\nnonsense\n\n");
  CHECK(answer.text().empty());
  CHECK(answer.error().empty());
  CHECK(answer.calls().empty());
}

}  // namespace
}  // namespace holdfast::cli

// The per-choice pipeline on its own: what it shows is a function of the ids, however they are portioned.
#include "frontend/choice.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <rapidcheck.h>
#include <string>
#include <utility>
#include <vector>

#include "proto/engine.pb.h"
#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

using api::ChoiceDelta;
using api::ChoiceDeltas;
using api::ChoicePipeline;

std::shared_ptr<const api::ModelView> View() {
  static const auto view = *api::ModelView::Create(TestCard().SerializeAsString());
  return view;
}

proto::Token TokenOf(uint32_t id) {
  proto::Token token;
  token.set_id(id);
  token.set_logprob(-0.5f);
  return token;
}

struct Outcome {
  std::string text;
  std::string logprob_bytes;
  std::vector<std::string> deltas;
  std::vector<uint32_t> offsets;
  bool stopped = false;
};

Outcome RunIds(const std::vector<uint32_t>& ids, std::vector<std::string> stops) {
  ChoicePipeline::Options options;
  options.stop = std::move(stops);
  options.logprobs = true;
  ChoicePipeline pipeline(*View(), std::move(options));
  Outcome out;
  const auto take = [&](const ChoiceDelta& delta) {
    if (!delta.text.empty()) out.deltas.push_back(delta.text);
    out.text += delta.text;
    for (const api::TokenInfo& info : delta.logprobs) {
      out.logprob_bytes += info.bytes;
      out.offsets.push_back(info.text_offset);
    }
  };
  for (const uint32_t id : ids) {
    ChoiceDeltas deltas;
    out.stopped = pipeline.Push(TokenOf(id), &deltas);
    for (const ChoiceDelta& delta : deltas) take(delta);
    if (out.stopped) return out;
  }
  ChoiceDeltas deltas;
  pipeline.Finish(false, &deltas);
  for (const ChoiceDelta& delta : deltas) take(delta);
  return out;
}

TEST_CASE("B033 a stop string is never shown, however the text is cut") {
  const std::string text = "ABCDEFGHIJKLM";
  const Outcome out = RunIds(ByteIds(text), {"DEFGHIJ"});
  CHECK(out.stopped);
  CHECK(out.text == "ABC");
  CHECK(out.logprob_bytes == "ABC");
}

TEST_CASE("B034 text held back as a possible stop string is released at the end") {
  CHECK(RunIds(ByteIds("What X"), {"XYZ"}).text == "What X");
  CHECK(RunIds(ByteIds("What XY"), {"XYZ"}).text == "What XY");
  CHECK(RunIds(ByteIds("What XYZ"), {"XYZ"}).text == "What ");
}

TEST_CASE("B041 a character split over tokens appears once its last byte has come") {
  const Outcome out = RunIds(ByteIds("a\xF0\x9F\x98\x80z"), {});
  CHECK(out.text == "a\xF0\x9F\x98\x80z");
  CHECK(std::find(out.deltas.begin(), out.deltas.end(), "\xF0\x9F\x98\x80") != out.deltas.end());
  CHECK(out.text.find("\xEF\xBF\xBD") == std::string::npos);
  CHECK(out.logprob_bytes == out.text);
  CHECK(out.offsets == std::vector<uint32_t>{0, 1, 1, 1, 1, 2});
}

TEST_CASE("B045 an incomplete character at the end is one replacement character") {
  CHECK(RunIds(ByteIds("ok \xF0\x9F"), {}).text == "ok \xEF\xBF\xBD");
  CHECK(RunIds(ByteIds("\xC3 \xA9"), {}).text == "\xEF\xBF\xBD \xEF\xBF\xBD");
}

TEST_CASE("B045 a stop string of a multibyte character is found over token borders") {
  CHECK(RunIds(ByteIds("caf\xC3\xA9 au lait"), {"\xC3\xA9"}).text == "caf");
}

TEST_CASE("the end token adds neither text nor an entry") {
  const Outcome out = RunIds(Answer("bye"), {});
  CHECK(out.text == "bye");
  CHECK(out.logprob_bytes == "bye");
}

TEST_CASE("entries join to the text, for any bytes and any stop string") {
  const bool held = rc::check([] {
    const std::string text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab\n\xC3\xA9 ")));
    const std::string stop = *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab "))));
    const Outcome out = RunIds(ByteIds(text), {stop});
    // The reference: decode the whole, then cut.
    std::string whole;
    for (const std::string& piece : RunIds(ByteIds(text), {}).deltas) whole += piece;
    const size_t at = whole.find(stop);
    RC_ASSERT(out.text == whole.substr(0, at));
    if (whole == text) RC_ASSERT(out.logprob_bytes == out.text);
  });
  CHECK(held);
}

// ---- with a format: thoughts, text and calls --------------------------------------------------------------------------------------

std::shared_ptr<const api::ModelView> ToolView() {
  static const auto view = *api::ModelView::Create(ToolCard().SerializeAsString());
  return view;
}

const std::vector<tools::Tool>& Tools() {
  static const std::vector<tools::Tool> tools = {{"f", text::JsonValue(), false}, {"g", text::JsonValue(), false}};
  return tools;
}

// What a client has in the end, in the order in which it came.
struct Seen {
  std::string order;            // "r...", "t...", "c0:id:name:arguments!" joined where neighbours are alike
  std::string text, logprob_bytes;
  std::vector<std::string> runs;   // of text without a thought or a call between
  std::string end;
  uint32_t reasoning_tokens = 0;
  bool operator==(const Seen&) const = default;
};

// `portion`: tokens that share their deltas, as one event of the engine brings them.
Seen RunTools(const std::vector<uint32_t>& ids, size_t portion, bool cut, bool parallel = true, std::string stop = "STOP") {
  tools::ParserOptions parser;
  parser.tools = Tools();
  parser.policy.parallel = parallel;
  ChoicePipeline::Options options;
  options.stop = {std::move(stop)};
  options.logprobs = true;
  options.parser = ToolView()->format()->NewParser(parser);
  options.markers = ToolView()->format()->markers();
  options.call_nonce = 17;
  ChoicePipeline pipeline(*ToolView(), std::move(options));
  Seen out;
  char kind = 0;
  uint32_t call = 0;
  const auto add = [&](char what, std::string_view text) {
    if (text.empty()) return;
    if (kind != what) out.order += what;
    if (what == 't' && kind != what) out.runs.emplace_back();
    if (what == 't') out.runs.back() += text;
    kind = what;
    out.order += text;
  };
  const auto take = [&](const ChoiceDeltas& deltas) {
    for (const ChoiceDelta& delta : deltas) {
      add('r', delta.reasoning);
      add('t', delta.text);
      out.text += delta.text;
      for (const api::TokenInfo& info : delta.logprobs) out.logprob_bytes += info.bytes;
      for (const api::ToolCallDelta& one : delta.tool_calls) {
        if (!one.id.empty()) {
          CHECK(one.index == call);
          ++call;
          kind = 0;
          add('c', std::to_string(one.index) + ":" + one.id + ":" + one.name + ":");
        }
        CHECK(one.index + 1 == call);
        CHECK(kind == 'c');
        out.order += one.arguments;
        if (one.complete) out.order += '!';
      }
    }
  };
  bool ended = false;
  for (size_t at = 0; at < ids.size() && !ended; at += portion) {
    ChoiceDeltas deltas;
    for (size_t i = at; i < std::min(at + portion, ids.size()) && !ended; ++i) ended = pipeline.Push(TokenOf(ids[i]), &deltas);
    take(deltas);
  }
  if (!ended) {
    ChoiceDeltas deltas;
    pipeline.Finish(cut, &deltas);
    take(deltas);
  }
  const api::ChoiceEnd end = pipeline.end();
  out.end = std::string(end.reason == api::FinishReason::kStop ? "stop" : end.reason == api::FinishReason::kLength ? "length" : "tool_calls") +
            ":" + end.stop;
  out.reasoning_tokens = pipeline.reasoning_tokens();
  return out;
}

TEST_CASE("thoughts, text and calls come out in their order and with their ends") {
  const Seen seen = RunTools(ToolAnswer("<think>why</think>because<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"
                                        "<tool_call>{\"name\":\"g\",\"arguments\":{\"a\":[1]}}</tool_call>then"), 1, false);
  INFO(seen.order);
  CHECK(seen.order.rfind("rwhytbecausec0:call_", 0) == 0);
  CHECK(seen.order.find(":f:{}!c1:call_") != std::string::npos);
  CHECK(seen.order.find(":g:{\"a\":[1]}!tthen") != std::string::npos);
  CHECK(seen.text == "becausethen");
  CHECK(seen.logprob_bytes == seen.text);
  CHECK(seen.end == "tool_calls:");
  CHECK(seen.reasoning_tokens >= 3);
}

TEST_CASE("the string that stopped a choice is told, and a call before it wins the reason") {
  CHECK(RunTools(ToolAnswer("abc STOP def"), 1, false).end == "stop:STOP");
  const Seen after = RunTools(ToolAnswer("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>xSTOPy"), 1, false);
  CHECK(after.end == "tool_calls:STOP");
  CHECK(after.text == "x");
  CHECK(RunTools(ToolAnswer("abc"), 1, true).end == "length:");
}

TEST_CASE("with one call allowed the choice ends behind it") {
  const std::vector<uint32_t> ids = ToolAnswer("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>");
  CHECK(RunTools(ids, 1, false, false).order.find("c1:") == std::string::npos);
  CHECK(RunTools(ids, 1, false, false).end == "tool_calls:");
  CHECK(RunTools(ids, 1, false, true).order.find("c1:") != std::string::npos);
}

TEST_CASE("what a choice shows follows from its ids, however they are portioned, whatever the model writes") {
  const bool held = rc::check([] {
    const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
        "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\":\"f\",\"arguments\":{\"k\":\"v", "\"}}", "{\"name\": \"g\", \"arguments\": {}}", "STO", "P",
        "a", " ", "\n", "\xC3\xA9", "\xC3", "{", "}"));
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    const std::vector<uint32_t> ids = ToolAnswer(text);
    const bool cut = *rc::gen::arbitrary<bool>(), parallel = *rc::gen::arbitrary<bool>();
    const Seen one = RunTools(ids, 1, cut, parallel);
    const size_t portion = *rc::gen::inRange<size_t>(2, 40);
    const Seen other = RunTools(ids, portion, cut, parallel);
    RC_ASSERT(one.order == other.order);
    RC_ASSERT(one.text == other.text);
    RC_ASSERT(one.logprob_bytes == other.logprob_bytes);
    RC_ASSERT(one.end == other.end);
    RC_ASSERT(one.reasoning_tokens == other.reasoning_tokens);
    for (const std::string& run : one.runs) RC_ASSERT(run.find("STOP") == std::string::npos);
    RC_ASSERT(one.reasoning_tokens <= ids.size());
  });
  CHECK(held);
}

}  // namespace
}  // namespace holdfast::testing

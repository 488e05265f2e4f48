// The event writers of the Responses API and of Anthropic's Messages API: exact events, and the body is what the events add up to, however the
// answer was cut into deltas.
#include <catch2/catch.hpp>
#include <rapidcheck.h>
#include <string>
#include <vector>

#include "frontend/api/anthropic_events.h"
#include "frontend/api/responses_events.h"
#include "frontend/text/json_value.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

JsonValue Parsed(std::string_view json) {
  auto value = text::ParseJson(json);
  INFO(std::string(json));
  REQUIRE(value.ok());
  return *value;
}

struct Event {
  std::string name;
  JsonValue data;
};

std::vector<Event> Frames(std::string_view sse) {
  std::vector<Event> out;
  while (!sse.empty()) {
    const size_t end = sse.find("\n\n");
    REQUIRE(end != std::string_view::npos);
    const std::string_view frame = sse.substr(0, end);
    sse.remove_prefix(end + 2);
    if (frame.front() == ':') continue;
    REQUIRE(frame.substr(0, 7) == "event: ");
    const size_t line = frame.find('\n');
    REQUIRE(frame.substr(line, 7) == "\ndata: ");
    Event event;
    event.name = frame.substr(7, line - 7);
    event.data = Parsed(frame.substr(line + 7));
    CHECK(event.data.Find("type")->AsString() == event.name);
    out.push_back(std::move(event));
  }
  return out;
}

std::string Names(const std::vector<Event>& events) {
  std::string out;
  for (const Event& event : events) out += event.name + "\n";
  return out;
}

ResponseHead Head(const char* id) {
  ResponseHead head;
  head.id = id;
  head.created = 1000;
  head.model = "tiny \"quoted\"";
  return head;
}

JsonValue Mirror() { return Parsed(R"({"instructions":null,"tools":[],"tool_choice":"auto","metadata":{},"temperature":1.0})"); }

ChoiceDelta Text(std::string text) {
  ChoiceDelta delta;
  delta.text = std::move(text);
  return delta;
}
ChoiceDelta Thought(std::string text) {
  ChoiceDelta delta;
  delta.reasoning = std::move(text);
  return delta;
}
ChoiceDelta Call(uint32_t index, std::string id, std::string name, std::string arguments, bool complete) {
  ChoiceDelta delta;
  delta.tool_calls.push_back({index, std::move(id), std::move(name), std::move(arguments), complete});
  return delta;
}
ChoiceEnd Ended(FinishReason reason, std::string stop = "") { return {reason, std::move(stop)}; }
Usage Used() {
  Usage usage;
  usage.prompt_tokens = 10;
  usage.cached_tokens = 4;
  usage.completion_tokens = 6;
  usage.reasoning_tokens = 2;
  return usage;
}

struct Written {
  std::vector<Event> events;
  std::string body;
};

Written WriteResponses(const std::vector<ChoiceDelta>& deltas, const ChoiceEnd& end) {
  ResponsesWriter stream(Head("resp_abc"), Mirror(), true), plain(Head("resp_abc"), Mirror(), false);
  std::string sse = stream.Begin();
  CHECK(plain.Begin().empty());
  for (const ChoiceDelta& delta : deltas) {
    sse += stream.Delta(delta);
    CHECK(plain.Delta(delta).empty());
  }
  sse += stream.End(end);
  CHECK(plain.End(end).empty());
  sse += stream.Done(Used(), 1005);
  CHECK(plain.Done(Used(), 1005).empty());
  CHECK(stream.Body() == plain.Body());
  return {Frames(sse), plain.Body()};
}

Written WriteMessages(const std::vector<ChoiceDelta>& deltas, const ChoiceEnd& end) {
  AnthropicWriter stream(Head("msg_abc"), true), plain(Head("msg_abc"), false);
  Usage prompt = Used();
  prompt.completion_tokens = prompt.reasoning_tokens = 0;
  std::string sse = stream.Begin(prompt);
  for (const ChoiceDelta& delta : deltas) {
    sse += stream.Delta(delta);
    CHECK(plain.Delta(delta).empty());
  }
  sse += stream.End(end);
  CHECK(plain.End(end).empty());
  sse += stream.Done(Used());
  CHECK(plain.Done(Used()).empty());
  return {Frames(sse), plain.Body()};
}

TEST_CASE("A-81 responses: the events of a thought, a text and a call, exactly") {
  const Written w = WriteResponses({Thought("h"), Thought("m"), Text("Hel"), Text("lo\n"), Call(0, "call_1", "f", "", false), Call(0, "", "", "{\"x\":", false),
                                    Call(0, "", "", "1}", true)},
                                   Ended(FinishReason::kToolCalls));
  CHECK(Names(w.events) ==
        "response.created\nresponse.in_progress\n"
        "response.output_item.added\nresponse.content_part.added\nresponse.reasoning_text.delta\nresponse.reasoning_text.delta\n"
        "response.reasoning_text.done\nresponse.content_part.done\nresponse.output_item.done\n"
        "response.output_item.added\nresponse.content_part.added\nresponse.output_text.delta\nresponse.output_text.delta\n"
        "response.output_text.done\nresponse.content_part.done\nresponse.output_item.done\n"
        "response.output_item.added\nresponse.function_call_arguments.delta\nresponse.function_call_arguments.delta\n"
        "response.function_call_arguments.done\nresponse.output_item.done\n"
        "response.completed\n");
  for (size_t i = 0; i < w.events.size(); ++i) CHECK(w.events[i].data.Find("sequence_number")->AsInt() == static_cast<int64_t>(i));
  for (const size_t i : {0, 1}) {
    const JsonValue& response = *w.events[i].data.Find("response");
    CHECK(response.Find("status")->AsString() == "in_progress");
    CHECK(response.Find("output")->AsArray().empty());
    CHECK(response.Find("usage")->is_null());
    CHECK(response.Find("completed_at")->is_null());
    CHECK(response.Find("tool_choice")->AsString() == "auto");
    CHECK(response.Find("model")->AsString() == "tiny \"quoted\"");
  }
  CHECK(w.events[11].data.Dump() ==
        R"({"type":"response.output_text.delta","sequence_number":11,"item_id":"msg_abc01","output_index":1,"content_index":0,"delta":"Hel","logprobs":[]})");
  CHECK(w.events[16].data.Find("item")->Dump() ==
        R"({"id":"fc_abc02","type":"function_call","status":"in_progress","arguments":"","call_id":"call_1","name":"f"})");
  CHECK(w.events[19].data.Find("arguments")->AsString() == R"({"x":1})");
  const JsonValue& last = *w.events.back().data.Find("response");
  CHECK(last.Dump() == Parsed(w.body).Dump());
  CHECK(last.Find("status")->AsString() == "completed");
  CHECK(last.Find("completed_at")->AsInt() == 1005);
  CHECK(last.Find("usage")->Dump() ==
        R"({"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":6,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":16})");
  const JsonValue::Array& output = last.Find("output")->AsArray();
  REQUIRE(output.size() == 3);
  CHECK(output[0].Find("content")->AsArray()[0].Find("text")->AsString() == "hm");
  CHECK(output[1].Find("content")->AsArray()[0].Find("text")->AsString() == "Hello\n");
  CHECK(output[2].Find("arguments")->AsString() == R"({"x":1})");
}

TEST_CASE("responses: an answer that was cut is incomplete, and a cut call is never told as done") {
  const Written text = WriteResponses({Text("half")}, Ended(FinishReason::kLength));
  CHECK(text.events.back().name == "response.incomplete");
  const JsonValue body = Parsed(text.body);
  CHECK(body.Find("status")->AsString() == "incomplete");
  CHECK(body.Find("incomplete_details")->Find("reason")->AsString() == "max_output_tokens");
  CHECK(body.Find("output")->AsArray()[0].Find("status")->AsString() == "incomplete");

  const Written call = WriteResponses({Call(0, "call_1", "f", "{\"x\":", false)}, Ended(FinishReason::kLength));
  CHECK(Names(call.events).find("arguments.done") == std::string::npos);
  CHECK(Names(call.events).find("output_item.done") == std::string::npos);
  CHECK(Parsed(call.body).Find("output")->AsArray()[0].Find("status")->AsString() == "incomplete");

  const Written both = WriteResponses({Call(0, "call_1", "f", "{}", true), Text("and")}, Ended(FinishReason::kLength));
  CHECK(Parsed(both.body).Find("output")->AsArray()[0].Find("status")->AsString() == "completed");
  CHECK(Parsed(both.body).Find("output")->AsArray()[1].Find("status")->AsString() == "incomplete");
}

TEST_CASE("responses: an error in mid-stream ends it as failed") {
  ResponsesWriter writer(Head("resp_abc"), Mirror(), true);
  std::string sse = writer.Begin() + writer.Delta(Text("half"));
  ApiError error;
  error.status = 503;
  error.message = "gone";
  error.code = "engine_unavailable";
  const std::vector<Event> events = Frames(sse + writer.Fail(error));
  CHECK(events.back().name == "response.failed");
  const JsonValue& response = *events.back().data.Find("response");
  CHECK(response.Find("status")->AsString() == "failed");
  CHECK(response.Find("error")->Dump() == R"({"code":"engine_unavailable","message":"gone"})");
  CHECK(response.Find("output")->AsArray()[0].Find("status")->AsString() == "incomplete");
  CHECK(events.back().data.Find("sequence_number")->AsInt() == static_cast<int64_t>(events.size()) - 1);
}

TEST_CASE("responses: silence is a comment, and every minute an event") {
  ResponsesWriter writer(Head("resp_abc"), Mirror(), true);
  const size_t before = Frames(writer.Begin()).size();
  for (int i = 1; i <= 12; ++i) {
    const std::string said = writer.Silence();
    CHECK(said.empty() == false);
    CHECK((said.front() == ':') == (i % 6 != 0));
  }
  const std::vector<Event> events = Frames(writer.Delta(Text("x")));
  CHECK(events.front().data.Find("sequence_number")->AsInt() == static_cast<int64_t>(before) + 2);
}

TEST_CASE("responses: token probabilities travel with the text") {
  ResponseHead head = Head("resp_abc");
  head.logprobs = true;
  head.top_logprobs = 1;
  ResponsesWriter writer(head, Mirror(), true);
  ChoiceDelta delta = Text("ab");
  TokenInfo info;
  info.bytes = "ab";
  info.logprob = -0.5f;
  info.top.push_back({"ab", -0.5f});
  info.top.push_back({"c", -2.0f});
  delta.logprobs.push_back(info);
  const std::vector<Event> events = Frames(writer.Begin() + writer.Delta(delta) + writer.End(Ended(FinishReason::kStop)) + writer.Done(Used(), 1001));
  const std::string expected =
      R"([{"token":"ab","logprob":-0.5,"bytes":[97,98],"top_logprobs":[{"token":"ab","logprob":-0.5,"bytes":[97,98]}]}])";
  CHECK(events[4].data.Find("logprobs")->Dump() == expected);
  CHECK(Parsed(writer.Body()).Find("output")->AsArray()[0].Find("content")->AsArray()[0].Find("logprobs")->Dump() == expected);
}

TEST_CASE("A-82 messages: the events of a thought, a text and two calls, exactly") {
  const Written w = WriteMessages({Thought("hm"), Text("Hel"), Text("lo"), Call(0, "call_1", "f", "{\"x\":", false), Call(0, "", "", "1}", true),
                                   Call(1, "call_2", "g", "{}", true)},
                                  Ended(FinishReason::kToolCalls));
  CHECK(Names(w.events) ==
        "message_start\n"
        "content_block_start\ncontent_block_delta\ncontent_block_delta\ncontent_block_stop\n"
        "content_block_start\ncontent_block_delta\ncontent_block_delta\ncontent_block_stop\n"
        "content_block_start\ncontent_block_delta\ncontent_block_delta\ncontent_block_stop\n"
        "content_block_start\ncontent_block_delta\ncontent_block_stop\n"
        "message_delta\nmessage_stop\n");
  const JsonValue& message = *w.events[0].data.Find("message");
  CHECK(message.Find("id")->AsString() == "msg_abc");
  CHECK(message.Find("usage")->Dump() == R"({"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":0})");
  CHECK(w.events[1].data.Dump() ==
        R"({"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}})");
  CHECK(w.events[3].data.Find("delta")->Find("type")->AsString() == "signature_delta");
  CHECK(w.events[6].data.Dump() == R"({"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hel"}})");
  CHECK(w.events[9].data.Dump() ==
        R"({"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}})");
  CHECK(w.events[10].data.Dump() ==
        R"({"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"x\":"}})");
  const Event& end = w.events[w.events.size() - 2];
  CHECK(end.data.Find("delta")->Dump() == R"({"stop_reason":"tool_use","stop_sequence":null})");
  CHECK(end.data.Find("usage")->Find("output_tokens")->AsInt() == 6);
  CHECK(w.events.back().data.Dump() == R"({"type":"message_stop"})");
  const JsonValue body = Parsed(w.body);
  REQUIRE(body.Find("content")->AsArray().size() == 4);
  CHECK(body.Find("content")->AsArray()[0].Find("signature")->AsString() ==
        w.events[3].data.Find("delta")->Find("signature")->AsString());
  CHECK(body.Find("content")->AsArray()[2].Find("input")->Dump() == R"({"x":1})");
  CHECK(body.Find("content")->AsArray()[3].Find("id")->AsString() == "toolu_2");
}

TEST_CASE("messages: why it ended") {
  const auto end = [](const ChoiceEnd& how) {
    const JsonValue body = Parsed(WriteMessages({Text("x")}, how).body);
    return body.Find("stop_reason")->Dump() + body.Find("stop_sequence")->Dump();
  };
  CHECK(end(Ended(FinishReason::kStop)) == R"("end_turn"null)");
  CHECK(end(Ended(FinishReason::kStop, "EN\"D")) == R"("stop_sequence""EN\"D")");
  CHECK(end(Ended(FinishReason::kLength)) == R"("max_tokens"null)");
  CHECK(end(Ended(FinishReason::kToolCalls)) == R"("tool_use"null)");
}

TEST_CASE("messages: a cut call has no input in the body, and an empty answer no block") {
  const JsonValue cut = Parsed(WriteMessages({Call(0, "call_1", "f", "{\"x\":", false)}, Ended(FinishReason::kLength)).body);
  CHECK(cut.Find("content")->AsArray()[0].Find("input")->Dump() == "{}");
  CHECK(cut.Find("stop_reason")->AsString() == "max_tokens");
  CHECK(Parsed(WriteMessages({}, Ended(FinishReason::kStop)).body).Find("content")->AsArray().empty());
}

TEST_CASE("messages: errors have their own shape and statuses") {
  ApiError full;
  full.status = 429;
  full.type = "overloaded_error";
  full.message = "full";
  full.headers.emplace_back("Retry-After", "2");
  const http::Response response = AnthropicErrorResponse(full, "req-1");
  CHECK(response.status == 529);
  CHECK(Parsed(response.body).Dump() == R"({"type":"error","error":{"type":"overloaded_error","message":"full"},"request_id":"req-1"})");
  REQUIRE(response.headers.size() == 2);
  CHECK(response.headers[0].name == "Retry-After");
  CHECK(response.headers[1].value == "req-1");
  const std::pair<int, const char*> kTypes[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {404, "not_found_error"},
                                                {413, "request_too_large"},     {429, "rate_limit_error"},     {503, "api_error"}};
  for (const auto& [status, type] : kTypes) {
    ApiError error;
    error.status = status;
    CHECK(AnthropicErrorResponse(error, "").status == status);
    CHECK(Parsed(AnthropicErrorBody(error, "")).Find("error")->Find("type")->AsString() == type);
  }
  AnthropicWriter writer(Head("msg_abc"), true);
  CHECK(Frames(writer.Fail(full, "req-1")).front().name == "error");
  CHECK(Frames(writer.Silence()).front().data.Dump() == R"({"type":"ping"})");
}

// ---- the property -------------------------------------------------------------------------------------------------------

// An answer as the model wrote it: thoughts, texts and calls in an order.
struct Part {
  enum Kind { kThought, kText, kCall } kind;
  std::string text;
};

// Joins events to the output they tell, as a client does.
std::string FoldResponses(const std::vector<Event>& events) {
  struct Item {
    JsonValue begun;
    std::string text;
  };
  std::vector<Item> items;
  for (const Event& event : events) {
    if (event.name == "response.output_item.added") {
      RC_ASSERT(event.data.Find("output_index")->AsInt() == static_cast<int64_t>(items.size()));
      items.push_back({*event.data.Find("item"), ""});
    }
    if (event.name.size() > 6 && event.name.substr(event.name.size() - 6) == ".delta") {
      RC_ASSERT(event.data.Find("item_id")->AsString() == items.at(event.data.Find("output_index")->AsInt()).begun.Find("id")->AsString());
      items.at(event.data.Find("output_index")->AsInt()).text += event.data.Find("delta")->AsString();
    }
  }
  std::string out;
  for (const Item& item : items) out += item.begun.Find("type")->AsString() + ":" + item.begun.Find("id")->AsString() + ":" + item.text + ";";
  return out;
}

std::string FlatResponse(const JsonValue& body) {
  std::string out;
  for (const JsonValue& item : body.Find("output")->AsArray()) {
    const JsonValue* arguments = item.Find("arguments");
    const std::string& text = arguments ? arguments->AsString() : item.Find("content")->AsArray()[0].Find("text")->AsString();
    out += item.Find("type")->AsString() + ":" + item.Find("id")->AsString() + ":" + text + ";";
  }
  return out;
}

std::string FoldMessages(const std::vector<Event>& events) {
  std::vector<std::string> blocks, tails;
  for (const Event& event : events) {
    if (event.name == "content_block_start") {
      const JsonValue& block = *event.data.Find("content_block");
      blocks.push_back(block.Find("type")->AsString() + ":" + (block.Find("id") ? block.Find("id")->AsString() : "") + ":");
    } else if (event.name == "content_block_delta") {
      const JsonValue& delta = *event.data.Find("delta");
      RC_ASSERT(event.data.Find("index")->AsInt() == static_cast<int64_t>(blocks.size()) - 1);
      for (const char* key : {"text", "thinking", "partial_json"}) {
        if (delta.Find(key)) blocks.back() += delta.Find(key)->AsString();
      }
    }
  }
  std::string out;
  for (const std::string& block : blocks) out += block + ";";
  return out;
}

std::string FlatMessage(const JsonValue& body) {
  std::string out;
  for (const JsonValue& block : body.Find("content")->AsArray()) {
    out += block.Find("type")->AsString() + ":" + (block.Find("id") ? block.Find("id")->AsString() : "") + ":";
    for (const char* key : {"text", "thinking"}) {
      if (block.Find(key)) out += block.Find(key)->AsString();
    }
    if (block.Find("input")) out += block.Find("input")->Dump();
    out += ";";
  }
  return out;
}

TEST_CASE("however an answer is cut, events add up to the body and bodies are equal") {
  CHECK(rc::check([] {
    std::vector<Part> parts;
    const int count = *rc::gen::inRange(0, 6);
    for (int i = 0; i < count; ++i) {
      const auto kind = static_cast<Part::Kind>(*rc::gen::inRange(0, 3));
      const std::string letters = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab\"\\\n{}\x01")));
      // Neighbours of one kind are one part.
      if (kind != Part::kCall && !parts.empty() && parts.back().kind == kind) continue;
      if (kind == Part::kCall) parts.push_back({kind, JsonValue(JsonValue::Object{{"a", letters}}).Dump()});
      else if (!letters.empty()) parts.push_back({kind, letters});
    }
    // The same answer in pieces of random lengths; thoughts, texts and calls that follow each other in that order may share a delta.
    const auto cut = [&] {
      std::vector<ChoiceDelta> deltas;
      uint32_t index = 0;
      int stage = 3;
      const auto next = [&](int kind) -> ChoiceDelta& {
        const bool join = !deltas.empty() && kind > stage && *rc::gen::arbitrary<bool>();
        if (!join) deltas.emplace_back();
        stage = kind;
        return deltas.back();
      };
      for (const Part& part : parts) {
        size_t at = 0;
        bool first = true;
        do {
          const size_t length = std::min<size_t>(*rc::gen::inRange<size_t>(1, 9), part.text.size() - at);
          const std::string piece = part.text.substr(at, length);
          at += length;
          ChoiceDelta& delta = next(part.kind);
          if (part.kind == Part::kThought) delta.reasoning = piece;
          if (part.kind == Part::kText) delta.text = piece;
          if (part.kind == Part::kCall) {
            ToolCallDelta call;
            call.index = index;
            if (first) call.id = "call_" + std::to_string(index), call.name = "f";
            call.arguments = piece;
            call.complete = at == part.text.size();
            delta.tool_calls.push_back(std::move(call));
          }
          first = false;
        } while (at < part.text.size());
        if (part.kind == Part::kCall) ++index;
      }
      return deltas;
    };
    const ChoiceEnd end = Ended(static_cast<FinishReason>(*rc::gen::inRange(0, 3)));
    const Written a = WriteResponses(cut(), end), b = WriteResponses(cut(), end);
    RC_ASSERT(a.body == b.body);
    RC_ASSERT(FoldResponses(a.events) == FlatResponse(Parsed(a.body)));
    RC_ASSERT(FoldResponses(b.events) == FoldResponses(a.events));
    RC_ASSERT(a.events.back().data.Find("response")->Dump() == Parsed(a.body).Dump());
    const Written c = WriteMessages(cut(), end), d = WriteMessages(cut(), end);
    RC_ASSERT(c.body == d.body);
    RC_ASSERT(FoldMessages(c.events) == FlatMessage(Parsed(c.body)));
    RC_ASSERT(FoldMessages(d.events) == FoldMessages(c.events));
  }));
}

}  // namespace
}  // namespace holdfast::api

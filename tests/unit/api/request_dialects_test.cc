// Bodies of the Responses API and of Anthropic's Messages API become the chat request they mean, or a 400 that names the client's own field.
#include <catch2/catch.hpp>
#include <string>

#include "frontend/api/request.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

RequestContext Context() {
  RequestContext context;
  context.served_model = "served";
  context.vocab_size = 1000;
  return context;
}

JsonValue Parsed(const std::string& json) {
  auto value = text::ParseJson(json);
  INFO(json);
  REQUIRE(value.ok());
  return *value;
}

using Mapper = ParsedRequest (*)(const JsonValue&, const RequestContext&);

ValidRequest Good(Mapper mapper, const std::string& json) {
  ParsedRequest parsed = mapper(Parsed(json), Context());
  if (const auto* error = std::get_if<ApiError>(&parsed)) FAIL(json << "\n" << error->message);
  return std::get<ValidRequest>(std::move(parsed));
}

ApiError Bad(Mapper mapper, const std::string& json) {
  ParsedRequest parsed = mapper(Parsed(json), Context());
  INFO(json);
  REQUIRE(std::holds_alternative<ApiError>(parsed));
  ApiError error = std::get<ApiError>(std::move(parsed));
  CHECK(error.status == 400);
  CHECK_FALSE(error.message.empty());
  return error;
}

ValidRequest Responses(const std::string& json) { return Good(ParseResponsesRequest, json); }
ValidRequest Messages(const std::string& json) { return Good(ParseMessagesRequest, json); }

// "input":... inside a whole body.
std::string Input(const std::string& input) { return R"({"input":)" + input + "}"; }
std::string Turns(const std::string& messages) { return R"({"max_tokens":5,"messages":)" + messages + "}"; }

TEST_CASE("A-81 responses: a string and items become messages") {
  const ValidRequest one = Responses(R"({"input":"Hi","instructions":"Be brief.","max_output_tokens":7,"temperature":0.5,"stream":true})");
  CHECK(one.messages.Dump() == R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])");
  CHECK(one.route == Route::kResponses);
  CHECK(one.input_param == "input");
  CHECK(one.max_tokens == 7u);
  CHECK(one.sampling.temperature == 0.5);
  CHECK(one.stream);
  CHECK(one.model == "served");
  const ValidRequest items = Responses(Input(
      R"([{"role":"user","content":"a"},{"type":"message","role":"developer","content":[{"type":"input_text","text":"D"}]},
          {"type":"message","role":"user","content":[{"type":"input_text","text":"b"},{"type":"input_text","text":"c"}]},
          {"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"d","annotations":[]}]}])"));
  CHECK(items.messages.Dump() ==
        R"([{"role":"system","content":"D"},{"role":"user","content":"a"},{"role":"user","content":"b\nc"},{"role":"assistant","content":"d"}])");
}

TEST_CASE("responses: what belongs to one turn becomes one assistant message") {
  const ValidRequest r = Responses(Input(
      R"([{"role":"user","content":"go"},
          {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"no"}],"content":[{"type":"reasoning_text","text":"hm"}]},
          {"type":"message","role":"assistant","content":"I will"},
          {"type":"function_call","id":"fc_1","call_id":"call_a","name":"f","arguments":"{\"x\":1}"},
          {"type":"function_call","call_id":"call_b","name":"g","arguments":"{}"},
          {"type":"function_call_output","call_id":"call_a","output":"A"},
          {"type":"function_call_output","call_id":"call_b","output":[{"type":"input_text","text":"B1"},{"type":"input_text","text":"B2"}]},
          {"type":"web_search_call","id":"ws_1","status":"completed"},
          {"type":"reasoning","encrypted_content":"xx","summary":[]},
          {"role":"user","content":"and?"}])"));
  const JsonValue::Array& messages = r.messages.AsArray();
  REQUIRE(messages.size() == 5);
  CHECK(messages[1].Find("content")->AsString() == "I will");
  CHECK(messages[1].Find("reasoning_content")->AsString() == "hm");
  const JsonValue::Array& calls = messages[1].Find("tool_calls")->AsArray();
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].Find("id")->AsString() == "call_a");
  CHECK(calls[0].Find("function")->Find("arguments")->Dump() == R"({"x":1})");
  CHECK(messages[2].Find("content")->AsString() == "A");
  CHECK(messages[2].Find("tool_call_id")->AsString() == "call_a");
  CHECK(messages[2].Find("name")->AsString() == "f");
  CHECK(messages[3].Find("content")->AsString() == "B1\nB2");
  CHECK(messages[3].Find("name")->AsString() == "g");
  CHECK(messages[4].Find("role")->AsString() == "user");
}

TEST_CASE("responses: two texts of the assistant are two messages, and a thought alone is none") {
  const ValidRequest r = Responses(Input(
      R"([{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"assistant","content":"b"},
          {"type":"reasoning","content":[{"type":"reasoning_text","text":"lost"}]},{"role":"user","content":"v"}])"));
  CHECK(r.messages.AsArray().size() == 4);
  CHECK(r.messages.Dump().find("lost") == std::string::npos);
}

TEST_CASE("responses: an agent's probe has no input and wants one token") {
  for (const char* input : {"[]", R"("")"}) {
    const ValidRequest r = Responses(R"({"model":"m","input":)" + std::string(input) + R"(,"max_output_tokens":1,"store":false})");
    CHECK(r.messages.Dump() == R"([{"role":"user","content":""}])");
    CHECK(r.max_tokens == 1u);
  }
}

TEST_CASE("responses: what needs a store is refused, and says what to do") {
  const ApiError previous = Bad(ParseResponsesRequest, R"({"input":"x","previous_response_id":"resp_1"})");
  CHECK(previous.param == "previous_response_id");
  CHECK(previous.message.find("whole conversation") != std::string::npos);
  CHECK(Bad(ParseResponsesRequest, R"({"input":"x","background":true})").param == "background");
  CHECK(Bad(ParseResponsesRequest, R"({"input":"x","conversation":"conv_1"})").param == "conversation");
  CHECK(Bad(ParseResponsesRequest, R"({"input":"x","prompt":{"id":"pmpt_1"}})").param == "prompt");
  CHECK(Bad(ParseResponsesRequest, Input(R"([{"type":"item_reference","id":"msg_1"}])")).param == "input[0]");
  Responses(R"({"input":"x","previous_response_id":null,"background":false,"store":true,"truncation":"auto"})");
}

TEST_CASE("responses: errors name the client's fields") {
  const auto param = [](const std::string& json) { return Bad(ParseResponsesRequest, json).param; };
  CHECK(param("{}") == "input");
  CHECK(param(Input("7")) == "input");
  CHECK(param(Input(R"([7])")) == "input[0]");
  CHECK(param(Input(R"([{"role":"user"}])")) == "input[0].content");
  CHECK(param(Input(R"([{"role":"user","content":7}])")) == "input[0].content");
  CHECK(param(Input(R"([{"role":"king","content":"x"}])")) == "input[0].role");
  CHECK(param(Input(R"([{"role":"user","content":[{"type":"input_text"}]}])")) == "input[0].content[0].text");
  CHECK(param(Input(R"([{"type":"function_call","name":"f","arguments":"{}"}])")) == "input[0].call_id");
  CHECK(param(Input(R"([{"type":"function_call","call_id":"c","name":"f","arguments":{}}])")) == "input[0].arguments");
  CHECK(param(Input(R"([{"type":"function_call_output","call_id":"c"}])")) == "input[0].output");
  CHECK(param(R"({"input":"x","max_output_tokens":"5"})") == "max_output_tokens");
  CHECK(param(R"({"input":"x","max_output_tokens":0})") == "max_output_tokens");
  CHECK(param(R"({"input":"x","temperature":"hot"})") == "temperature");
  CHECK(param(R"({"input":"x","instructions":7})") == "instructions");
  CHECK(param(R"({"input":"x","stream":"yes"})") == "stream");
  CHECK(param(R"({"input":"x","tools":{}})") == "tools");
  CHECK(param(R"({"input":"x","tools":[{"name":"f"}]})") == "tools[0]");
  CHECK(param(R"({"input":"x","reasoning":"much"})") == "reasoning");
  CHECK(param(R"({"input":"x","reasoning":{"effort":7}})") == "reasoning.effort");
  CHECK(param(R"({"input":"x","text":[]})") == "text");
  CHECK(param(R"({"input":"x","top_logprobs":21})") == "top_logprobs");
  const ApiError image = Bad(ParseResponsesRequest, Input(R"([{"role":"user","content":[{"type":"input_image","image_url":"data:"}]}])"));
  CHECK(image.param == "input[0].content[0]");
  CHECK(image.message.find("image") != std::string::npos);
  const ApiError effort = Bad(ParseResponsesRequest, R"({"input":"x","reasoning":{"effort":7}})");
  CHECK(effort.message.find("'reasoning.effort'") != std::string::npos);
}

TEST_CASE("A-82 messages: turns and blocks become messages") {
  const ValidRequest r = Messages(
      R"({"max_tokens":9,"system":[{"type":"text","text":"x-anthropic-billing-header: cc=1;"},{"type":"text","text":"S1","cache_control":{"type":"ephemeral"}},
          {"type":"text","text":"S2"}],"stop_sequences":["END"],"metadata":{"user_id":"u"},"top_k":5,"messages":[
          {"role":"user","content":"go"},
          {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"z"},
             {"type":"text","text":"I will"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"x":1}},
             {"type":"tool_use","id":"toolu_2","name":"g","input":{}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"A"},
             {"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"B1"},{"type":"text","text":"B2"}],"is_error":true},
             {"type":"text","text":"and?"},{"type":"text","text":"more"}]}]})");
  CHECK(r.route == Route::kMessages);
  CHECK(r.max_tokens == 9u);
  CHECK(r.stop == std::vector<std::string>{"END"});
  CHECK(r.sampling.top_k == 5);
  const JsonValue::Array& messages = r.messages.AsArray();
  REQUIRE(messages.size() == 6);
  CHECK(messages[0].Dump() == R"({"role":"system","content":"S1\nS2"})");
  CHECK(messages[2].Find("reasoning_content")->AsString() == "hm");
  CHECK(messages[2].Find("content")->AsString() == "I will");
  CHECK(messages[2].Find("tool_calls")->AsArray().size() == 2);
  CHECK(messages[2].Find("tool_calls")->AsArray()[0].Find("function")->Find("arguments")->Dump() == R"({"x":1})");
  CHECK(messages[3].Find("content")->AsString() == "A");
  CHECK(messages[3].Find("name")->AsString() == "f");
  CHECK(messages[4].Find("content")->AsString() == "Error: B1\nB2");
  CHECK(messages[4].Find("tool_call_id")->AsString() == "toolu_2");
  CHECK(messages[5].Dump() == R"({"role":"user","content":"and?\nmore"})");
  CHECK(r.add_generation_prompt);
  CHECK_FALSE(r.continue_final_message);
}

TEST_CASE("messages: words of the assistant's at the end are continued, calls are not") {
  CHECK(Messages(Turns(R"([{"role":"user","content":"u"},{"role":"assistant","content":"So"}])")).continue_final_message);
  CHECK_FALSE(
      Messages(Turns(R"([{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}])"))
          .continue_final_message);
}

TEST_CASE("messages: errors name the client's fields") {
  const auto param = [](const std::string& json) { return Bad(ParseMessagesRequest, json).param; };
  CHECK(param(R"({"messages":[{"role":"user","content":"u"}]})") == "max_tokens");
  CHECK(param(R"({"max_tokens":0,"messages":[{"role":"user","content":"u"}]})") == "max_tokens");
  CHECK(param(R"({"max_tokens":5})") == "messages");
  CHECK(param(Turns("[]")) == "messages");
  CHECK(param(Turns("[7]")) == "messages[0]");
  CHECK(param(Turns(R"([{"role":"tool","content":"x"}])")) == "messages[0].role");
  CHECK(param(Turns(R"([{"role":"user"}])")) == "messages[0].content");
  CHECK(param(Turns(R"([{"role":"user","content":[]}])")) == "messages[0].content");
  CHECK(param(Turns(R"([{"role":"user","content":[{"text":"x"}]}])")) == "messages[0].content[0].type");
  CHECK(param(Turns(R"([{"role":"user","content":[{"type":"text"}]}])")) == "messages[0].content[0].text");
  CHECK(param(Turns(R"([{"role":"user","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}])")) == "messages[0].content[0]");
  CHECK(param(Turns(R"([{"role":"user","content":[{"type":"tool_result","content":"x"}]}])")) == "messages[0].content[0].tool_use_id");
  CHECK(param(Turns(R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":"no"}]}])")) ==
        "messages[0].content[0].is_error");
  const std::string base = R"({"max_tokens":5,"messages":[{"role":"user","content":"u"}],)";
  CHECK(param(base + R"("system":7})") == "system");
  CHECK(param(base + R"("stop_sequences":"END"})") == "stop_sequences");
  CHECK(param(base + R"("stop_sequences":[7]})") == "stop_sequences[0]");
  CHECK(param(base + R"("tool_choice":"any"})") == "tool_choice");
  CHECK(param(base + R"("tool_choice":{"type":"some"}})") == "tool_choice.type");
  CHECK(param(base + R"("thinking":{"type":"deep"}})") == "thinking");
  CHECK(param(base + R"("temperature":9})") == "temperature");
  const ApiError image = Bad(ParseMessagesRequest, Turns(R"([{"role":"user","content":[{"type":"image","source":{}}]}])"));
  CHECK(image.param == "messages[0].content[0]");
  CHECK(image.message.find("image") != std::string::npos);
  const ApiError result = Bad(ParseMessagesRequest,
                              Turns(R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{}}]}]}])"));
  CHECK(result.param == "messages[0].content[0].content[0]");
}

TEST_CASE("counting tokens needs no max_tokens") {
  CHECK(Good(ParseCountTokensRequest, R"({"messages":[{"role":"user","content":"u"}]})").route == Route::kMessages);
}

}  // namespace
}  // namespace holdfast::api

// What a prompt is made of: normalisation of messages, reserved names, errors, spans, anchors, continuing a message.
#include <catch2/catch.hpp>

#include <iostream>

#include "frontend/text/chat_template.h"
#include "tests/unit/text/jinja_golden.h"

namespace holdfast::text {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(HOLDFAST_SOURCE_DIR) / "tests" / "golden" / "templates";

JsonValue Json(std::string_view text) {
  auto v = ParseJson(text);
  INFO(text);
  REQUIRE(v.ok());
  return *std::move(v);
}

ChatTemplate Make(const std::string& source) {
  auto t = ChatTemplate::Create(source, "model", {"<s>", "</s>", "", ""});
  INFO(t.status().ToString());
  REQUIRE(t.ok());
  return *std::move(t);
}

RenderInput Input(std::string_view messages) {
  RenderInput input;
  input.messages = Json(messages);
  return input;
}

std::string Words(const absl::StatusOr<RenderedPrompt>& r) {
  CHECK(r.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(r.status().message().data(), r.status().message().size());
}

std::string TextOf(const ChatTemplate& t, const RenderInput& input) {
  const auto r = t.Render(input);
  INFO(r.status().ToString());
  REQUIRE(r.ok());
  return r->Text();
}

const char* const kChatml =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST_CASE("a prompt has spans that say what the template wrote and anchors where the next one will cut", "[chat_template]") {
  const ChatTemplate t = Make(kChatml);
  const auto r = t.Render(Input(R"([{"role":"system","content":"S<|im_end|>"},{"role":"user","content":"U"}])"));
  REQUIRE(r.ok());
  const std::string system = "<|im_start|>system\nS<|im_end|><|im_end|>\n";
  const std::string user = "<|im_start|>user\nU<|im_end|>\n";
  CHECK(r->Text() == system + user + "<|im_start|>assistant\n");
  REQUIRE(r->spans.size() >= 5);
  CHECK(r->spans[0].text == "<|im_start|>");
  CHECK(r->spans[0].trusted);
  CHECK(r->spans[1].text == "system");
  CHECK_FALSE(r->spans[1].trusted);
  CHECK(r->spans[3].text == "S<|im_end|>");
  CHECK_FALSE(r->spans[3].trusted);
  CHECK(r->spans[4].trusted);
  // End of the system block (which is the end of the first message too), end of the user's message, which is where generation begins.
  CHECK(r->anchors == std::vector<size_t>{system.size(), system.size() + user.size()});
}

TEST_CASE("anchors exist where the template walks its messages by index", "[chat_template]") {
  const ChatTemplate t = Make(
      "{% for i in range(messages | length) %}<{{ messages[i].content }}>{% endfor %}{% if add_generation_prompt %}>>{% endif %}");
  const auto r = t.Render(Input(R"([{"role":"system","content":"ab"},{"role":"user","content":"c"},{"role":"user","content":"d"}])"));
  REQUIRE(r.ok());
  CHECK(r->Text() == "<ab><c><d>>>");
  CHECK(r->anchors == std::vector<size_t>{4, 7, 10});
}

TEST_CASE("a later prompt of the conversation shares the text up to the last message's anchor", "[chat_template]") {
  const ChatTemplate t = Make(jinja::ReadFile(kGolden / "plain_chat.jinja"));
  std::string messages = R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"})";
  std::string before;
  for (int turn = 0; turn < 4; ++turn) {
    const auto r = t.Render(Input(messages + "]"));
    REQUIRE(r.ok());
    REQUIRE(!r->anchors.empty());
    if (!before.empty()) CHECK(r->Text().substr(0, before.size()) == before);
    before = r->Text().substr(0, r->anchors.back());
    messages += R"(,{"role":"assistant","content":"answer"},{"role":"user","content":"more"})";
  }
}

TEST_CASE("B025 tool calls: arguments take the form the template needs", "[chat_template]") {
  const std::string text_call =
      R"([{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"call00001","content":"5"}])";
  const std::string object_call =
      R"([{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function","function":{"name":"f","arguments":{"a":1}}}]},{"role":"tool","tool_call_id":"call00001","content":"5"}])";
  const std::string loop = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}";
  const std::string end = "{% endfor %};{% endfor %}";
  const ChatTemplate items = Make(loop + "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}" + end);
  CHECK(items.needs().object_arguments);
  CHECK(TextOf(items, Input(text_call)) == "u;a=1;5;");
  CHECK(TextOf(items, Input(object_call)) == "u;a=1;5;");
  const ChatTemplate json = Make(loop + "{{ c.function.arguments | tojson }}" + end);
  CHECK(json.needs().object_arguments);
  CHECK(TextOf(json, Input(text_call)) == "u;{\"a\": 1};5;");
  const ChatTemplate joined = Make(loop + "{{ 'args:' + c.function.arguments }}" + end);
  CHECK_FALSE(joined.needs().object_arguments);
  CHECK(TextOf(joined, Input(text_call)) == "u;args:{\"a\": 1};5;");
  CHECK(TextOf(joined, Input(object_call)) == "u;args:{\"a\":1};5;");
  // Printed as it is: text, for a mapping would come out in Python's notation.
  const ChatTemplate printed = Make(loop + "{{ c.function.arguments }}" + end);
  CHECK_FALSE(printed.needs().object_arguments);
  // Invalid JSON stays text, "" and null are no arguments.
  for (const auto& [arguments, shown] : {std::pair<std::string, std::string>{R"("{\"a\": ")", R"("{\"a\": ")"}, {R"("")", "{}"}, {"null", "{}"}}) {
    CHECK(TextOf(json, Input(R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":)" + arguments + "}}]}]")) == shown + ";");
  }
}

TEST_CASE("A-58 ids of calls are shortened, alike in call and result, for a template that insists on nine letters and digits", "[chat_template]") {
  const std::string source =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ c.id }}>{% endfor %}"
      "{% if m.tool_call_id is defined %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ m.tool_call_id }}<{% endif %}{% endfor %}";
  const ChatTemplate strict = Make(source);
  CHECK(strict.needs().short_call_ids);
  const auto conversation = [](const std::string& id) {
    return Input(R"([{"role":"user","content":"u"},{"role":"assistant","content":"","tool_calls":[{"id":")" + id +
                 R"(","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":")" + id + R"(","content":"5"}])");
  };
  CHECK(TextOf(strict, conversation("abcDEF123")) == "abcDEF123>abcDEF123<");
  const std::string one = TextOf(strict, conversation("call_0123456789abcdefghijklmn")), other = TextOf(strict, conversation("call_0123456789abcdefghijklmo"));
  CHECK(one.substr(0, 9) == one.substr(10, 9));
  CHECK(one != other);
  CHECK(TextOf(strict, conversation("call_0123456789abcdefghijklmn")) == one);
  CHECK_FALSE(Make("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}{% endfor %}").needs().short_call_ids);
}

TEST_CASE("B022 B023 empty tool calls and null content do not reach the template", "[chat_template]") {
  const ChatTemplate t = Make("{% for m in messages %}{{ m.role + ':' + m.content }}{% if m.tool_calls is defined %}!{{ m.tool_calls | length }}{% endif %};{% endfor %}");
  CHECK(TextOf(t, Input(R"([{"role":"assistant","content":"hi","tool_calls":[]},{"role":"assistant","tool_calls":null,"content":"x"}])")) == "assistant:hi;assistant:x;");
  CHECK(TextOf(t, Input(R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}])")) == "assistant:!1;");
  CHECK(TextOf(t, Input(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])")) == "assistant:!1;");
  // A template that looks for the key itself and cannot take an empty one is given none.
  const ChatTemplate keyed = Make("{% for m in messages %}{% if 'content' in m and not m.content %}{{ raise_exception('empty') }}{% endif %}{{ m.role }};{% endfor %}");
  CHECK(TextOf(keyed, Input(R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}])")) == "assistant;");
}

TEST_CASE("no tools are none, as Hugging Face has it", "[chat_template]") {
  const ChatTemplate t = Make("{{ tools is defined }} {{ tools is none }}{% for m in messages %}{% endfor %}");
  RenderInput input = Input(R"([{"role":"user","content":"x"}])");
  CHECK(TextOf(t, input) == "True True");
  input.tools = Json("[]");
  CHECK(TextOf(t, input) == "True True");
  input.tools = Json(R"([{"type":"function","function":{"name":"f"}}])");
  CHECK(TextOf(t, input) == "True False");
}

TEST_CASE("a template that cannot take none for no tools is given nothing", "[chat_template]") {
  const ChatTemplate t = Make("{% for x in tools %}{{ x }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}");
  CHECK(t.needs().undefined_tools);
  CHECK(TextOf(t, Input(R"([{"role":"user","content":"x"}])")) == "x");
}

TEST_CASE("B032 the developer role is the system's unless the template knows it", "[chat_template]") {
  CHECK(TextOf(Make("{% for m in messages %}{{ m.role }}{% endfor %}"), Input(R"([{"role":"developer","content":"x"}])")) == "system");
  CHECK(TextOf(Make("{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{% endfor %}"), Input(R"([{"role":"developer","content":"x"}])")) == "D");
}

TEST_CASE("text parts are joined unless the template takes them apart itself", "[chat_template]") {
  const std::string parts = R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])";
  const ChatTemplate plain = Make("{% for m in messages %}{{ m.content }}{% endfor %}");
  CHECK_FALSE(plain.needs().text_parts);
  CHECK(TextOf(plain, Input(parts)) == "a\nb");
  const ChatTemplate typed = Make("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}");
  CHECK(typed.needs().text_parts);
  CHECK(TextOf(typed, Input(parts)) == "ab");
  CHECK(Words(plain.Render(Input(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"))) ==
        "messages[0].content[0]: this model takes parts of type text only");
}

TEST_CASE("B027 what a template raises is what the client reads, and the next request is served", "[chat_template]") {
  const ChatTemplate t = Make("{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('No tools, please.') }}{% endif %}{{ m.content }}{% endfor %}");
  CHECK(Words(t.Render(Input(R"([{"role":"tool","content":"x"}])"))) == "No tools, please.");
  CHECK(TextOf(t, Input(R"([{"role":"user","content":"x"}])")) == "x");
  const ChatTemplate broken = Make("{% for m in messages %}\n{{ m.content.nope.more }}{% endfor %}");
  CHECK(Words(broken.Render(Input(R"([{"role":"user","content":"x"}])"))) == "model:2:18: 'str object' has no attribute 'nope'");
}

TEST_CASE("bad input is refused with its path", "[chat_template]") {
  const ChatTemplate t = Make(kChatml);
  CHECK(Words(t.Render(Input("[]"))) == "messages: must be an array with at least one message");
  CHECK(Words(t.Render(Input("[5]"))) == "messages[0]: must be an object");
  CHECK(Words(t.Render(Input(R"([{"role":7}])"))) == "messages[0].role: must be a string");
  CHECK(Words(t.Render(Input(R"([{"role":"assistant","tool_calls":3}])"))) == "messages[0].tool_calls: must be an array");
  CHECK(Words(t.Render(Input(R"([{"role":"assistant","tool_calls":[3]}])"))) == "messages[0].tool_calls[0]: must be an object");
  RenderInput input = Input(R"([{"role":"user","content":"x"}])");
  input.kwargs = Json(R"({"messages": []})");
  CHECK(Words(t.Render(input)) == "chat_template_kwargs.messages: this name is reserved");
  input.kwargs = Json("[]");
  CHECK(Words(t.Render(input)) == "chat_template_kwargs: must be an object");
  input.kwargs = JsonValue();
  input.continue_final_message = true;
  CHECK(Words(t.Render(input)) == "continue_final_message and add_generation_prompt exclude each other");
  const auto bad = ChatTemplate::Create("a\n{% if %}", "model.gguf", {});
  CHECK(std::string(bad.status().message().data(), bad.status().message().size()) == "model.gguf:2:7: expected an expression, got '%}'");
}

TEST_CASE("template variables of the request are untrusted text", "[chat_template]") {
  const ChatTemplate t = Make("{{ bos_token }}{{ style }}{{ enable_thinking }}{% for m in messages %}{% endfor %}");
  RenderInput input = Input(R"([{"role":"user","content":"x"}])");
  input.kwargs = Json(R"({"style": "<s>", "enable_thinking": false})");
  const auto r = t.Render(input);
  REQUIRE(r.ok());
  REQUIRE(r->spans.size() == 3);
  CHECK(r->spans[0].trusted);
  CHECK(r->spans[1].text == "<s>");
  CHECK_FALSE(r->spans[1].trusted);
  CHECK(r->spans[2].text == "False");
}

TEST_CASE("the final message can be continued", "[chat_template]") {
  RenderInput input = Input(R"([{"role":"user","content":"Count."},{"role":"assistant","content":"one, two, "}])");
  input.add_generation_prompt = false;
  input.continue_final_message = true;
  CHECK(TextOf(Make(kChatml), input) == "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\none, two, ");
  const ChatTemplate trims = Make("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}");
  CHECK(TextOf(trims, input) == "<Count.><one, two,");
  CHECK(Words(Make("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}").Render(input)) ==
        "the template does not show the final message's content, so it cannot be continued");
}

TEST_CASE("gemma-4's format: nulls, the turn after results, and calls without results", "[chat_template]") {
  const ChatTemplate t = Make(
      "{% for m in messages %}{% if m.role != 'tool' %}<|turn>{{ m.role }}\n{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{{ '{' }}"
      "{% for k, v in c.function.arguments | dictsort %}{{ k }}:{{ v }}{% endfor %}{{ '}' }}<tool_call|>{% endfor %}{% for r in m.tool_responses or [] %}"
      "<|tool_response>{{ r.name }}:{{ r.response.t if r.response is mapping else r.response }}<tool_response|>{% endfor %}{{ m.content }}<turn|>\n{% endif %}{% endfor %}");
  CHECK(t.needs().gemma4);
  CHECK(t.needs().fold_tool_results);
  const std::string calls = R"([{"role":"user","content":"u"},{"role":"assistant","content":"c","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":null}"}}]})";
  CHECK(TextOf(t, Input(calls + R"(,{"role":"tool","tool_call_id":"1","content":"{\"t\":20}"}])")) ==
        "<|turn>user\nu<turn|>\n<|turn>assistant\n<|tool_call>call:f{a:null}<tool_call|><|tool_response>f:20<tool_response|>c<turn|>\n<|turn>model\n");
  CHECK(Words(t.Render(Input(calls + "]"))) == "messages: the conversation ends with a tool call; append the tool's result");
}

TEST_CASE("public templates: probing finds the form of arguments each needs", "[chat_template]") {
  const auto folder = jinja::SharedFolder() / "golden" / "templates";
  if (!std::filesystem::exists(folder / "cases.json")) {
    std::cout << "SKIP: no " << folder << " (set HOLDFAST_SHARED)\n";
    return;
  }
  const std::string call =
      R"([{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Paris\"}"}}]},{"role":"tool","tool_call_id":"call00001","name":"get_weather","content":"5"}])";
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    ++count;
    INFO(entry.path());
    const ChatTemplate t = Make(jinja::ReadFile(entry.path()));
    const auto r = t.Render(Input(call));
    const std::string text = r.ok() ? r->Text() : std::string();
    const std::string name = entry.path().filename();
    // These know no tool calls.
    if (name.starts_with("google-gemma-2") || name.starts_with("microsoft") || name.starts_with("HuggingFaceTB")) continue;
    INFO(r.status().ToString());
    REQUIRE(r.ok());
    CHECK(text.find("Paris") != std::string::npos);
    CHECK(text.find("\\\"city") == std::string::npos);
    CHECK_FALSE(r->anchors.empty());
    size_t before = 0;
    for (const size_t anchor : r->anchors) {
      CHECK(anchor > before);
      CHECK(anchor <= text.size());
      before = anchor;
    }
  }
  CHECK(count >= 20);
}

}  // namespace
}  // namespace holdfast::text

// Gemma 4's thoughts and calls: the cases that other servers met, and the repairs.
#include "tests/unit/tools/rig.h"

namespace holdfast::tools::testing {
namespace {

const std::vector<std::string> kMarkers = {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"};
const std::string kHello = "Hello, world!\nWhat's up?";

Rig Gemma(std::string prompt_tail = "<|turn>model\n") {
  Rig rig("gemma4", "gemma4", kMarkers);
  rig.tools = MakeTools({{"special_function", R"({"type":"object","properties":{"arg1":{"type":"integer"}}})"},
                         {"get_weather", R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}})"},
                         {"set", ""},
                         {"a.b:c-d_e", ""}});
  rig.prompt_tail = std::move(prompt_tail);
  return rig;
}

std::string Set(const std::string& body) { return "<|tool_call>call:set{" + body + "}<tool_call|>"; }

TEST_CASE("gemma4: text, thoughts and empty thoughts") {
  const Rig rig = Gemma();
  CHECK(rig.Parse(kHello).content == kHello);
  Answer a = rig.Parse("<|channel>thought\nI'm\nthinking\n<channel|>" + kHello);
  CHECK(a.reasoning == "I'm\nthinking");
  CHECK(a.content == kHello);
  a = rig.Parse("<|channel>thought\n<channel|>" + kHello);
  CHECK(a.reasoning.empty());
  CHECK(a.content == kHello);
  a = rig.Parse("<|channel>thought<channel|>" + kHello);
  CHECK(a.reasoning.empty());
  CHECK(a.content == kHello);
}

TEST_CASE("gemma4: thoughts that are not separated stay as they were written") {
  Rig rig = Gemma();
  rig.separate_reasoning = false;
  const std::string text = "<|channel>thought\nI'm\nthinking\n<channel|>" + kHello;
  Answer a = rig.Parse(text);
  CHECK(a.content == text);
  CHECK(a.reasoning.empty());
  a = rig.Parse(text + "\n" + Set("v:1"));
  CHECK(a.content == text);
  CheckCall(a, 0, "set", R"({"v":1})");
}

TEST_CASE("gemma4: arguments of every type") {
  const Rig rig = Gemma();
  CheckCall(rig.Parse("<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>}<tool_call|>"), 0, "get_weather", R"({"city":"Paris"})");
  CheckCall(rig.Parse("<|tool_call>call:get_weather{ city: <|\"|>San Francisco <|\"|> , days:2 }<tool_call|>"), 0, "get_weather",
            R"({"city":"San Francisco ","days":2})");
  CheckCall(rig.Parse(Set("")), 0, "set", "{}");
  CheckCall(rig.Parse("<|tool_call>call:special_function{arg1:1}<tool_call|>"), 0, "special_function", R"({"arg1":1})");
  for (const char* number : {"0", "42", "-7", "3.14", "-0.5", "1.5e10", "1E-3"}) {
    CheckCall(rig.Parse(Set(std::string("n:") + number)), 0, "set", std::string("{\"n\":") + number + "}");
  }
  CheckCall(rig.Parse(Set("a:true,b:false,c:null,d:None")), 0, "set", R"({"a":true,"b":false,"c":null,"d":null})");
  CheckCall(rig.Parse(Set("l:[<|\"|>a<|\"|>,<|\"|>b<|\"|>,3]")), 0, "set", R"({"l":["a","b",3]})");
  CheckCall(rig.Parse(Set("o:{x:1,y:{z:<|\"|>q<|\"|>}},l:[[1],[2,{k:[]}]]")), 0, "set", R"({"o":{"x":1,"y":{"z":"q"}},"l":[[1],[2,{"k":[]}]]})");
  CheckCall(rig.Parse(Set("a:[],o:{}")), 0, "set", R"({"a":[],"o":{}})");
  CheckCall(rig.Parse(Set("s:<|\"|>say \"hi\" {to},\n[C:\\x]\t<|tool_call\x01<|\"|>")), 0, "set",
            R"({"s":"say \"hi\" {to},\n[C:\\x]\t<|tool_call\u0001"})");
  CheckCall(rig.Parse(Set("s:<|\"|>caf\xC3\xA9 \xF0\x9F\x98\x80<|\"|>")), 0, "set", "{\"s\":\"caf\xC3\xA9 \xF0\x9F\x98\x80\"}");
  CheckCall(rig.Parse("<|tool_call>call:a.b:c-d_e{}<tool_call|>"), 0, "a.b:c-d_e", "{}");
}

TEST_CASE("gemma4: content, thoughts and several calls") {
  const Rig rig = Gemma();
  Answer a = rig.Parse("<|channel>thought\nneed it\n<channel|>Let me check.\n" + Set("v:1"));
  CHECK(a.reasoning == "need it");
  CHECK(a.content == "Let me check.");
  CheckCall(a, 0, "set", R"({"v":1})");
  a = rig.Parse(Set("") + Set("v:1") + "\n" + Set(""));
  CHECK(a.calls.size() == 3);
  CheckCall(a, 0, "set", "{}");
  CheckCall(a, 1, "set", R"({"v":1})");
  CheckCall(a, 2, "set", "{}");
  CHECK(a.content.empty());
  CHECK_FALSE(a.complete);
  a = rig.Parse("before " + Set("") + "\nafter");
  CHECK(a.content == "before\nafter");
  // Inside a thought.
  a = rig.Parse("<|channel>thought\nhm\n" + Set("v:2") + "<channel|>done");
  CHECK(a.reasoning == "hm");
  CheckCall(a, 0, "set", R"({"v":2})");
  CHECK(a.content == "done");
}

TEST_CASE("gemma4: stray channel markers") {
  const Rig rig = Gemma();
  for (const std::string& text :
       {"<|channel>thought\n<channel|>" + kHello + "<channel|>", "<|channel>thought\n<channel|>" + kHello + "<|channel>thought\n<channel|>",
        "<|channel>thought\n<channel|>" + kHello + "<|channel>thought\n<channel|><channel|>",
        "<|channel><|channel>thought\n<channel|>" + kHello, "thought\n<channel|>" + kHello, "<channel|>" + kHello}) {
    CAPTURE(text);
    const Answer a = rig.Parse(text);
    CHECK(a.content == kHello);
    CHECK(a.reasoning.empty());
  }
  const Answer a = rig.Parse("Let me check.<channel|>" + Set("v:1"));
  CHECK(a.content == "Let me check.");
  CheckCall(a, 0, "set", R"({"v":1})");
  CHECK(rig.Parse("thought\nis free").content == "thought\nis free");
  CHECK(rig.Parse("thoughtful").content == "thoughtful");
  CHECK(rig.Parse("thou").content == "thou");
}

TEST_CASE("gemma4: the prompt's tail decides where the answer begins") {
  // Thinking off: the template has written an empty thought.
  Rig rig = Gemma("<|turn>model\n<|channel>thought\n<channel|>");
  CHECK(rig.Parse(kHello).content == kHello);
  CHECK(rig.Parse("<|channel>thought\nx\n<channel|>" + kHello).reasoning == "x");
  // A thought that the prompt left open, at every place where it can be cut.
  for (const std::string open : {"<|channel>", "<|channel>thou", "<|channel>thought", "<|channel>thought\n", "<|channel>thought\nI'm"}) {
    CAPTURE(open);
    rig = Gemma("<|turn>model\n" + open);
    const std::string whole = "<|channel>thought\nI'm\nthinking\n<channel|>" + kHello;
    const Answer a = rig.Parse(whole.substr(open.size()));
    CHECK(a.content == kHello);
    CHECK(a.reasoning == std::string("I'm\nthinking").substr(open.size() > 18 ? open.size() - 18 : 0));
  }
  // An answer that goes on.
  rig = Gemma("<|turn>model\nHello, ");
  CHECK(rig.Parse("world!").content == "world!");
  rig = Gemma("");
  CHECK(rig.Parse(Set("v:1")).calls.size() == 1);
}

TEST_CASE("gemma4: a marker is a marker only as its token") {
  const Rig rig = Gemma();
  const std::string spelled(1, '\0');  // what follows is no marker
  const std::string prose = "use " + spelled + "<|tool_call>call:set{} and " + spelled + "<|channel>thought";
  const Answer a = rig.Parse(prose);
  CHECK(a.content == "use <|tool_call>call:set{} and <|channel>thought");
  CHECK(a.calls.empty());
  // Markers inside a string are its text.
  CheckCall(rig.Parse(Set("s:<|\"|>a<|tool_call>b<|channel>c<|\"|>")), 0, "set", R"({"s":"a<|tool_call>b<|channel>c"})");
}

TEST_CASE("gemma4: a vocabulary without the markers spells them") {
  Rig rig("gemma4", "gemma4", {});
  rig.tools = MakeTools({{"set", ""}});
  const Answer a = rig.Parse("<|channel>thought\nhm\n<channel|>ok <" + Set("s:<|\"|>a<|b<|\"|>"));
  CHECK(a.reasoning == "hm");
  CHECK(a.content == "ok <");
  CheckCall(a, 0, "set", R"({"s":"a<|b"})");
}

TEST_CASE("gemma4: slips that are repaired") {
  const Rig rig = Gemma();
  const auto one = [&](const std::string& text, std::string_view arguments) {
    CAPTURE(text);
    const Answer a = rig.Parse(text);
    REQUIRE(a.calls.size() == 1);
    CHECK(a.calls[0].arguments == arguments);
    CHECK(a.calls[0].ended);
    CHECK(a.content.empty());
  };
  one(Set(R"(l:["x",'y'],o:{"mode": "fast", 'a':'it's'})"), R"({"l":["x","y"],"o":{"mode":"fast","a":"it's"}})");
  one(Set("<|\"|>key<|\"|>:1,\"k2\":2"), R"({"key":1,"k2":2})");
  one("<|tool_call>call:get_weather{city='Paris',days=2}<tool_call|>", R"({"city":"Paris","days":2})");
  one("<|tool_call>call:get_weather(city=<|\"|>Paris<|\"|>, days=2)<tool_call|>", R"({"city":"Paris","days":2})");
  one(Set("city:Paris and more,n:5"), R"({"city":"Paris and more","n":5})");          // no quotes
  one(Set("city:Paris<|\"|>,n:5"), R"({"city":"Paris","n":5})");                       // the first one missing
  one("<|tool_call>call:set{city:<|\"|>Paris}<tool_call|>", R"({"city":"Paris"})");    // the last one missing
  one("<|tool_call>call:set{o:{a:[<|\"|>x}]}}<tool_call|>", R"({"o":{"a":["x"]}})");
  one("<|tool_call>call:set{city:<|\"|>Paris<tool_call|>", R"({"city":"Paris"})");
  one("<|tool_call>call:set{o:{a:[1<tool_call|>", R"({"o":{"a":[1]}})");               // brackets missing
  one("<|tool_call>call:set{a:1}}<tool_call|>", R"({"a":1})");                         // one too many
  one(Set("a:1,,b:2,"), R"({"a":1,"b":2})");
  one(Set("a:,b"), R"({"a":null,"b":null})");
  one(Set("a:tru,b:1.,c:01"), R"({"a":"tru","b":"1.","c":"01"})");
  one("<|tool_call> call: set {a:1}\n<tool_call|>", R"({"a":1})");
  one("<|tool_call>:set{a:1}<tool_call|>", R"({"a":1})");
  one("<|tool_call>set{a:1}<tool_call|>", R"({"a":1})");
  one("<|tool_call>call:set{a:1}", R"({"a":1})");                                      // the end without its tag
  const Answer a = rig.Parse("<|tool_call>call:set{a:1}<|tool_call>call:set{a:2}<tool_call|>");
  CheckCall(a, 0, "set", R"({"a":1})");
  CheckCall(a, 1, "set", R"({"a":2})");
}

TEST_CASE("gemma4: what is no call is content") {
  const Rig rig = Gemma();
  for (const std::string& text :
       {std::string("<|tool_call>"), std::string("<|tool_call>call:unknown{a:1}<tool_call|>"), std::string("a <|tool_call> b"),
        std::string("<|tool_call>call:set"), std::string("<|tool_call>call:set<tool_call|>"),
        "<|tool_call>" + std::string(1000, 'x') + "{", std::string("x <tool_call|> y")}) {
    CAPTURE(text);
    const Answer a = rig.Parse(text);
    CHECK(a.content == text);
    CHECK(a.calls.empty());
  }
  const Answer a = rig.Parse("<|tool_call><|tool_call>call:set{}<tool_call|>");
  CHECK(a.content == "<|tool_call>");
  CheckCall(a, 0, "set", "{}");
}

TEST_CASE("gemma4: who may be called") {
  Rig rig = Gemma();
  rig.policy.allowed = {"get_weather"};
  CHECK(rig.Parse(Set("v:1")).content == Set("v:1"));
  rig.policy.allowed = {"set"};
  CHECK(rig.Parse(Set("v:1")).calls.size() == 1);
  rig.policy = {Mode::kNone, {}, true};
  CHECK(rig.Parse("a " + Set("v:1")).content == "a " + Set("v:1"));
  rig = Gemma();
  rig.tools.clear();
  CHECK(rig.Parse("a " + Set("v:1")).content == "a " + Set("v:1"));
  rig = Gemma();
  rig.policy.parallel = false;
  const Answer a = rig.Parse("x" + Set("v:1") + Set("v:2") + "more");
  CHECK(a.complete);
  CHECK(a.calls.size() == 1);
  CHECK(a.content == "x");
}

TEST_CASE("B010 B015 gemma4: a call that was cut never looks whole") {
  const Rig rig = Gemma();
  const std::string text = "<|tool_call>call:set{target:<|\"|>a}b<|\"|>,confirm:true,n:[1,{x:2}]}<tool_call|>";
  const std::vector<Unit> units = rig.Units(text);
  std::string before;
  for (size_t n = 0; n < units.size(); ++n) {
    CAPTURE(n);
    const Answer a = rig.ParseUnits({units.begin(), units.begin() + static_cast<long>(n)}, [](size_t) { return true; }, true);
    if (a.calls.empty()) continue;
    CHECK_FALSE(a.calls[0].ended);
    CHECK_FALSE(text::ParseJson(a.calls[0].arguments).ok());
    CHECK(a.calls[0].arguments.starts_with(before));
    before = a.calls[0].arguments;
  }
  CHECK(rig.Parse(text, true).calls[0].ended);
}

}  // namespace
}  // namespace holdfast::tools::testing

// The page at GET / and the tools it offers.
#include <catch2/catch.hpp>

#include <set>
#include <string>

#include "frontend/console/assets.h"
#include "frontend/console/demo_tools.h"
#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

std::vector<uint32_t> Hello(const proto::GenerateRequest&) { return Answer("hello"); }

TEST_CASE("the root is a page for browsers and a list of routes for everyone else") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  const auto page = rig.Ask("GET", "/", "", {{"Accept", "text/html,application/xhtml+xml,*/*;q=0.8"}});
  CHECK(page->status == 200);
  CHECK(page->content_type == "text/html; charset=utf-8");
  CHECK(page->Header("Vary") == "Accept");
  CHECK(page->body.find("<script src=\"console.js\">") != std::string::npos);
  // Scripts of no other origin, none inline, in nobody's frame.
  const std::string policy = page->Header("Content-Security-Policy");
  CHECK(policy.find("default-src 'none'") != std::string::npos);
  CHECK(policy.find("unsafe") == std::string::npos);
  CHECK(policy.find("frame-ancestors 'none'") != std::string::npos);
  const auto list = rig.Ask("GET", "/");
  CHECK(list->status == 200);
  CHECK(list->body.find("POST /v1/chat/completions") != std::string::npos);
  CHECK(list->content_type == "text/plain; charset=utf-8");
}

TEST_CASE("the page names nothing that this server does not serve") {
  FakeEngine engine(TestCard(), Hello);
  Rig rig(&engine);
  for (const console::Asset& asset : console::Assets()) {
    INFO(asset.path);
    const auto reply = rig.Ask("GET", std::string(asset.path), "", {{"Accept", "text/html"}});
    CHECK(reply->status == 200);
    CHECK(reply->body == asset.bytes);
    CHECK(asset.bytes.find("http://") == std::string_view::npos);
    CHECK(asset.bytes.find("https://") == std::string_view::npos);
  }
}

TEST_CASE("the page is there without an engine and without a key") {
  FakeEngine engine(TestCard(), Hello);
  engine.Stop();
  RigOptions options;
  options.wait_ready = false;
  options.router.keys = std::make_shared<api::Keys>(std::vector<std::string>{"secret"});
  Rig rig(&engine, options);
  CHECK(rig.Ask("GET", "/console.js")->status == 200);
  CHECK(rig.Ask("GET", "/v1/models")->status == 401);
}

TEST_CASE("the demo's tools answer the same call the same way") {
  const auto tools = console::DemoTools::Parse(console::DemoToolsJson());
  REQUIRE(tools.ok());
  CHECK(tools->tools().size() >= 4);
  for (const console::DemoTool& tool : tools->tools()) {
    INFO(tool.name);
    CHECK(tool.declaration.AsObject().size() == 2);
    CHECK(tool.declaration.Find("function")->Find("name")->AsString() == tool.name);
    CHECK_FALSE(tool.description.empty());
    CHECK_FALSE(tool.examples.empty());
  }
  const std::string one = tools->Answer("get_weather", R"({"city":"Oslo"})");
  CHECK(one == tools->Answer("get_weather", R"({"city":"Oslo"})"));
  const auto parsed = text::ParseJson(one);
  REQUIRE(parsed.ok());
  CHECK(parsed->Find("sky") != nullptr);
  // How the arguments are spaced is no part of the call, what they say is.
  CHECK(one == tools->Answer("get_weather", R"({ "city" : "Oslo" })"));
  std::set<std::string> answers;
  for (const char* city : {"Oslo", "Rome", "Paris", "Lima", "Cairo", "Tokyo"}) answers.insert(tools->Answer("get_weather", std::string(R"({"city":")") + city + "\"}"));
  CHECK(answers.size() > 3);
  CHECK(text::ParseJson(tools->Answer("no_such_tool", "{}"))->Find("error") != nullptr);
  CHECK(text::ParseJson(tools->Answer("get_weather", "no json"))->Find("error") != nullptr);
  CHECK(text::ParseJson(tools->Answer("get_weather", "[]"))->Find("error") != nullptr);
}

TEST_CASE("tools without a rule for their results are refused with the place") {
  for (const char* bad : {R"({})", R"([{"function":{"name":"a"}}])", R"([{"function":{"name":"a"},"stub":{"x":{}}}])",
                          R"([{"function":{"name":"a"},"stub":{"x":{"range":[2,1]}}}])", R"([{"function":{"name":"a"},"stub":{"x":{"choice":[]}}}])"}) {
    INFO(bad);
    CHECK_FALSE(console::DemoTools::Parse(bad).ok());
  }
}

}  // namespace
}  // namespace holdfast::testing

// The public chat templates of ../shared, rendered by Python's jinja2 3.1.6 with Hugging Face's settings.
#include <iostream>
#include <map>

#include "tests/unit/text/jinja_golden.h"

namespace holdfast::text::jinja {
namespace {

TEST_CASE("public chat templates render as Python's jinja2 renders them", "[jinja]") {
  const auto folder = SharedFolder() / "golden" / "templates";
  if (!std::filesystem::exists(folder / "cases.json")) {
    std::cout << "SKIP: no " << folder << " (set HOLDFAST_SHARED); the committed templates are tested by jinja_golden_test\n";
    return;
  }
  const auto cases = ParseJson(ReadFile(folder / "cases.json"));
  REQUIRE(cases.ok());
  std::map<std::string, std::string> sources;
  size_t held = 0;
  for (const JsonValue& golden : cases->AsArray()) {
    const std::string name = golden.Find("template")->AsString();
    if (sources.count(name) == 0) sources[name] = ReadFile(folder / name);
    held += CheckCase(golden, sources[name]) ? 1 : 0;
  }
  std::cout << held << " of " << cases->AsArray().size() << " cases\n";
  CHECK(cases->AsArray().size() >= 340);
}

}  // namespace
}  // namespace holdfast::text::jinja

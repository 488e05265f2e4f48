#pragma once
// Reads golden cases that Python's jinja2 rendered: [{template, case, input, expected | error}].
#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "frontend/text/jinja.h"
#include "frontend/text/json_value.h"

namespace holdfast::text::jinja {

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline std::filesystem::path SharedFolder() {
  const char* set = std::getenv("HOLDFAST_SHARED");
  return set != nullptr ? std::filesystem::path(set) : std::filesystem::path(HOLDFAST_SOURCE_DIR) / ".." / "shared";
}

inline RenderOptions OptionsOf(const JsonValue& input) {
  RenderOptions options;
  options.now = 1721995200;  // 2024-07-26 12:00 UTC: the 26th in nearly every time zone
  for (const auto& [name, value] : input.AsObject()) {
    options.variables.push_back({name, value, name.ends_with("_token"), name == "messages"});
  }
  return options;
}

// A snippet's case with the variables all snippets share.
inline JsonValue WithInput(const JsonValue& entry, const JsonValue& input) {
  JsonValue::Object out = entry.AsObject();
  out.emplace_back("input", input);
  return JsonValue(std::move(out));
}

// Checks one case and returns whether it held.
inline bool CheckCase(const JsonValue& golden, const std::string& source) {
  const std::string name = golden.Find("template")->AsString();
  INFO(name << " / " << golden.Find("case")->AsString());
  const auto parsed = Template::Parse(source, name);
  INFO(parsed.status().ToString());
  RenderOutput output;
  RenderError error;
  bool rendered = false;
  if (parsed.ok()) {
    rendered = parsed->Render(OptionsOf(*golden.Find("input")), &output, &error);
  } else {
    error.message = std::string(parsed.status().message().data(), parsed.status().message().size());
  }
  if (const JsonValue* expected = golden.Find("expected"); expected != nullptr) {
    INFO("error: " << error.line << ":" << error.column << ": " << error.message);
    CHECK(rendered);
    CHECK(output.text.str() == expected->AsString());
    return rendered && output.text.str() == expected->AsString();
  }
  const std::string& wanted = golden.Find("error")->AsString();
  CHECK_FALSE(rendered);
  // A bare name is a Python exception whose words the golden does not have.
  const bool bare = wanted.find(' ') == std::string::npos && wanted.ends_with("Error");
  if (!bare) CHECK(error.message == wanted);
  return !rendered && (bare || error.message == wanted);
}

}  // namespace holdfast::text::jinja

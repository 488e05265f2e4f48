// Any bytes as a template, rendered over a small conversation: no crash, no endless run, runs that cover the output.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "frontend/text/jinja.h"
#include "proto/base/check.h"

using holdfast::text::JsonValue;
using holdfast::text::ParseJson;
namespace jinja = holdfast::text::jinja;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const JsonValue messages = *ParseJson(
      R"([{"role":"system","content":" s "},{"role":"user","content":"\u00fc<|x|>"},{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f","arguments":{"a":[1,2.5,null,true]}}}]}])");
  jinja::Limits limits;
  limits.max_steps = 20'000;
  const auto parsed = jinja::Template::Parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz", limits);
  if (!parsed.ok()) return 0;
  jinja::RenderOptions options;
  options.limits = limits;
  options.variables.push_back({"messages", messages, false, true});
  options.variables.push_back({"add_generation_prompt", JsonValue(true), false, false});
  jinja::RenderOutput output;
  jinja::RenderError error;
  if (parsed->Render(options, &output, &error)) {
    HF_CHECK(output.text.empty() || output.text.runs().back().end == output.text.size());
  } else {
    HF_CHECK(!error.message.empty() || error.kind == jinja::RenderError::Kind::kRaised);
  }
  return 0;
}

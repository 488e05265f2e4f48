// Which format a chat template writes: snippets of the known ones, and the public templates of ../shared where they are.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/unit/tools/rig.h"

namespace holdfast::tools::testing {
namespace {

TEST_CASE("the template tells the format") {
  const text::Vocabulary v = MakeVocabulary({});
  const std::string ds = "{{'<\xEF\xBD\x9Ctool\xE2\x96\x81" "calls\xE2\x96\x81" "begin\xEF\xBD\x9C>'}}";
  const struct {
    std::string snippet, tools, reasoning;
  } cases[] = {
      {"{{- '<|tool_call>call:' + function['name'] + '{' -}}{{- '<|channel>thought\\n<channel|>' -}}", "gemma4", "gemma4"},
      {"{{- '<tool_call>\\n{\"name\": \"' }}{{- tool_call.name }}", "hermes", ""},
      {"<tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>{{ '<think>\\n' }}", "hermes", "think"},
      {"{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}{{- '<parameter=' + args_name + '>\\n' }}", "qwen3-coder", ""},
      {"{{ '\\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><think></think>", "glm", "think"},
      {"{{- \"<|python_tag|>\" + tool_call.name }}{{- '\"parameters\": ' }}", "llama3", ""},
      {"{{- \"[TOOL_CALLS][\" }}", "mistral", ""},
      {"{{- '[TOOL_CALLS]' + name }}{{- '[ARGS]' }}[THINK]", "mistral-v11", "mistral"},
      {ds + "```json <think>", "deepseek-v3", "think"},
      {ds, "deepseek-v3.1", ""},
      {"<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>", "kimi-k2", ""},
      {"<|start|>assistant<|channel|>analysis<|message|>", "harmony", "harmony"},
      {"<minimax:tool_call><invoke name=\"f\">", "", ""},
      {"<start_of_turn>model\n", "", ""},
      {"", "", ""},
  };
  for (const auto& c : cases) {
    CAPTURE(c.snippet);
    CHECK(DetectTools(c.snippet, v) == c.tools);
    CHECK(DetectReasoning(c.snippet, v) == c.reasoning);
    CHECK(CreateFormat(c.tools, c.reasoning, v).ok());
  }
}

TEST_CASE("formats have names, aliases and clear errors") {
  const text::Vocabulary v = MakeVocabulary({});
  for (const std::string_view name : FormatNames()) CHECK((CreateFormat(name, "", v).ok() || CreateFormat("", name, v).ok()));
  CHECK((*CreateFormat("qwen3_coder", "deepseek_r1", v))->name() == "qwen3-coder");
  CHECK((*CreateFormat("llama3_json", "", v))->name() == "llama3");
  CHECK((*CreateFormat("", "qwen3", v))->name() == "think");
  CHECK((*CreateFormat("", "", v))->markers().empty());
  const auto bad = CreateFormat("hermse", "", v);
  REQUIRE_FALSE(bad.ok());
  CHECK(bad.status().message().find("\"hermse\"") != std::string_view::npos);
  CHECK(bad.status().message().find("hermes") != std::string_view::npos);
  CHECK_FALSE(CreateFormat("", "nope", v).ok());
}

TEST_CASE("markers are the special tokens of the tags alone") {
  Rig rig("hermes", "think", {"<think>", "</think>"});
  std::vector<std::string> names;
  for (const TokenId id : rig.format->markers()) names.emplace_back(rig.vocabulary.stored(id));
  CHECK(names == std::vector<std::string>{"<tool_call>", "</tool_call>", "<think>", "</think>"});
  CHECK(Rig("gemma4", "gemma4", {}).format->markers().empty());
}

TEST_CASE("the public templates are recognised") {
  const char* set = std::getenv("HOLDFAST_SHARED");
  const auto folder =
      (set != nullptr ? std::filesystem::path(set) : std::filesystem::path(HOLDFAST_SOURCE_DIR) / ".." / "shared") / "golden" / "templates";
  if (!std::filesystem::exists(folder / "cases.json")) {
    std::cout << "SKIP: no " << folder << " (set HOLDFAST_SHARED); snippets of the templates are tested above\n";
    return;
  }
  const text::Vocabulary v = MakeVocabulary({});
  const struct {
    const char *file, *tools, *reasoning;
  } cases[] = {
      {"GLM-4.6.jinja", "glm", "think"},
      {"Mistral-Small-3.2-24B-Instruct-2506.jinja", "mistral-v11", ""},
      {"mistralai-Mistral-Nemo-Instruct-2407.jinja", "mistral", ""},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja", "hermes", ""},
      {"Qwen-Qwen2.5-7B-Instruct.jinja", "hermes", ""},
      {"Qwen-Qwen3-0.6B.jinja", "hermes", "think"},
      {"Qwen3-Coder.jinja", "qwen3-coder", ""},
      {"Qwen3.5-4B.jinja", "qwen3-coder", "think"},
      {"deepseek-ai-DeepSeek-V3.1.jinja", "deepseek-v3.1", "think"},
      {"google-gemma-2-2b-it.jinja", "", ""},
      {"google-gemma-4-31B-it.jinja", "gemma4", "gemma4"},
      {"google-gemma-4-31B-it-interleaved.jinja", "gemma4", "gemma4"},
      {"ibm-granite-granite-4.0.jinja", "hermes", ""},
      {"meta-llama-Llama-3.1-8B-Instruct.jinja", "llama3", ""},
      {"meta-llama-Llama-3.3-70B-Instruct.jinja", "llama3", ""},
      {"microsoft-Phi-3.5-mini-instruct.jinja", "", ""},
      {"moonshotai-Kimi-K2.jinja", "kimi-k2", ""},
      {"openai-gpt-oss-120b.jinja", "harmony", "harmony"},
      {"MiniMax-M2.jinja", "", "think"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.file);
    std::ifstream in(folder / c.file, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    CHECK(DetectTools(text.str(), v) == c.tools);
    CHECK(DetectReasoning(text.str(), v) == c.reasoning);
  }
}

}  // namespace
}  // namespace holdfast::tools::testing

#include "frontend/tools/format.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/formats.h"
#include "frontend/tools/harmony.h"

namespace holdfast::tools {
namespace {

constexpr std::string_view kHarmony = "harmony";  // a format of its own kind: channels frame everything

struct ToolEntry {
  std::string_view name;
  std::unique_ptr<CallSyntax> (*make)(Tags*);
};
constexpr ToolEntry kTools[] = {
    {"gemma4", NewGemma4},
    {"hermes", NewHermes},
    {"qwen3-coder", NewQwen3Coder},
    {"glm", NewGlm},
    {"llama3", NewLlama3},
    {"mistral", NewMistral},
    {"mistral-v11", NewMistralV11},
    {"deepseek-v3", NewDeepSeekV3},
    {"deepseek-v3.1", NewDeepSeekV31},
    {"kimi-k2", NewKimiK2},
    {kHarmony, nullptr},
};

struct ReasoningEntry {
  std::string_view name;
  ThoughtSyntax (*make)(Tags*);
};
constexpr ReasoningEntry kReasoningFormats[] = {
    {"gemma4", Gemma4Thoughts},
    {"think", ThinkThoughts},
    {"mistral", MistralThoughts},
    {kHarmony, nullptr},
};

// Other names under which the formats are known.
struct Alias {
  std::string_view alias, name;
};
constexpr Alias kToolAliases[] = {
    {"qwen", "hermes"}, {"qwen3", "hermes"}, {"qwen25", "hermes"}, {"llama3-json", "llama3"}, {"openai", "harmony"}, {"gpt-oss", "harmony"},
    {"deepseek-v31", "deepseek-v3.1"}, {"glm45", "glm"}, {"qwen3-xml", "qwen3-coder"},
};
constexpr Alias kReasoningAliases[] = {
    {"qwen3", "think"}, {"deepseek", "think"}, {"deepseek-r1", "think"}, {"deepseek-v3", "think"}, {"glm", "think"}, {"glm45", "think"},
    {"openai", "harmony"}, {"gpt-oss", "harmony"},
};

std::string Canonical(std::string_view name, std::span<const Alias> aliases) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  for (const Alias& a : aliases) {
    if (a.alias == out) return std::string(a.name);
  }
  return out;
}

template <typename Entries>
absl::Status Unknown(std::string_view what, std::string_view name, const Entries& entries) {
  std::string known;
  for (const auto& e : entries) known += fmt::format("{}{}", known.empty() ? "" : ", ", e.name);
  return absl::InvalidArgumentError(fmt::format("{} format \"{}\" is not known; these are: {}", what, name, known));
}

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

std::span<const std::string_view> FormatNames() {
  static constexpr std::string_view kNames[] = {"gemma4",  "hermes",      "qwen3-coder", "glm",           "llama3", "mistral",
                                                "mistral-v11", "deepseek-v3", "deepseek-v3.1", "kimi-k2", "harmony", "think"};
  return kNames;
}

std::string_view DetectTools(std::string_view t, const text::Vocabulary&) {
  if (Has(t, "<|tool_call>")) return "gemma4";
  if (Has(t, "<|channel|>") && Has(t, "<|message|>")) return kHarmony;
  if (Has(t, "<\xEF\xBD\x9C" "tool\xE2\x96\x81" "calls\xE2\x96\x81" "begin\xEF\xBD\x9C>")) return Has(t, "```json") ? "deepseek-v3" : "deepseek-v3.1";
  if (Has(t, "<|tool_call_argument_begin|>")) return "kimi-k2";
  if (Has(t, "[TOOL_CALLS]")) return Has(t, "[ARGS]") ? "mistral-v11" : "mistral";
  if (Has(t, "<minimax:tool_call>")) return "";
  if (Has(t, "<arg_key>")) return "glm";
  if (Has(t, "<function=") && Has(t, "<parameter=")) return "qwen3-coder";
  if (Has(t, "<tool_call>")) return "hermes";
  if (Has(t, "<|python_tag|>") || (Has(t, "\"name\"") && Has(t, "\"parameters\": "))) return "llama3";
  return "";
}

std::string_view DetectReasoning(std::string_view t, const text::Vocabulary&) {
  if (Has(t, "<|channel>")) return "gemma4";
  if (Has(t, "<|channel|>") && Has(t, "<|message|>")) return kHarmony;
  if (Has(t, "[THINK]")) return "mistral";
  if (Has(t, "<think>")) return "think";
  return "";
}

absl::StatusOr<std::shared_ptr<const Format>> CreateFormat(std::string_view tools, std::string_view reasoning,
                                                           const text::Vocabulary& vocabulary) {
  auto tags = std::make_unique<Tags>(vocabulary);
  std::unique_ptr<CallSyntax> calls;
  ThoughtSyntax thoughts;
  const std::string tool_name = Canonical(tools, kToolAliases), reasoning_name = Canonical(reasoning, kReasoningAliases);
  if (tool_name == kHarmony || reasoning_name == kHarmony) {
    const bool other = (tool_name != kHarmony && !tool_name.empty()) || (reasoning_name != kHarmony && !reasoning_name.empty());
    if (other) {
      return absl::InvalidArgumentError(fmt::format(
          "tool call format \"{}\" and reasoning format \"{}\" cannot be combined: harmony writes both", tools, reasoning));
    }
    return NewHarmony(std::move(tags), !tool_name.empty(), !reasoning_name.empty());
  }
  if (!tool_name.empty()) {
    const auto* entry = std::find_if(std::begin(kTools), std::end(kTools), [&](const ToolEntry& e) { return e.name == tool_name; });
    if (entry == std::end(kTools)) return Unknown("tool call", tools, kTools);
    calls = entry->make(tags.get());
  }
  if (!reasoning_name.empty()) {
    const auto* entry =
        std::find_if(std::begin(kReasoningFormats), std::end(kReasoningFormats), [&](const ReasoningEntry& e) { return e.name == reasoning_name; });
    if (entry == std::end(kReasoningFormats)) return Unknown("reasoning", reasoning, kReasoningFormats);
    thoughts = entry->make(tags.get());
  }
  std::string name = tool_name.empty() ? reasoning_name : tool_name;
  return std::make_shared<const AnswerFormat>(std::move(name), std::move(tags), thoughts, std::move(calls));
}

}  // namespace holdfast::tools

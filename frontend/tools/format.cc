#include "frontend/tools/format.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/formats.h"

namespace holdfast::tools {
namespace {

struct ToolEntry {
  std::string_view name;
  std::unique_ptr<CallSyntax> (*make)(Tags*);
};
constexpr ToolEntry kTools[] = {
    {"gemma4", NewGemma4},
    {"hermes", NewHermes},
    {"qwen3-coder", NewQwen3Coder},
    {"glm", NewGlm},
};

struct ReasoningEntry {
  std::string_view name;
  ThoughtSyntax (*make)(Tags*);
};
constexpr ReasoningEntry kReasoning[] = {
    {"gemma4", Gemma4Thoughts},
    {"think", ThinkThoughts},
    {"mistral", MistralThoughts},
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
  static constexpr std::string_view kNames[] = {"gemma4", "hermes", "qwen3-coder", "glm", "think", "mistral"};
  return kNames;
}

std::string_view DetectTools(std::string_view t, const text::Vocabulary&) {
  if (Has(t, "<|tool_call>")) return "gemma4";
  if (Has(t, "<arg_key>")) return "glm";
  if (Has(t, "<function=") && Has(t, "<parameter=")) return "qwen3-coder";
  if (Has(t, "<tool_call>")) return "hermes";
  return "";
}

std::string_view DetectReasoning(std::string_view t, const text::Vocabulary&) {
  if (Has(t, "<|channel>")) return "gemma4";
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
  if (!tool_name.empty()) {
    const auto* entry = std::find_if(std::begin(kTools), std::end(kTools), [&](const ToolEntry& e) { return e.name == tool_name; });
    if (entry == std::end(kTools)) return Unknown("tool call", tools, kTools);
    calls = entry->make(tags.get());
  }
  if (!reasoning_name.empty()) {
    const auto* entry =
        std::find_if(std::begin(kReasoning), std::end(kReasoning), [&](const ReasoningEntry& e) { return e.name == reasoning_name; });
    if (entry == std::end(kReasoning)) return Unknown("reasoning", reasoning, kReasoning);
    thoughts = entry->make(tags.get());
  }
  std::string name = tool_name.empty() ? reasoning_name : tool_name;
  return std::make_shared<const AnswerFormat>(std::move(name), std::move(tags), thoughts, std::move(calls));
}

}  // namespace holdfast::tools

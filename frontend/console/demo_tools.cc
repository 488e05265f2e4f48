#include "frontend/console/demo_tools.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "proto/base/status_wire.h"

namespace holdfast::console {
namespace {

using text::JsonValue;

// FNV-1a: no more than a spread is asked of it.
uint32_t Hash(std::string_view text) {
  uint32_t h = 2166136261u;
  for (const char c : text) {
    h ^= static_cast<unsigned char>(c);
    h *= 16777619u;
  }
  return h;
}

absl::Status CheckRule(const std::string& at, const JsonValue& rule) {
  const JsonValue* range = rule.Find("range");
  const JsonValue* choice = rule.Find("choice");
  if (rule.Find("value")) return absl::OkStatus();
  if (choice && choice->is_array() && !choice->AsArray().empty()) return absl::OkStatus();
  if (range && range->is_array() && range->AsArray().size() == 2) {
    const auto& ends = range->AsArray();
    if (ends[0].kind() == JsonValue::Kind::kInt && ends[1].kind() == JsonValue::Kind::kInt && ends[0].AsInt() <= ends[1].AsInt()) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(at + " must have one of range (two whole numbers, the lower first), choice (a filled array), value");
}

JsonValue Make(const JsonValue& rule, const std::string& seed) {
  if (const JsonValue* value = rule.Find("value")) return *value;
  const uint32_t h = Hash(seed);
  if (const JsonValue* choice = rule.Find("choice")) return choice->AsArray()[h % choice->AsArray().size()];
  const auto& ends = rule.Find("range")->AsArray();
  return JsonValue(ends[0].AsInt() + static_cast<int64_t>(h % static_cast<uint64_t>(ends[1].AsInt() - ends[0].AsInt() + 1)));
}

std::string Error(const std::string& what) { return JsonValue(JsonValue::Object{{"error", JsonValue(what)}}).Dump(); }

std::string TextOf(const JsonValue* value) { return value && value->is_string() ? value->AsString() : std::string(); }

}  // namespace

absl::StatusOr<DemoTools> DemoTools::Parse(std::string_view json) {
  HF_ASSIGN_OR_RETURN(const JsonValue all, text::ParseJson(json));
  if (!all.is_array()) return absl::InvalidArgumentError("the demo's tools must be an array");
  DemoTools out;
  for (const JsonValue& entry : all.AsArray()) {
    const std::string at = "tools[" + std::to_string(out.tools_.size()) + "]";
    const JsonValue* function = entry.Find("function");
    const JsonValue* stub = entry.Find("stub");
    DemoTool tool;
    if (function) tool.name = TextOf(function->Find("name"));
    if (tool.name.empty() || !stub || !stub->is_object()) return absl::InvalidArgumentError(at + " must have function.name and stub");
    for (const auto& [member, rule] : stub->AsObject()) HF_RETURN_IF_ERROR(CheckRule(at + ".stub." + member, rule));
    tool.stub = *stub;
    tool.description = TextOf(function->Find("description"));
    tool.declaration = JsonValue(JsonValue::Object{{"type", JsonValue("function")}, {"function", *function}});
    if (const JsonValue* offered = entry.Find("offered"); offered && offered->is_bool()) tool.offered = offered->AsBool();
    if (const JsonValue* examples = entry.Find("examples"); examples && examples->is_array()) {
      for (const JsonValue& example : examples->AsArray()) tool.examples.push_back(TextOf(&example));
    }
    out.tools_.push_back(std::move(tool));
  }
  return out;
}

const DemoTool* DemoTools::Find(std::string_view name) const {
  const auto it = std::find_if(tools_.begin(), tools_.end(), [&](const DemoTool& t) { return t.name == name; });
  return it == tools_.end() ? nullptr : &*it;
}

std::string DemoTools::Answer(std::string_view name, std::string_view arguments) const {
  const DemoTool* tool = Find(name);
  if (!tool) return Error("there is no tool " + std::string(name));
  const auto parsed = text::ParseJson(arguments);
  if (!parsed.ok() || !parsed->is_object()) return Error("the arguments are no JSON object");
  const std::string seed = std::string(name) + parsed->Dump() + "/";
  JsonValue::Object result;
  for (const auto& [member, rule] : tool->stub.AsObject()) result.emplace_back(member, Make(rule, seed + member));
  return JsonValue(std::move(result)).Dump();
}

}  // namespace holdfast::console

// The grammar of calls with tagged arguments.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/tools/answer_format.h"
#include "frontend/tools/tagged_calls.h"

namespace holdfast::tools {

using grammar::Builder;
using grammar::Node;
using text::JsonValue;

namespace {

// A schema that is cut out of `root`, with the definitions that its references name.
JsonValue WithDefinitions(const JsonValue& schema, const JsonValue& root) {
  if (!schema.is_object()) return schema;
  JsonValue::Object out = schema.AsObject();
  for (const std::string_view key : {"$defs", "definitions"}) {
    if (const JsonValue* all = root.Find(key); all != nullptr && schema.Find(key) == nullptr) out.emplace_back(key, *all);
  }
  return JsonValue(std::move(out));
}

constexpr std::string_view kAnnotations[] = {"type", "title", "description", "default", "examples", "$comment", "deprecated", "readOnly",
                                             "writeOnly", "enum", "const", "minLength", "maxLength", "pattern", "$defs", "definitions"};

}  // namespace

Node TaggedCalls::AnyText(Builder& builder) const {
  if (!tags_.IsSpelled(syntax_.value_close)) return builder.TextWithout({});
  const std::string close(tags_.text(syntax_.value_close));
  return builder.TextWithout(std::span<const std::string>(&close, 1));
}

Node TaggedCalls::Argument(Builder& builder, Node key, Node value) const {
  std::vector<Node> parts = {Spell(builder, tags_, syntax_.key), key};
  parts.push_back(Tags::IsSymbol(syntax_.key_close) ? Spell(builder, tags_, syntax_.key_close)
                                                    : builder.Literal(std::string_view(&syntax_.key_close, 1)));
  parts.push_back(builder.Literal("\n"));
  if (syntax_.value != kNoSymbol) parts.push_back(Spell(builder, tags_, syntax_.value));
  parts.push_back(value);
  if (syntax_.framed) parts.push_back(builder.Literal("\n"));
  parts.push_back(Spell(builder, tags_, syntax_.value_close));
  parts.push_back(builder.Literal("\n"));
  return builder.Seq(parts);
}

absl::StatusOr<Node> TaggedCalls::Value(Builder& builder, const JsonValue& schema, const JsonValue& root, const std::string& path) const {
  grammar::SchemaStyle style;
  style.no_close_tags = tags_.IsSpelled(syntax_.value_close);  // a string within such a value must not look like its end
  const auto checked = builder.Schema(WithDefinitions(schema, root), style, path);
  if (!checked.ok() || !TypeSet::Of(&schema, root).OnlyStrings()) return checked;
  const auto refuse = [&](std::string_view key) {
    return absl::InvalidArgumentError(
        fmt::format("{}.{} cannot be enforced: the model's format ({}) writes strings without quotes", path, key, name_));
  };
  for (const auto& [key, value] : schema.AsObject()) {
    const std::string_view k = key;
    if (k.starts_with("x-") || std::find(std::begin(kAnnotations), std::end(kAnnotations), k) != std::end(kAnnotations)) continue;
    return refuse(k);
  }
  const JsonValue* values = schema.Find("enum");
  const JsonValue* constant = schema.Find("const");
  const JsonValue* pattern = schema.Find("pattern");
  const JsonValue* shortest = schema.Find("minLength");
  const JsonValue* longest = schema.Find("maxLength");
  if (values != nullptr || constant != nullptr) {
    std::vector<Node> choices;
    const auto add = [&](const JsonValue& v) {
      if (v.is_string() && v.AsString().find(tags_.text(syntax_.value_close)) == std::string::npos) choices.push_back(builder.Literal(v.AsString()));
    };
    if (constant != nullptr) {
      add(*constant);
    } else {
      for (const JsonValue& v : values->AsArray()) add(v);
    }
    if (choices.empty()) return refuse("enum");
    return builder.Choice(choices);
  }
  if (pattern != nullptr) {
    if (shortest != nullptr || longest != nullptr || !pattern->is_string()) return refuse("pattern");
    const std::string& p = pattern->AsString();
    // Matches with a '<' in them are left out, so that none looks like the end of the value.
    const auto whole = fmt::format("{}(?:{}){}", p.starts_with('^') ? "" : "[^<]*", p, p.ends_with('$') ? "" : "[^<]*");
    const auto match = builder.Regex(whole, path + ".pattern", '<');
    return match.ok() && match->id == builder.Never().id ? refuse("pattern") : match;
  }
  if (shortest != nullptr || longest != nullptr) {
    const auto bound = [](const JsonValue* v, uint32_t otherwise) {
      return v != nullptr && v->kind() == JsonValue::Kind::kInt && v->AsInt() >= 0
                 ? static_cast<uint32_t>(std::min<int64_t>(v->AsInt(), UINT32_MAX - 1))
                 : otherwise;
    };
    // Without '<' no closing tag can begin in the value.
    const std::pair<uint32_t, uint32_t> bracket[] = {{'<', '<'}};
    return builder.Repeat(builder.CodePoints(bracket, true), bound(shortest, 0), bound(longest, Builder::kNoLimit));
  }
  return AnyText(builder);
}

absl::StatusOr<Node> TaggedCalls::Arguments(Builder& builder, const CallableTool& tool) const {
  const JsonValue& schema = tool.tool->parameters;
  if (!tool.enforce) {
    const std::pair<uint32_t, uint32_t> no_key[] = {{0, ' '}, {'<', '<'}, {'>', '>'}};
    const Node key = builder.Repeat(builder.CodePoints(no_key, true), 1, kMaxNameBytes / 4);
    return builder.Repeat(Argument(builder, key, AnyText(builder)), 0, Builder::kNoLimit);
  }
  if (schema.is_null()) return builder.Empty();
  if (!schema.is_object()) return absl::InvalidArgumentError(fmt::format("{} must be a JSON Schema of an object", tool.path));
  constexpr std::string_view kRead[] = {"type", "properties", "required", "additionalProperties", "title", "description", "default", "examples",
                                        "$schema", "$id", "$comment", "$defs", "definitions", "deprecated"};
  for (const auto& [key, value] : schema.AsObject()) {
    const std::string_view k = key;
    if (k.starts_with("x-") || std::find(std::begin(kRead), std::end(kRead), k) != std::end(kRead)) continue;
    return absl::InvalidArgumentError(fmt::format("{}.{} cannot be enforced: the model's format ({}) writes the arguments one by one",
                                                  tool.path, k, name_));
  }
  const JsonValue* type = schema.Find("type");
  if (type != nullptr && (!type->is_string() || type->AsString() != "object")) {
    return absl::InvalidArgumentError(fmt::format("{}.type must be \"object\": arguments are always one", tool.path));
  }
  std::vector<std::string> required;
  if (const JsonValue* names = schema.Find("required"); names != nullptr) {
    if (!names->is_array()) return absl::InvalidArgumentError(fmt::format("{}.required must be an array of names", tool.path));
    for (const JsonValue& name : names->AsArray()) {
      if (!name.is_string()) return absl::InvalidArgumentError(fmt::format("{}.required must be an array of names", tool.path));
      required.push_back(name.AsString());
    }
  }
  std::vector<Node> parts;
  if (const JsonValue* properties = schema.Find("properties"); properties != nullptr) {
    if (!properties->is_object()) return absl::InvalidArgumentError(fmt::format("{}.properties must be an object", tool.path));
    for (const auto& [name, property] : properties->AsObject()) {
      const std::string path = fmt::format("{}.properties.{}", tool.path, name);
      if (name.empty() || name.find_first_of("<>\n\r\t ") != std::string::npos) {
        return absl::InvalidArgumentError(fmt::format("{}: this name cannot be written in the model's format ({})", path, name_));
      }
      const auto value = Value(builder, property, schema, path);
      if (!value.ok()) return value.status();
      const Node argument = Argument(builder, builder.Literal(name), *value);
      const auto at = std::find(required.begin(), required.end(), name);
      parts.push_back(at != required.end() ? argument : builder.Optional(argument));
      if (at != required.end()) required.erase(at);
    }
  }
  for (const std::string& name : required) parts.push_back(Argument(builder, builder.Literal(name), AnyText(builder)));
  return builder.Seq(parts);
}

absl::StatusOr<Node> TaggedCalls::CallsGrammar(Builder& builder, std::span<const CallableTool> tools, bool parallel) const {
  std::vector<Node> calls;
  for (const CallableTool& tool : tools) {
    const auto arguments = Arguments(builder, tool);
    if (!arguments.ok()) return arguments.status();
    std::vector<Node> parts;
    if (syntax_.function != kNoSymbol) {
      parts = {builder.Literal("\n"), Spell(builder, tags_, syntax_.function), builder.Literal(tool.tool->name + ">\n"), *arguments,
               Spell(builder, tags_, syntax_.function_close), builder.Literal("\n")};
    } else {
      parts = {builder.Literal(tool.tool->name + "\n"), *arguments};
    }
    calls.push_back(builder.Seq(parts));
  }
  const Node call = builder.Seq({Spell(builder, tags_, syntax_.open), builder.Choice(calls), Spell(builder, tags_, syntax_.close)});
  if (!parallel) return call;
  return builder.Seq({call, builder.Repeat(builder.Seq({builder.Literal("\n"), call}), 0, Builder::kNoLimit)});
}

}  // namespace holdfast::tools

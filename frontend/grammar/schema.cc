#include "frontend/grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "frontend/grammar/builder_impl.h"
#include "proto/base/check.h"
#include "proto/base/status_wire.h"

namespace holdfast::grammar {
namespace {

using text::JsonValue;

constexpr int kMaxSchemaDepth = 64;

bool HasAny(const JsonValue& schema, std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](std::string_view key) { return schema.Find(key) != nullptr; });
}

// Whether the schema says anything beside what `keys` say.
bool HasOthers(const JsonValue& schema, std::initializer_list<std::string_view> keys) {
  static constexpr std::string_view kSilent[] = {"title", "description", "default", "examples", "example", "$schema", "$id", "$comment", "$defs", "definitions",
                                                 "deprecated", "readOnly", "writeOnly", "discriminator"};
  for (const auto& [key, value] : schema.AsObject()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end() || key.starts_with("x-")) continue;
    if (std::find(std::begin(kSilent), std::end(kSilent), key) == std::end(kSilent)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<Node> SchemaCompiler::Compile() {
  HF_ASSIGN_OR_RETURN(const Node whole, Any(root_, path_, 0));
  while (!undefined_.empty()) {
    const auto [reference, node] = undefined_.back();
    undefined_.pop_back();
    HF_ASSIGN_OR_RETURN(const JsonValue* target, algebra_.Resolve(reference, path_));
    HF_ASSIGN_OR_RETURN(const Node meaning, Any(*target, fmt::format("{}({})", path_, reference), 0));
    b_.Define(node, meaning);
  }
  return whole;
}

absl::StatusOr<Node> SchemaCompiler::Reference(const std::string& reference, const std::string& path) {
  const auto it = references_.find(reference);
  if (it != references_.end()) return it->second;
  HF_RETURN_IF_ERROR(algebra_.Resolve(reference, path).status());
  const Node node = b_.Declare(fmt::format("{} ({})", path, reference));
  references_.emplace(reference, node);
  undefined_.push_back({reference, node});
  return node;
}

absl::StatusOr<Node> SchemaCompiler::Any(const JsonValue& schema, const std::string& path, int depth) {
  if (depth > kMaxSchemaDepth) return SchemaError(path, fmt::format("schemas nested more than {} deep are not accepted", kMaxSchemaDepth));
  HF_RETURN_IF_ERROR(b_.status());
  HF_RETURN_IF_ERROR(SchemaAlgebra::CheckKeywords(schema, path));
  if (schema.is_bool()) return schema.AsBool() ? v_.AnyValue() : b_.Never();
  // The common forms keep their shape, and recursion through a reference stays recursion; everything else is flattened first.
  if (const JsonValue* reference = schema.Find("$ref"); reference != nullptr && !HasOthers(schema, {"$ref"})) {
    return Reference(reference->AsString(), path + ".$ref");
  }
  if (const JsonValue* parts = schema.Find("allOf"); parts != nullptr && parts->AsArray().size() == 1 && !HasOthers(schema, {"allOf"})) {
    return Any(parts->AsArray()[0], path + ".allOf[0]", depth + 1);
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const JsonValue* branches = schema.Find(key);
    if (branches == nullptr || HasOthers(schema, {key, "nullable"})) continue;
    // Sees to it that the branches of oneOf exclude each other.
    if (std::string_view(key) == "oneOf") HF_RETURN_IF_ERROR(algebra_.Expand(schema, path).status());
    std::vector<Node> choices;
    for (size_t i = 0; i < branches->AsArray().size(); ++i) {
      HF_ASSIGN_OR_RETURN(const Node branch, Any(branches->AsArray()[i], fmt::format("{}.{}[{}]", path, key, i), depth + 1));
      choices.push_back(branch);
    }
    if (const JsonValue* nullable = schema.Find("nullable"); nullable != nullptr && nullable->AsBool()) choices.push_back(v_.Null());
    return b_.Choice(choices);
  }
  if (!HasAny(schema, {"$ref", "allOf", "anyOf", "oneOf", "const", "nullable"})) return Flat(schema, path, depth);
  HF_ASSIGN_OR_RETURN(const std::vector<JsonValue> alternatives, algebra_.Expand(schema, path));
  std::vector<Node> choices;
  for (const JsonValue& flat : alternatives) {
    HF_ASSIGN_OR_RETURN(const Node choice, Flat(flat, path, depth));
    choices.push_back(choice);
  }
  return b_.Choice(choices);
}

absl::StatusOr<Node> SchemaCompiler::Flat(const JsonValue& schema, const std::string& path, int depth) {
  if (const JsonValue* values = schema.Find("enum"); values != nullptr) return Enum(schema, values->AsArray(), path);
  const uint32_t types = SchemaAlgebra::GeneratedTypes(schema);
  std::vector<Node> choices;
  const auto add = [&](absl::StatusOr<Node> node) {
    if (node.ok()) choices.push_back(*node);
    return node.status();
  };
  const bool object = HasAny(schema, {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
                                      "maxProperties", "unevaluatedProperties"});
  const bool array = HasAny(schema, {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"});
  if (types == kAllTypes && !object && !array && !HasAny(schema, {"minLength", "maxLength", "pattern", "format", "minimum", "maximum",
                                                                  "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})) {
    return v_.AnyValue();
  }
  if (types & kObjectType) HF_RETURN_IF_ERROR(add(object ? Object(schema, path, depth) : absl::StatusOr<Node>(v_.AnyObject())));
  if (types & kArrayType) HF_RETURN_IF_ERROR(add(array ? Array(schema, path, depth) : absl::StatusOr<Node>(v_.AnyArray())));
  if (types & kStringType) HF_RETURN_IF_ERROR(add(String(schema, path)));
  if (types & (kNumberType | kIntegerType)) HF_RETURN_IF_ERROR(add(Number(schema, (types & kNumberType) == 0, path)));
  if (types & kBoolType) choices.push_back(v_.Bool());
  if (types & kNullType) choices.push_back(v_.Null());
  return b_.Choice(choices);
}

absl::StatusOr<Node> SchemaCompiler::Enum(const JsonValue& schema, const JsonValue::Array& values, const std::string& path) {
  for (const std::string_view key : {"pattern", "format", "properties", "items", "prefixItems", "multipleOf", "patternProperties"}) {
    // Their values could be checked, but nobody writes an enum of values that the schema itself forbids.
    if (schema.Find(key) != nullptr && key != "format") {
      return SchemaError(fmt::format("{}.{}", path, key), "is not supported beside enum or const; the values alone say the same");
    }
  }
  JsonValue::Object others;  // what the schema says beside the values
  for (const auto& member : schema.AsObject()) {
    if (member.first != "enum") others.push_back(member);
  }
  const JsonValue rest(std::move(others));
  std::vector<Node> choices;
  for (const JsonValue& value : values) {
    if (algebra_.Rejects(rest, value)) continue;  // the budget may be used up: then all of them
    choices.push_back(v_.Constant(value));
  }
  if (work_.over()) return SchemaError(path, "takes too many steps to combine");
  if (choices.empty()) return SchemaError(path + ".enum", "no value of it is valid under the rest of the schema");
  return b_.Choice(choices);
}

absl::StatusOr<Node> Builder::Schema(const text::JsonValue& schema, const SchemaStyle& style, std::string_view path) {
  Values values(*this, style, impl_->Sharing());
  SchemaCompiler compiler(*this, values, schema, std::string(path), impl_->work);
  absl::StatusOr<Node> node = compiler.Compile();
  if (node.ok() && !status().ok()) return SchemaError(path, MessageOf(status()));
  return node;
}

Node Builder::AnyObject(const SchemaStyle& style) { return Values(*this, style, impl_->Sharing()).AnyObject(); }

Node Builder::AnyValue(const SchemaStyle& style) { return Values(*this, style, impl_->Sharing()).AnyValue(); }

}  // namespace holdfast::grammar

// Merging, flattening and comparing schemas; references.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "frontend/grammar/schema.h"
#include "proto/base/status_wire.h"

namespace holdfast::grammar {
namespace {

using text::JsonValue;

constexpr size_t kMaxAlternatives = 1000;
constexpr int kMaxExpand = 48;

constexpr std::string_view kAnnotations[] = {"title",      "description", "default",   "examples",     "example",          "$schema",         "$id",
                                             "$comment",   "deprecated",  "readOnly",  "writeOnly",    "contentMediaType", "contentEncoding", "discriminator",
                                             "externalDocs", "xml",       "$defs",     "definitions",  "id",               "markdownDescription", "enumDescriptions",
                                             "enumNames",  "errorMessage", "propertyOrdering"};
constexpr std::string_view kAssertions[] = {
    "type", "enum", "const", "nullable", "$ref", "allOf", "anyOf", "oneOf", "properties", "required", "additionalProperties", "patternProperties",
    "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties", "items", "prefixItems", "additionalItems", "minItems", "maxItems",
    "uniqueItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kCombinators[] = {"$ref", "allOf", "anyOf", "oneOf", "nullable", "const"};

template <size_t N>
bool Among(const std::string_view (&list)[N], std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

bool IsAnnotation(std::string_view key) { return Among(kAnnotations, key) || key.starts_with("x-"); }

uint32_t TypeOfName(std::string_view name) {
  if (name == "null") return kNullType;
  if (name == "boolean") return kBoolType;
  if (name == "integer") return kIntegerType;
  if (name == "number") return kNumberType | kIntegerType;
  if (name == "string") return kStringType;
  if (name == "array") return kArrayType;
  return name == "object" ? uint32_t{kObjectType} : 0;
}

bool IsWhole(const JsonValue& v) { return v.kind() != JsonValue::Kind::kDouble || (std::floor(v.AsDouble()) == v.AsDouble() && std::abs(v.AsDouble()) < 1e18); }

uint32_t TypeOf(const JsonValue& v) {
  switch (v.kind()) {
    case JsonValue::Kind::kNull: return kNullType;
    case JsonValue::Kind::kBool: return kBoolType;
    case JsonValue::Kind::kString: return kStringType;
    case JsonValue::Kind::kArray: return kArrayType;
    case JsonValue::Kind::kObject: return kObjectType;
    default: return IsWhole(v) ? kIntegerType : kNumberType;
  }
}

JsonValue NamesOf(uint32_t types) {
  JsonValue::Array names;
  if (types & kNullType) names.push_back("null");
  if (types & kBoolType) names.push_back("boolean");
  if (types & kNumberType) {
    names.push_back("number");
  } else if (types & kIntegerType) {
    names.push_back("integer");
  }
  if (types & kStringType) names.push_back("string");
  if (types & kArrayType) names.push_back("array");
  if (types & kObjectType) names.push_back("object");
  return JsonValue(std::move(names));
}

const JsonValue* FindSchema(const JsonValue* properties, std::string_view name) { return properties == nullptr ? nullptr : properties->Find(name); }

bool HasName(const JsonValue* required, std::string_view name) {
  if (required == nullptr || !required->is_array()) return false;
  for (const JsonValue& r : required->AsArray()) {
    if (r.is_string() && r.AsString() == name) return true;
  }
  return false;
}

}  // namespace

absl::Status SchemaError(std::string_view path, std::string_view what) { return absl::InvalidArgumentError(fmt::format("{}: {}", path, what)); }

// A step here is a member that is copied or compared, strings and all.
absl::Status SchemaAlgebra::Spend(uint64_t steps, std::string_view path) const {
  if (work_.Spend(8 * steps)) return absl::OkStatus();
  return SchemaError(path, "takes too many steps to combine; fewer references and branches within each other help");
}

bool SameValue(const JsonValue& a, const JsonValue& b) {
  if (a.is_number() && b.is_number()) {
    if (a.kind() == JsonValue::Kind::kInt && b.kind() == JsonValue::Kind::kInt) return a.AsInt() == b.AsInt();
    return a.AsDouble() == b.AsDouble();
  }
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) {
    return std::equal(a.AsArray().begin(), a.AsArray().end(), b.AsArray().begin(), b.AsArray().end(), SameValue);
  }
  if (a.is_object()) {
    if (a.AsObject().size() != b.AsObject().size()) return false;
    for (const auto& [key, value] : a.AsObject()) {
      const JsonValue* other = b.Find(key);
      if (other == nullptr || !SameValue(value, *other)) return false;
    }
    return true;
  }
  if (a.is_string()) return a.AsString() == b.AsString();
  return a.is_null() || a.AsBool() == b.AsBool();
}

absl::StatusOr<const JsonValue*> SchemaAlgebra::Resolve(std::string_view reference, std::string_view path) const {
  if (!reference.starts_with("#") || (reference.size() > 1 && reference[1] != '/')) {
    return SchemaError(path, fmt::format("\"{}\" is not supported; references into the same schema (#/$defs/name) are", reference));
  }
  std::string decoded;
  for (size_t i = 1; i < reference.size(); ++i) {
    int value = 0;
    if (reference[i] == '%' && i + 2 < reference.size() &&
        std::from_chars(reference.data() + i + 1, reference.data() + i + 3, value, 16).ptr == reference.data() + i + 3) {
      decoded.push_back(static_cast<char>(value));
      i += 2;
    } else {
      decoded.push_back(reference[i]);
    }
  }
  const JsonValue* at = &root_;
  for (size_t i = 0; i < decoded.size();) {
    const size_t end = std::min(decoded.find('/', i + 1), decoded.size());
    std::string part;
    for (size_t k = i + 1; k < end; ++k) {
      if (decoded[k] == '~' && k + 1 < end && (decoded[k + 1] == '0' || decoded[k + 1] == '1')) {
        part.push_back(decoded[++k] == '0' ? '~' : '/');
      } else {
        part.push_back(decoded[k]);
      }
    }
    i = end;
    const JsonValue* next = at->Find(part);
    size_t index = 0;
    if (at->is_array() && !part.empty() && std::from_chars(part.data(), part.data() + part.size(), index).ptr == part.data() + part.size() &&
        index < at->AsArray().size()) {
      next = &at->AsArray()[index];
    }
    if (next == nullptr) return SchemaError(path, fmt::format("\"{}\" names nothing in this schema", reference));
    at = next;
  }
  return at;
}

absl::Status SchemaAlgebra::CheckKeywords(const JsonValue& schema, std::string_view path) {
  if (schema.is_bool()) return absl::OkStatus();
  if (!schema.is_object()) return SchemaError(path, "must be an object (or true or false)");
  const auto bad = [&](std::string_view key, std::string_view what) { return SchemaError(fmt::format("{}.{}", path, key), what); };
  for (const auto& [key, value] : schema.AsObject()) {
    if (IsAnnotation(key)) continue;
    if (!Among(kAssertions, key)) return bad(key, "this keyword is not supported");
    if (key == "minLength" || key == "maxLength" || key == "minItems" || key == "maxItems" || key == "minProperties" || key == "maxProperties") {
      if (!value.is_number() || !IsWhole(value) || value.AsDouble() < 0) return bad(key, "must be a whole number, 0 or more");
    } else if (key == "minimum" || key == "maximum" || key == "multipleOf") {
      if (!value.is_number()) return bad(key, "must be a number");
    } else if (key == "exclusiveMinimum" || key == "exclusiveMaximum") {
      if (!value.is_number()) return bad(key, "must be a number");
    } else if (key == "enum" || key == "required" || key == "prefixItems" || key == "allOf" || key == "anyOf" || key == "oneOf") {
      if (!value.is_array()) return bad(key, "must be an array");
      if (key != "required" && key != "prefixItems" && value.AsArray().empty()) return bad(key, "must not be empty");
      if (key == "required") {
        for (const JsonValue& name : value.AsArray()) {
          if (!name.is_string()) return bad(key, "must be an array of strings");
        }
      }
    } else if (key == "properties" || key == "patternProperties") {
      if (!value.is_object()) return bad(key, "must be an object");
    } else if (key == "pattern" || key == "format" || key == "$ref") {
      if (!value.is_string()) return bad(key, "must be a string");
    } else if (key == "nullable" || key == "uniqueItems") {
      if (!value.is_bool()) return bad(key, "must be true or false");
    }
  }
  return Types(schema, path).status();
}

absl::StatusOr<uint32_t> SchemaAlgebra::Types(const JsonValue& schema, std::string_view path) {
  const JsonValue* type = schema.Find("type");
  if (type == nullptr) return uint32_t{kAllTypes};
  uint32_t types = 0;
  const auto add = [&](const JsonValue& name) {
    const uint32_t bits = name.is_string() ? TypeOfName(name.AsString()) : 0;
    types |= bits;
    return bits != 0;
  };
  bool good = true;
  if (type->is_array()) {
    for (const JsonValue& name : type->AsArray()) good = good && add(name);
  } else {
    good = add(*type);
  }
  if (!good) {
    return SchemaError(fmt::format("{}.type", path),
                       fmt::format("{} is no type; null, boolean, integer, number, string, array and object are", type->Dump().substr(0, 100)));
  }
  return types;
}

uint32_t SchemaAlgebra::GeneratedTypes(const JsonValue& schema) {
  if (const JsonValue* values = schema.Find("enum"); values != nullptr) {
    uint32_t types = 0;
    for (const JsonValue& v : values->AsArray()) types |= TypeOf(v);
    return types;
  }
  if (schema.Find("type") != nullptr) return Types(schema, "").value_or(0);
  uint32_t types = 0;
  const auto when = [&](uint32_t type, std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      if (schema.Find(key) != nullptr) types |= type;
    }
  };
  when(kObjectType, {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"});
  when(kArrayType, {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"});
  when(kStringType, {"minLength", "maxLength", "pattern", "format"});
  when(kNumberType | kIntegerType, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
  return types == 0 ? uint32_t{kAllTypes} : types;
}

absl::StatusOr<std::vector<JsonValue>> SchemaAlgebra::Expand(const JsonValue& schema, std::string_view path, int depth) const {
  if (depth > kMaxExpand) return SchemaError(path, "combines schemas too deeply, or a combination refers to itself");
  HF_RETURN_IF_ERROR(CheckKeywords(schema, path));
  HF_RETURN_IF_ERROR(Spend(4, path));
  if (schema.is_bool()) return schema.AsBool() ? std::vector<JsonValue>{JsonValue(JsonValue::Object{})} : std::vector<JsonValue>{};
  HF_RETURN_IF_ERROR(Spend(schema.AsObject().size(), path));
  JsonValue::Object base;
  for (const auto& [key, value] : schema.AsObject()) {
    if (!IsAnnotation(key) && !Among(kCombinators, key)) base.push_back({key, value});
  }
  if (const JsonValue* value = schema.Find("const"); value != nullptr) {
    const JsonValue one(JsonValue::Object{{"enum", JsonValue(JsonValue::Array{*value})}});
    HF_ASSIGN_OR_RETURN(const auto merged, Merge(JsonValue(base), one, path));
    if (!merged) return std::vector<JsonValue>{};
    base = merged->AsObject();
  }
  std::vector<JsonValue> all{JsonValue(base)};
  if (const JsonValue* nullable = schema.Find("nullable"); nullable != nullptr && nullable->AsBool()) {
    all.push_back(JsonValue(JsonValue::Object{{"type", JsonValue("null")}}));
  }
  const auto restrict = [&](const std::vector<JsonValue>& by) -> absl::Status {
    std::vector<JsonValue> next;
    for (const JsonValue& a : all) {
      for (const JsonValue& b : by) {
        HF_ASSIGN_OR_RETURN(const auto merged, Merge(a, b, path));
        if (merged) next.push_back(*merged);
        if (next.size() > kMaxAlternatives) return SchemaError(path, fmt::format("combines to more than {} alternatives", kMaxAlternatives));
      }
    }
    all = std::move(next);
    return absl::OkStatus();
  };
  if (const JsonValue* reference = schema.Find("$ref"); reference != nullptr) {
    const std::string at = fmt::format("{}.$ref", path);
    HF_ASSIGN_OR_RETURN(const JsonValue* target, Resolve(reference->AsString(), at));
    HF_ASSIGN_OR_RETURN(const auto alternatives, Expand(*target, at, depth + 1));
    HF_RETURN_IF_ERROR(restrict(alternatives));
  }
  if (const JsonValue* parts = schema.Find("allOf"); parts != nullptr) {
    for (size_t i = 0; i < parts->AsArray().size(); ++i) {
      HF_ASSIGN_OR_RETURN(const auto alternatives, Expand(parts->AsArray()[i], fmt::format("{}.allOf[{}]", path, i), depth + 1));
      HF_RETURN_IF_ERROR(restrict(alternatives));
    }
  }
  for (const std::string_view key : {std::string_view("anyOf"), std::string_view("oneOf")}) {
    const JsonValue* branches = schema.Find(key);
    if (branches == nullptr) continue;
    std::vector<std::vector<JsonValue>> each;
    std::vector<JsonValue> any;
    for (size_t i = 0; i < branches->AsArray().size(); ++i) {
      HF_ASSIGN_OR_RETURN(auto alternatives, Expand(branches->AsArray()[i], fmt::format("{}.{}[{}]", path, key, i), depth + 1));
      any.insert(any.end(), alternatives.begin(), alternatives.end());
      each.push_back(std::move(alternatives));
      if (any.size() > kMaxAlternatives) return SchemaError(path, fmt::format("combines to more than {} alternatives", kMaxAlternatives));
    }
    if (key == "oneOf") {
      // A value must not be valid under two branches: what the rest of this schema says helps to tell them apart.
      for (size_t i = 0; i < each.size(); ++i) {
        for (size_t k = 0; k < each.size(); ++k) {
          for (const JsonValue& made : each[i]) {
            for (const JsonValue& other : each[k]) {
              if (i == k) continue;
              HF_ASSIGN_OR_RETURN(const auto whole, Merge(JsonValue(base), made, path));
              const bool apart = !whole || Excludes(*whole, other);
              HF_RETURN_IF_ERROR(Spend(1, path));
              if (!apart) {
                return SchemaError(fmt::format("{}.oneOf", path), fmt::format("branches {} and {} may both be valid for one value, which cannot be "
                                                                              "prevented; anyOf allows that", i, k));
              }
            }
          }
        }
      }
    }
    HF_RETURN_IF_ERROR(restrict(any));
  }
  return all;
}

absl::StatusOr<std::optional<JsonValue>> SchemaAlgebra::Merge(const JsonValue& a, const JsonValue& b, std::string_view path) const {
  const auto never = std::optional<JsonValue>();
  const JsonValue::Object& left = a.AsObject();
  const JsonValue::Object& right = b.AsObject();
  HF_RETURN_IF_ERROR(Spend(1 + left.size() + right.size(), path));
  if (left.empty()) return std::optional<JsonValue>(b);
  if (right.empty()) return std::optional<JsonValue>(a);
  const auto both = [](const JsonValue& x, const JsonValue& y) { return JsonValue(JsonValue::Object{{"allOf", JsonValue(JsonValue::Array{x, y})}}); };
  for (const std::string_view key : {std::string_view("patternProperties"), std::string_view("unevaluatedProperties")}) {
    if ((a.Find(key) != nullptr && (b.Find("properties") || b.Find(key) || b.Find("additionalProperties"))) ||
        (b.Find(key) != nullptr && (a.Find("properties") || a.Find("additionalProperties")))) {
      return SchemaError(path, fmt::format("{} cannot be combined with the properties of another schema", key));
    }
  }
  JsonValue::Object out;
  // A property that only one side lists falls under the other side's additionalProperties.
  const JsonValue* pa = a.Find("properties");
  const JsonValue* pb = b.Find("properties");
  const JsonValue* xa = a.Find("additionalProperties");
  const JsonValue* xb = b.Find("additionalProperties");
  if (pa != nullptr || pb != nullptr) {
    const size_t na = pa == nullptr ? 0 : pa->AsObject().size(), nb = pb == nullptr ? 0 : pb->AsObject().size();
    HF_RETURN_IF_ERROR(Spend(na + nb + na * nb / 4, path));
    JsonValue::Object properties;
    if (pa != nullptr) {
      for (const auto& [name, schema] : pa->AsObject()) {
        const JsonValue* other = FindSchema(pb, name) != nullptr ? FindSchema(pb, name) : xb;
        properties.push_back({name, other == nullptr ? schema : both(schema, *other)});
      }
    }
    if (pb != nullptr) {
      for (const auto& [name, schema] : pb->AsObject()) {
        if (FindSchema(pa, name) == nullptr) properties.push_back({name, xa == nullptr ? schema : both(*xa, schema)});
      }
    }
    out.push_back({"properties", JsonValue(std::move(properties))});
  }
  for (const auto& [key, x] : left) {
    if (key == "properties") continue;
    const JsonValue* y = b.Find(key);
    if (y == nullptr) {
      out.push_back({key, x});
      continue;
    }
    if (key == "type") {
      HF_ASSIGN_OR_RETURN(const uint32_t ta, Types(a, path));
      HF_ASSIGN_OR_RETURN(const uint32_t tb, Types(b, path));
      if ((ta & tb) == 0) return never;
      out.push_back({key, NamesOf(ta & tb)});
    } else if (key == "enum") {
      HF_RETURN_IF_ERROR(Spend(uint64_t{x.AsArray().size()} * y->AsArray().size() / 8, path));
      JsonValue::Array values;
      for (const JsonValue& v : x.AsArray()) {
        for (const JsonValue& w : y->AsArray()) {
          if (SameValue(v, w)) values.push_back(v);
        }
      }
      if (values.empty()) return never;
      out.push_back({key, JsonValue(std::move(values))});
    } else if (key == "required") {
      HF_RETURN_IF_ERROR(Spend(x.AsArray().size() + uint64_t{x.AsArray().size()} * y->AsArray().size() / 4, path));
      JsonValue::Array names = x.AsArray();
      for (const JsonValue& name : y->AsArray()) {
        if (!HasName(&x, name.AsString())) names.push_back(name);
      }
      out.push_back({key, JsonValue(std::move(names))});
    } else if (key.starts_with("min") || key == "exclusiveMinimum") {
      out.push_back({key, x.AsDouble() >= y->AsDouble() ? x : *y});
    } else if (key.starts_with("max") || key == "exclusiveMaximum") {
      out.push_back({key, x.AsDouble() <= y->AsDouble() ? x : *y});
    } else if (key == "items" || key == "additionalProperties" || key == "propertyNames") {
      out.push_back({key, both(x, *y)});
    } else if (key == "uniqueItems") {
      out.push_back({key, JsonValue(x.AsBool() || y->AsBool())});
    } else if (SameValue(x, *y)) {
      out.push_back({key, x});
    } else {
      return SchemaError(path, fmt::format("two different values of {} cannot be combined", key));
    }
  }
  for (const auto& [key, y] : right) {
    if (key != "properties" && a.Find(key) == nullptr) out.push_back({key, y});
  }
  return std::optional<JsonValue>(JsonValue(std::move(out)));
}

bool SchemaAlgebra::Rejects(const JsonValue& schema, const JsonValue& value) const {
  if (work_.over()) return true;
  if (!schema.is_object()) return schema.is_bool() && !schema.AsBool();
  const uint32_t type = TypeOf(value);
  const auto types = Types(schema, "");
  if (!types.ok()) return false;
  if ((*types & type) == 0 && !(type == kIntegerType && (*types & kNumberType))) return true;
  if (const JsonValue* values = schema.Find("enum"); values != nullptr) {
    work_.Spend(values->AsArray().size());
    if (std::none_of(values->AsArray().begin(), values->AsArray().end(), [&](const JsonValue& v) { return SameValue(v, value); })) return true;
  }
  if (value.is_number()) {
    const double v = value.AsDouble();
    const JsonValue* bound = nullptr;
    if ((bound = schema.Find("minimum")) != nullptr && v < bound->AsDouble()) return true;
    if ((bound = schema.Find("maximum")) != nullptr && v > bound->AsDouble()) return true;
    if ((bound = schema.Find("exclusiveMinimum")) != nullptr && v <= bound->AsDouble()) return true;
    if ((bound = schema.Find("exclusiveMaximum")) != nullptr && v >= bound->AsDouble()) return true;
  }
  if (value.is_string()) {
    const auto length = static_cast<double>(std::count_if(value.AsString().begin(), value.AsString().end(), [](char c) { return (c & 0xC0) != 0x80; }));
    const JsonValue* bound = nullptr;
    if ((bound = schema.Find("minLength")) != nullptr && length < bound->AsDouble()) return true;
    if ((bound = schema.Find("maxLength")) != nullptr && length > bound->AsDouble()) return true;
  }
  if (value.is_object()) {
    if (const JsonValue* required = schema.Find("required"); required != nullptr) {
      work_.Spend(uint64_t{required->AsArray().size()} * value.AsObject().size());
      for (const JsonValue& name : required->AsArray()) {
        if (value.Find(name.AsString()) == nullptr) return true;
      }
    }
  }
  return false;
}

bool SchemaAlgebra::Excludes(const JsonValue& made, const JsonValue& other, int depth) const {
  if (depth > 8) return false;
  if (!work_.Spend(8)) return true;
  const uint32_t types = GeneratedTypes(made);
  uint32_t allowed = Types(other, "").value_or(kAllTypes);
  if (other.Find("enum") != nullptr) allowed &= GeneratedTypes(other);
  if ((types & allowed) == 0) return true;
  if (const JsonValue* values = made.Find("enum"); values != nullptr) {
    return std::all_of(values->AsArray().begin(), values->AsArray().end(), [&](const JsonValue& v) { return Rejects(other, v); });
  }
  const auto bound = [](const JsonValue& s, std::string_view key, double otherwise) {
    const JsonValue* v = s.Find(key);
    return v == nullptr ? otherwise : v->AsDouble();
  };
  if ((types & ~uint32_t{kNumberType | kIntegerType}) == 0) {
    constexpr double kInf = HUGE_VAL;
    return bound(made, "minimum", -kInf) > bound(other, "maximum", kInf) || bound(made, "maximum", kInf) < bound(other, "minimum", -kInf);
  }
  if ((types & allowed) != kObjectType) return false;
  const JsonValue* required = made.Find("required");
  const JsonValue* mine = made.Find("properties");
  const JsonValue* theirs = other.Find("properties");
  const JsonValue* extra = made.Find("additionalProperties");
  const bool closed = mine != nullptr && made.Find("patternProperties") == nullptr && (extra == nullptr || (extra->is_bool() && !extra->AsBool()));
  const auto flat = [&](const JsonValue& schema) { return Expand(schema, "", kMaxExpand - 8); };
  const auto size = [](const JsonValue* object) { return object == nullptr ? 1 : uint64_t{1} + object->AsObject().size(); };
  const auto count = [](const JsonValue* array) { return array == nullptr ? 0 : uint64_t{array->AsArray().size()}; };
  // Every name is looked for among the others'.
  if (!work_.Spend((count(required) + count(other.Find("required"))) * (size(mine) + size(theirs) + count(required)))) return true;
  if (const JsonValue* wants = other.Find("required"); wants != nullptr && closed) {
    for (const JsonValue& name : wants->AsArray()) {
      if (FindSchema(mine, name.AsString()) == nullptr && !HasName(required, name.AsString())) return true;
    }
  }
  if (required == nullptr) return false;
  for (const JsonValue& name : required->AsArray()) {
    const JsonValue* p = FindSchema(mine, name.AsString());
    const JsonValue* q = FindSchema(theirs, name.AsString());
    if (q == nullptr) {
      const JsonValue* theirs_extra = other.Find("additionalProperties");
      if (theirs_extra != nullptr && theirs_extra->is_bool() && !theirs_extra->AsBool() && other.Find("patternProperties") == nullptr) return true;
      continue;
    }
    if (p == nullptr) continue;
    const auto as = flat(*p), bs = flat(*q);
    if (!as.ok() || !bs.ok()) continue;
    const bool apart = std::all_of(as->begin(), as->end(), [&](const JsonValue& x) {
      return std::all_of(bs->begin(), bs->end(), [&](const JsonValue& y) { return Excludes(x, y, depth + 1); });
    });
    if (apart) return true;
  }
  return false;
}

}  // namespace holdfast::grammar

#include "tests/support/schema_check.h"

#include <cmath>
#include <set>

#include "frontend/text/utf8.h"

namespace holdfast::test {
namespace {

using text::JsonValue;

bool Equal(const JsonValue& a, const JsonValue& b) {
  if (a.is_number() && b.is_number()) return a.AsDouble() == b.AsDouble();
  return a.Dump() == b.Dump();
}

bool IsType(const std::string& type, const JsonValue& v) {
  if (type == "null") return v.is_null();
  if (type == "boolean") return v.is_bool();
  if (type == "string") return v.is_string();
  if (type == "array") return v.is_array();
  if (type == "object") return v.is_object();
  if (type == "number") return v.is_number();
  return type == "integer" && v.is_number() && std::floor(v.AsDouble()) == v.AsDouble();
}

size_t Characters(const std::string& s) {
  size_t n = 0;
  for (size_t i = 0; i < s.size(); ++n) i += text::DecodeUtf8(s, i).length;
  return n;
}

}  // namespace

std::string WhyInvalid(const JsonValue& schema, const JsonValue& value) {
  if (schema.is_bool()) return schema.AsBool() ? "" : "nothing is allowed here";
  for (const auto& [key, rule] : schema.AsObject()) {
    if (key == "type") {
      bool good = rule.is_string() && IsType(rule.AsString(), value);
      if (rule.is_array()) {
        for (const JsonValue& name : rule.AsArray()) good = good || IsType(name.AsString(), value);
      }
      if (!good) return "type " + rule.Dump() + ": " + value.Dump();
    } else if (key == "enum") {
      bool good = false;
      for (const JsonValue& v : rule.AsArray()) good = good || Equal(v, value);
      if (!good) return "enum: " + value.Dump();
    } else if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum" || key == "multipleOf") {
      if (!value.is_number()) continue;
      const double v = value.AsDouble(), bound = rule.AsDouble();
      const bool good = key == "minimum"            ? v >= bound
                        : key == "maximum"          ? v <= bound
                        : key == "exclusiveMinimum" ? v > bound
                        : key == "exclusiveMaximum" ? v < bound
                                                    : std::abs(v) > 9e15 || std::fmod(v, bound) == 0;
      if (!good) return key + ": " + value.Dump();
    } else if (key == "minLength" || key == "maxLength") {
      if (!value.is_string()) continue;
      const auto n = static_cast<double>(Characters(value.AsString()));
      if (key == "minLength" ? n < rule.AsDouble() : n > rule.AsDouble()) return key + ": " + value.Dump();
    } else if (key == "minItems" || key == "maxItems") {
      if (!value.is_array()) continue;
      const auto n = static_cast<double>(value.AsArray().size());
      if (key == "minItems" ? n < rule.AsDouble() : n > rule.AsDouble()) return key + ": " + value.Dump();
    } else if (key == "items") {
      if (!value.is_array()) continue;
      for (const JsonValue& item : value.AsArray()) {
        if (std::string why = WhyInvalid(rule, item); !why.empty()) return "items, " + why;
      }
    } else if (key == "anyOf") {
      std::string all;
      bool good = false;
      for (const JsonValue& branch : rule.AsArray()) {
        const std::string why = WhyInvalid(branch, value);
        good = good || why.empty();
        all += why + "; ";
      }
      if (!good) return "anyOf: " + all;
    } else if (key == "required") {
      if (!value.is_object()) continue;
      for (const JsonValue& name : rule.AsArray()) {
        if (value.Find(name.AsString()) == nullptr) return "required " + name.AsString();
      }
    } else if (key == "properties" || key == "additionalProperties") {
      if (!value.is_object()) continue;
      const JsonValue* properties = schema.Find("properties");
      for (const auto& [name, member] : value.AsObject()) {
        const JsonValue* own = properties == nullptr ? nullptr : properties->Find(name);
        if (key == "properties" ? own == nullptr : own != nullptr) continue;
        if (std::string why = WhyInvalid(key == "properties" ? *own : rule, member); !why.empty()) return name + ", " + why;
      }
    } else {
      return "this checker does not know " + key;
    }
  }
  return "";
}

}  // namespace holdfast::test

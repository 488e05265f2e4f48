// JSON in and out of template values.
#include <algorithm>
#include <cmath>

#include "frontend/text/jinja_number.h"
#include "frontend/text/jinja_runtime.h"
#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja {
namespace {

void AppendHex4(uint32_t unit, std::string* out) {
  out->append("\\u");
  for (int shift = 12; shift >= 0; shift -= 4) out->push_back("0123456789abcdef"[(unit >> shift) & 15]);
}

void AppendJsonString(std::string_view s, bool ensure_ascii, std::string* out) {
  out->push_back('"');
  for (size_t pos = 0; pos < s.size();) {
    const auto byte = static_cast<unsigned char>(s[pos]);
    if (byte >= 0x80) {
      const size_t at = pos;
      const char32_t c = NextCodePoint(s, &pos);
      if (!ensure_ascii) {
        out->append(s.substr(at, pos - at));
      } else if (c >= 0x10000) {
        AppendHex4(0xD800 + ((static_cast<uint32_t>(c) - 0x10000) >> 10), out);
        AppendHex4(0xDC00 + ((static_cast<uint32_t>(c) - 0x10000) & 0x3FF), out);
      } else {
        AppendHex4(static_cast<uint32_t>(c), out);
      }
      continue;
    }
    ++pos;
    switch (byte) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      case '\b':
        out->append("\\b");
        break;
      case '\f':
        out->append("\\f");
        break;
      default:
        if (byte < 0x20) {
          AppendHex4(byte, out);
        } else {
          out->push_back(static_cast<char>(byte));
        }
    }
  }
  out->push_back('"');
}

std::string JsonFloat(double d) {
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
  return FloatRepr(d);
}

void NewLine(const std::string& indent, size_t level, std::string* out) {
  out->push_back('\n');
  for (size_t i = 0; i < level; ++i) out->append(indent);
}

}  // namespace

Value Runtime::FromJson(const JsonValue& json, bool is_messages) {
  Value value = FromJsonAt(json);
  if (is_messages && value.is_seq()) {
    int32_t index = 0;
    for (const Value& item : value.seq().items) {
      if (item.is_dict()) item.dict().message_index = index;
      ++index;
    }
  }
  return value;
}

Value Runtime::FromJsonAt(const JsonValue& json) {
  if (failed_) return Value();
  switch (json.kind()) {
    case JsonValue::Kind::kNull:
      return Value();
    case JsonValue::Kind::kBool:
      return Value::Bool(json.AsBool());
    case JsonValue::Kind::kInt:
      return Value::Integer(json.AsInt());
    case JsonValue::Kind::kUint:
      return Value::Integer(json.AsUint());
    case JsonValue::Kind::kDouble:
      return Value::Float(json.AsDouble());
    case JsonValue::Kind::kString:
      return Value(std::make_shared<const StrObj>(Text::Untrusted(json.AsString()), false, &meter_));
    case JsonValue::Kind::kArray: {
      std::vector<Value> items;
      items.reserve(json.AsArray().size());
      for (const JsonValue& item : json.AsArray()) items.push_back(FromJsonAt(item));
      auto seq = std::make_shared<SeqObj>(SeqObj::Kind::kList, std::move(items), &meter_);
      seq->frozen = true;
      if (seq->depth > limits_.max_value_depth) return LimitError("the request's values are nested too deeply");
      CheckMemory();
      return Value(std::move(seq));
    }
    case JsonValue::Kind::kObject: {
      auto dict = NewDict();
      for (const auto& [key, value] : json.AsObject()) {
        Value name = Value(std::make_shared<const StrObj>(Text::Untrusted(key), false, &meter_));
        std::string hash;
        std::string_view type;
        HashKey(name, &hash, &type);
        dict->Set(hash, std::move(name), FromJsonAt(value));
      }
      dict->frozen = true;
      if (dict->depth > limits_.max_value_depth) return LimitError("the request's values are nested too deeply");
      CheckMemory();
      return Value(std::move(dict));
    }
  }
  return Value();
}

Value Runtime::DumpJson(const Value& v, const DumpOptions& options) {
  std::string out;
  bool trusted = true;
  if (!DumpAt(v, options, 0, &out, &trusted)) return Value();
  return Str(Text(std::move(out), trusted));
}

bool Runtime::DumpAt(const Value& v, const DumpOptions& o, size_t level, std::string* out, bool* trusted) {
  if (!Step() || !CheckSize(out->size())) return false;
  if (level > limits_.max_value_depth) {
    LimitError("values are nested too deeply to be written as JSON");
    return false;
  }
  // With an indent, Python's default item separator loses its blank.
  const auto separator = [&](bool first, size_t depth) {
    if (!first) out->append(o.indent && o.item_separator == ", " ? "," : o.item_separator);
    if (o.indent) NewLine(*o.indent, depth, out);
  };
  switch (v.kind()) {
    case Value::Kind::kNone:
      out->append("null");
      return true;
    case Value::Kind::kBool:
      out->append(v.as_bool() ? "true" : "false");
      return true;
    case Value::Kind::kInt:
      out->append(IntToString(v.as_int()));
      return true;
    case Value::Kind::kFloat:
      out->append(JsonFloat(v.as_double()));
      return true;
    case Value::Kind::kStr:
      if (!Step(v.text().size() / 256)) return false;
      AppendJsonString(v.view(), o.ensure_ascii, out);
      *trusted = *trusted && v.text().all_trusted();
      return true;
    case Value::Kind::kSeq: {
      if (v.seq().kind != SeqObj::Kind::kList && v.seq().kind != SeqObj::Kind::kTuple) break;
      const auto& items = v.seq().items;
      out->push_back('[');
      for (size_t i = 0; i < items.size(); ++i) {
        separator(i == 0, level + 1);
        if (!DumpAt(items[i], o, level + 1, out, trusted)) return false;
      }
      if (o.indent && !items.empty()) NewLine(*o.indent, level, out);
      out->push_back(']');
      return true;
    }
    case Value::Kind::kDict: {
      std::vector<const DictObj::Item*> items;
      for (const auto& item : v.dict().items()) items.push_back(&item);
      if (o.sort_keys) {
        std::stable_sort(items.begin(), items.end(), [this](const auto* a, const auto* b) { return Less(a->first, b->first); });
        if (failed_) return false;
      }
      out->push_back('{');
      bool first = true;
      for (const auto* item : items) {
        separator(first, level + 1);
        first = false;
        const Value& key = item->first;
        if (key.is_str()) {
          AppendJsonString(key.view(), o.ensure_ascii, out);
          *trusted = *trusted && key.text().all_trusted();
        } else if (key.is_none() || key.is_bool() || key.is_int() || key.is_float()) {
          out->push_back('"');
          if (!DumpAt(key, o, level + 1, out, trusted)) return false;
          out->push_back('"');
        } else {
          TypeError("keys must be str, int, float, bool or None, not " + std::string(key.TypeName()));
          return false;
        }
        out->append(o.key_separator);
        if (!DumpAt(item->second, o, level + 1, out, trusted)) return false;
      }
      if (o.indent && !items.empty()) NewLine(*o.indent, level, out);
      out->push_back('}');
      return true;
    }
    default:
      break;
  }
  TypeError("Object of type " + std::string(v.TypeName()) + " is not JSON serializable");
  return false;
}

Value Runtime::LoadJson(const Value& text) {
  if (!WantStr(text, "from_json")) return Value();
  if (!Step(text.text().size() / 16)) return Value();
  auto parsed = ParseJson(text.view());
  if (!parsed.ok()) return TypeError("from_json: " + std::string(parsed.status().message().data(), parsed.status().message().size()));
  // What was parsed may mix trusted and untrusted text, so it counts as untrusted (FromJson's rule), and cannot be changed in place.
  return FromJson(*parsed);
}

}  // namespace holdfast::text::jinja

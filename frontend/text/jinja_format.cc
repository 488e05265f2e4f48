// "%s" formatting and str.format.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "frontend/text/jinja_number.h"
#include "frontend/text/jinja_runtime.h"
#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja {
namespace {

// Applies a specification to a value, as format(value, spec) does.
bool FormatValue(Runtime& rt, const Value& v, const FormatSpec& spec, Text* out) {
  std::optional<std::string> body;
  bool trusted = true;
  if (v.is_int() || (v.is_bool() && spec.type != 0 && spec.type != 's')) {
    body = FormatInt(v.as_int(), spec);
  } else if (v.is_float()) {
    body = FormatFloat(v.as_double(), spec);
  } else {
    Text text = rt.ToText(v);
    if (rt.failed()) return false;
    const bool plain = v.is_str() || v.is_bool() || (spec.width == 0 && !spec.precision);
    if ((spec.type == 0 || spec.type == 's') && plain && spec.align != '=') {
      if (spec.precision) text.Truncate(ByteOffset(text.view(), *spec.precision));
      if (spec.width == 0) {
        out->Append(text);
        return true;
      }
      trusted = text.all_trusted();
      body = Pad(text.str(), spec, '<');
    }
  }
  if (!body) {
    if (v.is_undefined()) {
      rt.UndefinedError(v);
    } else {
      rt.TypeError("unsupported format specification for object of type '" + std::string(v.TypeName()) + "'");
    }
    return false;
  }
  out->Append(*body, trusted);
  return rt.CheckSize(out->size());
}

// The next argument of a %-format.
class PercentArgs {
 public:
  PercentArgs(Runtime& rt, const Value& args) : rt_(rt), args_(args), tuple_(args.is_seq() && args.seq().kind == SeqObj::Kind::kTuple) {}

  std::optional<Value> Next() {
    const size_t size = tuple_ ? args_.seq().items.size() : 1;
    if (used_ >= size) {
      rt_.TypeError("not enough arguments for format string");
      return std::nullopt;
    }
    const size_t at = used_++;
    return tuple_ ? args_.seq().items[at] : args_;
  }

  std::optional<Value> Named(std::string_view name) {
    if (!args_.is_dict()) {
      rt_.TypeError("format requires a mapping");
      return std::nullopt;
    }
    std::string hash;
    std::string_view type;
    HashKey(rt_.Trusted(std::string(name)), &hash, &type);
    const Value* found = args_.dict().Find(hash);
    if (found == nullptr) {
      rt_.TypeError("KeyError: '" + std::string(name) + "'");
      return std::nullopt;
    }
    return *found;
  }

  bool AllUsed() const { return args_.is_dict() || used_ >= (tuple_ ? args_.seq().items.size() : 1); }

 private:
  Runtime& rt_;
  const Value& args_;
  bool tuple_;
  size_t used_ = 0;
};

std::optional<uint32_t> Number(std::string_view s, size_t* pos) {
  uint32_t n = 0;
  const auto result = std::from_chars(s.data() + *pos, s.data() + s.size(), n);
  if (result.ec != std::errc()) return std::nullopt;
  *pos = static_cast<size_t>(result.ptr - s.data());
  return n;
}

bool PercentItem(Runtime& rt, const Text& format, size_t* pos, PercentArgs* args, Text* out) {
  const std::string_view s = format.view();
  std::optional<Value> value;
  if (*pos < s.size() && s[*pos] == '(') {
    const size_t close = s.find(')', *pos);
    if (close == std::string_view::npos) {
      rt.TypeError("incomplete format key");
      return false;
    }
    value = args->Named(s.substr(*pos + 1, close - *pos - 1));
    if (!value) return false;
    *pos = close + 1;
  }
  FormatSpec spec;
  for (; *pos < s.size() && std::string_view("-+ 0#").find(s[*pos]) != std::string_view::npos; ++*pos) {
    const char flag = s[*pos];
    if (flag == '-') spec.align = '<';
    if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    if (flag == '0') spec.zero = true;
    if (flag == '#') spec.alternate = true;
  }
  if (const auto width = Number(s, pos)) spec.width = *width;
  if (*pos < s.size() && s[*pos] == '.') {
    ++*pos;
    spec.precision = Number(s, pos).value_or(0);
  }
  if (spec.width > kMaxFormatWidth || spec.precision.value_or(0) > kMaxFormatWidth) {
    rt.LimitError("a format width beyond " + std::to_string(kMaxFormatWidth));
    return false;
  }
  if (*pos >= s.size()) {
    rt.TypeError("incomplete format");
    return false;
  }
  const char type = s[(*pos)++];
  if (type == '%') {
    out->Append("%", true);
    return true;
  }
  if (!value) value = args->Next();
  if (!value) return false;
  switch (type) {
    case 's':
    case 'r': {
      Text text = type == 's' ? rt.ToText(*value) : rt.Repr(*value);
      if (rt.failed()) return false;
      if (spec.precision) text.Truncate(ByteOffset(text.view(), *spec.precision));
      if (spec.width == 0) {
        out->Append(text);
      } else {
        out->Append(Pad(text.str(), spec, '>'), text.all_trusted());
      }
      return rt.CheckSize(out->size());
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      if (value->is_undefined()) {
        rt.UndefinedError(*value);
        return false;
      }
      if (!value->is_number() || (value->is_float() && type != 'd' && type != 'i' && type != 'u') || !std::isfinite(value->as_double()) ||
          std::fabs(value->as_double()) > 1e37) {
        rt.TypeError(std::string("%") + type + " format: a real number is required, not " + std::string(value->TypeName()));
        return false;
      }
      const Int i = value->is_float() ? static_cast<Int>(value->as_double()) : value->as_int();
      if (spec.precision) {  // at least so many digits
        std::string digits = IntToString(i < 0 ? -i : i, type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10);
        if (type == 'X') digits = ToUpper(digits);
        if (digits.size() < *spec.precision) digits.insert(0, *spec.precision - digits.size(), '0');
        out->Append(Pad((i < 0 ? "-" : spec.sign == '+' ? "+" : "") + digits, spec, '>'), true);
        return true;
      }
      spec.type = type == 'i' || type == 'u' ? 'd' : type;
      return FormatValue(rt, Value::Integer(i), spec, out);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value->is_number()) {
        if (value->is_undefined()) {
          rt.UndefinedError(*value);
        } else {
          rt.TypeError("must be real number, not " + std::string(value->TypeName()));
        }
        return false;
      }
      spec.type = type;
      return FormatValue(rt, Value::Float(value->as_double()), spec, out);
    default:
      rt.TypeError(std::string("unsupported format character '") + type + "'");
      return false;
  }
}

}  // namespace

Value PercentFormat(Runtime& rt, const Text& format, const Value& values) {
  PercentArgs args(rt, values);
  const std::string_view s = format.view();
  Text out;
  for (size_t pos = 0; pos < s.size();) {
    const size_t percent = s.find('%', pos);
    const size_t end = percent == std::string_view::npos ? s.size() : percent;
    out.AppendSlice(format, pos, end - pos);
    if (percent == std::string_view::npos) break;
    pos = percent + 1;
    if (!rt.Step() || !PercentItem(rt, format, &pos, &args, &out)) return Value();
  }
  if (!args.AllUsed()) return rt.TypeError("not all arguments converted during string formatting");
  return rt.Str(std::move(out));
}

Value BraceFormat(Runtime& rt, const Text& format, const Args& args) {
  const std::string_view s = format.view();
  Text out;
  size_t automatic = 0;
  for (size_t pos = 0; pos < s.size();) {
    const size_t brace = s.find_first_of("{}", pos);
    const size_t end = brace == std::string_view::npos ? s.size() : brace;
    out.AppendSlice(format, pos, end - pos);
    if (brace == std::string_view::npos) break;
    if (!rt.Step()) return Value();
    if (brace + 1 < s.size() && s[brace + 1] == s[brace]) {
      out.AppendSlice(format, brace, 1);
      pos = brace + 2;
      continue;
    }
    if (s[brace] == '}') return rt.TypeError("Single '}' encountered in format string");
    const size_t close = s.find('}', brace);
    if (close == std::string_view::npos) return rt.TypeError("expected '}' before end of string");
    std::string_view field = s.substr(brace + 1, close - brace - 1);
    std::string_view spec_text;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec_text = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    bool repr = false;
    if (const size_t bang = field.find('!'); bang != std::string_view::npos) {
      repr = field.substr(bang + 1) == "r";
      field = field.substr(0, bang);
    }
    if (field.find_first_of(".[{") != std::string_view::npos || spec_text.find('{') != std::string_view::npos) {
      return rt.Fail(RenderError::Kind::kUnsupported, "format: attributes, items and nested fields are not supported");
    }
    const Value* value = nullptr;
    const bool digits = !field.empty() && std::all_of(field.begin(), field.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (field.empty() || digits) {
      size_t index = automatic;
      if (field.empty()) {
        ++automatic;
      } else {
        std::from_chars(field.data(), field.data() + field.size(), index);
      }
      if (index >= args.positional.size()) return rt.TypeError("Replacement index " + std::to_string(index) + " out of range for positional args tuple");
      value = &args.positional[index];
    } else {
      for (const auto& [name, v] : args.keyword) {
        if (name == field) value = &v;
      }
      if (value == nullptr) return rt.TypeError("KeyError: '" + std::string(field) + "'");
    }
    const auto spec = ParseFormatSpec(spec_text);
    if (!spec) return rt.TypeError("Invalid format specifier '" + std::string(spec_text) + "'");
    const Value shown = repr ? rt.Str(rt.Repr(*value)) : *value;
    if (rt.failed() || !FormatValue(rt, shown, *spec, &out)) return Value();
    pos = close + 1;
  }
  return rt.Str(std::move(out));
}

}  // namespace holdfast::text::jinja

// Filters on single values and strings, and the table of all filters.
#include <algorithm>
#include <cmath>

#include "frontend/text/jinja_filters.h"
#include "frontend/text/jinja_number.h"
#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja {
namespace filters {
namespace {

bool Flag(const std::optional<Value>& v, bool otherwise) { return v ? v->Truth() : otherwise; }

// Converts the whole string; the result is trusted only when all of it was.
template <class F>
Value Convert(Runtime& rt, const Value& input, F convert) {
  const Text text = rt.ToText(input);
  if (rt.failed() || !rt.Step(text.size() / 64)) return Value();
  return rt.Str(Text(convert(text.view()), text.all_trusted()), input.is_str() && input.str().markup);
}

Value Upper(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("upper", args, {})) return Value();
  if (!rt.Step(input.is_str() ? input.text().size() / 64 : 0)) return Value();
  return rt.Str(rt.ToText(input).MapRuns(ToUpper), input.is_str() && input.str().markup);
}

Value Lower(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("lower", args, {})) return Value();
  if (!rt.Step(input.is_str() ? input.text().size() / 64 : 0)) return Value();
  return rt.Str(rt.ToText(input).MapRuns(ToLower), input.is_str() && input.str().markup);
}

Value Capitalize(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("capitalize", args, {})) return Value();
  return Convert(rt, input, CapitalizeText);
}

Value Title(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("title", args, {})) return Value();
  // A word begins behind blanks, hyphens and opening brackets.
  return Convert(rt, input, [](std::string_view s) {
    std::string out;
    bool begin = true;
    for (size_t pos = 0; pos < s.size();) {
      const char32_t c = NextCodePoint(s, &pos);
      if (IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<') {
        AppendCodePoint(c, &out);
        begin = true;
      } else if (begin) {
        AppendUpper(c, &out);
        begin = false;
      } else {
        AppendLower(c, &out);
      }
    }
    return out;
  });
}

Value Trim(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("trim", args, {"chars"});
  if (!a) return Value();
  std::optional<std::string_view> chars;
  if ((*a)[0] && !(*a)[0]->is_none()) {
    if (!rt.WantStr(*(*a)[0], "trim")) return Value();
    chars = (*a)[0]->view();
  }
  if (input.is_str()) return rt.Str(StripText(input.text(), true, true, chars), input.str().markup);
  return rt.Str(StripText(rt.ToText(input), true, true, chars));
}

Value Replace(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("replace", args, {"old", "new", "count"}, 2);
  if (!a) return Value();
  int64_t count = -1;
  if ((*a)[2] && !(*a)[2]->is_none()) {
    const auto n = rt.WantInt(*(*a)[2], "replace");
    if (!n) return Value();
    count = *n;
  }
  const Text text = rt.ToText(input);
  const Text old = rt.ToText(*(*a)[0]);
  const Text with = rt.ToText(*(*a)[1]);
  if (rt.failed() || !rt.Step(text.size() / 64)) return Value();
  bool too_big = false;
  Text out = ReplaceText(text, old.view(), with, count, rt.limits().max_string_bytes, &too_big);
  if (too_big) return rt.LimitError("replace makes a string longer than a template may make");
  return rt.Str(std::move(out));
}

Value Center(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("center", args, {"width"});
  if (!a) return Value();
  const auto width = (*a)[0] ? rt.WantInt(*(*a)[0], "center") : std::optional<int64_t>(80);
  if (!width) return Value();
  return CenterText(rt, rt.ToText(input), *width, " ");
}

Value Indent(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("indent", args, {"width", "first", "blank"});
  if (!a || !rt.WantStr(input, "indent")) return Value();
  Text indention = Text::Trusted("    ");
  if ((*a)[0]) {
    if ((*a)[0]->is_str()) {
      indention = (*a)[0]->text();
    } else {
      const auto width = rt.WantInt(*(*a)[0], "indent");
      if (!width || !rt.CheckSize(static_cast<size_t>(std::max<int64_t>(*width, 0)))) return Value();
      indention = Text::Trusted(std::string(static_cast<size_t>(std::max<int64_t>(*width, 0)), ' '));
    }
  }
  const bool first = Flag((*a)[1], false);
  const bool blank = Flag((*a)[2], false);
  Text source = input.text();
  source.Append("\n", true);  // so that an ending newline keeps its empty last line
  const std::vector<Text> lines = SplitLines(source, false);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n", true);
    const bool wanted = i == 0 ? first : blank || !lines[i].empty();
    if (wanted) out.Append(indention);
    out.Append(lines[i]);
    if (!rt.Step() || !rt.CheckSize(out.size())) return Value();
  }
  return rt.Str(std::move(out), input.str().markup);
}

Value Truncate(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("truncate", args, {"length", "killwords", "end", "leeway"});
  if (!a || !rt.WantStr(input, "truncate")) return Value();
  const auto length = (*a)[0] ? rt.WantInt(*(*a)[0], "truncate") : std::optional<int64_t>(255);
  const auto leeway = (*a)[3] && !(*a)[3]->is_none() ? rt.WantInt(*(*a)[3], "truncate") : std::optional<int64_t>(5);
  if (!length || !leeway) return Value();
  const Text end = (*a)[2] ? rt.ToText(*(*a)[2]) : Text::Trusted("...");
  const auto end_size = static_cast<int64_t>(CountCodePoints(end.view()));
  if (*length < end_size || *leeway < 0) return rt.TypeError("truncate: expected length >= " + std::to_string(end_size) + " and leeway >= 0");
  const Text& text = input.text();
  if (static_cast<int64_t>(CountCodePoints(text.view())) - *leeway <= *length) return input;
  size_t cut = ByteOffset(text.view(), static_cast<size_t>(*length - end_size));
  if (!Flag((*a)[1], false)) {
    const size_t blank = text.view().substr(0, cut).rfind(' ');
    if (blank != std::string_view::npos) cut = blank;
  }
  Text out = text.Slice(0, cut);
  out.Append(end);
  return rt.Str(std::move(out));
}

Value WordCount(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("wordcount", args, {})) return Value();
  const Text text = rt.ToText(input);
  if (!rt.Step(text.size() / 64)) return Value();
  Int words = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text.view(), &pos);
    const bool word = c == '_' || IsAlpha(c) || IsNumeric(c);
    if (word && !inside) ++words;
    inside = word;
  }
  return Value::Integer(words);
}

Value String(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("string", args, {})) return Value();
  return input.is_str() ? input : rt.Str(rt.ToText(input));
}

Value Safe(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("safe", args, {})) return Value();
  return rt.Str(rt.ToText(input), true);
}

Value Escape(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("escape", args, {})) return Value();
  if (input.is_str() && input.str().markup) return input;
  return rt.Str(EscapeText(rt.ToText(input)), true);
}

Value ForceEscape(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("forceescape", args, {})) return Value();
  return rt.Str(EscapeText(rt.ToText(input)), true);
}

Value Format(Runtime& rt, const Value& input, const Args& args) {
  if (!args.positional.empty() && !args.keyword.empty()) return rt.TypeError("can't handle positional and keyword arguments at the same time");
  const Text format = rt.ToText(input);
  if (args.keyword.empty()) {
    const Value tuple = rt.Tuple(args.positional);
    return rt.failed() ? Value() : PercentFormat(rt, format, tuple);
  }
  auto dict = rt.NewDict();
  for (const auto& [key, value] : args.keyword) {
    if (!rt.DictSet(*dict, rt.Trusted(key), value)) return Value();
  }
  return PercentFormat(rt, format, Value(std::move(dict)));
}

Value Abs(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("abs", args, {})) return Value();
  if (input.is_undefined()) return rt.UndefinedError(input);
  if (!input.is_number()) return rt.TypeError("bad operand type for abs(): '" + std::string(input.TypeName()) + "'");
  if (input.is_float()) return Value::Float(std::fabs(input.as_double()));
  return input.as_int() < 0 ? rt.Negate(input) : Value::Integer(input.as_int());
}

Value ToInt(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("int", args, {"default", "base"});
  if (!a) return Value();
  if (input.is_undefined()) return rt.UndefinedError(input);
  const auto base = (*a)[1] ? rt.WantInt(*(*a)[1], "int") : std::optional<int64_t>(10);
  if (!base) return Value();
  if (*base != 0 && (*base < 2 || *base > 36)) return rt.TypeError("int() base must be >= 2 and <= 36, or 0");
  std::optional<double> number;
  if (input.is_integral()) return Value::Integer(input.as_int());
  if (input.is_float()) number = input.as_double();
  if (input.is_str()) {
    if (const auto i = ParseInt(input.view(), static_cast<unsigned>(*base))) return Value::Integer(*i);
    number = ParseFloat(input.view());
  }
  if (number && std::isfinite(*number) && std::fabs(*number) < 1e37) return Value::Integer(static_cast<Int>(*number));
  return (*a)[0] ? *(*a)[0] : Value::Integer(0);
}

Value ToFloat(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("float", args, {"default"});
  if (!a) return Value();
  if (input.is_undefined()) return rt.UndefinedError(input);
  if (input.is_number()) return Value::Float(input.as_double());
  if (input.is_str()) {
    if (const auto d = ParseFloat(input.view())) return Value::Float(*d);
  }
  return (*a)[0] ? *(*a)[0] : Value::Float(0);
}

Value Round(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("round", args, {"precision", "method"});
  if (!a) return Value();
  if (input.is_undefined()) return rt.UndefinedError(input);
  if (!input.is_number()) return rt.TypeError("round needs a number, not " + std::string(input.TypeName()));
  const auto precision = (*a)[0] ? rt.WantInt(*(*a)[0], "round") : std::optional<int64_t>(0);
  if (!precision) return Value();
  if (std::abs(*precision) > 400) return rt.TypeError("round: a precision beyond 400 digits");
  const std::string method = (*a)[1] ? rt.ToText(*(*a)[1]).str() : "common";
  const double d = input.as_double();
  const int digits = static_cast<int>(*precision);
  if (method == "common") {
    if (input.is_integral() && digits >= 0) return Value::Integer(input.as_int());
    const double rounded = RoundFloat(d, digits);
    return input.is_integral() ? Value::Integer(static_cast<Int>(rounded)) : Value::Float(rounded);
  }
  if (method != "ceil" && method != "floor") return rt.TypeError("method must be common, ceil or floor");
  const double scale = std::pow(10.0, digits);
  return Value::Float((method == "ceil" ? std::ceil(d * scale) : std::floor(d * scale)) / scale);
}

Value Default(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("default", args, {"default_value", "boolean"});
  if (!a) return Value();
  if (input.is_undefined() || (Flag((*a)[1], false) && !input.Truth())) return (*a)[0] ? *(*a)[0] : rt.Str(Text());
  return input;
}

Value Length(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("length", args, {})) return Value();
  const auto n = rt.Length(input);
  return n ? Value::Integer(*n) : Value();
}

Value Attr(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("attr", args, {"name"}, 1);
  if (!a || !rt.WantStr(*(*a)[0], "attr")) return Value();
  if (input.is_dict()) return rt.Undefined("'dict object' has no attribute '" + std::string((*a)[0]->view()) + "'");
  return rt.GetAttr(input, (*a)[0]->view());
}

Value ToJson(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (!a) return Value();
  Runtime::DumpOptions options;
  options.ensure_ascii = Flag((*a)[0], false);
  options.sort_keys = Flag((*a)[3], false);
  if (const auto& indent = (*a)[1]; indent && !indent->is_none()) {
    if (indent->is_str()) {
      options.indent = std::string(indent->view());
    } else {
      const auto n = rt.WantInt(*indent, "tojson");
      if (!n) return Value();
      if (*n > 64) return rt.LimitError("tojson: an indent of more than 64 blanks");
      options.indent = std::string(static_cast<size_t>(std::max<int64_t>(*n, 0)), ' ');
    }
    options.item_separator = ",";
  }
  if (const auto& separators = (*a)[2]; separators && !separators->is_none()) {
    const auto parts = rt.Iterate(*separators);
    if (!parts) return Value();
    if (parts->size() != 2 || !rt.WantStr((*parts)[0], "tojson") || !rt.WantStr((*parts)[1], "tojson")) {
      return rt.TypeError("tojson: separators must be two strings");
    }
    options.item_separator = std::string((*parts)[0].view());
    options.key_separator = std::string((*parts)[1].view());
  }
  return rt.DumpJson(input, options);
}

Value FromJson(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("from_json", args, {})) return Value();
  return rt.LoadJson(input);
}

struct FilterEntry {
  std::string_view name;
  FilterFn fn;
};

constexpr FilterEntry kFilters[] = {
    {"abs", Abs},
    {"attr", Attr},
    {"batch", Batch},
    {"capitalize", Capitalize},
    {"center", Center},
    {"count", Length},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSort},
    {"e", Escape},
    {"escape", Escape},
    {"first", First},
    {"float", ToFloat},
    {"forceescape", ForceEscape},
    {"format", Format},
    {"from_json", FromJson},
    {"fromjson", FromJson},
    {"groupby", GroupBy},
    {"indent", Indent},
    {"int", ToInt},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", Length},
    {"list", List},
    {"lower", Lower},
    {"map", Map},
    {"max", Max},
    {"min", Min},
    {"reject", Reject},
    {"rejectattr", RejectAttr},
    {"replace", Replace},
    {"reverse", Reverse},
    {"round", Round},
    {"safe", Safe},
    {"select", Select},
    {"selectattr", SelectAttr},
    {"slice", Slices},
    {"sort", Sort},
    {"string", String},
    {"sum", Sum},
    {"title", Title},
    {"tojson", ToJson},
    {"trim", Trim},
    {"truncate", Truncate},
    {"unique", Unique},
    {"upper", Upper},
    {"wordcount", WordCount},
};

}  // namespace

Text EscapeText(const Text& text) {
  return text.MapRuns([](std::string_view s) {
    std::string out;
    for (const char c : s) {
      if (c == '&') {
        out += "&amp;";
      } else if (c == '<') {
        out += "&lt;";
      } else if (c == '>') {
        out += "&gt;";
      } else if (c == '"') {
        out += "&#34;";
      } else if (c == '\'') {
        out += "&#39;";
      } else {
        out.push_back(c);
      }
    }
    return out;
  });
}

std::string CapitalizeText(std::string_view s) {
  std::string out;
  if (s.empty()) return out;
  size_t pos = 0;
  AppendTitle(NextCodePoint(s, &pos), &out);
  return out + ToLower(s.substr(pos));
}

Value CenterText(Runtime& rt, const Text& text, int64_t width, std::string_view fill) {
  const auto length = static_cast<int64_t>(CountCodePoints(text.view()));
  if (width <= length) return rt.Str(text);
  const int64_t missing = width - length;
  if (!rt.CheckSize(static_cast<size_t>(missing)) || !rt.CheckSize(static_cast<size_t>(missing) * fill.size())) return Value();
  const int64_t left = missing / 2 + (missing & width & 1);  // as CPython splits an odd rest
  std::string before;
  std::string after;
  for (int64_t i = 0; i < left; ++i) before += fill;
  for (int64_t i = left; i < missing; ++i) after += fill;
  Text out = Text::Trusted(std::move(before));
  out.Append(text);
  out.Append(after, true);
  return rt.Str(std::move(out));
}

}  // namespace filters

FilterFn FindFilter(std::string_view name) {
  const auto* const it = std::find_if(std::begin(filters::kFilters), std::end(filters::kFilters), [&](const auto& e) { return e.name == name; });
  return it == std::end(filters::kFilters) ? nullptr : it->fn;
}

}  // namespace holdfast::text::jinja

#include <algorithm>
#include <array>

#include "frontend/text/jinja_filters.h"
#include "frontend/text/jinja_methods.h"
#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja {
namespace {

using Fn = Value (*)(Runtime& rt, const Value& self, const std::string& name, const Args& args);

// The result is trusted only when the whole string was.
Value Converted(Runtime& rt, const Value& self, std::string out) {
  if (!rt.Step(out.size() / 64)) return Value();
  return rt.Str(Text(std::move(out), self.text().all_trusted()), self.str().markup);
}

Value Case(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  if (!rt.Bind(name, args, {})) return Value();
  const Text& text = self.text();
  if (!rt.Step(text.size() / 64)) return Value();
  if (name == "upper") return rt.Str(text.MapRuns(ToUpper), self.str().markup);
  if (name == "lower" || name == "casefold") return rt.Str(text.MapRuns(ToLower), self.str().markup);
  if (name == "capitalize") return Converted(rt, self, filters::CapitalizeText(text.view()));
  std::string out;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text.view(), &pos);
    if (name == "swapcase") {
      IsUpper(c) ? AppendLower(c, &out) : AppendUpper(c, &out);
    } else {  // title: a letter begins a word when none is before it
      inside ? AppendLower(c, &out) : AppendTitle(c, &out);
      inside = IsAlpha(c);
    }
  }
  return Converted(rt, self, std::move(out));
}

Value Strip(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"chars"});
  if (!a) return Value();
  std::optional<std::string_view> chars;
  if ((*a)[0] && !(*a)[0]->is_none()) {
    if (!rt.WantStr(*(*a)[0], name)) return Value();
    chars = (*a)[0]->view();
  }
  return rt.Str(StripText(self.text(), name != "rstrip", name != "lstrip", chars), self.str().markup);
}

Value SplitBlanks(Runtime& rt, const Text& text, int64_t max, bool right) {
  std::vector<Value> out;
  const std::string_view s = text.view();
  size_t begin = 0;
  size_t end = s.size();
  const auto skip_left = [&] {
    while (begin < end) {
      size_t next = begin;
      if (!IsSpace(NextCodePoint(s, &next))) break;
      begin = next;
    }
  };
  const auto skip_right = [&] {
    while (end > begin) {
      size_t before = end;
      if (!IsSpace(PreviousCodePoint(s, &before))) break;
      end = before;
    }
  };
  right ? skip_right() : skip_left();
  while (begin < end && rt.Step() && rt.CheckItems(out.size())) {
    if (max >= 0 && static_cast<int64_t>(out.size()) == max) {
      // The rest keeps the blanks of its far side.
      out.push_back(rt.Str(right ? text.Slice(0, end) : text.Slice(begin, s.size() - begin)));
      break;
    }
    size_t at = right ? end : begin;
    while (right ? at > begin : at < end) {
      size_t next = at;
      const char32_t c = right ? PreviousCodePoint(s, &next) : NextCodePoint(s, &next);
      if (IsSpace(c)) break;
      at = next;
    }
    out.push_back(rt.Str(right ? text.Slice(at, end - at) : text.Slice(begin, at - begin)));
    (right ? end : begin) = at;
    right ? skip_right() : skip_left();
  }
  if (right) std::reverse(out.begin(), out.end());
  return rt.List(std::move(out));
}

Value Split(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"sep", "maxsplit"});
  if (!a) return Value();
  const auto max = (*a)[1] ? rt.WantInt(*(*a)[1], name) : std::optional<int64_t>(-1);
  if (!max) return Value();
  const Text& text = self.text();
  if (!rt.Step(text.size() / 256)) return Value();
  const bool right = name == "rsplit";
  if (!(*a)[0] || (*a)[0]->is_none()) return SplitBlanks(rt, text, *max, right);
  if (!rt.WantStr(*(*a)[0], name)) return Value();
  const std::string_view separator = (*a)[0]->view();
  if (separator.empty()) return rt.TypeError("empty separator");
  std::vector<Value> out;
  const std::string_view s = text.view();
  size_t begin = 0;
  size_t end = s.size();
  while (rt.Step() && rt.CheckItems(out.size()) && (*max < 0 || static_cast<int64_t>(out.size()) < *max)) {
    const size_t at = right ? (end < separator.size() ? std::string_view::npos : s.substr(0, end).rfind(separator)) : s.find(separator, begin);
    if (at == std::string_view::npos) break;
    if (right) {
      out.push_back(rt.Str(text.Slice(at + separator.size(), end - at - separator.size())));
      end = at;
    } else {
      out.push_back(rt.Str(text.Slice(begin, at - begin)));
      begin = at + separator.size();
    }
  }
  out.push_back(rt.Str(text.Slice(begin, end - begin)));
  if (right) std::reverse(out.begin(), out.end());
  return rt.List(std::move(out));
}

Value SplitLinesMethod(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"keepends"});
  if (!a || !rt.Step(self.text().size() / 16)) return Value();
  std::vector<Value> out;
  for (Text& line : SplitLines(self.text(), (*a)[0] && (*a)[0]->Truth())) out.push_back(rt.Str(std::move(line)));
  return rt.List(std::move(out));
}

Value Join(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"iterable"}, 1);
  const auto items = a ? rt.Iterate(*(*a)[0]) : std::nullopt;
  if (!items) return Value();
  Text out;
  for (size_t i = 0; i < items->size(); ++i) {
    const Value& item = (*items)[i];
    if (!item.is_str()) {
      return rt.TypeError("sequence item " + std::to_string(i) + ": expected str instance, " + std::string(item.TypeName()) + " found");
    }
    if (i > 0) out.Append(self.text());
    out.Append(item.text());
    if (!rt.Step() || !rt.CheckSize(out.size())) return Value();
  }
  return rt.Str(std::move(out));
}

Value Replace(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"old", "new", "count"}, 2);
  if (!a || !rt.WantStr(*(*a)[0], name) || !rt.WantStr(*(*a)[1], name)) return Value();
  const auto count = (*a)[2] ? rt.WantInt(*(*a)[2], name) : std::optional<int64_t>(-1);
  if (!count || !rt.Step(self.text().size() / 64)) return Value();
  bool too_big = false;
  Text out = ReplaceText(self.text(), (*a)[0]->view(), (*a)[1]->text(), *count, rt.limits().max_string_bytes, &too_big);
  if (too_big) return rt.LimitError("replace makes a string longer than a template may make");
  return rt.Str(std::move(out), self.str().markup);
}

// Bytes of the part that the optional start and end arguments (code points) choose.
bool Part(Runtime& rt, const Value& self, const std::string& name, const std::vector<std::optional<Value>>& a, size_t* begin, size_t* end) {
  const std::string_view s = self.view();
  *begin = 0;
  *end = s.size();
  for (size_t i = 1; i < 3; ++i) {
    if (!a[i] || a[i]->is_none()) continue;
    const auto at = rt.WantInt(*a[i], name);
    if (!at) return false;
    const auto size = static_cast<int64_t>(CountCodePoints(s));
    const int64_t index = std::clamp<int64_t>(*at < 0 ? *at + size : *at, 0, size);
    (i == 1 ? *begin : *end) = ByteOffset(s, static_cast<size_t>(index));
  }
  return rt.Step(s.size() / 256);
}

Value Affix(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"prefix", "start", "end"}, 1);
  size_t begin = 0;
  size_t end = 0;
  if (!a || !Part(rt, self, name, *a, &begin, &end)) return Value();
  if (begin > end) return Value::Bool(false);
  const std::string_view s = self.view().substr(begin, end - begin);
  const Value& given = *(*a)[0];
  std::vector<Value> candidates;
  if (given.is_seq() && given.seq().kind == SeqObj::Kind::kTuple) {
    candidates = given.seq().items;
  } else {
    candidates.push_back(given);
  }
  for (const Value& candidate : candidates) {
    if (!candidate.is_str()) {
      if (candidate.is_undefined()) return rt.UndefinedError(candidate);
      return rt.TypeError(name + " first arg must be str or a tuple of str, not " + std::string(candidate.TypeName()));
    }
    if (name == "startswith" ? s.starts_with(candidate.view()) : s.ends_with(candidate.view())) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Value Find(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"sub", "start", "end"}, 1);
  size_t begin = 0;
  size_t end = 0;
  if (!a || !rt.WantStr(*(*a)[0], name) || !Part(rt, self, name, *a, &begin, &end)) return Value();
  const std::string_view sub = (*a)[0]->view();
  const bool valid = begin <= end;
  const std::string_view s = valid ? self.view().substr(begin, end - begin) : std::string_view();
  if (name == "count") {
    if (!valid) return Value::Integer(0);
    if (sub.empty()) return Value::Integer(CountCodePoints(s) + 1);
    Int count = 0;
    for (size_t at = 0; (at = s.find(sub, at)) != std::string_view::npos; at += sub.size()) ++count;
    return Value::Integer(count);
  }
  const bool right = name[0] == 'r';
  const size_t at = !valid ? std::string_view::npos : right ? s.rfind(sub) : s.find(sub);
  if (at == std::string_view::npos) return name.ends_with("index") ? rt.TypeError("substring not found") : Value::Integer(-1);
  return Value::Integer(CountCodePoints(self.view().substr(0, begin + at)));
}

Value Partition(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"sep"}, 1);
  if (!a || !rt.WantStr(*(*a)[0], name) || !rt.Step(self.text().size() / 256)) return Value();
  const std::string_view separator = (*a)[0]->view();
  if (separator.empty()) return rt.TypeError("empty separator");
  const bool right = name == "rpartition";
  const Text& text = self.text();
  const size_t at = right ? text.view().rfind(separator) : text.view().find(separator);
  if (at == std::string_view::npos) {
    const Value empty = rt.Str(Text());
    return right ? rt.Tuple({empty, empty, self}) : rt.Tuple({self, empty, empty});
  }
  const size_t after = at + separator.size();
  return rt.Tuple({rt.Str(text.Slice(0, at)), rt.Str(text.Slice(at, separator.size())), rt.Str(text.Slice(after, text.size() - after))});
}

Value RemoveAffix(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"affix"}, 1);
  if (!a || !rt.WantStr(*(*a)[0], name)) return Value();
  const std::string_view affix = (*a)[0]->view();
  const Text& text = self.text();
  const bool prefix = name == "removeprefix";
  if (affix.empty() || !(prefix ? text.view().starts_with(affix) : text.view().ends_with(affix))) return self;
  return rt.Str(text.Slice(prefix ? affix.size() : 0, text.size() - affix.size()));
}

Value Justify(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  const auto a = rt.Bind(name, args, {"width", "fillchar"}, 1);
  const auto width = a ? rt.WantInt(*(*a)[0], name) : std::nullopt;
  if (!width) return Value();
  std::string fill = name == "zfill" ? "0" : " ";
  if ((*a)[1]) {
    if (!rt.WantStr(*(*a)[1], name)) return Value();
    fill = std::string((*a)[1]->view());
    if (name == "zfill" || CountCodePoints(fill) != 1) return rt.TypeError("The fill character must be exactly one character long");
  }
  const Text& text = self.text();
  if (name == "center") return filters::CenterText(rt, text, *width, fill);
  const auto length = static_cast<int64_t>(CountCodePoints(text.view()));
  if (*width <= length) return self;
  const auto missing = static_cast<size_t>(*width - length);
  if (!rt.CheckSize(missing) || !rt.CheckSize(missing * fill.size())) return Value();
  std::string padding;
  for (int64_t i = length; i < *width; ++i) padding += fill;
  Text out;
  if (name == "ljust") {
    out = text;
    out.Append(padding, true);
    return rt.Str(std::move(out));
  }
  size_t sign = 0;
  if (name == "zfill" && !text.empty() && (text.view()[0] == '-' || text.view()[0] == '+')) sign = 1;
  out.AppendSlice(text, 0, sign);
  out.Append(padding, true);
  out.AppendSlice(text, sign, text.size() - sign);
  return rt.Str(std::move(out));
}

bool IsTitleText(std::string_view s) {
  bool cased = false;
  bool inside = false;
  for (size_t pos = 0; pos < s.size();) {
    const char32_t c = NextCodePoint(s, &pos);
    if (IsUpper(c) ? inside : IsLower(c) && !inside) return false;
    inside = IsUpper(c) || IsLower(c);
    cased = cased || inside;
  }
  return cased;
}

Value Is(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  if (!rt.Bind(name, args, {}) || !rt.Step(self.text().size() / 64)) return Value();
  const std::string_view s = self.view();
  if (name == "isascii") return Value::Bool(IsAscii(s));
  if (name == "istitle") return Value::Bool(IsTitleText(s));
  const bool upper = name == "isupper";
  const bool cased_test = upper || name == "islower";
  bool cased = false;
  for (size_t pos = 0; pos < s.size();) {
    const char32_t c = NextCodePoint(s, &pos);
    bool ok = true;
    if (cased_test) {
      ok = !(upper ? IsLower(c) : IsUpper(c));
      cased = cased || (upper ? IsUpper(c) : IsLower(c));
    } else if (name == "isalpha") {
      ok = IsAlpha(c);
    } else if (name == "isdigit") {
      ok = IsDigit(c);
    } else if (name == "isdecimal") {
      ok = IsDecimal(c);
    } else if (name == "isnumeric") {
      ok = IsNumeric(c);
    } else if (name == "isspace") {
      ok = IsSpace(c);
    } else if (name == "isprintable") {
      ok = IsPrintable(c);
    } else {
      ok = IsAlpha(c) || IsNumeric(c);
    }
    if (!ok) return Value::Bool(false);
  }
  return Value::Bool(cased_test ? cased : !s.empty() || name == "isprintable");
}

Value Format(Runtime& rt, const Value& self, const std::string&, const Args& args) { return BraceFormat(rt, self.text(), args); }

struct MethodEntry {
  std::string_view name;
  Fn fn;
};

constexpr MethodEntry kMethods[] = {
    {"capitalize", Case}, {"casefold", Case},     {"center", Justify},    {"count", Find},         {"endswith", Affix},
    {"find", Find},       {"format", Format},     {"index", Find},        {"isalnum", Is},         {"isalpha", Is},
    {"isascii", Is},      {"isdecimal", Is},      {"isdigit", Is},        {"islower", Is},         {"isnumeric", Is},
    {"isprintable", Is},  {"isspace", Is},        {"istitle", Is},        {"isupper", Is},         {"join", Join},
    {"ljust", Justify},   {"lower", Case},        {"lstrip", Strip},      {"partition", Partition}, {"removeprefix", RemoveAffix},
    {"removesuffix", RemoveAffix}, {"replace", Replace}, {"rfind", Find}, {"rindex", Find},        {"rjust", Justify},
    {"rpartition", Partition}, {"rsplit", Split}, {"rstrip", Strip},      {"split", Split},        {"splitlines", SplitLinesMethod},
    {"startswith", Affix}, {"strip", Strip},      {"swapcase", Case},     {"title", Case},         {"upper", Case},
    {"zfill", Justify},
};

const MethodEntry* FindMethod(std::string_view name) {
  const auto* const it = std::find_if(std::begin(kMethods), std::end(kMethods), [&](const MethodEntry& e) { return e.name == name; });
  return it == std::end(kMethods) ? nullptr : it;
}

}  // namespace

bool IsStrMethod(std::string_view name) { return FindMethod(name) != nullptr; }

Value StrMethod(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  return FindMethod(name)->fn(rt, self, name, args);
}

Text StripText(const Text& text, bool left, bool right, std::optional<std::string_view> chars) {
  const std::string_view s = text.view();
  const auto strips = [&](char32_t c) {
    if (!chars) return IsSpace(c);
    for (size_t pos = 0; pos < chars->size();) {
      if (NextCodePoint(*chars, &pos) == c) return true;
    }
    return false;
  };
  size_t begin = 0;
  size_t end = s.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!strips(NextCodePoint(s, &next))) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t before = end;
    if (!strips(PreviousCodePoint(s, &before)) || before < begin) break;
    end = before;
  }
  return text.Slice(begin, end - begin);
}

Text ReplaceText(const Text& text, std::string_view old, const Text& with, int64_t count, size_t max_bytes, bool* too_big) {
  const std::string_view s = text.view();
  Text out;
  size_t begin = 0;
  size_t at = 0;
  for (int64_t n = 0; count < 0 || n < count; ++n) {
    // An empty pattern stands before every character and at the end.
    if (old.empty()) {
      if (n > 0) {
        if (at >= s.size()) break;
        NextCodePoint(s, &at);
      }
    } else {
      at = s.find(old, begin);
      if (at == std::string_view::npos) break;
    }
    out.AppendSlice(text, begin, at - begin);
    out.Append(with);
    begin = at + old.size();
    if (out.size() > max_bytes) {
      *too_big = true;
      return Text();
    }
  }
  out.AppendSlice(text, begin, s.size() - begin);
  return out;
}

std::vector<Text> SplitLines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  const std::string_view s = text.view();
  size_t begin = 0;
  for (size_t pos = 0; pos < s.size();) {
    const size_t at = pos;
    const char32_t c = NextCodePoint(s, &pos);
    const bool ends = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && pos < s.size() && s[pos] == '\n') ++pos;
    lines.push_back(text.Slice(begin, (keep_ends ? pos : at) - begin));
    begin = pos;
  }
  if (begin < s.size()) lines.push_back(text.Slice(begin, s.size() - begin));
  return lines;
}

}  // namespace holdfast::text::jinja

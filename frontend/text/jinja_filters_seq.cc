// Filters on sequences and mappings.
#include <algorithm>

#include "frontend/text/jinja_filters.h"
#include "frontend/text/jinja_number.h"
#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja::filters {
namespace {

bool Flag(const std::optional<Value>& v, bool otherwise) { return v ? v->Truth() : otherwise; }
bool Given(const std::optional<Value>& v) { return v && !v->is_none(); }

Value IgnoreCase(Runtime& rt, const Value& v) { return v.is_str() ? rt.Str(v.text().MapRuns(ToLower)) : v; }

// "a.b.0" of an item: dots reach into attributes, digits are indices.
Value Reach(Runtime& rt, Value item, const Value& attribute, const Value* otherwise = nullptr) {
  if (attribute.is_none()) return item;
  if (!attribute.is_str()) return rt.GetItem(item, attribute);
  std::string_view path = attribute.view();
  while (!rt.failed()) {
    const size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    const bool digits = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    const auto index = digits ? ParseInt(part, 10) : std::nullopt;
    item = rt.GetItem(item, index ? Value::Integer(*index) : rt.Trusted(std::string(part)));
    if (otherwise != nullptr && item.is_undefined()) item = *otherwise;
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  return item;
}

// Sorts items by keys of the same length, stable; reverse keeps the order of equal ones, as Python does.
bool SortByKeys(Runtime& rt, std::vector<Value>* items, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items->size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return reverse ? rt.Less(keys[b], keys[a]) : rt.Less(keys[a], keys[b]); });
  if (rt.failed()) return false;
  std::vector<Value> sorted;
  sorted.reserve(items->size());
  for (const size_t i : order) sorted.push_back((*items)[i]);
  *items = std::move(sorted);
  return true;
}

Value SelectOrReject(Runtime& rt, const Value& input, const Args& args, bool attribute, bool keep) {
  if (!args.keyword.empty()) return rt.TypeError("select and reject take no keyword arguments");
  size_t used = 0;
  Value path;
  if (attribute) {
    if (args.positional.empty()) return rt.TypeError("Missing parameter for attribute name");
    path = args.positional[used++];
  }
  TestFn test = nullptr;
  Args rest;
  if (used < args.positional.size()) {
    const Value& name = args.positional[used++];
    if (!rt.WantStr(name, "the name of a test")) return Value();
    test = FindTest(name.view());
    if (test == nullptr) return rt.Fail(RenderError::Kind::kUnsupported, "No test named '" + std::string(name.view()) + "'.");
    rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(used), args.positional.end());
  }
  const auto items = rt.Iterate(input);
  if (!items) return Value();
  std::vector<Value> out;
  for (const Value& item : *items) {
    if (!rt.Step()) return Value();
    const Value v = Reach(rt, item, path);
    if (rt.failed()) return Value();
    const auto holds = test != nullptr ? test(rt, v, rest) : std::optional<bool>(v.Truth());
    if (!holds || rt.failed()) return Value();
    if (*holds == keep) out.push_back(item);
  }
  return rt.Generator(std::move(out));
}

Value MinOrMax(Runtime& rt, const Value& input, const Args& args, bool max) {
  const auto a = rt.Bind(max ? "max" : "min", args, {"case_sensitive", "attribute"});
  const auto items = a ? rt.Iterate(input) : std::nullopt;
  if (!items) return Value();
  if (items->empty()) return rt.Undefined("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& item) {
    Value v = Reach(rt, item, (*a)[1] ? *(*a)[1] : Value());
    return Flag((*a)[0], false) ? v : IgnoreCase(rt, v);
  };
  size_t best = 0;
  Value best_key = key((*items)[0]);
  for (size_t i = 1; i < items->size() && !rt.failed(); ++i) {
    const Value k = key((*items)[i]);
    if (max ? rt.Less(best_key, k) : rt.Less(k, best_key)) {
      best = i;
      best_key = k;
    }
  }
  return rt.failed() ? Value() : (*items)[best];
}

}  // namespace

Value Select(Runtime& rt, const Value& input, const Args& args) { return SelectOrReject(rt, input, args, false, true); }
Value Reject(Runtime& rt, const Value& input, const Args& args) { return SelectOrReject(rt, input, args, false, false); }
Value SelectAttr(Runtime& rt, const Value& input, const Args& args) { return SelectOrReject(rt, input, args, true, true); }
Value RejectAttr(Runtime& rt, const Value& input, const Args& args) { return SelectOrReject(rt, input, args, true, false); }
Value Max(Runtime& rt, const Value& input, const Args& args) { return MinOrMax(rt, input, args, true); }
Value Min(Runtime& rt, const Value& input, const Args& args) { return MinOrMax(rt, input, args, false); }

Value Map(Runtime& rt, const Value& input, const Args& args) {
  const auto keyword = [&](std::string_view name) {
    return std::find_if(args.keyword.begin(), args.keyword.end(), [name](const auto& kw) { return kw.first == name; });
  };
  const bool by_attribute = args.positional.empty() && keyword("attribute") != args.keyword.end();
  FilterFn filter = nullptr;
  Args rest;
  Value attribute;
  Value otherwise;
  if (by_attribute) {
    for (const auto& [name, value] : args.keyword) {
      if (name == "attribute") {
        attribute = value;
      } else if (name == "default") {
        otherwise = value;
      } else {
        return rt.TypeError("Unexpected keyword argument '" + name + "'");
      }
    }
  } else {
    if (args.positional.empty()) return rt.TypeError("map requires a filter argument");
    if (!rt.WantStr(args.positional[0], "the name of a filter")) return Value();
    filter = FindFilter(args.positional[0].view());
    if (filter == nullptr) return rt.Fail(RenderError::Kind::kUnsupported, "No filter named '" + std::string(args.positional[0].view()) + "'.");
    rest.positional.assign(args.positional.begin() + 1, args.positional.end());
    rest.keyword = args.keyword;
  }
  const auto items = rt.Iterate(input);
  if (!items) return Value();
  std::vector<Value> out;
  out.reserve(items->size());
  for (const Value& item : *items) {
    if (!rt.Step()) return Value();
    out.push_back(by_attribute ? Reach(rt, item, attribute, otherwise.is_none() ? nullptr : &otherwise) : filter(rt, item, rest));
    if (rt.failed()) return Value();
  }
  return rt.Generator(std::move(out));
}

Value Join(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("join", args, {"d", "attribute"});
  const auto items = a ? rt.Iterate(input) : std::nullopt;
  if (!items) return Value();
  const Text separator = (*a)[0] ? rt.ToText(*(*a)[0]) : Text();
  Text out;
  for (size_t i = 0; i < items->size(); ++i) {
    if (i > 0) out.Append(separator);
    rt.AppendTo(Given((*a)[1]) ? Reach(rt, (*items)[i], *(*a)[1]) : (*items)[i], &out);
    if (!rt.Step() || !rt.CheckSize(out.size())) return Value();
  }
  return rt.Str(std::move(out));
}

Value First(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("first", args, {})) return Value();
  if (input.is_seq() && input.seq().kind == SeqObj::Kind::kGenerator) {
    SeqObj& seq = input.seq();
    if (seq.position < seq.items.size()) return seq.items[seq.position++];
    return rt.Undefined("No first item, sequence was empty.");
  }
  const auto items = rt.Iterate(input);
  if (!items) return Value();
  return items->empty() ? rt.Undefined("No first item, sequence was empty.") : items->front();
}

Value Last(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("last", args, {})) return Value();
  if (input.is_undefined()) return rt.UndefinedError(input);
  if (input.is_seq() && input.seq().kind == SeqObj::Kind::kGenerator) return rt.TypeError("'generator' object is not reversible");
  const auto items = rt.Iterate(input);
  if (!items) return Value();
  return items->empty() ? rt.Undefined("No last item, sequence was empty.") : items->back();
}

Value List(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("list", args, {})) return Value();
  auto items = rt.Iterate(input);
  return items ? rt.List(std::move(*items)) : Value();
}

Value Items(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("items", args, {})) return Value();
  if (input.is_undefined()) return rt.Generator({});
  if (!input.is_dict()) return rt.TypeError("Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [key, value] : input.dict().items()) out.push_back(rt.Tuple({key, value}));
  return rt.Generator(std::move(out));
}

Value DictSort(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (!a) return Value();
  if (input.is_undefined()) return rt.UndefinedError(input);
  if (!input.is_dict()) return rt.TypeError("'" + std::string(input.TypeName()) + "' object has no attribute 'items'");
  const std::string by = (*a)[1] ? rt.ToText(*(*a)[1]).str() : "key";
  if (by != "key" && by != "value") return rt.TypeError("You can only sort by either \"key\" or \"value\"");
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const auto& [key, value] : input.dict().items()) {
    const Value& chosen = by == "key" ? key : value;
    keys.push_back(Flag((*a)[0], false) ? chosen : IgnoreCase(rt, chosen));
    items.push_back(rt.Tuple({key, value}));
    if (!rt.Step()) return Value();
  }
  if (!SortByKeys(rt, &items, keys, Flag((*a)[2], false))) return Value();
  return rt.List(std::move(items));
}

Value Sort(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("sort", args, {"reverse", "case_sensitive", "attribute"});
  auto items = a ? rt.Iterate(input) : std::nullopt;
  if (!items) return Value();
  // Several attributes, separated by commas, sort by the first, then the next.
  std::vector<Value> attributes;
  if (Given((*a)[2]) && (*a)[2]->is_str()) {
    std::string_view rest = (*a)[2]->view();
    while (true) {
      const size_t comma = rest.find(',');
      attributes.push_back(rt.Trusted(std::string(rest.substr(0, comma))));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    attributes.push_back((*a)[2] ? *(*a)[2] : Value());
  }
  std::vector<Value> keys;
  for (const Value& item : *items) {
    std::vector<Value> key;
    for (const Value& attribute : attributes) {
      Value v = Reach(rt, item, attribute);
      key.push_back(Flag((*a)[1], false) ? v : IgnoreCase(rt, v));
    }
    keys.push_back(rt.List(std::move(key)));
    if (!rt.Step()) return Value();
  }
  if (!SortByKeys(rt, &*items, keys, Flag((*a)[0], false))) return Value();
  return rt.List(std::move(*items));
}

Value GroupBy(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  auto items = a ? rt.Iterate(input) : std::nullopt;
  if (!items) return Value();
  const Value* otherwise = Given((*a)[1]) ? &*(*a)[1] : nullptr;
  const auto key = [&](const Value& item, bool fold) {
    Value v = Reach(rt, item, *(*a)[0], otherwise);
    return fold ? IgnoreCase(rt, v) : v;
  };
  const bool fold = !Flag((*a)[2], false);
  std::vector<Value> keys;
  for (const Value& item : *items) keys.push_back(key(item, fold));
  if (rt.failed() || !SortByKeys(rt, &*items, keys, false)) return Value();
  std::vector<Value> groups;
  for (size_t i = 0; i < items->size() && !rt.failed();) {
    const Value first = key((*items)[i], fold);
    const Value shown = key((*items)[i], false);
    std::vector<Value> group;
    for (; i < items->size() && rt.Equal(key((*items)[i], fold), first); ++i) group.push_back((*items)[i]);
    if (rt.failed() || group.empty()) return Value();
    groups.push_back(rt.Seq(SeqObj::Kind::kTuple, {shown, rt.List(std::move(group))}, "group"));
  }
  return rt.List(std::move(groups));
}

Value Unique(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("unique", args, {"case_sensitive", "attribute"});
  const auto items = a ? rt.Iterate(input) : std::nullopt;
  if (!items) return Value();
  auto seen = rt.NewDict();
  std::vector<Value> out;
  for (const Value& item : *items) {
    Value key = Reach(rt, item, (*a)[1] ? *(*a)[1] : Value());
    if (!Flag((*a)[0], false)) key = IgnoreCase(rt, key);
    const size_t before = seen->items().size();
    if (rt.failed() || !rt.DictSet(*seen, key, Value())) return Value();
    if (seen->items().size() > before) out.push_back(item);
  }
  return rt.Generator(std::move(out));
}

Value Reverse(Runtime& rt, const Value& input, const Args& args) {
  if (!rt.Bind("reverse", args, {})) return Value();
  if (input.is_str()) return rt.Slice(input, Value(), Value(), Value::Integer(-1));
  if (input.is_undefined()) return rt.UndefinedError(input);
  auto items = rt.Iterate(input);
  if (!items) return rt.TypeError("argument must be iterable");
  std::reverse(items->begin(), items->end());
  const bool generator = input.is_seq() && input.seq().kind == SeqObj::Kind::kGenerator;
  return generator ? rt.List(std::move(*items)) : rt.Seq(SeqObj::Kind::kGenerator, std::move(*items), "list_reverseiterator");
}

Value Sum(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("sum", args, {"attribute", "start"});
  const auto items = a ? rt.Iterate(input) : std::nullopt;
  if (!items) return Value();
  Value total = (*a)[1] ? *(*a)[1] : Value::Integer(0);
  if (total.is_str()) return rt.TypeError("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : *items) {
    total = rt.Binary(BinaryOp::kAdd, total, Reach(rt, item, (*a)[0] ? *(*a)[0] : Value()));
    if (!rt.Step()) return Value();
  }
  return total;
}

Value Batch(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("batch", args, {"linecount", "fill_with"}, 1);
  const auto size = a ? rt.WantInt(*(*a)[0], "batch") : std::nullopt;
  const auto items = size ? rt.Iterate(input) : std::nullopt;
  if (!items) return Value();
  if (*size < 1) return rt.TypeError("batch: linecount must be at least 1");
  std::vector<Value> out;
  std::vector<Value> line;
  for (const Value& item : *items) {
    if (line.size() == static_cast<size_t>(*size)) out.push_back(rt.List(std::exchange(line, {})));
    line.push_back(item);
  }
  if (!line.empty()) {
    if (Given((*a)[1])) {
      if (!rt.CheckItems(static_cast<size_t>(*size))) return Value();
      line.resize(static_cast<size_t>(*size), *(*a)[1]);
    }
    out.push_back(rt.List(std::move(line)));
  }
  return rt.Generator(std::move(out));
}

Value Slices(Runtime& rt, const Value& input, const Args& args) {
  const auto a = rt.Bind("slice", args, {"slices", "fill_with"}, 1);
  const auto slices = a ? rt.WantInt(*(*a)[0], "slice") : std::nullopt;
  const auto items = slices ? rt.Iterate(input) : std::nullopt;
  if (!items) return Value();
  if (*slices < 1 || !rt.CheckItems(static_cast<size_t>(*slices))) return rt.TypeError("slice: slices must be at least 1");
  const auto count = static_cast<size_t>(*slices);
  const size_t each = items->size() / count;
  const size_t longer = items->size() % count;
  std::vector<Value> out;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t length = each + (i < longer ? 1 : 0);
    std::vector<Value> part(items->begin() + static_cast<std::ptrdiff_t>(at), items->begin() + static_cast<std::ptrdiff_t>(at + length));
    at += length;
    if (Given((*a)[1]) && i >= longer) part.push_back(*(*a)[1]);
    out.push_back(rt.List(std::move(part)));
  }
  return rt.Generator(std::move(out));
}

}  // namespace holdfast::text::jinja::filters

// Methods of lists, tuples, mappings and loops, the global functions, and the closed list of what has which method. In-place changes work
// on what the template made itself; request data stays as it is, as in Hugging Face's immutable sandbox.
#include <algorithm>
#include <ctime>

#include "frontend/text/jinja_methods.h"
#include "frontend/text/jinja_number.h"

namespace holdfast::text::jinja {
namespace {

constexpr std::string_view kListMethods[] = {"append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kDictMethods[] = {"clear", "copy", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"};
constexpr std::string_view kLoopMethods[] = {"changed", "cycle"};
constexpr std::string_view kFunctions[] = {"dict", "namespace", "raise_exception", "range", "strftime_now"};

constexpr Int kMaxRange = 100'000;  // the sandbox of jinja2 has the same limit

template <size_t N>
bool Has(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value Unsafe(Runtime& rt, const Value& self, const std::string& name) {
  return rt.Fail(RenderError::Kind::kSecurity, "access to attribute '" + name + "' of '" + std::string(self.TypeName()) + "' object is unsafe.");
}

Value ListMethod(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  SeqObj& list = self.seq();
  if (name == "count" || name == "index") {
    const auto a = rt.Bind(name, args, {"value"}, 1);
    if (!a) return Value();
    Int count = 0;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (!rt.Equal(list.items[i], *(*a)[0])) continue;
      if (name == "index") return Value::Integer(i);
      ++count;
    }
    if (rt.failed()) return Value();
    return name == "count" ? Value::Integer(count) : rt.TypeError(rt.Repr(*(*a)[0]).str() + " is not in list");
  }
  if (name == "copy") {
    if (!rt.Bind(name, args, {})) return Value();
    return rt.List(list.items);
  }
  if (list.frozen || (name != "append" && name != "extend" && name != "insert" && name != "pop")) return Unsafe(rt, self, name);
  if (!list.adopted) {
    list.adopted = true;
    rt.Adopt(self.seq_ptr());
  }
  if (!rt.Step(list.items.size() / 16)) return Value();
  if (name == "pop") {
    const auto a = rt.Bind(name, args, {"index"});
    const auto at = !a ? std::nullopt : (*a)[0] ? rt.WantInt(*(*a)[0], "pop") : std::optional<int64_t>(-1);
    if (!at) return Value();
    const auto size = static_cast<int64_t>(list.items.size());
    const int64_t index = *at < 0 ? *at + size : *at;
    if (index < 0 || index >= size) return rt.TypeError(size == 0 ? "pop from empty list" : "pop index out of range");
    Value item = list.items[static_cast<size_t>(index)];
    list.items.erase(list.items.begin() + index);
    return item;
  }
  std::vector<Value> added;
  size_t where = list.items.size();
  if (name == "extend") {
    const auto a = rt.Bind(name, args, {"iterable"}, 1);
    auto items = a ? rt.Iterate(*(*a)[0]) : std::nullopt;
    if (!items) return Value();
    added = std::move(*items);
  } else if (name == "append") {
    const auto a = rt.Bind(name, args, {"object"}, 1);
    if (!a) return Value();
    added.push_back(*(*a)[0]);
  } else {
    const auto a = rt.Bind(name, args, {"index", "object"}, 2);
    const auto at = a ? rt.WantInt(*(*a)[0], "insert") : std::nullopt;
    if (!at) return Value();
    const auto size = static_cast<int64_t>(list.items.size());
    where = static_cast<size_t>(std::clamp<int64_t>(*at < 0 ? *at + size : *at, 0, size));
    added.push_back(*(*a)[1]);
  }
  if (!rt.CheckItems(list.items.size() + added.size()) || !rt.Step(added.size())) return Value();
  // Adding makes a list first, which refuses what cannot be stored.
  if (rt.List(added).is_none()) return Value();
  for (const Value& v : added) list.depth = std::max(list.depth, v.Depth() + 1);
  if (list.depth > rt.limits().max_value_depth) return rt.LimitError("lists are nested too deeply");
  list.charge.Grow(static_cast<int64_t>(added.size() * sizeof(Value)));
  list.items.insert(list.items.begin() + static_cast<std::ptrdiff_t>(where), added.begin(), added.end());
  return Value();
}

Value DictMethod(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  DictObj& dict = self.dict();
  const auto lookup = [&](const Value& key, const Value** found) {
    std::string hash;
    std::string_view type;
    if (!HashKey(key, &hash, &type)) {
      rt.TypeError("unhashable type: '" + std::string(type) + "'");
      return false;
    }
    *found = dict.Find(hash);
    return true;
  };
  if (name == "get") {
    const auto a = rt.Bind(name, args, {"key", "default"}, 1);
    const Value* found = nullptr;
    if (!a || !lookup(*(*a)[0], &found)) return Value();
    return found != nullptr ? *found : (*a)[1] ? *(*a)[1] : Value();
  }
  if (name == "items" || name == "keys" || name == "values") {
    if (!rt.Bind(name, args, {})) return Value();
    std::vector<Value> out;
    out.reserve(dict.items().size());
    for (const auto& [key, value] : dict.items()) out.push_back(name == "items" ? rt.Tuple({key, value}) : name == "keys" ? key : value);
    return rt.Seq(SeqObj::Kind::kView, std::move(out), name == "items" ? "dict_items" : name == "keys" ? "dict_keys" : "dict_values");
  }
  if (name == "copy") {
    if (!rt.Bind(name, args, {})) return Value();
    auto copy = rt.NewDict();
    for (const auto& [key, value] : dict.items()) rt.DictSet(*copy, key, value);
    return Value(std::move(copy));
  }
  if (dict.frozen || (name != "pop" && name != "update" && name != "setdefault")) return Unsafe(rt, self, name);
  if (!dict.adopted) {
    dict.adopted = true;
    rt.Adopt(self.dict_ptr());
  }
  if (name == "pop" || name == "setdefault") {
    const auto a = rt.Bind(name, args, {"key", "default"}, 1);
    const Value* found = nullptr;
    if (!a || !lookup(*(*a)[0], &found)) return Value();
    const Value value = found != nullptr ? *found : (*a)[1] ? *(*a)[1] : Value();
    if (name == "setdefault") {
      if (found == nullptr) rt.DictSet(dict, *(*a)[0], value);
      return value;
    }
    if (found == nullptr && !(*a)[1]) return rt.TypeError("KeyError: " + rt.Repr(*(*a)[0]).str());
    std::string hash;
    std::string_view type;
    if (HashKey(*(*a)[0], &hash, &type) && rt.Step(dict.items().size())) dict.Erase(hash);
    return value;
  }
  if (args.positional.size() > 1) return rt.TypeError("update expected at most 1 argument");
  if (!args.positional.empty()) {
    if (!args.positional[0].is_dict()) return rt.TypeError("update needs a mapping");
    const std::vector<DictObj::Item> items = args.positional[0].dict().items();  // a copy: it may be this one
    for (const auto& [key, value] : items) {
      if (!rt.DictSet(dict, key, value)) return Value();
    }
  }
  for (const auto& [key, value] : args.keyword) {
    if (!rt.DictSet(dict, rt.Trusted(key), value)) return Value();
  }
  return Value();
}

Value LoopMethod(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  LoopState& loop = *self.object().loop;
  if (!args.keyword.empty()) return rt.TypeError("loop." + name + " takes no keyword arguments");
  if (name == "cycle") {
    if (args.positional.empty()) return rt.TypeError("no items for cycling given");
    return args.positional[loop.index % args.positional.size()];
  }
  bool same = loop.has_changed && loop.changed.size() == args.positional.size();
  for (size_t i = 0; same && i < args.positional.size(); ++i) same = rt.Equal(loop.changed[i], args.positional[i]);
  if (!loop.has_changed) rt.Adopt(self.object_ptr());  // the arguments may lead back to this loop
  loop.has_changed = true;
  loop.changed = args.positional;
  return Value::Bool(!same);
}

// dict(mapping or pairs, **more), also what namespace() starts from.
std::shared_ptr<DictObj> MakeDict(Runtime& rt, const Args& args, std::string_view who) {
  auto dict = rt.NewDict();
  if (args.positional.size() > 1) {
    rt.TypeError(std::string(who) + " expected at most 1 argument");
    return nullptr;
  }
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is_dict()) {
      for (const auto& [key, value] : from.dict().items()) rt.DictSet(*dict, key, value);
    } else {
      const auto pairs = rt.Iterate(from);
      if (!pairs) return nullptr;
      for (const Value& pair : *pairs) {
        const auto parts = rt.Iterate(pair);
        if (!parts) return nullptr;
        if (parts->size() != 2) {
          rt.TypeError(std::string(who) + " needs pairs");
          return nullptr;
        }
        rt.DictSet(*dict, (*parts)[0], (*parts)[1]);
      }
    }
  }
  for (const auto& [key, value] : args.keyword) rt.DictSet(*dict, rt.Trusted(key), value);
  return rt.failed() ? nullptr : dict;
}

Value Namespace(Runtime& rt, const Args& args) {
  const auto dict = MakeDict(rt, args, "namespace");
  if (dict == nullptr) return Value();
  auto object = std::make_shared<Object>(Object::Kind::kNamespace, rt.meter());
  for (const auto& [key, value] : dict->items()) object->ns.members.emplace_back(rt.ToText(key).str(), value);
  object->charge.Grow(static_cast<int64_t>(object->ns.members.size() * 96));
  rt.Adopt(object);
  return rt.CheckMemory() ? Value(std::move(object)) : Value();
}

Value Range(Runtime& rt, const Args& args) {
  if (!args.keyword.empty() || args.positional.empty() || args.positional.size() > 3) return rt.TypeError("range expected 1 to 3 arguments");
  Int bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    const Value& v = args.positional[i];
    if (v.is_undefined()) return rt.UndefinedError(v);
    if (!v.is_integral()) return rt.TypeError("'" + std::string(v.TypeName()) + "' object cannot be interpreted as an integer");
    bounds[i] = v.as_int();
  }
  if (args.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  const auto [start, stop, step] = bounds;
  if (step == 0) return rt.TypeError("range() arg 3 must not be zero");
  constexpr Int kHuge = Int(1) << 100;
  for (const Int b : bounds) {
    if (b > kHuge || b < -kHuge) return rt.LimitError("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  }
  const Int count = step > 0 ? (stop > start ? (stop - start + step - 1) / step : 0) : (start > stop ? (start - stop - step - 1) / -step : 0);
  if (count > kMaxRange) return rt.LimitError("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  if (!rt.Step(static_cast<uint64_t>(count) / 16)) return Value();
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < count; ++i) items.push_back(Value::Integer(start + i * step));
  return rt.Seq(SeqObj::Kind::kRange, std::move(items));
}

Value StrftimeNow(Runtime& rt, const Args& args) {
  const auto a = rt.Bind("strftime_now", args, {"format"}, 1);
  if (!a || !rt.WantStr(*(*a)[0], "strftime_now")) return Value();
  const std::string format((*a)[0]->view());
  if (format.size() > 256 || format.find('\0') != std::string::npos) return rt.TypeError("strftime_now: not a format of at most 256 bytes");
  // Widths as in %999999Y would write megabytes.
  for (size_t i = 0; i + 1 < format.size(); ++i) {
    if (format[i] == '%' && format[i + 1] >= '0' && format[i + 1] <= '9') return rt.TypeError("strftime_now: widths are not supported");
  }
  const auto seconds = static_cast<std::time_t>(rt.now());
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) return rt.TypeError("strftime_now: the clock is out of range");
  char buffer[8192];
  const size_t length = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  return rt.Str(Text(std::string(buffer, length), (*a)[0]->text().all_trusted()));
}

}  // namespace

bool HasMethod(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Value::Kind::kStr:
      return IsStrMethod(name);
    case Value::Kind::kSeq:
      if (self.seq().kind == SeqObj::Kind::kList) return Has(kListMethods, name);
      return (self.seq().kind == SeqObj::Kind::kTuple || self.seq().kind == SeqObj::Kind::kRange) && Has(kTupleMethods, name);
    case Value::Kind::kDict:
      return Has(kDictMethods, name);
    case Value::Kind::kFloat:
      return name == "is_integer";
    case Value::Kind::kObject:
      return self.object().kind == Object::Kind::kLoop && Has(kLoopMethods, name);
    default:
      return false;
  }
}

Value CallMethod(Runtime& rt, const Value& self, const std::string& name, const Args& args) {
  switch (self.kind()) {
    case Value::Kind::kStr:
      return StrMethod(rt, self, name, args);
    case Value::Kind::kSeq:
      return ListMethod(rt, self, name, args);
    case Value::Kind::kDict:
      return DictMethod(rt, self, name, args);
    case Value::Kind::kFloat: {
      const double d = self.as_double();
      return Value::Bool(static_cast<double>(static_cast<int64_t>(std::clamp(d, -9e18, 9e18))) == d);
    }
    default:
      return LoopMethod(rt, self, name, args);
  }
}

bool IsGlobalFunction(std::string_view name) { return Has(kFunctions, name); }

Value CallGlobal(Runtime& rt, const std::string& name, const Args& args) {
  if (name == "range") return Range(rt, args);
  if (name == "namespace") return Namespace(rt, args);
  if (name == "strftime_now") return StrftimeNow(rt, args);
  if (name == "dict") {
    auto dict = MakeDict(rt, args, "dict");
    return dict == nullptr ? Value() : Value(std::move(dict));
  }
  const auto a = rt.Bind("raise_exception", args, {"message"}, 1);
  if (!a) return Value();
  const std::string message = rt.ToText(*(*a)[0]).str();
  return rt.failed() ? Value() : rt.Fail(RenderError::Kind::kRaised, message);
}

}  // namespace holdfast::text::jinja

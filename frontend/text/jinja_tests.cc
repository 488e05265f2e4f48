// The tests behind `is`.
#include <algorithm>

#include "frontend/text/jinja_runtime.h"
#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja {
namespace {

using Result = std::optional<bool>;

bool NoArgs(Runtime& rt, const Args& args) {
  if (args.positional.empty() && args.keyword.empty()) return true;
  rt.TypeError("this test takes no argument");
  return false;
}

template <bool (*Holds)(const Value&)>
Result Simple(Runtime& rt, const Value& v, const Args& args) {
  if (!NoArgs(rt, args)) return std::nullopt;
  return Holds(v);
}

template <CompareOp op>
Result Compared(Runtime& rt, const Value& v, const Args& args) {
  if (args.positional.size() != 1 || !args.keyword.empty()) {
    rt.TypeError("this test takes exactly one argument");
    return std::nullopt;
  }
  return rt.Compare(op, v, args.positional[0]);
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefined(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.is_none(); }
bool IsTrue(const Value& v) { return v.is_bool() && v.as_bool(); }
bool IsFalse(const Value& v) { return v.is_bool() && !v.as_bool(); }
bool IsBoolean(const Value& v) { return v.is_bool(); }
bool IsInteger(const Value& v) { return v.is_int(); }
bool IsFloat(const Value& v) { return v.is_float(); }
bool IsNumber(const Value& v) { return v.is_number(); }
bool IsString(const Value& v) { return v.is_str(); }
bool IsMapping(const Value& v) { return v.is_dict(); }
bool IsEscaped(const Value& v) { return v.is_str() && v.str().markup; }
bool IsCallable(const Value& v) { return (v.is_object() && v.object().kind != Object::Kind::kNamespace) || v.is_undefined(); }
bool IsIterable(const Value& v) {
  return v.is_str() || v.is_seq() || v.is_dict() || (v.is_undefined() && !v.undefined().security) || (v.is_object() && v.object().kind == Object::Kind::kLoop);
}
// What has a length and takes an index: generators and views do not.
bool IsSequence(const Value& v) {
  if (v.is_seq()) return v.seq().kind != SeqObj::Kind::kGenerator && v.seq().kind != SeqObj::Kind::kView;
  return v.is_str() || v.is_dict() || (v.is_undefined() && !v.undefined().security);
}

template <bool upper>
Result CaseTest(Runtime& rt, const Value& v, const Args& args) {
  if (!NoArgs(rt, args)) return std::nullopt;
  const Text text = rt.ToText(v);
  bool cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text.view(), &pos);
    if (upper ? IsLower(c) : IsUpper(c)) return false;
    cased = cased || (upper ? IsUpper(c) : IsLower(c));
  }
  return cased;
}

Result Remainder(Runtime& rt, const Value& v, Int by, Int wanted) {
  const Value rest = rt.Binary(BinaryOp::kMod, v, Value::Integer(by));
  if (rt.failed()) return std::nullopt;
  return rt.Equal(rest, Value::Integer(wanted));
}

Result Odd(Runtime& rt, const Value& v, const Args& args) {
  if (!NoArgs(rt, args)) return std::nullopt;
  return Remainder(rt, v, 2, 1);
}

Result Even(Runtime& rt, const Value& v, const Args& args) {
  if (!NoArgs(rt, args)) return std::nullopt;
  return Remainder(rt, v, 2, 0);
}

Result DivisibleBy(Runtime& rt, const Value& v, const Args& args) {
  const auto a = rt.Bind("divisibleby", args, {"num"}, 1);
  if (!a) return std::nullopt;
  const Value rest = rt.Binary(BinaryOp::kMod, v, *(*a)[0]);
  if (rt.failed()) return std::nullopt;
  return rt.Equal(rest, Value::Integer(0));
}

Result SameAs(Runtime& rt, const Value& v, const Args& args) {
  const auto a = rt.Bind("sameas", args, {"other"}, 1);
  if (!a) return std::nullopt;
  const Value& other = *(*a)[0];
  if (v.kind() != other.kind()) return false;
  if (v.is_str()) return &v.str() == &other.str() || v.view() == other.view();
  if (v.is_seq()) return &v.seq() == &other.seq();
  if (v.is_dict()) return &v.dict() == &other.dict();
  return rt.Equal(v, other);
}

Result IsFilter(Runtime& rt, const Value& v, const Args& args) {
  if (!NoArgs(rt, args) || !rt.WantStr(v, "filter")) return std::nullopt;
  return FindFilter(v.view()) != nullptr;
}

Result IsTest(Runtime& rt, const Value& v, const Args& args) {
  if (!NoArgs(rt, args) || !rt.WantStr(v, "test")) return std::nullopt;
  return FindTest(v.view()) != nullptr;
}

struct TestEntry {
  std::string_view name;
  TestFn fn;
};

constexpr TestEntry kTests[] = {
    {"boolean", Simple<IsBoolean>},
    {"callable", Simple<IsCallable>},
    {"defined", Simple<IsDefined>},
    {"divisibleby", DivisibleBy},
    {"eq", Compared<CompareOp::kEq>},
    {"equalto", Compared<CompareOp::kEq>},
    {"==", Compared<CompareOp::kEq>},
    {"escaped", Simple<IsEscaped>},
    {"even", Even},
    {"false", Simple<IsFalse>},
    {"filter", IsFilter},
    {"float", Simple<IsFloat>},
    {"ge", Compared<CompareOp::kGe>},
    {">=", Compared<CompareOp::kGe>},
    {"greaterthan", Compared<CompareOp::kGt>},
    {"gt", Compared<CompareOp::kGt>},
    {">", Compared<CompareOp::kGt>},
    {"in", Compared<CompareOp::kIn>},
    {"integer", Simple<IsInteger>},
    {"iterable", Simple<IsIterable>},
    {"le", Compared<CompareOp::kLe>},
    {"<=", Compared<CompareOp::kLe>},
    {"lessthan", Compared<CompareOp::kLt>},
    {"lower", CaseTest<false>},
    {"lt", Compared<CompareOp::kLt>},
    {"<", Compared<CompareOp::kLt>},
    {"mapping", Simple<IsMapping>},
    {"ne", Compared<CompareOp::kNe>},
    {"!=", Compared<CompareOp::kNe>},
    {"none", Simple<IsNone>},
    {"number", Simple<IsNumber>},
    {"odd", Odd},
    {"sameas", SameAs},
    {"sequence", Simple<IsSequence>},
    {"string", Simple<IsString>},
    {"test", IsTest},
    {"true", Simple<IsTrue>},
    {"undefined", Simple<IsUndefined>},
    {"upper", CaseTest<true>},
};

}  // namespace

TestFn FindTest(std::string_view name) {
  const auto* const it = std::find_if(std::begin(kTests), std::end(kTests), [&](const TestEntry& e) { return e.name == name; });
  return it == std::end(kTests) ? nullptr : it->fn;
}

}  // namespace holdfast::text::jinja

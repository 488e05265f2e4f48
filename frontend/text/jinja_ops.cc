// Python's operators on template values.
#include <algorithm>
#include <cmath>

#include "frontend/text/jinja_filters.h"
#include "frontend/text/jinja_number.h"
#include "frontend/text/jinja_runtime.h"

namespace holdfast::text::jinja {
namespace {

const char* Symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSub:
      return "-";
    case BinaryOp::kMul:
      return "*";
    case BinaryOp::kDiv:
      return "/";
    case BinaryOp::kFloorDiv:
      return "//";
    case BinaryOp::kMod:
      return "%";
    case BinaryOp::kPow:
      return "** or pow()";
  }
  return "?";
}

const char* Symbol(CompareOp op) {
  switch (op) {
    case CompareOp::kLt:
      return "<";
    case CompareOp::kLe:
      return "<=";
    case CompareOp::kGt:
      return ">";
    default:
      return ">=";
  }
}

bool IsSeqOf(const Value& v, SeqObj::Kind kind) { return v.is_seq() && v.seq().kind == kind; }

Text Escaped(const Value& v) { return v.str().markup ? v.text() : filters::EscapeText(v.text()); }

Int FloorDivide(Int a, Int b) {
  Int q = a / b;
  if (a % b != 0 && (a < 0) != (b < 0)) --q;
  return q;
}

}  // namespace

Value Runtime::Unsupported(BinaryOp op, const Value& a, const Value& b) {
  return TypeError(std::string("unsupported operand type(s) for ") + Symbol(op) + ": '" + std::string(a.TypeName()) + "' and '" +
                   std::string(b.TypeName()) + "'");
}

Value Runtime::Repeat(const Value& v, Int times) {
  if (times < 0) times = 0;
  const size_t unit = v.is_str() ? v.text().size() : v.seq().items.size();
  const size_t limit = v.is_str() ? limits_.max_string_bytes : limits_.max_list_items;
  const size_t runs = v.is_str() && v.text().runs().size() > 1 ? v.text().runs().size() * sizeof(Text::Run) : 0;
  if (unit != 0 && times > static_cast<Int>(limit / (unit + runs))) {
    return LimitError("repeating " + std::string(v.is_str() ? "a string" : "a list") + " " + IntToString(times) +
                      " times makes more than a template may");
  }
  const auto n = unit == 0 ? 0 : static_cast<size_t>(times);
  if (v.is_str()) {
    Text out;
    out.Reserve(unit * n);
    for (size_t i = 0; i < n; ++i) out.Append(v.text());
    return Str(std::move(out), v.str().markup);
  }
  std::vector<Value> items;
  items.reserve(unit * n);
  for (size_t i = 0; i < n; ++i) items.insert(items.end(), v.seq().items.begin(), v.seq().items.end());
  return Seq(v.seq().kind, std::move(items));
}

Value Runtime::Arithmetic(BinaryOp op, const Value& a, const Value& b) {
  const bool integral = a.is_integral() && b.is_integral();
  const auto zero = [&](const char* words) { return Fail(RenderError::Kind::kType, words); };
  if (integral && op != BinaryOp::kDiv && !(op == BinaryOp::kPow && b.as_int() < 0)) {
    const Int x = a.as_int();
    const Int y = b.as_int();
    Int r = 0;
    bool overflow = false;
    switch (op) {
      case BinaryOp::kAdd:
        overflow = __builtin_add_overflow(x, y, &r);
        break;
      case BinaryOp::kSub:
        overflow = __builtin_sub_overflow(x, y, &r);
        break;
      case BinaryOp::kMul:
        overflow = __builtin_mul_overflow(x, y, &r);
        break;
      case BinaryOp::kFloorDiv:
      case BinaryOp::kMod: {
        if (y == 0) return zero(op == BinaryOp::kMod ? "integer modulo by zero" : "integer division or modulo by zero");
        if (y == -1) {
          overflow = op == BinaryOp::kFloorDiv && __builtin_sub_overflow(Int(0), x, &r);
          break;
        }
        const Int q = FloorDivide(x, y);
        r = op == BinaryOp::kMod ? x - q * y : q;
        break;
      }
      case BinaryOp::kPow: {
        r = 1;
        Int base = x;
        for (Int e = y; e > 0 && !overflow; e >>= 1) {
          if ((e & 1) != 0) overflow = __builtin_mul_overflow(r, base, &r);
          if (e > 1 && __builtin_mul_overflow(base, base, &base)) overflow = true;
        }
        break;
      }
      case BinaryOp::kDiv:
        break;
    }
    if (overflow) return LimitError("an integer beyond 128 bits");
    return Value::Integer(r);
  }
  const double x = a.as_double();
  const double y = b.as_double();
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(x + y);
    case BinaryOp::kSub:
      return Value::Float(x - y);
    case BinaryOp::kMul:
      return Value::Float(x * y);
    case BinaryOp::kDiv:
      if (y == 0) return zero(integral ? "division by zero" : "float division by zero");
      return Value::Float(x / y);
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod: {
      if (y == 0) return zero(op == BinaryOp::kMod ? "float modulo" : "float floor division by zero");
      double mod = std::fmod(x, y);
      double quotient = (x - mod) / y;
      if (mod != 0 && (y < 0) != (mod < 0)) {
        mod += y;
        quotient -= 1;
      }
      if (mod == 0) mod = std::copysign(0.0, y);
      if (op == BinaryOp::kMod) return Value::Float(mod);
      double floored = std::floor(quotient);
      if (quotient - floored > 0.5) floored += 1;
      return Value::Float(quotient == 0 ? std::copysign(0.0, x / y) : floored);
    }
    case BinaryOp::kPow:
      if (x == 0 && y < 0) return zero("0.0 cannot be raised to a negative power");
      if (x < 0 && std::floor(y) != y) return Fail(RenderError::Kind::kUnsupported, "complex numbers are not supported");
      return Value::Float(std::pow(x, y));
  }
  return Value();
}

Value Runtime::Binary(BinaryOp op, const Value& a, const Value& b) {
  if (failed_) return Value();
  if (op == BinaryOp::kMod && a.is_str()) {
    if (b.is_undefined()) return UndefinedError(b);
    return PercentFormat(*this, a.text(), b);
  }
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  if (a.is_number() && b.is_number()) return Arithmetic(op, a, b);
  if (op == BinaryOp::kAdd) {
    if (a.is_str() && b.is_str()) {
      if (!CheckSize(a.text().size() + b.text().size())) return Value();
      const bool markup = a.str().markup || b.str().markup;
      Text out;
      out.Reserve(a.text().size() + b.text().size());
      out.Append(markup ? Escaped(a) : a.text());
      out.Append(markup ? Escaped(b) : b.text());
      return Str(std::move(out), markup);
    }
    for (const auto kind : {SeqObj::Kind::kList, SeqObj::Kind::kTuple}) {
      if (IsSeqOf(a, kind) && IsSeqOf(b, kind)) {
        if (!CheckItems(a.seq().items.size() + b.seq().items.size())) return Value();
        std::vector<Value> items = a.seq().items;
        items.insert(items.end(), b.seq().items.begin(), b.seq().items.end());
        return Seq(kind, std::move(items));
      }
    }
    if (a.is_str() || IsSeqOf(a, SeqObj::Kind::kList) || IsSeqOf(a, SeqObj::Kind::kTuple)) {
      const std::string type(a.is_str() ? "str" : a.TypeName());
      return TypeError("can only concatenate " + type + " (not \"" + std::string(b.TypeName()) + "\") to " + type);
    }
  }
  if (op == BinaryOp::kMul) {
    const auto repeatable = [](const Value& v) { return v.is_str() || IsSeqOf(v, SeqObj::Kind::kList) || IsSeqOf(v, SeqObj::Kind::kTuple); };
    if (repeatable(a) && b.is_integral()) return Repeat(a, b.as_int());
    if (repeatable(b) && a.is_integral()) return Repeat(b, a.as_int());
    if (repeatable(a) || repeatable(b)) {
      const Value& other = repeatable(a) ? b : a;
      return TypeError("can't multiply sequence by non-int of type '" + std::string(other.TypeName()) + "'");
    }
  }
  return Unsupported(op, a, b);
}

Value Runtime::Negate(const Value& v) {
  if (v.is_undefined()) return UndefinedError(v);
  if (v.is_float()) return Value::Float(-v.as_double());
  if (v.is_integral()) return Arithmetic(BinaryOp::kSub, Value::Integer(0), v);
  return TypeError("bad operand type for unary -: '" + std::string(v.TypeName()) + "'");
}

bool Runtime::Equal(const Value& a, const Value& b) { return EqualAt(a, b, 0); }

bool Runtime::EqualAt(const Value& a, const Value& b, uint32_t depth) {
  if (!Step()) return false;
  if (depth > limits_.max_value_depth) {
    LimitError("values are nested too deeply to be compared");
    return false;
  }
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kNone:
      return true;
    case Value::Kind::kUndefined:
      if (a.undefined().security || b.undefined().security) {
        UndefinedError(a.undefined().security ? a : b);
        return false;
      }
      return true;
    case Value::Kind::kStr:
      return a.view() == b.view();
    case Value::Kind::kSeq: {
      const SeqObj& x = a.seq();
      const SeqObj& y = b.seq();
      if (&x == &y) return true;
      if (x.kind != y.kind || x.kind == SeqObj::Kind::kGenerator || x.items.size() != y.items.size()) return false;
      for (size_t i = 0; i < x.items.size(); ++i) {
        if (!EqualAt(x.items[i], y.items[i], depth + 1)) return false;
      }
      return true;
    }
    case Value::Kind::kDict: {
      const DictObj& x = a.dict();
      const DictObj& y = b.dict();
      if (&x == &y) return true;
      if (x.items().size() != y.items().size()) return false;
      for (const auto& [key, value] : x.items()) {
        std::string hash;
        std::string_view type;
        HashKey(key, &hash, &type);
        const Value* other = y.Find(hash);
        if (other == nullptr || !EqualAt(value, *other, depth + 1)) return false;
      }
      return true;
    }
    case Value::Kind::kObject:
      return &a.object() == &b.object();
    default:
      return false;
  }
}

// < 0, 0, > 0; *unordered for NaN. Fails for types without an order.
int Runtime::Order(const Value& a, const Value& b, const char* op, bool* unordered) {
  if (!Step()) return 0;
  if (a.is_undefined() || b.is_undefined()) {
    UndefinedError(a.is_undefined() ? a : b);
    return 0;
  }
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
    const double x = a.as_double();
    const double y = b.as_double();
    *unordered = std::isnan(x) || std::isnan(y);
    return x < y ? -1 : x > y;
  }
  if (a.is_str() && b.is_str()) {
    // UTF-8 sorts as code points do.
    const int order = a.view().compare(b.view());
    return order < 0 ? -1 : order > 0;
  }
  if ((IsSeqOf(a, SeqObj::Kind::kList) && IsSeqOf(b, SeqObj::Kind::kList)) || (IsSeqOf(a, SeqObj::Kind::kTuple) && IsSeqOf(b, SeqObj::Kind::kTuple))) {
    const auto& x = a.seq().items;
    const auto& y = b.seq().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (failed_) return 0;
      if (Equal(x[i], y[i])) continue;
      if (a.Depth() > limits_.max_value_depth) return 0;
      return Order(x[i], y[i], op, unordered);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  TypeError(std::string("'") + op + "' not supported between instances of '" + std::string(a.TypeName()) + "' and '" + std::string(b.TypeName()) +
            "'");
  return 0;
}

bool Runtime::Less(const Value& a, const Value& b) {
  bool unordered = false;
  const int order = Order(a, b, "<", &unordered);
  return !failed_ && !unordered && order < 0;
}

std::optional<bool> Runtime::Compare(CompareOp op, const Value& a, const Value& b) {
  if (failed_) return std::nullopt;
  std::optional<bool> result;
  switch (op) {
    case CompareOp::kEq:
      result = Equal(a, b);
      break;
    case CompareOp::kNe:
      result = !Equal(a, b);
      break;
    case CompareOp::kIn:
      return Contains(a, b);
    case CompareOp::kNotIn:
      result = Contains(a, b);
      if (result) result = !*result;
      break;
    default: {
      bool unordered = false;
      const int order = Order(a, b, Symbol(op), &unordered);
      const bool holds = op == CompareOp::kLt ? order < 0 : op == CompareOp::kLe ? order <= 0 : op == CompareOp::kGt ? order > 0 : order >= 0;
      result = holds && !unordered;
    }
  }
  if (failed_) return std::nullopt;
  return result;
}

std::optional<bool> Runtime::Contains(const Value& item, const Value& container) {
  if (failed_) return std::nullopt;
  if (container.is_str()) {
    if (!item.is_str()) {
      TypeError("'in <string>' requires string as left operand, not " + std::string(item.TypeName()));
      return std::nullopt;
    }
    if (!Step(container.text().size() / 256)) return std::nullopt;
    return container.view().find(item.view()) != std::string_view::npos;
  }
  if (container.is_dict()) {
    std::string hash;
    std::string_view type;
    if (!HashKey(item, &hash, &type)) {
      TypeError("unhashable type: '" + std::string(type) + "'");
      return std::nullopt;
    }
    return container.dict().Find(hash) != nullptr;
  }
  if (container.is_seq()) {
    SeqObj& seq = container.seq();
    const bool generator = seq.kind == SeqObj::Kind::kGenerator;
    for (size_t i = generator ? seq.position : 0; i < seq.items.size(); ++i) {
      if (generator) seq.position = i + 1;
      if (Equal(seq.items[i], item)) return true;
      if (failed_) return std::nullopt;
    }
    return false;
  }
  if (container.is_undefined() && !container.undefined().security) return false;
  if (container.is_undefined()) {
    UndefinedError(container);
  } else {
    TypeError("argument of type '" + std::string(container.TypeName()) + "' is not iterable");
  }
  return std::nullopt;
}

}  // namespace holdfast::text::jinja

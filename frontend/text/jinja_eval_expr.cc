// Expressions and calls.
#include <algorithm>

#include "frontend/text/jinja_eval.h"

namespace holdfast::text::jinja {
namespace {

// A value hidden by the sandbox may be printed (as nothing), but nothing may be decided by it.
bool Hidden(const Value& v) { return v.is_undefined() && v.undefined().security; }

}  // namespace

Value Interpreter::Eval(const Expr& e) {
  if (!Step()) return Value();
  const Depth depth(this);
  Value v = failed() ? Value() : EvalInner(e);
  if (failed()) SetErrorPosition(e.line, e.column);
  return v;
}

Value Interpreter::EvalName(const Expr& e) {
  if (e.name == root_.add_generation_prompt && out_ == &output_) generation_offset_ = static_cast<int64_t>(output_.size());
  if (const Value* v = Find(e.name); v != nullptr) return *v;
  if (is_global_[e.name] != 0) return NewFunction(root_.names[e.name]);
  Value& undefined = undefined_[e.name];
  if (undefined.is_none()) undefined = UndefinedName(root_.names[e.name]);
  return undefined;
}

Value Interpreter::EvalInner(const Expr& e) {
  switch (e.kind) {
    case ExprKind::kConst:
      return e.value;
    case ExprKind::kName:
      return EvalName(e);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      std::vector<Value> items;
      items.reserve(e.kids.size());
      for (const ExprPtr& kid : e.kids) {
        items.push_back(Eval(*kid));
        if (failed()) return Value();
      }
      return e.kind == ExprKind::kList ? List(std::move(items)) : Tuple(std::move(items));
    }
    case ExprKind::kDict: {
      auto dict = NewDict();
      for (size_t i = 0; i + 1 < e.kids.size(); i += 2) {
        Value key = Eval(*e.kids[i]);
        if (failed()) return Value();
        Value value = Eval(*e.kids[i + 1]);
        if (failed() || !DictSet(*dict, std::move(key), std::move(value))) return Value();
      }
      return Value(std::move(dict));
    }
    case ExprKind::kAttr: {
      const Value object = Eval(*e.kids[0]);
      return failed() ? Value() : GetAttr(object, e.text);
    }
    case ExprKind::kItem: {
      const Value object = Eval(*e.kids[0]);
      if (failed()) return Value();
      const Value key = Eval(*e.kids[1]);
      return failed() ? Value() : GetItem(object, key);
    }
    case ExprKind::kSlice: {
      Value parts[4];
      for (size_t i = 0; i < 4; ++i) {
        if (e.kids[i] != nullptr) parts[i] = Eval(*e.kids[i]);
        if (failed()) return Value();
      }
      return Slice(parts[0], parts[1], parts[2], parts[3]);
    }
    case ExprKind::kCall: {
      const Value callee = Eval(*e.kids[0]);
      Args args;
      if (failed() || !EvalArgs(e.call, &args)) return Value();
      return Call(callee, std::move(args));
    }
    case ExprKind::kFilter:
      return EvalFilter(e, nullptr);
    case ExprKind::kTest:
      return EvalTest(e);
    case ExprKind::kNot: {
      const Value v = Eval(*e.kids[0]);
      if (Hidden(v)) return UndefinedError(v);
      return failed() ? Value() : Value::Bool(!v.Truth());
    }
    case ExprKind::kNegate: {
      const Value v = Eval(*e.kids[0]);
      return failed() ? Value() : Negate(v);
    }
    case ExprKind::kPositive: {
      const Value v = Eval(*e.kids[0]);
      if (failed()) return Value();
      if (v.is_undefined()) return UndefinedError(v);
      if (!v.is_number()) return TypeError("bad operand type for unary +: '" + std::string(v.TypeName()) + "'");
      return v.is_bool() ? Value::Integer(v.as_int()) : v;
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value v;
      for (const ExprPtr& kid : e.kids) {
        v = Eval(*kid);
        if (failed()) return Value();
        if (Hidden(v)) return UndefinedError(v);
        if (v.Truth() == (e.kind == ExprKind::kOr)) break;
      }
      return v;
    }
    case ExprKind::kChain: {
      Value left = Eval(*e.kids[0]);
      for (size_t i = 0; i < e.ops.size() && !failed(); ++i) {
        const Value right = Eval(*e.kids[i + 1]);
        if (failed()) return Value();
        left = Binary(static_cast<BinaryOp>(e.ops[i]), left, right);
      }
      return left;
    }
    case ExprKind::kConcat: {
      Text out;
      for (const ExprPtr& kid : e.kids) {
        const Value v = Eval(*kid);
        if (failed()) return Value();
        AppendTo(v, &out);
        if (!CheckSize(out.size())) return Value();
      }
      return Str(std::move(out));
    }
    case ExprKind::kCompare:
      return EvalCompare(e);
    case ExprKind::kCondition: {
      const Value condition = Eval(*e.kids[1]);
      if (failed()) return Value();
      if (Hidden(condition)) return UndefinedError(condition);
      if (condition.Truth()) return Eval(*e.kids[0]);
      if (e.kids[2] != nullptr) return Eval(*e.kids[2]);
      return Undefined("the inline if-expression on line " + std::to_string(e.line) + " evaluated to false and no else section was defined.");
    }
  }
  return Value();
}

Value Interpreter::EvalCompare(const Expr& e) {
  Value left = Eval(*e.kids[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    if (failed()) return Value();
    Value right = Eval(*e.kids[i + 1]);
    const auto holds = Compare(static_cast<CompareOp>(e.ops[i]), left, right);
    if (!holds) return Value();
    if (!*holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::EvalFilter(const Expr& e, const Value* block) {
  // The head of a block's chain has no operand: it takes what the block wrote.
  Value input;
  if (e.kids[0] == nullptr) {
    input = *block;
  } else if (e.kids[0]->kind == ExprKind::kFilter) {
    const Depth depth(this);
    if (failed()) return Value();
    input = EvalFilter(*e.kids[0], block);
  } else {
    input = Eval(*e.kids[0]);
  }
  Args args;
  if (failed() || !EvalArgs(e.call, &args)) return Value();
  Value v = e.filter == nullptr ? Fail(RenderError::Kind::kUnsupported, "No filter named '" + e.text + "'.") : e.filter(*this, input, args);
  if (failed()) SetErrorPosition(e.line, e.column);
  return v;
}

Value Interpreter::EvalTest(const Expr& e) {
  const Value input = Eval(*e.kids[0]);
  Args args;
  if (failed() || !EvalArgs(e.call, &args)) return Value();
  if (e.test == nullptr) return Fail(RenderError::Kind::kUnsupported, "No test named '" + e.text + "'.");
  const auto result = e.test(*this, input, args);
  if (failed() || !result) return Value();
  return Value::Bool(*result);
}

bool Interpreter::EvalArgs(const CallArgs& call, Args* args) {
  args->positional.reserve(call.positional.size());
  for (const ExprPtr& e : call.positional) {
    args->positional.push_back(Eval(*e));
    if (failed()) return false;
  }
  if (call.star != nullptr) {
    const Value v = Eval(*call.star);
    const auto items = failed() ? std::nullopt : Iterate(v);
    if (!items) return false;
    args->positional.insert(args->positional.end(), items->begin(), items->end());
  }
  for (const auto& [name, e] : call.keyword) {
    args->keyword.emplace_back(name, Eval(*e));
    if (failed()) return false;
  }
  if (call.double_star != nullptr) {
    const Value v = Eval(*call.double_star);
    if (failed()) return false;
    if (!v.is_dict()) {
      TypeError("argument after ** must be a mapping, not " + std::string(v.TypeName()));
      return false;
    }
    for (const auto& [key, value] : v.dict().items()) {
      if (!key.is_str()) {
        TypeError("keywords must be strings");
        return false;
      }
      args->keyword.emplace_back(key.view(), value);
    }
  }
  return true;
}

Value Interpreter::Call(const Value& callee, Args args) {
  if (!Step()) return Value();
  if (callee.is_undefined()) return UndefinedError(callee);
  if (callee.is_object()) {
    const auto object = callee.object_ptr();
    switch (object->kind) {
      case Object::Kind::kMacro:
        return CallMacro(*object, std::move(args));
      case Object::Kind::kFunction:
        return CallGlobal(*this, object->name, args);
      case Object::Kind::kMethod:
        return CallMethod(*this, object->self, object->name, args);
      case Object::Kind::kLoop:
        return CallLoop(*object, args);
      case Object::Kind::kNamespace:
        break;
    }
  }
  return TypeError("'" + std::string(callee.TypeName()) + "' object is not callable");
}

Value Interpreter::CallMacro(const Object& object, Args args) {
  const std::shared_ptr<Macro> macro = object.macro;
  const Stmt& stmt = *macro->stmt;
  const std::string& name = object.name;
  if (call_depth_ >= limits().max_call_depth) {
    return LimitError("maximum recursion depth exceeded: macro '" + name + "' is called " + std::to_string(limits().max_call_depth) + " levels deep");
  }
  auto scope = std::make_shared<Scope>(macro->closure);
  const size_t count = stmt.params.size();
  std::vector<size_t> missing;
  bool explicit_caller = false;
  for (size_t i = 0; i < count; ++i) {
    const Param& param = stmt.params[i];
    explicit_caller |= param.name == root_.caller;
    if (i < args.positional.size()) {
      scope->Set(param.name, args.positional[i]);
      continue;
    }
    const auto it = std::find_if(args.keyword.begin(), args.keyword.end(), [&](const auto& kw) { return kw.first == param.text; });
    if (it == args.keyword.end()) {
      missing.push_back(i);
    } else {
      scope->Set(param.name, std::move(it->second));
      args.keyword.erase(it);
    }
  }
  if (stmt.uses_caller && !explicit_caller) {
    const auto it = std::find_if(args.keyword.begin(), args.keyword.end(), [](const auto& kw) { return kw.first == "caller"; });
    if (it == args.keyword.end()) {
      scope->Set(root_.caller, Undefined("No caller defined"));
    } else {
      scope->Set(root_.caller, std::move(it->second));
      args.keyword.erase(it);
    }
  }
  if (stmt.uses_kwargs) {
    auto dict = NewDict();
    for (auto& [key, value] : args.keyword) {
      if (!DictSet(*dict, Trusted(key), std::move(value))) return Value();
    }
    scope->Set(root_.kwargs, Value(std::move(dict)));
  } else if (!args.keyword.empty()) {
    return TypeError("macro '" + name + "' takes no keyword argument '" + args.keyword[0].first + "'");
  }
  if (stmt.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    scope->Set(root_.varargs, Tuple(std::move(rest)));
  } else if (args.positional.size() > count) {
    return TypeError("macro '" + name + "' takes not more than " + std::to_string(count) + " argument(s)");
  }
  ++call_depth_;
  auto before = std::exchange(scope_, std::move(scope));
  Value result;
  {
    Capture capture(this);
    for (const size_t i : missing) {
      const Param& param = stmt.params[i];
      Value v = param.default_value != nullptr ? Eval(*param.default_value) : Undefined("parameter '" + param.text + "' was not provided");
      if (failed()) break;
      scope_->Set(param.name, std::move(v));
    }
    if (!failed()) Exec(stmt.body);
    if (!failed()) result = Str(std::move(capture.text()));
  }
  scope_ = std::move(before);
  --call_depth_;
  return result;
}

Value Interpreter::CallLoop(const Object& object, const Args& args) {
  const std::shared_ptr<LoopState> loop = object.loop;
  if (loop->stmt == nullptr) {
    return TypeError("The loop must have the 'recursive' marker to be called recursively.");
  }
  if (args.positional.size() != 1 || !args.keyword.empty()) return TypeError("loop() takes exactly one argument");
  if (call_depth_ >= limits().max_call_depth) return LimitError("maximum recursion depth exceeded in a recursive loop");
  auto items = Iterate(args.positional[0]);
  if (!items) return Value();
  ++call_depth_;
  Value result;
  {
    Capture capture(this);
    RunLoop(*loop->stmt, std::move(*items), loop->depth + 1, loop->scope);
    if (!failed()) result = Str(std::move(capture.text()));
  }
  --call_depth_;
  return result;
}

}  // namespace holdfast::text::jinja

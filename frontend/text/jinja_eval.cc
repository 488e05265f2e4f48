#include "frontend/text/jinja_eval.h"

#include <algorithm>

namespace holdfast::text::jinja {

void Scope::Set(uint32_t name, Value value) {
  for (auto& [id, old] : variables) {
    if (id == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(const TemplateNode& root, const RenderOptions& options)
    : Runtime(options.limits, options.now), root_(root), scope_(std::make_shared<Scope>(nullptr)), undefined_(root.names.size()) {
  set_none_text(options.none_text);
  for (const std::string& name : root.names) is_global_.push_back(IsGlobalFunction(name) ? 1 : 0);
}

Interpreter::~Interpreter() {
  // Macros hold the scope they are stored in; releasing what the template changed in place breaks every cycle.
  ReleaseAdopted();
  scope_.reset();
}

bool Interpreter::Run(const RenderOptions& options, RenderOutput* output) {
  for (const Variable& variable : options.variables) {
    const auto it = std::find(root_.names.begin(), root_.names.end(), variable.name);
    if (it == root_.names.end()) continue;  // the template cannot ask for it
    Value value = variable.trusted && variable.json.is_string() ? Trusted(variable.json.AsString()) : FromJson(variable.json, variable.is_messages);
    scope_->Set(static_cast<uint32_t>(it - root_.names.begin()), std::move(value));
  }
  if (!failed()) Exec(root_.body);
  if (failed()) return false;
  output->text = std::move(output_);
  output->marks = std::move(marks_);
  output->generation_offset = generation_offset_;
  return true;
}

const Value* Interpreter::Find(uint32_t name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [id, value] : scope->variables) {
      if (id == name) return &value;
    }
  }
  return nullptr;
}

bool Interpreter::CheckOutput() {
  if (failed()) return false;
  if (out_ != &output_) return CheckSize(out_->size());
  if (out_->size() <= limits().max_output_bytes) return CheckMemory();
  LimitError("the output is longer than " + std::to_string(limits().max_output_bytes) + " bytes");
  return false;
}

void Interpreter::Emit(const Value& v) {
  if (v.is_undefined() && v.undefined().security) return;  // prints as nothing, like any undefined
  const size_t before = out_->size();
  AppendTo(v, out_);
  Step((out_->size() - before) / 1024);
}

Interpreter::Flow Interpreter::Exec(const Body& body) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = ExecStmt(*stmt);
    if (failed()) {
      SetErrorPosition(stmt->line, stmt->column);
      return Flow::kFail;
    }
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

bool Interpreter::Captured(const Body& body, Value* text) {
  auto outer = scope_;
  scope_ = std::make_shared<Scope>(outer);
  {
    Capture capture(this);
    Exec(body);
    if (!failed()) *text = Str(std::move(capture.text()));
  }
  scope_ = std::move(outer);
  return !failed();
}

Interpreter::Flow Interpreter::ExecStmt(const Stmt& stmt) {
  if (!Step()) return Flow::kFail;
  const Depth depth(this);
  if (failed()) return Flow::kFail;
  switch (stmt.kind) {
    case StmtKind::kData:
      out_->Append(stmt.data);
      CheckOutput();
      return Flow::kNext;
    case StmtKind::kOutput: {
      const Value v = Eval(*stmt.expr);
      if (failed()) return Flow::kFail;
      Emit(v);
      CheckOutput();
      return Flow::kNext;
    }
    case StmtKind::kIf:
      for (const auto& [condition, body] : stmt.branches) {
        if (condition != nullptr) {
          const Value v = Eval(*condition);
          if (failed()) return Flow::kFail;
          if (v.is_undefined() && v.undefined().security) {
            UndefinedError(v);
            return Flow::kFail;
          }
          if (!v.Truth()) continue;
        }
        return Exec(body);
      }
      return Flow::kNext;
    case StmtKind::kFor:
      return ExecFor(stmt);
    case StmtKind::kSet: {
      Value v = Eval(*stmt.expr);
      if (!failed()) Assign(stmt.target, std::move(v));
      return Flow::kNext;
    }
    case StmtKind::kSetBlock: {
      Value v;
      if (!Captured(stmt.body, &v)) return Flow::kFail;
      if (stmt.expr != nullptr) v = EvalFilter(*stmt.expr, &v);
      if (!failed()) Assign(stmt.target, std::move(v));
      return Flow::kNext;
    }
    case StmtKind::kMacro:
      scope_->Set(stmt.name, NewMacro(stmt, stmt.text));
      CheckMemory();
      return Flow::kNext;
    case StmtKind::kCallBlock:
      return ExecCallBlock(stmt);
    case StmtKind::kFilterBlock: {
      Value v;
      if (!Captured(stmt.body, &v)) return Flow::kFail;
      v = EvalFilter(*stmt.expr, &v);
      if (failed()) return Flow::kFail;
      Emit(v);
      CheckOutput();
      return Flow::kNext;
    }
    case StmtKind::kWith:
    case StmtKind::kScope: {
      auto outer = scope_;
      auto inner = std::make_shared<Scope>(outer);
      for (const auto& [target, expr] : stmt.assignments) {
        Value v = Eval(*expr);
        if (failed()) return Flow::kFail;
        inner->Set(target.name, std::move(v));
      }
      scope_ = std::move(inner);
      const Flow flow = Exec(stmt.body);
      scope_ = std::move(outer);
      return flow;
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecFor(const Stmt& stmt) {
  const Value source = Eval(*stmt.expr);
  if (failed()) return Flow::kFail;
  auto items = Iterate(source);
  if (!items) {
    SetErrorPosition(stmt.expr->line, stmt.expr->column);
    return Flow::kFail;
  }
  return RunLoop(stmt, std::move(*items), 1, scope_);
}

Interpreter::Flow Interpreter::RunLoop(const Stmt& stmt, std::vector<Value> items, uint32_t depth, std::shared_ptr<Scope> outer) {
  const auto before = scope_;
  if (stmt.condition != nullptr) {
    std::vector<Value> kept;
    for (Value& item : items) {
      scope_ = std::make_shared<Scope>(outer);
      if (!Step(4) || !Assign(stmt.target, item)) break;
      const Value v = Eval(*stmt.condition);
      if (failed()) break;
      if (v.Truth()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  Flow flow = Flow::kNext;
  if (!failed() && items.empty()) {
    scope_ = std::make_shared<Scope>(outer);
    flow = Exec(stmt.else_body);
  } else if (!failed()) {
    auto loop = std::make_shared<LoopState>();
    loop->items = std::move(items);
    loop->depth = depth;
    loop->stmt = stmt.recursive ? &stmt : nullptr;
    loop->scope = stmt.recursive ? outer : nullptr;
    auto object = std::make_shared<Object>(Object::Kind::kLoop, meter());
    object->charge.Grow(static_cast<int64_t>(loop->items.size() * sizeof(Value)));
    object->loop = loop;
    if (stmt.recursive) Adopt(object);  // it holds a scope, which may hold it
    const Value loop_value(object);
    for (; loop->index < loop->items.size() && Step(4) && CheckMemory(); ++loop->index) {
      scope_ = std::make_shared<Scope>(outer);
      scope_->Set(root_.loop, loop_value);
      const Value& item = loop->items[loop->index];
      if (!Assign(stmt.target, item)) break;
      const size_t begin = output_.size();
      flow = Exec(stmt.body);
      if (failed()) break;
      if (out_ == &output_ && item.is_dict() && item.dict().message_index >= 0 && output_.size() > begin) {
        marks_.push_back({static_cast<uint32_t>(item.dict().message_index), begin, output_.size()});
      }
      if (flow == Flow::kBreak) break;
    }
    flow = Flow::kNext;  // a break ends this loop, not the one around it
  }
  scope_ = before;
  return failed() ? Flow::kFail : flow;
}

Value Interpreter::NewMacro(const Stmt& stmt, std::string name) {
  auto object = std::make_shared<Object>(Object::Kind::kMacro, meter());
  object->name = std::move(name);
  object->macro = std::make_shared<Macro>(Macro{&stmt, scope_});
  object->charge.Grow(512);
  Adopt(object);
  return Value(std::move(object));
}

Interpreter::Flow Interpreter::ExecCallBlock(const Stmt& stmt) {
  const Value callee = Eval(*stmt.expr->kids[0]);
  Args args;
  if (failed() || !EvalArgs(stmt.expr->call, &args)) return Flow::kFail;
  args.keyword.emplace_back("caller", NewMacro(stmt, "caller"));
  const Value v = Call(callee, std::move(args));
  if (failed()) return Flow::kFail;
  Emit(v);
  CheckOutput();
  return Flow::kNext;
}

bool Interpreter::AssignNamespace(const Target& target, Value value) {
  const Value* ns = Find(target.name);
  if (ns == nullptr || !ns->is_object() || ns->object().kind != Object::Kind::kNamespace) {
    TypeError("cannot assign attribute on non-namespace object");
    return false;
  }
  Object& object = ns->object();
  // As in lists: what leads to a loop could become a chain of any length.
  const Value& holder = value.is_object() && value.object().kind == Object::Kind::kMethod ? value.object().self : value;
  if (holder.is_object() && holder.object().kind == Object::Kind::kLoop) {
    TypeError("the loop object cannot be stored in a namespace");
    return false;
  }
  if (value.Depth() > limits().max_value_depth) {
    LimitError("values are nested too deeply");
    return false;
  }
  for (auto& [name, old] : object.ns.members) {
    if (name == target.attribute) {
      old = std::move(value);
      return true;
    }
  }
  object.ns.members.emplace_back(target.attribute, std::move(value));
  return true;
}

bool Interpreter::Assign(const Target& target, Value value) {
  if (failed()) return false;
  switch (target.kind) {
    case Target::Kind::kName:
      scope_->Set(target.name, std::move(value));
      return true;
    case Target::Kind::kAttribute:
      return AssignNamespace(target, std::move(value));
    case Target::Kind::kTuple: {
      if (!value.is_seq() && !value.is_str() && !value.is_dict() && !value.is_undefined()) {
        TypeError("cannot unpack non-iterable " + std::string(value.TypeName()) + " object");
        return false;
      }
      const auto items = Iterate(value);
      if (!items) return false;
      const std::string expected = "expected " + std::to_string(target.parts.size());
      if (items->size() != target.parts.size()) {
        TypeError(items->size() > target.parts.size() ? "too many values to unpack (" + expected + ")"
                                                      : "not enough values to unpack (" + expected + ", got " + std::to_string(items->size()) + ")");
        return false;
      }
      for (size_t i = 0; i < items->size(); ++i) {
        if (!Assign(target.parts[i], (*items)[i])) return false;
      }
      return true;
    }
  }
  return false;
}

}  // namespace holdfast::text::jinja

#pragma once
// Executes a parsed template. One Interpreter is one rendering on one thread.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "frontend/text/jinja_ast.h"
#include "frontend/text/jinja_runtime.h"

namespace holdfast::text::jinja {

// Variables set in one block; lookups go on to the parent.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<uint32_t, Value>> variables;

  explicit Scope(std::shared_ptr<Scope> p) : parent(std::move(p)) {}
  void Set(uint32_t name, Value value);
};

struct Macro {
  const Stmt* stmt;                // parameters and body
  std::shared_ptr<Scope> closure;  // where it was defined
};

class Interpreter final : public Runtime {
 public:
  Interpreter(const TemplateNode& root, const RenderOptions& options);
  ~Interpreter() override;

  // False: error() says why.
  bool Run(const RenderOptions& options, RenderOutput* output);
  Value Call(const Value& callee, Args args) override;

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue, kFail };
  class Depth;
  class Capture;

  // ---- expressions (jinja_eval_expr.cc)
  Value Eval(const Expr& e);
  Value EvalInner(const Expr& e);
  Value EvalName(const Expr& e);
  Value EvalCompare(const Expr& e);
  Value EvalFilter(const Expr& e, const Value* block);
  Value EvalTest(const Expr& e);
  bool EvalArgs(const CallArgs& call, Args* args);
  Value CallMacro(const Object& object, Args args);
  Value CallLoop(const Object& object, const Args& args);

  // ---- statements (jinja_eval.cc)
  Flow Exec(const Body& body);
  Flow ExecStmt(const Stmt& stmt);
  Flow ExecFor(const Stmt& stmt);
  Flow RunLoop(const Stmt& stmt, std::vector<Value> items, uint32_t depth, std::shared_ptr<Scope> outer);
  Flow ExecCallBlock(const Stmt& stmt);
  bool Captured(const Body& body, Value* text);
  bool Assign(const Target& target, Value value);
  bool AssignNamespace(const Target& target, Value value);
  void Emit(const Value& v);
  bool CheckOutput();
  Value NewMacro(const Stmt& stmt, std::string name);
  const Value* Find(uint32_t name) const;

  const TemplateNode& root_;
  std::shared_ptr<Scope> scope_;
  Text output_;
  Text* out_ = &output_;
  std::vector<Value> undefined_;     // by name, made when first needed
  std::vector<uint8_t> is_global_;   // by name: a function of ours
  std::vector<MessageMark> marks_;
  int64_t generation_offset_ = -1;
  uint32_t eval_depth_ = 0;
  uint32_t call_depth_ = 0;
};

// Counts nested evaluations, which are native stack frames.
class Interpreter::Depth {
 public:
  explicit Depth(Interpreter* i) : i_(i) {
    if (++i_->eval_depth_ > i_->limits().max_eval_depth) i_->LimitError("the template nests its evaluations too deeply");
  }
  ~Depth() { --i_->eval_depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Interpreter* i_;
};

// While it lives, output goes to its own text.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter* i) : i_(i), outer_(i->out_) { i_->out_ = &text_; }
  ~Capture() { i_->out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Text& text() { return text_; }

 private:
  Interpreter* i_;
  Text* outer_;
  Text text_;
};

}  // namespace holdfast::text::jinja

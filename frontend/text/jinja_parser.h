#pragma once
// Builds the tree of a template from its tokens, with jinja2's precedences. Recursion, node count and source size are bounded by Limits.
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "frontend/text/jinja_ast.h"
#include "frontend/text/jinja_lexer.h"

namespace holdfast::text::jinja {

// Null: *error says what is wrong and where.
std::shared_ptr<const TemplateNode> ParseTemplate(std::string_view source, std::string_view name, const Limits& limits, SyntaxError* error);

// The parser's two halves share this state. A failure sets error_ once; every function then returns quickly with a null or empty result.
class Parser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits, TemplateNode* root, SyntaxError* error)
      : tokens_(std::move(tokens)), limits_(limits), root_(root), error_(error) {}
  bool Run();

 private:
  class Nest;

  // ---- tokens
  const Token& Current() const { return tokens_[at_]; }
  const Token& Peek() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void Next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool IsOp(std::string_view op) const { return Current().kind == TokenKind::kOperator && Current().text == op; }
  bool IsName(std::string_view name) const { return Current().kind == TokenKind::kName && Current().text == name; }
  bool SkipOp(std::string_view op);
  bool SkipName(std::string_view name);
  bool ExpectOp(std::string_view op);
  bool Expect(TokenKind kind, std::string_view what);
  std::string ExpectName(std::string_view what);
  bool failed() const { return !error_->message.empty(); }
  bool Fail(std::string message) { return FailAt(Current(), std::move(message)); }
  bool FailAt(const Token& token, std::string message);
  std::string Describe(const Token& token) const;
  uint32_t Intern(std::string_view name);
  bool CountNode(const Token& token);

  // ---- expressions (jinja_parser_expr.cc)
  ExprPtr New(ExprKind kind, const Token& token);
  ExprPtr Finish(ExprPtr e);  // computes the depth and checks it
  ExprPtr Expression(bool with_condition = true);
  ExprPtr Condition();
  ExprPtr Or();
  ExprPtr And();
  ExprPtr Not();
  ExprPtr Compare();
  ExprPtr Sum();
  ExprPtr Concat();
  ExprPtr Product();
  ExprPtr Power();
  ExprPtr Unary(bool with_filter = true);
  ExprPtr Primary();
  ExprPtr Postfix(ExprPtr e);
  ExprPtr FilterExpr(ExprPtr e);
  ExprPtr Filters(ExprPtr e, bool start_inline);
  ExprPtr Test(ExprPtr e);
  ExprPtr Subscript(ExprPtr e);
  ExprPtr SubscriptPart(const Token& token, std::vector<ExprPtr>* slice);
  ExprPtr Tuple(bool with_condition, std::string_view end_name, bool parentheses);
  ExprPtr ListLiteral();
  ExprPtr DictLiteral();
  bool Arguments(CallArgs* call);
  void CheckNames(size_t from);

  // ---- statements (jinja_parser.cc)
  Body Statements(std::initializer_list<std::string_view> ends);
  StmtPtr NewStmt(StmtKind kind, const Token& token);
  StmtPtr Statement();
  StmtPtr If(const Token& token);
  StmtPtr For(const Token& token);
  StmtPtr Set(const Token& token);
  StmtPtr MacroStmt(const Token& token);
  StmtPtr CallStmt(const Token& token);
  StmtPtr FilterStmt(const Token& token);
  StmtPtr With(const Token& token);
  StmtPtr Inline(const Token& token, std::string_view end, bool scope);
  bool Signature(Stmt* stmt);
  bool AssignTarget(Target* target, bool with_namespace, std::string_view end_name);
  bool OneTarget(Target* target, bool with_namespace, std::string_view end_name);
  void FunctionBody(Stmt* stmt, std::string_view end);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  const Limits& limits_;
  TemplateNode* root_;
  SyntaxError* error_;
  std::unordered_map<std::string, uint32_t> numbers_;
  size_t nodes_ = 0;
  uint32_t nesting_ = 0;
  uint32_t loops_ = 0;         // for loops around the current statement, within the function
  uint32_t conditionals_ = 0;  // ifs around: unknown filters there fail only when they are reached
  struct Unknown {
    Token token;
    std::string message;
  };
  std::vector<Unknown> unknown_;  // unknown filters and tests of the expression being parsed
  struct Special {
    bool varargs = false, kwargs = false, caller = false;
  };
  Special special_;
};

// Counts one level of nesting while it lives; ok() is false when it is one too many.
class Parser::Nest {
 public:
  explicit Nest(Parser* p) : p_(p), ok_(++p->nesting_ <= p->limits_.max_nesting) {
    if (!ok_) p->Fail("nested more than " + std::to_string(p->limits_.max_nesting) + " levels deep");
  }
  ~Nest() { --p_->nesting_; }
  Nest(const Nest&) = delete;
  Nest& operator=(const Nest&) = delete;
  bool ok() const { return ok_ && !p_->failed(); }

 private:
  Parser* p_;
  bool ok_;
};

}  // namespace holdfast::text::jinja

#include "frontend/text/jinja_parser.h"

#include <algorithm>

namespace holdfast::text::jinja {
namespace {

bool Contains(std::initializer_list<std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::shared_ptr<const TemplateNode> ParseTemplate(std::string_view source, std::string_view name, const Limits& limits, SyntaxError* error) {
  *error = SyntaxError();
  if (source.size() > limits.max_source_bytes) {
    error->message = "the template has " + std::to_string(source.size()) + " bytes, more than the " + std::to_string(limits.max_source_bytes) + " allowed";
    return nullptr;
  }
  std::vector<Token> tokens;
  if (!Tokenize(source, &tokens, error)) return nullptr;
  auto root = std::make_shared<TemplateNode>();
  root->name = std::string(name);
  if (!Parser(std::move(tokens), limits, root.get(), error).Run()) return nullptr;
  return root;
}

bool Parser::Run() {
  root_->loop = Intern("loop");
  root_->caller = Intern("caller");
  root_->varargs = Intern("varargs");
  root_->kwargs = Intern("kwargs");
  root_->add_generation_prompt = Intern("add_generation_prompt");
  root_->body = Statements({});
  return !failed();
}

// ---- tokens

bool Parser::SkipOp(std::string_view op) {
  if (!IsOp(op)) return false;
  Next();
  return true;
}

bool Parser::SkipName(std::string_view name) {
  if (!IsName(name)) return false;
  Next();
  return true;
}

bool Parser::ExpectOp(std::string_view op) {
  if (SkipOp(op)) return true;
  return Fail("expected '" + std::string(op) + "', got " + Describe(Current()));
}

bool Parser::Expect(TokenKind kind, std::string_view what) {
  if (Current().kind != kind) return Fail("expected " + std::string(what) + ", got " + Describe(Current()));
  Next();
  return true;
}

std::string Parser::ExpectName(std::string_view what) {
  std::string name = Current().text;
  Expect(TokenKind::kName, what);
  return name;
}

bool Parser::FailAt(const Token& token, std::string message) {
  if (!failed()) {
    error_->message = std::move(message);
    error_->line = token.line;
    error_->column = token.column;
  }
  return false;
}

std::string Parser::Describe(const Token& token) const {
  switch (token.kind) {
    case TokenKind::kData:
      return "template text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

uint32_t Parser::Intern(std::string_view name) {
  const auto [it, added] = numbers_.try_emplace(std::string(name), static_cast<uint32_t>(root_->names.size()));
  if (added) root_->names.emplace_back(name);
  return it->second;
}

bool Parser::CountNode(const Token& token) {
  if (++nodes_ <= limits_.max_nodes) return true;
  return FailAt(token, "the template has more than " + std::to_string(limits_.max_nodes) + " parts");
}

// ---- statements

StmtPtr Parser::NewStmt(StmtKind kind, const Token& token) {
  CountNode(token);
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = token.line;
  stmt->column = token.column;
  return stmt;
}

// Stops behind the {% of one of the ends, at its name; at the end of the template when there are none.
Body Parser::Statements(std::initializer_list<std::string_view> ends) {
  Body body;
  Nest nest(this);
  if (!nest.ok()) return body;
  size_t tag = at_;
  while (tag > 0 && tokens_[tag].kind != TokenKind::kBlockBegin) --tag;
  const Token opened = tokens_[tag];
  while (!failed()) {
    const Token& token = Current();
    switch (token.kind) {
      case TokenKind::kData: {
        auto stmt = NewStmt(StmtKind::kData, token);
        stmt->data = Text::Trusted(token.text);
        body.push_back(std::move(stmt));
        Next();
        break;
      }
      case TokenKind::kVariableBegin: {
        auto stmt = NewStmt(StmtKind::kOutput, token);
        Next();
        stmt->expr = Tuple(true, {}, false);
        if (!failed()) Expect(TokenKind::kVariableEnd, "'}}'");
        body.push_back(std::move(stmt));
        break;
      }
      case TokenKind::kBlockBegin: {
        Next();
        if (Current().kind == TokenKind::kName && Contains(ends, Current().text)) return body;
        if (StmtPtr stmt = Statement(); stmt != nullptr) body.push_back(std::move(stmt));
        if (!failed()) Expect(TokenKind::kBlockEnd, "'%}'");
        break;
      }
      case TokenKind::kEnd:
        if (ends.size() > 0) {
          std::string wanted;
          for (const std::string_view end : ends) wanted += (wanted.empty() ? "{% " : " or {% ") + std::string(end) + " %}";
          FailAt(opened, "the template ends before the " + wanted + " of this block");
        }
        return body;
      default:
        Fail("unexpected " + Describe(token));
    }
  }
  return body;
}

StmtPtr Parser::Statement() {
  const Token token = Current();
  if (token.kind != TokenKind::kName) {
    Fail("expected the name of a tag, got " + Describe(token));
    return nullptr;
  }
  Next();
  const std::string& tag = token.text;
  if (tag == "if") return If(token);
  if (tag == "for") return For(token);
  if (tag == "set") return Set(token);
  if (tag == "macro") return MacroStmt(token);
  if (tag == "call") return CallStmt(token);
  if (tag == "filter") return FilterStmt(token);
  if (tag == "with") return With(token);
  if (tag == "generation") return Inline(token, "endgeneration", false);
  if (tag == "autoescape") {
    Expression();
    return Inline(token, "endautoescape", true);
  }
  if (tag == "block") {
    ExpectName("the name of the block");
    return Inline(token, "endblock", true);
  }
  if (tag == "break" || tag == "continue") {
    if (loops_ == 0) FailAt(token, "'" + tag + "' outside of a loop");
    return NewStmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, token);
  }
  if (Contains({"include", "import", "from", "extends"}, tag)) {
    FailAt(token, "'" + tag + "' is not supported: a chat template is one file");
  } else if (tag.starts_with("end") || tag == "else" || tag == "elif") {
    FailAt(token, "'" + tag + "' without the tag it belongs to");
  } else {
    FailAt(token, "encountered unknown tag '" + tag + "'");
  }
  return nullptr;
}

StmtPtr Parser::Inline(const Token& token, std::string_view end, bool scope) {
  auto stmt = NewStmt(scope ? StmtKind::kScope : StmtKind::kIf, token);
  if (!failed()) Expect(TokenKind::kBlockEnd, "'%}'");
  Body body = Statements({end});
  Next();
  if (scope) {
    if (end == "endblock" && Current().kind == TokenKind::kName) Next();
    stmt->body = std::move(body);
  } else {
    stmt->branches.emplace_back(nullptr, std::move(body));
  }
  return stmt;
}

StmtPtr Parser::If(const Token& token) {
  auto stmt = NewStmt(StmtKind::kIf, token);
  ++conditionals_;
  bool more = true;
  while (more && !failed()) {
    ExprPtr condition = Tuple(false, {}, false);
    if (!failed()) Expect(TokenKind::kBlockEnd, "'%}'");
    Body body = Statements({"elif", "else", "endif"});
    stmt->branches.emplace_back(std::move(condition), std::move(body));
    more = SkipName("elif");
  }
  if (!failed() && SkipName("else")) {
    Expect(TokenKind::kBlockEnd, "'%}'");
    stmt->branches.emplace_back(nullptr, Statements({"endif"}));
  }
  Next();
  --conditionals_;
  return stmt;
}

StmtPtr Parser::For(const Token& token) {
  auto stmt = NewStmt(StmtKind::kFor, token);
  if (!AssignTarget(&stmt->target, false, "in")) return stmt;
  if (!SkipName("in")) {
    Fail("expected 'in', got " + Describe(Current()));
    return stmt;
  }
  stmt->expr = Tuple(false, "recursive", false);
  if (!failed() && SkipName("if")) stmt->condition = Expression();
  stmt->recursive = SkipName("recursive");
  if (!failed()) Expect(TokenKind::kBlockEnd, "'%}'");
  ++loops_;
  stmt->body = Statements({"endfor", "else"});
  --loops_;
  if (!failed() && SkipName("else")) {
    Expect(TokenKind::kBlockEnd, "'%}'");
    stmt->else_body = Statements({"endfor"});
  }
  Next();
  return stmt;
}

StmtPtr Parser::Set(const Token& token) {
  auto stmt = NewStmt(StmtKind::kSet, token);
  if (!AssignTarget(&stmt->target, true, {})) return stmt;
  if (SkipOp("=")) {
    stmt->expr = Tuple(true, {}, false);
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  stmt->expr = Filters(nullptr, false);
  CheckNames(0);
  if (!failed()) Expect(TokenKind::kBlockEnd, "'%}'");
  stmt->body = Statements({"endset"});
  Next();
  return stmt;
}

bool Parser::AssignTarget(Target* target, bool with_namespace, std::string_view end_name) {
  Nest nest(this);
  if (!nest.ok() || !OneTarget(target, with_namespace, end_name)) return false;
  if (!IsOp(",")) return true;
  Target first = std::move(*target);
  *target = Target();
  target->kind = Target::Kind::kTuple;
  target->parts.push_back(std::move(first));
  while (!failed() && SkipOp(",")) {
    if (Current().kind == TokenKind::kBlockEnd || IsOp(")") || IsOp("=") || (!end_name.empty() && IsName(end_name))) break;
    target->parts.emplace_back();
    if (!OneTarget(&target->parts.back(), with_namespace, end_name)) return false;
  }
  return !failed();
}

bool Parser::OneTarget(Target* target, bool with_namespace, std::string_view end_name) {
  if (SkipOp("(")) return AssignTarget(target, with_namespace, end_name) && ExpectOp(")");
  const Token token = Current();
  if (!CountNode(token)) return false;
  const std::string name = ExpectName("a name to assign to");
  if (failed()) return false;
  if (Contains({"true", "false", "none", "True", "False", "None"}, name)) return FailAt(token, "can't assign to '" + name + "'");
  target->name = Intern(name);
  if (with_namespace && SkipOp(".")) {
    target->kind = Target::Kind::kAttribute;
    target->attribute = ExpectName("the name of the namespace's attribute");
  }
  return !failed();
}

bool Parser::Signature(Stmt* stmt) {
  if (!ExpectOp("(")) return false;
  bool defaults = false;
  while (!failed() && !IsOp(")")) {
    if (!stmt->params.empty() && !ExpectOp(",")) return false;
    const Token token = Current();
    Param param;
    param.text = ExpectName("the name of a parameter");
    param.name = Intern(param.text);
    if (SkipOp("=")) {
      param.default_value = Expression();
      defaults = true;
    } else if (defaults) {
      return FailAt(token, "non-default argument follows default argument");
    }
    stmt->params.push_back(std::move(param));
  }
  return !failed() && ExpectOp(")");
}

void Parser::FunctionBody(Stmt* stmt, std::string_view end) {
  const Special outer = std::exchange(special_, Special());
  const uint32_t loops = std::exchange(loops_, 0);
  if (!failed()) Expect(TokenKind::kBlockEnd, "'%}'");
  stmt->body = Statements({end});
  Next();
  stmt->uses_varargs = special_.varargs;
  stmt->uses_kwargs = special_.kwargs;
  stmt->uses_caller = special_.caller;
  special_ = outer;
  loops_ = loops;
}

StmtPtr Parser::MacroStmt(const Token& token) {
  auto stmt = NewStmt(StmtKind::kMacro, token);
  stmt->text = ExpectName("the name of the macro");
  stmt->name = Intern(stmt->text);
  if (!failed()) Signature(stmt.get());
  FunctionBody(stmt.get(), "endmacro");
  return stmt;
}

StmtPtr Parser::CallStmt(const Token& token) {
  auto stmt = NewStmt(StmtKind::kCallBlock, token);
  if (IsOp("(")) Signature(stmt.get());
  const Token at = Current();
  if (!failed()) stmt->expr = Expression();
  if (!failed() && stmt->expr->kind != ExprKind::kCall) FailAt(at, "expected a call");
  FunctionBody(stmt.get(), "endcall");
  return stmt;
}

StmtPtr Parser::FilterStmt(const Token& token) {
  auto stmt = NewStmt(StmtKind::kFilterBlock, token);
  stmt->expr = Filters(nullptr, true);
  CheckNames(0);
  if (!failed()) Expect(TokenKind::kBlockEnd, "'%}'");
  stmt->body = Statements({"endfilter"});
  Next();
  return stmt;
}

StmtPtr Parser::With(const Token& token) {
  auto stmt = NewStmt(StmtKind::kWith, token);
  while (!failed() && Current().kind != TokenKind::kBlockEnd) {
    if (!stmt->assignments.empty() && !ExpectOp(",")) break;
    Target target;
    if (!OneTarget(&target, false, {}) || !ExpectOp("=")) break;
    ExprPtr value = Expression();
    stmt->assignments.emplace_back(std::move(target), std::move(value));
  }
  if (!failed()) Expect(TokenKind::kBlockEnd, "'%}'");
  stmt->body = Statements({"endwith"});
  Next();
  return stmt;
}

}  // namespace holdfast::text::jinja

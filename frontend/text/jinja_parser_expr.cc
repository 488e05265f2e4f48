// Expressions, in the order of jinja2's precedences: condition, or, and, not, comparison, + -, ~, * / // %, **, unary, filters and tests.
#include <algorithm>

#include "frontend/text/jinja_number.h"
#include "frontend/text/jinja_parser.h"

namespace holdfast::text::jinja {

ExprPtr Parser::New(ExprKind kind, const Token& token) {
  CountNode(token);
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = token.line;
  e->column = token.column;
  return e;
}

ExprPtr Parser::Finish(ExprPtr e) {
  if (failed()) return e;
  const auto deepen = [&e](const ExprPtr& kid) {
    if (kid != nullptr) e->depth = std::max(e->depth, kid->depth + 1);
  };
  for (const auto& kid : e->kids) deepen(kid);
  for (const auto& kid : e->call.positional) deepen(kid);
  for (const auto& [name, kid] : e->call.keyword) deepen(kid);
  deepen(e->call.star);
  deepen(e->call.double_star);
  if (e->depth > limits_.max_nesting) {
    Token at;
    at.line = e->line;
    at.column = e->column;
    FailAt(at, "an expression nested more than " + std::to_string(limits_.max_nesting) + " levels deep");
  }
  return e;
}

// Unknown filters and tests are errors at once, unless something decides at run time whether they are reached.
void Parser::CheckNames(size_t from) {
  if (conditionals_ == 0 && !failed() && unknown_.size() > from) FailAt(unknown_[from].token, unknown_[from].message);
  unknown_.resize(std::min(unknown_.size(), from));
}

ExprPtr Parser::Expression(bool with_condition) {
  Nest nest(this);
  if (!nest.ok()) return nullptr;
  return with_condition ? Condition() : Or();
}

ExprPtr Parser::Condition() {
  const size_t unknown = unknown_.size();
  const Token token = Current();
  ExprPtr value = Or();
  bool conditional = false;
  while (!failed() && SkipName("if")) {
    conditional = true;
    auto e = New(ExprKind::kCondition, token);
    e->kids.push_back(std::move(value));
    e->kids.push_back(Or());
    e->kids.push_back(!failed() && SkipName("else") ? Expression() : nullptr);
    value = Finish(std::move(e));
  }
  if (conditional) {
    unknown_.resize(std::min(unknown_.size(), unknown));
  } else if (unknown == 0) {
    CheckNames(0);
  }
  return value;
}

ExprPtr Parser::Or() {
  const Token token = Current();
  ExprPtr left = And();
  if (failed() || !IsName("or")) return left;
  auto e = New(ExprKind::kOr, token);
  e->kids.push_back(std::move(left));
  while (!failed() && SkipName("or")) e->kids.push_back(And());
  return Finish(std::move(e));
}

ExprPtr Parser::And() {
  const Token token = Current();
  ExprPtr left = Not();
  if (failed() || !IsName("and")) return left;
  auto e = New(ExprKind::kAnd, token);
  e->kids.push_back(std::move(left));
  while (!failed() && SkipName("and")) e->kids.push_back(Not());
  return Finish(std::move(e));
}

ExprPtr Parser::Not() {
  if (!IsName("not")) return Compare();
  Nest nest(this);
  if (!nest.ok()) return nullptr;
  auto e = New(ExprKind::kNot, Current());
  Next();
  e->kids.push_back(Not());
  return Finish(std::move(e));
}

ExprPtr Parser::Compare() {
  const Token token = Current();
  ExprPtr left = Sum();
  ExprPtr e;
  while (!failed()) {
    CompareOp op{};
    if (SkipOp("==")) {
      op = CompareOp::kEq;
    } else if (SkipOp("!=")) {
      op = CompareOp::kNe;
    } else if (SkipOp("<=")) {
      op = CompareOp::kLe;
    } else if (SkipOp(">=")) {
      op = CompareOp::kGe;
    } else if (SkipOp("<")) {
      op = CompareOp::kLt;
    } else if (SkipOp(">")) {
      op = CompareOp::kGt;
    } else if (SkipName("in")) {
      op = CompareOp::kIn;
    } else if (IsName("not") && Peek().kind == TokenKind::kName && Peek().text == "in") {
      Next();
      Next();
      op = CompareOp::kNotIn;
    } else {
      break;
    }
    if (e == nullptr) {
      e = New(ExprKind::kCompare, token);
      e->kids.push_back(std::move(left));
    }
    e->ops.push_back(static_cast<uint8_t>(op));
    e->kids.push_back(Sum());
  }
  return e == nullptr ? std::move(left) : Finish(std::move(e));
}

ExprPtr Parser::Sum() {
  const Token token = Current();
  ExprPtr left = Concat();
  ExprPtr e;
  while (!failed() && (IsOp("+") || IsOp("-"))) {
    if (e == nullptr) {
      e = New(ExprKind::kChain, token);
      e->kids.push_back(std::move(left));
    }
    e->ops.push_back(static_cast<uint8_t>(IsOp("+") ? BinaryOp::kAdd : BinaryOp::kSub));
    Next();
    e->kids.push_back(Concat());
  }
  return e == nullptr ? std::move(left) : Finish(std::move(e));
}

ExprPtr Parser::Concat() {
  const Token token = Current();
  ExprPtr left = Product();
  if (failed() || !IsOp("~")) return left;
  auto e = New(ExprKind::kConcat, token);
  e->kids.push_back(std::move(left));
  while (!failed() && SkipOp("~")) e->kids.push_back(Product());
  return Finish(std::move(e));
}

ExprPtr Parser::Product() {
  const Token token = Current();
  ExprPtr left = Power();
  ExprPtr e;
  while (!failed() && (IsOp("*") || IsOp("/") || IsOp("//") || IsOp("%"))) {
    if (e == nullptr) {
      e = New(ExprKind::kChain, token);
      e->kids.push_back(std::move(left));
    }
    const BinaryOp op = IsOp("*") ? BinaryOp::kMul : IsOp("/") ? BinaryOp::kDiv : IsOp("//") ? BinaryOp::kFloorDiv : BinaryOp::kMod;
    e->ops.push_back(static_cast<uint8_t>(op));
    Next();
    e->kids.push_back(Power());
  }
  return e == nullptr ? std::move(left) : Finish(std::move(e));
}

ExprPtr Parser::Power() {
  const Token token = Current();
  ExprPtr left = Unary();
  ExprPtr e;
  while (!failed() && SkipOp("**")) {
    if (e == nullptr) {
      e = New(ExprKind::kChain, token);
      e->kids.push_back(std::move(left));
    }
    e->ops.push_back(static_cast<uint8_t>(BinaryOp::kPow));
    e->kids.push_back(Unary());
  }
  return e == nullptr ? std::move(left) : Finish(std::move(e));
}

ExprPtr Parser::Unary(bool with_filter) {
  Nest nest(this);
  if (!nest.ok()) return nullptr;
  const Token token = Current();
  ExprPtr e;
  if (IsOp("-") || IsOp("+")) {
    e = New(IsOp("-") ? ExprKind::kNegate : ExprKind::kPositive, token);
    Next();
    e->kids.push_back(Unary(false));
    e = Finish(std::move(e));
  } else {
    e = Primary();
  }
  if (!failed()) e = Postfix(std::move(e));
  if (!failed() && with_filter) e = FilterExpr(std::move(e));
  return e;
}

ExprPtr Parser::Primary() {
  const Token token = Current();
  switch (token.kind) {
    case TokenKind::kName: {
      Next();
      const std::string& name = token.text;
      const bool truth = name == "true" || name == "True";
      if (truth || name == "false" || name == "False") {
        auto e = New(ExprKind::kConst, token);
        e->value = Value::Bool(truth);
        return e;
      }
      if (name == "none" || name == "None") return New(ExprKind::kConst, token);
      auto e = New(ExprKind::kName, token);
      e->name = Intern(name);
      special_.varargs |= name == "varargs";
      special_.kwargs |= name == "kwargs";
      special_.caller |= name == "caller";
      return e;
    }
    case TokenKind::kString: {
      std::string s;
      while (Current().kind == TokenKind::kString) {
        s += Current().text;
        Next();
      }
      auto e = New(ExprKind::kConst, token);
      e->value = Value(std::make_shared<const StrObj>(Text::Trusted(std::move(s)), false, nullptr));
      return e;
    }
    case TokenKind::kInteger: {
      Next();
      auto e = New(ExprKind::kConst, token);
      const auto i = ParseInt(token.text, 0);
      if (i) {
        e->value = Value::Integer(*i);
      } else {
        FailAt(token, "'" + token.text + "' is too large");
      }
      return e;
    }
    case TokenKind::kFloat: {
      Next();
      auto e = New(ExprKind::kConst, token);
      e->value = Value::Float(ParseFloat(token.text).value_or(0));
      return e;
    }
    case TokenKind::kOperator:
      if (SkipOp("(")) {
        ExprPtr e = Tuple(true, {}, true);
        if (!failed()) ExpectOp(")");
        return e;
      }
      if (IsOp("[")) return ListLiteral();
      if (IsOp("{")) return DictLiteral();
      break;
    default:
      break;
  }
  Fail("expected an expression, got " + Describe(token));
  return nullptr;
}

// One expression, or a tuple when there are commas.
ExprPtr Parser::Tuple(bool with_condition, std::string_view end_name, bool parentheses) {
  const Token token = Current();
  std::vector<ExprPtr> items;
  bool tuple = false;
  while (!failed()) {
    if (!items.empty() && !ExpectOp(",")) break;
    if (Current().kind == TokenKind::kVariableEnd || Current().kind == TokenKind::kBlockEnd || IsOp(")") || (!end_name.empty() && IsName(end_name))) {
      break;
    }
    items.push_back(Expression(with_condition));
    if (!IsOp(",")) break;
    tuple = true;
  }
  if (failed()) return nullptr;
  if (!parentheses && unknown_.size() > 0) CheckNames(0);
  if (!tuple && !items.empty()) return std::move(items[0]);
  if (!tuple && !parentheses) {
    Fail("expected an expression, got " + Describe(Current()));
    return nullptr;
  }
  auto e = New(ExprKind::kTuple, token);
  e->kids = std::move(items);
  return Finish(std::move(e));
}

ExprPtr Parser::ListLiteral() {
  auto e = New(ExprKind::kList, Current());
  Next();
  while (!failed() && !IsOp("]")) {
    if (!e->kids.empty() && !ExpectOp(",")) break;
    if (IsOp("]")) break;
    e->kids.push_back(Expression());
  }
  if (!failed()) ExpectOp("]");
  return Finish(std::move(e));
}

ExprPtr Parser::DictLiteral() {
  auto e = New(ExprKind::kDict, Current());
  Next();
  while (!failed() && !IsOp("}")) {
    if (!e->kids.empty() && !ExpectOp(",")) break;
    if (IsOp("}")) break;
    e->kids.push_back(Expression());
    if (failed() || !ExpectOp(":")) break;
    e->kids.push_back(Expression());
  }
  if (!failed()) ExpectOp("}");
  return Finish(std::move(e));
}

ExprPtr Parser::Postfix(ExprPtr e) {
  while (!failed()) {
    const Token token = Current();
    if (SkipOp(".")) {
      if (Current().kind == TokenKind::kInteger) {
        auto item = New(ExprKind::kItem, token);
        item->kids.push_back(std::move(e));
        item->kids.push_back(Primary());
        e = Finish(std::move(item));
        continue;
      }
      auto attr = New(ExprKind::kAttr, token);
      attr->text = ExpectName("the name of an attribute");
      attr->kids.push_back(std::move(e));
      e = Finish(std::move(attr));
    } else if (IsOp("[")) {
      e = Subscript(std::move(e));
    } else if (IsOp("(")) {
      auto call = New(ExprKind::kCall, token);
      call->kids.push_back(std::move(e));
      Arguments(&call->call);
      e = Finish(std::move(call));
    } else {
      break;
    }
  }
  return e;
}

// One index, or the three parts of a slice (then *slice has three entries and null is returned).
ExprPtr Parser::SubscriptPart(const Token& token, std::vector<ExprPtr>* slice) {
  ExprPtr first;
  if (!IsOp(":")) {
    first = Expression();
    if (failed() || !IsOp(":")) return first;
  }
  slice->push_back(std::move(first));
  for (int i = 0; i < 2; ++i) {
    ExprPtr part;
    if (SkipOp(":") && !IsOp(":") && !IsOp("]") && !IsOp(",")) part = Expression();
    slice->push_back(std::move(part));
  }
  if (IsOp(":")) FailAt(token, "a slice has at most three parts");
  return nullptr;
}

ExprPtr Parser::Subscript(ExprPtr e) {
  const Token token = Current();
  Next();
  std::vector<ExprPtr> slice;
  ExprPtr key = SubscriptPart(token, &slice);
  if (!failed() && key == nullptr) {
    if (!ExpectOp("]")) return e;
    auto out = New(ExprKind::kSlice, token);
    out->kids.push_back(std::move(e));
    for (auto& part : slice) out->kids.push_back(std::move(part));
    return Finish(std::move(out));
  }
  if (!failed() && IsOp(",")) {
    auto tuple = New(ExprKind::kTuple, token);
    tuple->kids.push_back(std::move(key));
    while (!failed() && SkipOp(",")) tuple->kids.push_back(Expression());
    key = Finish(std::move(tuple));
  }
  if (failed() || !ExpectOp("]")) return e;
  auto out = New(ExprKind::kItem, token);
  out->kids.push_back(std::move(e));
  out->kids.push_back(std::move(key));
  return Finish(std::move(out));
}

bool Parser::Arguments(CallArgs* call) {
  if (!ExpectOp("(")) return false;
  bool first = true;
  while (!failed() && !IsOp(")")) {
    if (!first && !ExpectOp(",")) return false;
    if (IsOp(")")) break;
    first = false;
    const Token token = Current();
    if (SkipOp("*")) {
      if (call->star != nullptr || call->double_star != nullptr) return FailAt(token, "invalid syntax for function call expression");
      call->star = Expression();
    } else if (SkipOp("**")) {
      if (call->double_star != nullptr) return FailAt(token, "invalid syntax for function call expression");
      call->double_star = Expression();
    } else if (token.kind == TokenKind::kName && Peek().kind == TokenKind::kOperator && Peek().text == "=") {
      if (call->double_star != nullptr) return FailAt(token, "invalid syntax for function call expression");
      Next();
      Next();
      call->keyword.emplace_back(token.text, Expression());
    } else {
      if (call->star != nullptr || call->double_star != nullptr || !call->keyword.empty()) {
        return FailAt(token, "a positional argument follows keyword arguments");
      }
      call->positional.push_back(Expression());
    }
  }
  return !failed() && ExpectOp(")");
}

ExprPtr Parser::FilterExpr(ExprPtr e) {
  while (!failed()) {
    if (IsOp("|")) {
      e = Filters(std::move(e), false);
    } else if (IsName("is")) {
      e = Test(std::move(e));
    } else if (IsOp("(")) {
      auto call = New(ExprKind::kCall, Current());
      call->kids.push_back(std::move(e));
      Arguments(&call->call);
      e = Finish(std::move(call));
    } else {
      break;
    }
  }
  return e;
}

ExprPtr Parser::Filters(ExprPtr e, bool start_inline) {
  while (!failed() && (start_inline || IsOp("|"))) {
    if (!start_inline) Next();
    start_inline = false;
    const Token token = Current();
    auto filter = New(ExprKind::kFilter, token);
    filter->text = ExpectName("the name of a filter");
    while (!failed() && SkipOp(".")) filter->text += "." + ExpectName("the name of a filter");
    if (failed()) return e;
    filter->filter = FindFilter(filter->text);
    if (filter->filter == nullptr) unknown_.push_back({token, "no filter named '" + filter->text + "'"});
    filter->kids.push_back(std::move(e));
    if (IsOp("(")) Arguments(&filter->call);
    e = Finish(std::move(filter));
  }
  return e;
}

ExprPtr Parser::Test(ExprPtr e) {
  const Token token = Current();
  Next();
  const bool negated = SkipName("not");
  const Token name = Current();
  auto test = New(ExprKind::kTest, token);
  test->text = ExpectName("the name of a test");
  while (!failed() && SkipOp(".")) test->text += "." + ExpectName("the name of a test");
  if (failed()) return e;
  test->test = FindTest(test->text);
  if (test->test == nullptr) unknown_.push_back({name, "no test named '" + test->text + "'"});
  test->kids.push_back(std::move(e));
  const TokenKind next = Current().kind;
  if (IsOp("(")) {
    Arguments(&test->call);
  } else if ((next == TokenKind::kName || next == TokenKind::kString || next == TokenKind::kInteger || next == TokenKind::kFloat || IsOp("[") ||
              IsOp("{")) &&
             !IsName("else") && !IsName("or") && !IsName("and")) {
    if (IsName("is")) {
      Fail("you cannot chain multiple tests with is");
      return test;
    }
    // jinja2 takes a bare operand here ("x is divisibleby 3"), which also swallows an `if` or `in` that follows: those end the test.
    if (!IsName("if") && !IsName("in") && !IsName("not") && !IsName("recursive")) {
      ExprPtr operand = Primary();
      if (!failed()) operand = Postfix(std::move(operand));
      test->call.positional.push_back(std::move(operand));
    }
  }
  ExprPtr out = Finish(std::move(test));
  if (!negated || failed()) return out;
  auto e_not = New(ExprKind::kNot, token);
  e_not->kids.push_back(std::move(out));
  return Finish(std::move(e_not));
}

}  // namespace holdfast::text::jinja

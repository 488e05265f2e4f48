#pragma once
// The parsed template: immutable once built, shared by all renderings. Names are numbered, so that scopes compare integers.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/text/jinja.h"
#include "frontend/text/jinja_runtime.h"

namespace holdfast::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConst,      // value
  kName,       // name
  kList,       // kids
  kTuple,      // kids
  kDict,       // kids: key, value, key, value ...
  kAttr,       // kids[0] . text
  kItem,       // kids[0] [ kids[1] ]
  kSlice,      // kids[0] [ kids[1] : kids[2] : kids[3] ]; null pointers where left out
  kCall,       // kids[0] ( call )
  kFilter,     // kids[0] | text ( call ); kids[0] is null at the head of a filter block
  kTest,       // kids[0] is text ( call )
  kNot,        // kids[0]
  kNegate,     // kids[0]
  kPositive,   // kids[0]
  kAnd, kOr,   // kids: two or more
  kChain,      // kids[0] ops[0] kids[1] ops[1] ...: BinaryOp, from left to right
  kConcat,     // kids joined by ~
  kCompare,    // kids[0] ops[0] kids[1] ...: CompareOp, Python's chained comparison
  kCondition,  // kids[0] if kids[1] else kids[2] (may be null)
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star;         // *args
  ExprPtr double_star;  // **kwargs
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  uint32_t line = 0;
  uint32_t column = 0;
  uint32_t depth = 1;      // nesting below
  uint32_t name = 0;       // kName: number
  Value value;             // kConst
  std::string text;        // kAttr, kFilter, kTest
  std::vector<ExprPtr> kids;
  std::vector<uint8_t> ops;
  CallArgs call;
  FilterFn filter = nullptr;
  TestFn test = nullptr;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class StmtKind : uint8_t {
  kData,        // data
  kOutput,      // expr
  kIf,          // branches: (condition or null, body)
  kFor,         // target in expr [if condition] body else_body
  kSet,         // target = expr
  kSetBlock,    // target = body (through expr: a chain of filters or null)
  kMacro,       // name, params, body
  kCallBlock,   // expr is the call; params, body: the caller
  kFilterBlock, // expr: the chain of filters; body
  kWith,        // assignments, body
  kScope,       // body in a scope of its own (autoescape, block)
  kBreak,
  kContinue,
};

// What is assigned to: a name, a namespace's attribute, or a tuple of targets.
struct Target {
  enum class Kind : uint8_t { kName, kAttribute, kTuple };
  Kind kind = Kind::kName;
  uint32_t name = 0;
  std::string attribute;
  std::vector<Target> parts;
};

struct Param {
  uint32_t name = 0;
  std::string text;
  ExprPtr default_value;  // or null
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  uint32_t line = 0;
  uint32_t column = 0;
  Text data;
  ExprPtr expr;
  ExprPtr condition;
  Target target;
  Body body;
  Body else_body;
  bool recursive = false;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  uint32_t name = 0;          // kMacro
  std::string text;           // kMacro: its name
  std::vector<Param> params;
  // kMacro, kCallBlock: whether the body mentions these special names.
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct TemplateNode {
  std::string name;
  std::vector<std::string> names;  // by number
  Body body;
  // Numbers of the names the interpreter itself knows.
  uint32_t loop = 0, caller = 0, varargs = 0, kwargs = 0, add_generation_prompt = 0;
};

}  // namespace holdfast::text::jinja

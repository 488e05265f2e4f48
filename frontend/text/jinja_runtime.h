#pragma once
// What every operation of a rendering shares: the limits, the first error, and Python's operators on Values. One Runtime serves one
// rendering on one thread. Operations that can fail record the first error and return None; callers look at failed().
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/text/jinja.h"
#include "frontend/text/jinja_value.h"
#include "frontend/text/json_value.h"

namespace holdfast::text::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

class Runtime {
 public:
  Runtime(const Limits& limits, int64_t now) : limits_(limits), now_(now) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  virtual ~Runtime() = default;

  // ---- errors and limits
  bool failed() const { return failed_; }
  const RenderError& error() const { return error_; }
  Value Fail(RenderError::Kind kind, std::string message);
  Value TypeError(std::string message) { return Fail(RenderError::Kind::kType, std::move(message)); }
  Value LimitError(std::string message) { return Fail(RenderError::Kind::kLimit, std::move(message)); }
  Value UndefinedError(const Value& undefined);
  void SetErrorPosition(uint32_t line, uint32_t column);  // kept when one is set already
  // Counts work; false when the budget is used up.
  bool Step(uint64_t n = 1);
  bool CheckSize(size_t bytes);      // a string about to be made
  bool CheckItems(size_t count);     // a list about to be made
  bool CheckMemory();
  const Limits& limits() const { return limits_; }
  int64_t now() const { return now_; }
  void set_none_text(std::string_view text) { none_text_ = text; }

  // ---- making values
  Value Str(Text text, bool markup = false);
  Value Trusted(std::string s) { return Str(Text::Trusted(std::move(s))); }
  Value List(std::vector<Value> items) { return Seq(SeqObj::Kind::kList, std::move(items)); }
  Value Tuple(std::vector<Value> items) { return Seq(SeqObj::Kind::kTuple, std::move(items)); }
  Value Generator(std::vector<Value> items) { return Seq(SeqObj::Kind::kGenerator, std::move(items), "generator"); }
  Value Seq(SeqObj::Kind kind, std::vector<Value> items, const char* name = "");
  std::shared_ptr<DictObj> NewDict() { return std::make_shared<DictObj>(&meter_); }
  bool DictSet(DictObj& dict, Value key, Value value);
  Value Undefined(std::string message, bool security = false);
  Value UndefinedName(std::string_view name) { return Undefined("'" + std::string(name) + "' is undefined"); }
  Value NewFunction(std::string name);
  Value NewMethod(const Value& self, std::string name);
  // Request data: strings untrusted, containers frozen; messages (an array) get their index.
  Value FromJson(const JsonValue& json, bool is_messages = false);

  // ---- Python's operations
  Value Binary(BinaryOp op, const Value& a, const Value& b);
  Value Negate(const Value& v);
  bool Equal(const Value& a, const Value& b);
  std::optional<bool> Compare(CompareOp op, const Value& a, const Value& b);  // nullopt: failed
  std::optional<bool> Contains(const Value& item, const Value& container);
  // a < b for sorting; failure is recorded and false returned.
  bool Less(const Value& a, const Value& b);
  std::optional<size_t> Length(const Value& v);                // len(v)
  Value GetAttr(const Value& object, std::string_view name);   // jinja2: attribute, then item
  Value GetItem(const Value& object, const Value& key);        // jinja2: item, then attribute
  Value Slice(const Value& object, const Value& start, const Value& stop, const Value& step);
  // The items a for loop would see; consumes generators.
  std::optional<std::vector<Value>> Iterate(const Value& v);
  Text ToText(const Value& v);                                 // str(v)
  void AppendTo(const Value& v, Text* out);                    // str(v), appended
  void AppendRepr(const Value& v, Text* out);
  Text Repr(const Value& v);
  // v must be a str (after which its text may be read); fails with `who` otherwise.
  bool WantStr(const Value& v, std::string_view who);
  std::optional<int64_t> WantInt(const Value& v, std::string_view who);

  // json.dumps with Hugging Face's defaults.
  struct DumpOptions {
    bool ensure_ascii = false;
    std::optional<std::string> indent;
    std::string item_separator = ", ";
    std::string key_separator = ": ";
    bool sort_keys = false;
  };
  Value DumpJson(const Value& v, const DumpOptions& options);
  Value LoadJson(const Value& text);

  // Names positional and keyword arguments; nullopt (and failed) on too many, unknown or doubled ones. required: how many must be there.
  std::optional<std::vector<std::optional<Value>>> Bind(std::string_view who, const Args& args, std::initializer_list<std::string_view> names,
                                                         size_t required = 0);

  // Calls a macro, function, method or loop. Implemented by the interpreter.
  virtual Value Call(const Value& callee, Args args) = 0;

  Meter* meter() { return &meter_; }
  // A container the template changed in place: kept until the end and emptied then, so that no cycle or deep chain survives.
  void Adopt(std::shared_ptr<SeqObj> list) { adopted_lists_.push_back(std::move(list)); }
  void Adopt(std::shared_ptr<DictObj> dict) { adopted_dicts_.push_back(std::move(dict)); }
  void Adopt(std::shared_ptr<Object> ns) { adopted_objects_.push_back(std::move(ns)); }

 protected:
  void ReleaseAdopted();

 private:
  bool EqualAt(const Value& a, const Value& b, uint32_t depth);
  int Order(const Value& a, const Value& b, const char* op, bool* unordered);
  Value FromJsonAt(const JsonValue& json);
  Value Arithmetic(BinaryOp op, const Value& a, const Value& b);
  Value Repeat(const Value& v, Int times);
  Value Unsupported(BinaryOp op, const Value& a, const Value& b);
  bool DumpAt(const Value& v, const DumpOptions& o, size_t level, std::string* out, bool* trusted);
  void ReprAt(const Value& v, uint32_t depth, Text* out);
  Value LookupAttribute(const Value& object, std::string_view name, bool* found);
  Value LookupItem(const Value& object, const Value& key, bool* found);

  Limits limits_;
  int64_t now_;
  Meter meter_;
  bool failed_ = false;
  RenderError error_;
  uint64_t steps_ = 0;
  std::string none_text_ = "None";
  std::vector<std::shared_ptr<SeqObj>> adopted_lists_;
  std::vector<std::shared_ptr<DictObj>> adopted_dicts_;
  std::vector<std::shared_ptr<Object>> adopted_objects_;
};

// ---- tables (jinja_filters*.cc, jinja_tests.cc, jinja_methods.cc)
using FilterFn = Value (*)(Runtime& rt, const Value& input, const Args& args);
using TestFn = std::optional<bool> (*)(Runtime& rt, const Value& input, const Args& args);
FilterFn FindFilter(std::string_view name);  // null: none of that name
TestFn FindTest(std::string_view name);
// True when values of this type have the method (its name is then bound by NewMethod).
bool HasMethod(const Value& self, std::string_view name);
Value CallMethod(Runtime& rt, const Value& self, const std::string& name, const Args& args);
bool IsGlobalFunction(std::string_view name);
Value CallGlobal(Runtime& rt, const std::string& name, const Args& args);
// "%s" formatting and str.format.
Value PercentFormat(Runtime& rt, const Text& format, const Value& args);
Value BraceFormat(Runtime& rt, const Text& format, const Args& args);

// ---- on Text, shared by filters and methods
Text StripText(const Text& text, bool left, bool right, std::optional<std::string_view> chars);
Text ReplaceText(const Text& text, std::string_view old, const Text& with, int64_t count, size_t max_bytes, bool* too_big);
std::vector<Text> SplitLines(const Text& text, bool keep_ends);

}  // namespace holdfast::text::jinja

#pragma once
// The values a template computes with: Python's None, bool, int, float, str, list, tuple, dict, range, generators and views, and jinja2's
// undefined, namespace, macro and loop objects. A closed model: there are no attributes but those listed in jinja_methods.cc, so a template
// cannot reach anything of the host. Shared nodes; a value must not outlive the Meter of the rendering that made it.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/text/jinja_text.h"

namespace holdfast::text::jinja {

using Int = __int128;  // wide enough for every JSON integer; overflow is an error, not a wrong number

// Bytes held by the values of one rendering.
struct Meter {
  int64_t live = 0;
};

// Adds bytes to a meter for as long as it lives.
class Charge {
 public:
  Charge() = default;
  Charge(Meter* meter, int64_t bytes) : meter_(meter), bytes_(bytes) {
    if (meter_ != nullptr) meter_->live += bytes_;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    if (meter_ != nullptr) meter_->live -= bytes_;
  }
  void Grow(int64_t bytes) {
    bytes_ += bytes;
    if (meter_ != nullptr) meter_->live += bytes;
  }

 private:
  Meter* meter_ = nullptr;
  int64_t bytes_ = 0;
};

struct StrObj;
struct SeqObj;
struct DictObj;
struct Object;
struct UndefinedInfo {
  std::string message;    // what jinja2's UndefinedError would say
  bool security = false;  // an attribute the sandbox hides: any use but printing is refused
};

struct NoneTag {};

class Value {
 public:
  enum class Kind : uint8_t { kNone, kUndefined, kBool, kInt, kFloat, kStr, kSeq, kDict, kObject };

  Value() = default;  // None
  static Value Undefined(std::shared_ptr<const UndefinedInfo> info) { return Value(V(std::move(info))); }
  static Value Bool(bool b) { return Value(V(b)); }
  static Value Integer(Int i) { return Value(V(i)); }
  static Value Float(double d) { return Value(V(d)); }
  explicit Value(std::shared_ptr<const StrObj> s) : v_(std::move(s)) {}
  explicit Value(std::shared_ptr<SeqObj> s) : v_(std::move(s)) {}
  explicit Value(std::shared_ptr<DictObj> d) : v_(std::move(d)) {}
  explicit Value(std::shared_ptr<Object> o) : v_(std::move(o)) {}

  Kind kind() const { return static_cast<Kind>(v_.index()); }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_integral() const { return is_int() || is_bool(); }  // Python: bool is an int
  bool is_float() const { return kind() == Kind::kFloat; }
  bool is_number() const { return is_integral() || is_float(); }
  bool is_str() const { return kind() == Kind::kStr; }
  bool is_seq() const { return kind() == Kind::kSeq; }
  bool is_dict() const { return kind() == Kind::kDict; }
  bool is_object() const { return kind() == Kind::kObject; }

  // Preconditions: the kind matches.
  const UndefinedInfo& undefined() const { return *std::get<1>(v_); }
  bool as_bool() const { return std::get<bool>(v_); }
  Int as_int() const { return is_bool() ? Int(as_bool()) : std::get<Int>(v_); }
  double as_double() const { return is_float() ? std::get<double>(v_) : static_cast<double>(as_int()); }
  const StrObj& str() const { return *std::get<5>(v_); }
  const Text& text() const;
  std::string_view view() const;
  SeqObj& seq() const { return *std::get<6>(v_); }
  DictObj& dict() const { return *std::get<7>(v_); }
  Object& object() const { return *std::get<8>(v_); }
  const std::shared_ptr<Object>& object_ptr() const { return std::get<8>(v_); }
  const std::shared_ptr<SeqObj>& seq_ptr() const { return std::get<6>(v_); }
  const std::shared_ptr<DictObj>& dict_ptr() const { return std::get<7>(v_); }

  // Python's truth value.
  bool Truth() const;
  // type(v).__name__
  std::string_view TypeName() const;
  // Nesting of containers below this value: 0 for scalars.
  uint32_t Depth() const;

 private:
  using V = std::variant<NoneTag, std::shared_ptr<const UndefinedInfo>, bool, Int, double, std::shared_ptr<const StrObj>,
                         std::shared_ptr<SeqObj>, std::shared_ptr<DictObj>, std::shared_ptr<Object>>;
  explicit Value(V v) : v_(std::move(v)) {}
  V v_;
};

struct StrObj {
  Text text;
  bool markup = false;  // markupsafe.Markup, what `safe` and `escape` make
  Charge charge;

  StrObj(Text t, bool is_markup, Meter* meter) : text(std::move(t)), markup(is_markup), charge(meter, static_cast<int64_t>(text.size()) + 64) {}
};

struct SeqObj {
  enum class Kind : uint8_t { kList, kTuple, kRange, kGenerator, kView };
  Kind kind = Kind::kList;
  bool frozen = false;       // request data: cannot be changed by the template
  bool adopted = false;      // changed by the template; see Runtime::Adopt
  uint32_t depth = 1;
  std::vector<Value> items;
  size_t position = 0;       // of a generator: what was consumed
  const char* name = "";     // type name of a generator or view; "group" for what groupby makes
  Charge charge;

  SeqObj(Kind k, std::vector<Value> v, Meter* meter);
};

struct DictObj {
  using Item = std::pair<Value, Value>;
  bool frozen = false;
  bool adopted = false;
  int32_t message_index = -1;  // this is messages[i] of the request
  uint32_t depth = 1;
  Charge charge;

  explicit DictObj(Meter* meter) : charge(meter, 128) {}
  const std::vector<Item>& items() const { return items_; }
  // `key` must be hashable (HashKey gave true for it); hash is what HashKey wrote.
  const Value* Find(const std::string& hash) const;
  void Set(const std::string& hash, Value key, Value value);
  bool Erase(const std::string& hash);
  void Clear();

 private:
  std::vector<Item> items_;
  std::vector<std::string> hashes_;                  // of items_
  std::unordered_map<std::string, size_t> index_;    // only when there are many; lookups only, never iterated
};

// Writes a string that is equal for equal keys (1 == 1.0 == True). False: unhashable, with the type's name in *type.
bool HashKey(const Value& key, std::string* hash, std::string_view* type);

struct Macro;  // the interpreter's
struct Stmt;
struct Scope;
struct NamespaceData {
  std::vector<std::pair<std::string, Value>> members;
};

// What `loop` stands for.
struct LoopState {
  std::vector<Value> items;
  size_t index = 0;
  uint32_t depth = 1;
  std::vector<Value> changed;      // arguments of the last loop.changed()
  bool has_changed = false;
  const Stmt* stmt = nullptr;      // recursive loops call it again ...
  std::shared_ptr<Scope> scope;    // ... in this scope
};

struct Object {
  enum class Kind : uint8_t { kNamespace, kMacro, kFunction, kMethod, kLoop };
  Kind kind = Kind::kNamespace;
  NamespaceData ns;                    // kNamespace
  std::shared_ptr<Macro> macro;        // kMacro
  std::shared_ptr<LoopState> loop;     // kLoop
  std::string name;                    // kFunction, kMethod
  Value self;                          // kMethod: what it is bound to
  Charge charge;

  Object(Kind k, Meter* meter) : kind(k), charge(meter, 256) {}
};

inline const Text& Value::text() const { return str().text; }
inline std::string_view Value::view() const { return str().text.view(); }

}  // namespace holdfast::text::jinja

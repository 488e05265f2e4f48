#include "frontend/text/jinja_runtime.h"

#include <algorithm>
#include <cmath>

#include "frontend/text/jinja_number.h"
#include "frontend/text/jinja_unicode.h"

namespace holdfast::text::jinja {
namespace {

std::string TypeOf(const Value& v) { return std::string(v.TypeName()); }
std::string QuotedType(const Value& v) { return "'" + TypeOf(v) + "'"; }

// jinja2's object_type_repr.
std::string ObjectTypeRepr(const Value& v) {
  if (v.is_none()) return "None";
  if (v.is_object() && v.object().kind == Object::Kind::kNamespace) return "jinja2.utils.Namespace object";
  if (v.is_object() && v.object().kind == Object::Kind::kLoop) return "jinja2.runtime.LoopContext object";
  if (v.is_object() && v.object().kind == Object::Kind::kMacro) return "jinja2.runtime.Macro object";
  return TypeOf(v) + " object";
}

// A loop knows its items; stored among other values it could become a chain of any length.
constexpr const char* kLoopStored = "the loop object cannot be stored in a list or mapping";
bool HoldsLoop(const Value& v) {
  if (!v.is_object()) return false;
  const Object& o = v.object();
  return o.kind == Object::Kind::kLoop || (o.kind == Object::Kind::kMethod && HoldsLoop(o.self));
}

void AppendQuoted(std::string_view s, std::string* out) {
  const char quote = s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  out->push_back(quote);
  const auto hex = [out](const char* prefix, char32_t c, int digits) {
    out->append(prefix);
    for (int i = digits - 1; i >= 0; --i) out->push_back("0123456789abcdef"[(c >> (4 * i)) & 15]);
  };
  for (size_t pos = 0; pos < s.size();) {
    const size_t at = pos;
    const char32_t c = NextCodePoint(s, &pos);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (c >= 32 && c < 127) {
      out->push_back(static_cast<char>(c));
    } else if (c >= 127 && IsPrintable(c)) {
      out->append(s.substr(at, pos - at));
    } else if (c < 256) {
      hex("\\x", c, 2);
    } else if (c < 0x10000) {
      hex("\\u", c, 4);
    } else {
      hex("\\U", c, 8);
    }
  }
  out->push_back(quote);
}

}  // namespace

// ---- errors and limits

Value Runtime::Fail(RenderError::Kind kind, std::string message) {
  if (!failed_) {
    failed_ = true;
    error_.kind = kind;
    error_.message = std::move(message);
  }
  return Value();
}

Value Runtime::UndefinedError(const Value& undefined) {
  const UndefinedInfo& info = undefined.undefined();
  return Fail(info.security ? RenderError::Kind::kSecurity : RenderError::Kind::kUndefined, info.message);
}

void Runtime::SetErrorPosition(uint32_t line, uint32_t column) {
  if (error_.line != 0) return;
  error_.line = line;
  error_.column = column;
}

bool Runtime::Step(uint64_t n) {
  if (failed_) return false;
  steps_ += n;
  if (steps_ <= limits_.max_steps) return true;
  LimitError("the template needs more than " + std::to_string(limits_.max_steps) + " steps");
  return false;
}

bool Runtime::CheckMemory() {
  if (failed_) return false;
  if (meter_.live <= limits_.max_live_bytes) return true;
  LimitError("the template's values need more than " + std::to_string(limits_.max_live_bytes) + " bytes");
  return false;
}

bool Runtime::CheckSize(size_t bytes) {
  if (failed_) return false;
  if (bytes > limits_.max_string_bytes) {
    LimitError("a string of " + std::to_string(bytes) + " bytes is more than the " + std::to_string(limits_.max_string_bytes) +
               " a template may make");
    return false;
  }
  return CheckMemory();
}

bool Runtime::CheckItems(size_t count) {
  if (failed_) return false;
  if (count > limits_.max_list_items) {
    LimitError("a list of " + std::to_string(count) + " items is more than the " + std::to_string(limits_.max_list_items) +
               " a template may make");
    return false;
  }
  return CheckMemory();
}

void Runtime::ReleaseAdopted() {
  // What is emptied here may only let go of things that are adopted as well or are of bounded depth.
  for (const auto& list : adopted_lists_) list->items.clear();
  for (const auto& dict : adopted_dicts_) dict->Clear();
  for (const auto& object : adopted_objects_) {
    object->ns.members.clear();
    object->macro.reset();
    object->loop.reset();
  }
  adopted_lists_.clear();
  adopted_dicts_.clear();
  adopted_objects_.clear();
}

// ---- making values

Value Runtime::Str(Text text, bool markup) {
  if (!CheckSize(text.size())) return Value();
  // Every byte written counts as work, so that quadratic concatenation ends at the step limit.
  if (!Step(text.size() / 1024)) return Value();
  return Value(std::make_shared<const StrObj>(std::move(text), markup, &meter_));
}

Value Runtime::Seq(SeqObj::Kind kind, std::vector<Value> items, const char* name) {
  if (!CheckItems(items.size())) return Value();
  if (!Step(items.size() / 4)) return Value();
  if (std::any_of(items.begin(), items.end(), HoldsLoop)) return TypeError(kLoopStored);
  auto seq = std::make_shared<SeqObj>(kind, std::move(items), &meter_);
  seq->name = name;
  if (seq->depth > limits_.max_value_depth) return LimitError("lists are nested too deeply");
  return Value(std::move(seq));
}

bool Runtime::DictSet(DictObj& dict, Value key, Value value) {
  if (!Step()) return false;
  std::string hash;
  std::string_view type;
  if (!HashKey(key, &hash, &type)) {
    TypeError("unhashable type: '" + std::string(type) + "'");
    return false;
  }
  if (HoldsLoop(key) || HoldsLoop(value)) {
    TypeError(kLoopStored);
    return false;
  }
  dict.Set(hash, std::move(key), std::move(value));
  if (dict.depth > limits_.max_value_depth) {
    LimitError("mappings are nested too deeply");
    return false;
  }
  return CheckMemory();
}

Value Runtime::Undefined(std::string message, bool security) {
  return Value::Undefined(std::make_shared<const UndefinedInfo>(UndefinedInfo{std::move(message), security}));
}

Value Runtime::NewFunction(std::string name) {
  auto object = std::make_shared<Object>(Object::Kind::kFunction, &meter_);
  object->name = std::move(name);
  return Value(std::move(object));
}

Value Runtime::NewMethod(const Value& self, std::string name) {
  auto object = std::make_shared<Object>(Object::Kind::kMethod, &meter_);
  object->name = std::move(name);
  object->self = self;
  return Value(std::move(object));
}

// ---- attributes and items

Value Runtime::LookupAttribute(const Value& object, std::string_view name, bool* found) {
  *found = true;
  const bool is_namespace = object.is_object() && object.object().kind == Object::Kind::kNamespace;
  if (name.size() >= 2 && name.substr(0, 2) == "__" && !(is_namespace && name != "__class__")) {
    return Undefined("access to attribute '" + std::string(name) + "' of " + QuotedType(object) + " object is unsafe.", true);
  }
  if (object.is_object()) {
    const Object& o = object.object();
    if (o.kind == Object::Kind::kNamespace) {
      for (const auto& [key, value] : o.ns.members) {
        if (key == name) return value;
      }
    }
    if (o.kind == Object::Kind::kMacro && name == "name") return Trusted(o.name);
    if (o.kind == Object::Kind::kLoop) {
      const LoopState& loop = *o.loop;
      const size_t size = loop.items.size();
      if (name == "index") return Value::Integer(loop.index + 1);
      if (name == "index0") return Value::Integer(loop.index);
      if (name == "first") return Value::Bool(loop.index == 0);
      if (name == "last") return Value::Bool(loop.index + 1 == size);
      if (name == "length") return Value::Integer(size);
      if (name == "revindex") return Value::Integer(size - loop.index);
      if (name == "revindex0") return Value::Integer(size - loop.index - 1);
      if (name == "depth") return Value::Integer(loop.depth);
      if (name == "depth0") return Value::Integer(loop.depth - 1);
      if (name == "previtem") return loop.index > 0 ? loop.items[loop.index - 1] : Undefined("there is no previous item");
      if (name == "nextitem") return loop.index + 1 < size ? loop.items[loop.index + 1] : Undefined("there is no next item");
    }
    if (o.kind == Object::Kind::kMethod || o.kind == Object::Kind::kFunction) {
      *found = false;
      return Value();
    }
  }
  if (object.is_seq() && std::string_view(object.seq().name) == "group") {
    if (name == "grouper") return object.seq().items[0];
    if (name == "list") return object.seq().items[1];
  }
  if (HasMethod(object, name)) return NewMethod(object, std::string(name));
  *found = false;
  return Value();
}

Value Runtime::LookupItem(const Value& object, const Value& key, bool* found) {
  *found = true;
  if (object.is_dict()) {
    std::string hash;
    std::string_view type;
    if (HashKey(key, &hash, &type)) {
      if (const Value* value = object.dict().Find(hash); value != nullptr) return *value;
    }
  } else if (object.is_seq() && key.is_integral()) {
    const SeqObj& seq = object.seq();
    if (seq.kind == SeqObj::Kind::kList || seq.kind == SeqObj::Kind::kTuple || seq.kind == SeqObj::Kind::kRange) {
      const auto size = static_cast<Int>(seq.items.size());
      Int i = key.as_int();
      if (i < 0) i += size;
      if (i >= 0 && i < size) return seq.items[static_cast<size_t>(i)];
    }
  } else if (object.is_str() && key.is_integral()) {
    const Text& text = object.text();
    const bool ascii = IsAscii(text.view());
    const auto size = static_cast<Int>(ascii ? text.size() : CountCodePoints(text.view()));
    if (!Step(text.size() / 64)) return Value();
    Int i = key.as_int();
    if (i < 0) i += size;
    if (i >= 0 && i < size) {
      const size_t begin = ascii ? static_cast<size_t>(i) : ByteOffset(text.view(), static_cast<size_t>(i));
      size_t end = begin;
      NextCodePoint(text.view(), &end);
      return Str(text.Slice(begin, end - begin), object.str().markup);
    }
  }
  *found = false;
  return Value();
}

Value Runtime::GetAttr(const Value& object, std::string_view name) {
  if (object.is_undefined()) return UndefinedError(object);
  bool found = false;
  Value value = LookupAttribute(object, name, &found);
  if (found || failed_) return value;
  if (object.is_dict()) {
    value = LookupItem(object, Trusted(std::string(name)), &found);
    if (found || failed_) return value;
  }
  return Undefined("'" + ObjectTypeRepr(object) + "' has no attribute '" + std::string(name) + "'");
}

Value Runtime::GetItem(const Value& object, const Value& key) {
  if (object.is_undefined()) return UndefinedError(object);
  bool found = false;
  Value value = LookupItem(object, key, &found);
  if (found || failed_) return value;
  if (key.is_str()) {
    value = LookupAttribute(object, key.view(), &found);
    if (found || failed_) return value;
    return Undefined("'" + ObjectTypeRepr(object) + "' has no attribute " + Repr(key).str());
  }
  if (key.is_undefined() && !object.is_dict()) {
    // list[undefined]: jinja2 gives an undefined as well
    return Undefined(ObjectTypeRepr(object) + " has no element Undefined");
  }
  return Undefined(ObjectTypeRepr(object) + " has no element " + Repr(key).str());
}

Value Runtime::Slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) return UndefinedError(object);
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->is_none() && !bound->is_integral()) {
      if (bound->is_undefined()) return Undefined(ObjectTypeRepr(object) + " has no such slice");
      return TypeError("slice indices must be integers or None or have an __index__ method");
    }
  }
  const bool sliceable = object.is_str() || (object.is_seq() && (object.seq().kind == SeqObj::Kind::kList || object.seq().kind == SeqObj::Kind::kTuple ||
                                                                object.seq().kind == SeqObj::Kind::kRange));
  if (!sliceable) return Undefined(ObjectTypeRepr(object) + " has no such slice");
  const Int by = step.is_none() ? 1 : step.as_int();
  if (by == 0) return Fail(RenderError::Kind::kType, "slice step cannot be zero");
  const bool ascii = object.is_str() && IsAscii(object.view());
  const auto size = static_cast<Int>(object.is_seq() ? object.seq().items.size() : ascii ? object.view().size() : CountCodePoints(object.view()));
  const auto clamp = [&](const Value& v, Int otherwise) -> Int {
    if (v.is_none()) return otherwise;
    Int i = v.as_int();
    if (i < 0) i += size;
    if (by > 0) return std::clamp<Int>(i, 0, size);
    return std::clamp<Int>(i, -1, size - 1);
  };
  const Int from = clamp(start, by > 0 ? 0 : size - 1);
  const Int to = clamp(stop, by > 0 ? size : -1);
  if (!Step(static_cast<uint64_t>(size) / 64 + 1)) return Value();
  if (object.is_seq()) {
    std::vector<Value> items;
    for (Int i = from; by > 0 ? i < to : i > to; i += by) items.push_back(object.seq().items[static_cast<size_t>(i)]);
    return Seq(object.seq().kind, std::move(items));
  }
  const Text& text = object.text();
  if (by == 1) {
    if (from >= to) return Str(Text(), object.str().markup);
    const size_t begin = ascii ? static_cast<size_t>(from) : ByteOffset(text.view(), static_cast<size_t>(from));
    const size_t length = ascii ? static_cast<size_t>(to - from) : ByteOffset(text.view().substr(begin), static_cast<size_t>(to - from));
    return Str(text.Slice(begin, length), object.str().markup);
  }
  std::vector<size_t> offsets;  // of each code point, and the end
  offsets.reserve(static_cast<size_t>(size) + 1);
  for (size_t pos = 0; pos < text.size();) {
    offsets.push_back(pos);
    NextCodePoint(text.view(), &pos);
  }
  offsets.push_back(text.size());
  Text out;
  for (Int i = from; by > 0 ? i < to : i > to; i += by) {
    const auto at = static_cast<size_t>(i);
    out.AppendSlice(text, offsets[at], offsets[at + 1] - offsets[at]);
  }
  return Str(std::move(out), object.str().markup);
}

// ---- iteration, length, printing

std::optional<std::vector<Value>> Runtime::Iterate(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      if (v.undefined().security) break;
      return std::vector<Value>();
    case Value::Kind::kSeq: {
      SeqObj& seq = v.seq();
      if (!Step(seq.items.size() / 4)) return std::nullopt;
      if (seq.kind != SeqObj::Kind::kGenerator) return seq.items;
      std::vector<Value> rest(seq.items.begin() + static_cast<std::ptrdiff_t>(seq.position), seq.items.end());
      seq.position = seq.items.size();
      return rest;
    }
    case Value::Kind::kDict: {
      std::vector<Value> keys;
      for (const auto& [key, value] : v.dict().items()) keys.push_back(key);
      if (!Step(keys.size() / 16)) return std::nullopt;
      return keys;
    }
    case Value::Kind::kStr: {
      const Text& text = v.text();
      if (!CheckItems(text.size() / 4)) return std::nullopt;
      std::vector<Value> chars;
      for (size_t pos = 0; pos < text.size();) {
        const size_t begin = pos;
        NextCodePoint(text.view(), &pos);
        chars.push_back(Str(text.Slice(begin, pos - begin)));
        if (!Step() || !CheckItems(chars.size())) return std::nullopt;
      }
      return chars;
    }
    default:
      break;
  }
  if (v.is_undefined()) {
    UndefinedError(v);
  } else {
    TypeError(QuotedType(v) + " object is not iterable");
  }
  return std::nullopt;
}

std::optional<size_t> Runtime::Length(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kStr:
      if (!Step(v.text().size() / 64)) return std::nullopt;
      return CountCodePoints(v.view());
    case Value::Kind::kSeq:
      if (v.seq().kind != SeqObj::Kind::kGenerator) return v.seq().items.size();
      break;
    case Value::Kind::kDict:
      return v.dict().items().size();
    case Value::Kind::kUndefined:
      if (v.undefined().security) {
        UndefinedError(v);
        return std::nullopt;
      }
      return 0;
    default:
      break;
  }
  TypeError("object of type " + QuotedType(v) + " has no len()");
  return std::nullopt;
}

void Runtime::AppendTo(const Value& v, Text* out) {
  if (v.is_str()) {
    out->Append(v.text());
  } else if (v.is_none()) {
    out->Append(none_text_, true);
  } else if (!v.is_undefined()) {
    ReprAt(v, 0, out);
  }
}

Text Runtime::ToText(const Value& v) {
  Text out;
  AppendTo(v, &out);
  return out;
}

void Runtime::AppendRepr(const Value& v, Text* out) { ReprAt(v, 0, out); }

Text Runtime::Repr(const Value& v) {
  Text out;
  ReprAt(v, 0, &out);
  return out;
}

void Runtime::ReprAt(const Value& v, uint32_t depth, Text* out) {
  if (!Step() || !CheckSize(out->size())) return;
  if (depth > limits_.max_value_depth) {
    LimitError("values are nested too deeply to be printed");
    return;
  }
  switch (v.kind()) {
    case Value::Kind::kNone:
      out->Append("None", true);
      return;
    case Value::Kind::kUndefined:
      out->Append("Undefined", true);
      return;
    case Value::Kind::kBool:
      out->Append(v.as_bool() ? "True" : "False", true);
      return;
    case Value::Kind::kInt:
      out->Append(IntToString(v.as_int()), true);
      return;
    case Value::Kind::kFloat:
      out->Append(FloatRepr(v.as_double()), true);
      return;
    case Value::Kind::kStr: {
      if (!Step(v.text().size() / 256)) return;
      std::string quoted;
      AppendQuoted(v.view(), &quoted);
      out->Append(v.str().markup ? "Markup(" + quoted + ")" : quoted, v.text().all_trusted());
      return;
    }
    case Value::Kind::kSeq: {
      const SeqObj& seq = v.seq();
      if (seq.kind == SeqObj::Kind::kGenerator) {
        out->Append("<generator object>", true);
        return;
      }
      if (seq.kind == SeqObj::Kind::kRange) {
        Int first = 0;
        Int step = 1;
        if (!seq.items.empty()) first = seq.items[0].as_int();
        if (seq.items.size() > 1) step = seq.items[1].as_int() - first;
        const Int end = first + step * static_cast<Int>(seq.items.size());
        out->Append("range(" + IntToString(first) + ", " + IntToString(end) + (step == 1 ? "" : ", " + IntToString(step)) + ")", true);
        return;
      }
      const bool tuple = seq.kind == SeqObj::Kind::kTuple;
      if (seq.kind == SeqObj::Kind::kView) out->Append(std::string(seq.name) + "(", true);
      out->Append(tuple ? "(" : "[", true);
      for (size_t i = 0; i < seq.items.size() && !failed_; ++i) {
        if (i > 0) out->Append(", ", true);
        ReprAt(seq.items[i], depth + 1, out);
      }
      if (tuple && seq.items.size() == 1) out->Append(",", true);
      out->Append(tuple ? ")" : "]", true);
      if (seq.kind == SeqObj::Kind::kView) out->Append(")", true);
      return;
    }
    case Value::Kind::kDict: {
      out->Append("{", true);
      bool first = true;
      for (const auto& [key, value] : v.dict().items()) {
        if (failed_) return;
        if (!first) out->Append(", ", true);
        first = false;
        ReprAt(key, depth + 1, out);
        out->Append(": ", true);
        ReprAt(value, depth + 1, out);
      }
      out->Append("}", true);
      return;
    }
    case Value::Kind::kObject: {
      const Object& o = v.object();
      switch (o.kind) {
        case Object::Kind::kNamespace: {
          out->Append("<Namespace {", true);
          bool first = true;
          for (const auto& [key, value] : o.ns.members) {
            if (failed_) return;
            out->Append(std::string(first ? "'" : ", '") + key + "': ", true);
            first = false;
            ReprAt(value, depth + 1, out);
          }
          out->Append("}>", true);
          return;
        }
        case Object::Kind::kMacro:
          out->Append("<Macro '" + o.name + "'>", true);
          return;
        case Object::Kind::kFunction:
          out->Append("<function " + o.name + ">", true);
          return;
        case Object::Kind::kMethod:
          out->Append("<built-in method " + o.name + " of " + TypeOf(o.self) + " object>", true);
          return;
        case Object::Kind::kLoop:
          out->Append("<LoopContext>", true);
          return;
      }
    }
  }
}

bool Runtime::WantStr(const Value& v, std::string_view who) {
  if (v.is_str()) return true;
  if (v.is_undefined()) {
    UndefinedError(v);
  } else {
    TypeError(std::string(who) + " needs a str, not " + TypeOf(v));
  }
  return false;
}

std::optional<int64_t> Runtime::WantInt(const Value& v, std::string_view who) {
  if (v.is_integral() && v.as_int() >= INT64_MIN && v.as_int() <= INT64_MAX) return static_cast<int64_t>(v.as_int());
  if (v.is_undefined()) {
    UndefinedError(v);
  } else {
    TypeError(std::string(who) + " needs an integer, not " + TypeOf(v));
  }
  return std::nullopt;
}

std::optional<std::vector<std::optional<Value>>> Runtime::Bind(std::string_view who, const Args& args,
                                                                std::initializer_list<std::string_view> names, size_t required) {
  std::vector<std::optional<Value>> out(names.size());
  if (args.positional.size() > names.size()) {
    TypeError(std::string(who) + "() takes at most " + std::to_string(names.size()) + " arguments (" + std::to_string(args.positional.size()) + " given)");
    return std::nullopt;
  }
  for (size_t i = 0; i < args.positional.size(); ++i) out[i] = args.positional[i];
  for (const auto& [key, value] : args.keyword) {
    const auto* const it = std::find(names.begin(), names.end(), std::string_view(key));
    if (it == names.end()) {
      TypeError(std::string(who) + "() got an unexpected keyword argument '" + key + "'");
      return std::nullopt;
    }
    auto& slot = out[static_cast<size_t>(it - names.begin())];
    if (slot) {
      TypeError(std::string(who) + "() got multiple values for argument '" + key + "'");
      return std::nullopt;
    }
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!out[i]) {
      TypeError(std::string(who) + "() misses its argument '" + std::string(names.begin()[i]) + "'");
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace holdfast::text::jinja

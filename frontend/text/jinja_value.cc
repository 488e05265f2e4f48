#include "frontend/text/jinja_value.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "frontend/text/jinja_number.h"

namespace holdfast::text::jinja {
namespace {

constexpr size_t kIndexFrom = 12;  // below, a scan over the keys is faster

void AddDepth(const Value& v, uint32_t* depth) { *depth = std::max(*depth, v.Depth() + 1); }

}  // namespace

bool Value::Truth() const {
  switch (kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return false;
    case Kind::kBool:
      return as_bool();
    case Kind::kInt:
      return as_int() != 0;
    case Kind::kFloat:
      return as_double() != 0;
    case Kind::kStr:
      return !text().empty();
    case Kind::kSeq:
      return seq().kind == SeqObj::Kind::kGenerator || !seq().items.empty();
    case Kind::kDict:
      return !dict().items().empty();
    case Kind::kObject:
      return true;
  }
  return false;
}

std::string_view Value::TypeName() const {
  switch (kind()) {
    case Kind::kNone:
      return "NoneType";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kStr:
      return str().markup ? "Markup" : "str";
    case Kind::kSeq:
      switch (seq().kind) {
        case SeqObj::Kind::kList:
          return "list";
        case SeqObj::Kind::kTuple:
          return "tuple";
        case SeqObj::Kind::kRange:
          return "range";
        default:
          return seq().name;
      }
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      switch (object().kind) {
        case Object::Kind::kNamespace:
          return "Namespace";
        case Object::Kind::kMacro:
          return "Macro";
        case Object::Kind::kFunction:
          return "function";
        case Object::Kind::kMethod:
          return "builtin_function_or_method";
        case Object::Kind::kLoop:
          return "LoopContext";
      }
  }
  return "object";
}

uint32_t Value::Depth() const {
  if (is_seq()) return seq().depth;
  if (is_dict()) return dict().depth;
  if (is_object() && object().kind == Object::Kind::kMethod) return object().self.Depth() + 1;
  return 0;  // namespaces and macros are adopted by their rendering; loops cannot be stored
}

SeqObj::SeqObj(Kind k, std::vector<Value> v, Meter* meter)
    : kind(k), items(std::move(v)), charge(meter, 96 + static_cast<int64_t>(items.size() * sizeof(Value))) {
  for (const Value& item : items) AddDepth(item, &depth);
}

const Value* DictObj::Find(const std::string& hash) const {
  if (!index_.empty()) {
    const auto it = index_.find(hash);
    return it == index_.end() ? nullptr : &items_[it->second].second;
  }
  const auto it = std::find(hashes_.begin(), hashes_.end(), hash);
  return it == hashes_.end() ? nullptr : &items_[static_cast<size_t>(it - hashes_.begin())].second;
}

void DictObj::Set(const std::string& hash, Value key, Value value) {
  AddDepth(value, &depth);
  if (const Value* old = Find(hash); old != nullptr) {
    *const_cast<Value*>(old) = std::move(value);  // a slot of items_
    return;
  }
  charge.Grow(static_cast<int64_t>(2 * hash.size() + 2 * sizeof(Value) + 64));
  items_.emplace_back(std::move(key), std::move(value));
  hashes_.push_back(hash);
  if (!index_.empty()) {
    index_.emplace(hash, items_.size() - 1);
  } else if (items_.size() > kIndexFrom) {
    for (size_t i = 0; i < hashes_.size(); ++i) index_.emplace(hashes_[i], i);
  }
}

bool DictObj::Erase(const std::string& hash) {
  const auto it = std::find(hashes_.begin(), hashes_.end(), hash);
  if (it == hashes_.end()) return false;
  items_.erase(items_.begin() + (it - hashes_.begin()));
  hashes_.erase(it);
  index_.clear();
  if (items_.size() > kIndexFrom) {
    for (size_t i = 0; i < hashes_.size(); ++i) index_.emplace(hashes_[i], i);
  }
  return true;
}

void DictObj::Clear() {
  items_.clear();
  hashes_.clear();
  index_.clear();
}

bool HashKey(const Value& key, std::string* hash, std::string_view* type) {
  switch (key.kind()) {
    case Value::Kind::kStr:
      hash->push_back('s');
      hash->append(std::to_string(key.text().size())).push_back(':');
      hash->append(key.view());
      return true;
    case Value::Kind::kNone:
      hash->push_back('0');
      return true;
    case Value::Kind::kUndefined:
      hash->push_back('u');
      return true;
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      hash->push_back('i');
      hash->append(IntToString(key.as_int())).push_back(';');
      return true;
    case Value::Kind::kFloat: {
      const double d = key.as_double();
      if (std::floor(d) == d && std::fabs(d) < 9e15) {
        hash->push_back('i');
        hash->append(IntToString(static_cast<Int>(d))).push_back(';');
      } else {
        hash->push_back('f');
        hash->append(std::to_string(std::bit_cast<uint64_t>(d))).push_back(';');
      }
      return true;
    }
    case Value::Kind::kSeq:
      if (key.seq().kind == SeqObj::Kind::kTuple) {
        hash->push_back('(');
        for (const Value& item : key.seq().items) {
          // Tuples of the same tuples grow without bound: no honest key is that long.
          if (hash->size() > (size_t{1} << 24)) *type = "tuple (too large)";
          if (hash->size() > (size_t{1} << 24) || !HashKey(item, hash, type)) return false;
        }
        hash->push_back(')');
        return true;
      }
      break;
    case Value::Kind::kObject:
      hash->push_back('o');
      hash->append(std::to_string(reinterpret_cast<uintptr_t>(&key.object()))).push_back(';');
      return true;
    case Value::Kind::kDict:
      break;
  }
  *type = key.TypeName();
  return false;
}

}  // namespace holdfast::text::jinja

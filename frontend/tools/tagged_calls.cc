#include "frontend/tools/tagged_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "frontend/tools/object_reader.h"

namespace holdfast::tools {

using text::JsonValue;

uint8_t TypeSet::Named(std::string_view type) {
  if (type == "null") return kNull;
  if (type == "boolean") return kBool;
  if (type == "integer") return kInteger;
  if (type == "number") return kInteger | kNumber;
  if (type == "string") return kString;
  if (type == "array") return kArray;
  if (type == "object") return kObject;
  return kAll;
}

uint8_t TypeSet::Read(const JsonValue& schema, const JsonValue& root, int depth, int* steps) {
  if (!schema.is_object() || depth > 16 || --*steps < 0) return kAll;
  uint8_t bits = kAll;
  if (const JsonValue* ref = schema.Find("$ref"); ref != nullptr && ref->is_string()) {
    const std::string& path = ref->AsString();
    const JsonValue* target = nullptr;
    for (const std::string_view folder : {"$defs", "definitions"}) {
      const std::string prefix = "#/" + std::string(folder) + "/";
      if (const JsonValue* all = root.Find(folder); all != nullptr && path.starts_with(prefix)) target = all->Find(path.substr(prefix.size()));
    }
    if (target != nullptr) bits &= Read(*target, root, depth + 1, steps);
  }
  if (const JsonValue* type = schema.Find("type"); type != nullptr) {
    uint8_t named = type->is_string() ? Named(type->AsString()) : 0;
    if (type->is_array()) {
      for (const JsonValue& t : type->AsArray()) named |= t.is_string() ? Named(t.AsString()) : 0;
    }
    if (const JsonValue* nullable = schema.Find("nullable"); nullable != nullptr && nullable->is_bool() && nullable->AsBool()) named |= kNull;
    if (named != 0) bits &= named;
  }
  const auto of = [](const JsonValue& v) -> uint8_t {
    switch (v.kind()) {
      case JsonValue::Kind::kNull: return kNull;
      case JsonValue::Kind::kBool: return kBool;
      case JsonValue::Kind::kInt:
      case JsonValue::Kind::kUint: return kInteger;
      case JsonValue::Kind::kDouble: return kNumber;
      case JsonValue::Kind::kString: return kString;
      case JsonValue::Kind::kArray: return kArray;
      case JsonValue::Kind::kObject: return kObject;
    }
    return kAll;
  };
  if (const JsonValue* values = schema.Find("enum"); values != nullptr && values->is_array()) {
    uint8_t any = 0;
    for (const JsonValue& v : values->AsArray()) any |= of(v);
    bits &= any;
  }
  if (const JsonValue* value = schema.Find("const"); value != nullptr) bits &= of(*value);
  for (const std::string_view key : {"anyOf", "oneOf"}) {
    const JsonValue* parts = schema.Find(key);
    if (parts == nullptr || !parts->is_array()) continue;
    uint8_t any = 0;
    for (const JsonValue& part : parts->AsArray()) any |= Read(part, root, depth + 1, steps);
    bits &= any;
  }
  return bits == 0 ? static_cast<uint8_t>(kAll) : bits;
}

TypeSet TypeSet::Of(const JsonValue* schema, const JsonValue& root) {
  TypeSet t;
  int steps = 1000;
  if (schema != nullptr) t.bits_ = Read(*schema, root, 0, &steps);
  return t;
}

bool TypeSet::Allows(const JsonValue& value) const {
  switch (value.kind()) {
    case JsonValue::Kind::kNull: return bits_ & kNull;
    case JsonValue::Kind::kBool: return bits_ & kBool;
    case JsonValue::Kind::kInt:
    case JsonValue::Kind::kUint: return bits_ & kInteger;
    case JsonValue::Kind::kDouble: return bits_ & (kNumber | kInteger);  // 2.0 is an integer, too
    case JsonValue::Kind::kString: return bits_ & kString;
    case JsonValue::Kind::kArray: return bits_ & kArray;
    case JsonValue::Kind::kObject: return bits_ & kObject;
  }
  return false;
}

void TaggedArguments::Begin(std::string_view key, std::string* out) {
  if (any_) out->push_back(',');
  any_ = true;
  std::string text;
  tags_->Expand(key, &text);
  out->push_back('"');
  AppendJsonEscaped(text, out);
  out->append("\":");
  const JsonValue* properties = schema_ != nullptr ? schema_->Find("properties") : nullptr;
  types_ = TypeSet::Of(properties != nullptr ? properties->Find(text) : nullptr, schema_ != nullptr ? *schema_ : JsonValue());
  streams_ = types_.OnlyStrings();
  if (streams_) out->push_back('"');
  at_start_ = true;
  held_.clear();
}

void TaggedArguments::Value(char c, std::string* out) {
  if (std::exchange(at_start_, false) && framed_ && c == '\n') return;
  if (!streams_ || (framed_ && c == '\n' && held_.empty())) {
    held_.push_back(c);
    return;
  }
  std::string text;
  tags_->Expand(std::exchange(held_, {}), &text);
  if (framed_ && c == '\n') {
    held_.assign(1, c);
  } else {
    tags_->Expand(std::string_view(&c, 1), &text);
  }
  AppendJsonEscaped(text, out);
}

void TaggedArguments::End(std::string* out) {
  if (framed_ && held_.ends_with('\n')) held_.pop_back();
  if (streams_) {
    out->push_back('"');
    return;
  }
  std::string text;
  tags_->Expand(held_, &text);
  held_.clear();
  const std::string_view trimmed = TrimBlanks(text);
  std::string_view json = trimmed;
  if (json == "True") json = "true";
  if (json == "False") json = "false";
  if (json == "None") json = "null";
  const auto parsed = text::ParseJson(json);
  // A JSON string is taken as one only where it is the way to tell a string from other types.
  if (parsed.ok() && types_.Allows(*parsed)) {
    out->append(json);
  } else {
    out->push_back('"');
    AppendJsonEscaped(text, out);
    out->push_back('"');
  }
}

namespace {

class TaggedReader final : public CallReader {
 public:
  TaggedReader(const Tags* tags, const TaggedSyntax* syntax, char opener, const ToolSet* tools, CallSink* sink)
      : tags_(tags), syntax_(*syntax), tools_(tools), sink_(sink),
        state_(syntax->function == kNoSymbol || opener == syntax->function ? State::kName : State::kBefore) {}

  Verdict Feed(char c) override {
    switch (state_) {
      case State::kBefore:
        if (IsBlank(c)) return Verdict::kMore;
        if (c != syntax_.function) return Verdict::kReject;
        state_ = State::kName;
        return Verdict::kMore;
      case State::kName: return Name(c);
      case State::kBetween: return Between(c);
      case State::kKey: return Key(c);
      case State::kBeforeValue:
        if (c == syntax_.value) {
          BeginValue();
        } else if (!IsBlank(c) && !begun_) {
          return Verdict::kReject;
        }
        return Verdict::kMore;
      case State::kValue:
        if (c == syntax_.value_close) {
          held_.assign(1, c);
          state_ = State::kMaybeEnd;
        } else {
          Value(c);
        }
        return Verdict::kMore;
      case State::kMaybeEnd: return MaybeEnd(c);
      case State::kAfter:
        if (IsBlank(c)) return Verdict::kMore;
        Complete();
        return c == syntax_.close ? Verdict::kEnd : Verdict::kEndBefore;
    }
    return Verdict::kReject;
  }

  bool Finish(bool cut) override {
    if (state_ == State::kAfter && !cut) Complete();
    return !begun_;
  }

 private:
  enum class State : uint8_t { kBefore, kName, kBetween, kKey, kBeforeValue, kValue, kMaybeEnd, kAfter };

  Verdict Name(char c) {
    const bool ends = c == syntax_.name_end || (syntax_.name_end == '\n' && (c == syntax_.key || c == syntax_.close));
    if (!ends) {
      if (Tags::IsSymbol(c) || text_.size() > kMaxNameBytes) return Verdict::kReject;
      // A line end may stand before the name, not inside it.
      if (!IsBlank(c) || !text_.empty()) text_.push_back(c);
      return Verdict::kMore;
    }
    if (c == '\n' && text_.empty()) return Verdict::kMore;
    tool_ = tools_->Find(TrimBlanks(text_));
    text_.clear();
    if (tool_ == nullptr) return Verdict::kReject;
    arguments_.emplace(tags_, &tool_->parameters, syntax_.framed);
    state_ = State::kBetween;
    return Tags::IsSymbol(c) ? Between(c) : Verdict::kMore;
  }

  Verdict Between(char c) {
    if (IsBlank(c)) return Verdict::kMore;
    if (c == syntax_.key) {
      text_.clear();
      state_ = State::kKey;
      return Verdict::kMore;
    }
    if (c == syntax_.close || (syntax_.function_close != kNoSymbol && c == syntax_.function_close)) {
      BeginCall();
      state_ = State::kAfter;
      if (c != syntax_.close) return Verdict::kMore;
      Complete();
      return Verdict::kEnd;
    }
    return Verdict::kReject;
  }

  Verdict Key(char c) {
    if (c != syntax_.key_close) {
      if (!begun_ && (Tags::IsSymbol(c) || text_.size() > kMaxNameBytes)) return Verdict::kReject;
      text_.push_back(c);
      return Verdict::kMore;
    }
    if (syntax_.value == kNoSymbol) {
      BeginValue();
    } else {
      state_ = State::kBeforeValue;
    }
    return Verdict::kMore;
  }

  void BeginCall() {
    if (begun_) return;
    begun_ = true;
    sink_->BeginCall(tool_->name);
    sink_->Arguments("{");
  }

  void BeginValue() {
    BeginCall();
    std::string fragment;
    arguments_->Begin(TrimBlanks(text_), &fragment);
    sink_->Arguments(fragment);
    text_.clear();
    state_ = State::kValue;
  }

  void Value(char c) {
    std::string fragment;
    arguments_->Value(c, &fragment);
    sink_->Arguments(fragment);
  }

  void EndValue() {
    std::string fragment;
    arguments_->End(&fragment);
    sink_->Arguments(fragment);
    held_.clear();
  }

  Verdict MaybeEnd(char c) {
    if (IsBlank(c)) {
      held_.push_back(c);
      return Verdict::kMore;
    }
    if (c == syntax_.key || c == syntax_.close || (syntax_.function_close != kNoSymbol && c == syntax_.function_close)) {
      EndValue();
      state_ = State::kBetween;
      return Between(c);
    }
    for (const char h : std::exchange(held_, {})) Value(h);
    state_ = State::kValue;
    return Feed(c);
  }

  void Complete() {
    sink_->Arguments("}");
    sink_->EndCall();
  }

  const Tags* tags_;
  const TaggedSyntax& syntax_;
  const ToolSet* tools_;
  CallSink* sink_;
  State state_;
  std::string text_;            // the name or the key that is read
  std::string held_;            // a closing tag that may be text, and the blanks behind it
  const Tool* tool_ = nullptr;
  std::optional<TaggedArguments> arguments_;
  bool begun_ = false;
};

}  // namespace

TaggedCalls::TaggedCalls(const Tags* tags, const TaggedSyntax& syntax, std::string_view name)
    : tags_(*tags), syntax_(syntax), name_(name),
      openers_(syntax.function == kNoSymbol ? std::string(1, syntax.open) : std::string{syntax.open, syntax.function}) {}

std::unique_ptr<CallReader> TaggedCalls::NewReader(char opener, const ToolSet& tools, CallSink* sink) const {
  return std::make_unique<TaggedReader>(&tags_, &syntax_, opener, &tools, sink);
}

}  // namespace holdfast::tools

#include "frontend/tools/json_call.h"

#include <cstdlib>
#include <utility>

#include "frontend/text/utf8.h"

namespace holdfast::tools {

void StringDecoder::Unit(unsigned unit, std::string* text) {
  if (unit >= 0xDC00 && unit <= 0xDFFF && high_ != 0) {
    text::AppendUtf8(0x10000 + ((high_ - 0xD800) << 10) + (unit - 0xDC00), text);
    high_ = 0;
    return;
  }
  if (high_ != 0) text->append(text::kReplacementUtf8);
  high_ = 0;
  if (unit >= 0xD800 && unit <= 0xDBFF) {
    high_ = unit;
  } else if (unit >= 0xDC00 && unit <= 0xDFFF) {
    text->append(text::kReplacementUtf8);
  } else {
    text::AppendUtf8(unit, text);
  }
}

bool StringDecoder::Feed(char c, std::string* text) {
  if (escape_.empty()) {
    if (c == '\\') {
      escape_ = "\\";
      return false;
    }
    if (high_ != 0) text->append(text::kReplacementUtf8);
    high_ = 0;
    if (c == '"') return true;
    text->push_back(c);
    return false;
  }
  if (escape_.size() == 1 && c != 'u') {
    escape_.clear();
    if (high_ != 0) text->append(text::kReplacementUtf8);
    high_ = 0;
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    const size_t at = kNames.find(c);
    if (at == std::string_view::npos) {
      text->push_back('\\');
      text->push_back(c);
    } else {
      text->push_back(kValues[at]);
    }
    return false;
  }
  const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  if (escape_.size() > 1 && !hex) {
    if (high_ != 0) text->append(text::kReplacementUtf8);
    high_ = 0;
    text->append(std::exchange(escape_, {}));
    return Feed(c, text);
  }
  escape_.push_back(c);
  if (escape_.size() == 6) Unit(static_cast<unsigned>(std::strtoul(std::exchange(escape_, {}).c_str() + 2, nullptr, 16)), text);
  return false;
}

JsonCall::JsonCall(const Tags* tags, char end, const ToolSet* tools, CallSink* sink)
    : tags_(tags), end_(end), tools_(tools), sink_(sink), arguments_(ObjectReader::Style::kJson, tags, kNoSymbol, nullptr) {}

void JsonCall::Write() {
  if (!has_name_ || !object_open_) return;
  if (!begun_) {
    begun_ = true;
    sink_->BeginCall(name_);
  }
  sink_->Arguments(std::exchange(pending_, {}));
}

void JsonCall::Complete() {
  sink_->Arguments("}");
  sink_->EndCall();
}

JsonCall::Result JsonCall::Feed(char c) {
  switch (state_) {
    case State::kKey: return Key(c);
    case State::kKeyString:
      if (decoder_.Feed(c, &text_)) {
        key_ = std::exchange(text_, {});
        state_ = State::kColon;
        constexpr std::string_view kKnown[] = {"name", "arguments", "parameters", "id", "type"};
        bool known = false;
        for (const std::string_view k : kKnown) known = known || key_ == k;
        // An object that begins with another key is an answer in JSON, not a call.
        if (!known && !has_keys_) return Result::kReject;
        has_keys_ = true;
        unknown_key_ = unknown_key_ || !known;
      }
      return Result::kMore;
    case State::kColon:
      if (IsBlank(c)) return Result::kMore;
      if (c == ':') {
        state_ = State::kValue;
        return Result::kMore;
      }
      return begun_ && object_done_ ? Result::kDoneBefore : Result::kReject;
    case State::kValue: return Value(c);
    case State::kName:
      if (decoder_.Feed(c, &text_)) {
        tags_->Expand(std::exchange(text_, {}), &name_);
        if (tools_->Find(name_) == nullptr) return Result::kReject;
        has_name_ = true;
        state_ = State::kAfter;
        Write();
      }
      return Result::kMore;
    case State::kObject: return Object(c);
    case State::kString: return String(c);
    case State::kSkip: return Skip(c);
    case State::kAfter: return After(c);
  }
  return Result::kReject;
}

JsonCall::Result JsonCall::Key(char c) {
  if (IsBlank(c) || c == ',') return Result::kMore;
  if (c == '"') {
    text_.clear();
    state_ = State::kKeyString;
    return Result::kMore;
  }
  if (c == '}') return End();
  return begun_ ? Result::kDoneBefore : Result::kReject;
}

JsonCall::Result JsonCall::Value(char c) {
  if (IsBlank(c)) return Result::kMore;
  const bool arguments = key_ == "arguments" || key_ == "parameters";
  if (key_ == "name" && !has_name_) {
    if (c != '"') return Result::kReject;
    text_.clear();
    state_ = State::kName;
    return Result::kMore;
  }
  if (arguments && !has_arguments_) {
    has_arguments_ = true;
    if (c == '{') {
      arguments_.Begin(c, &pending_);
      object_open_ = true;
      state_ = State::kObject;
      Write();
      return Result::kMore;
    }
    if (c == '"') {
      state_ = State::kString;
      return Result::kMore;
    }
    if (c != 'n') return Result::kReject;
    pending_ = "{";
    object_open_ = object_done_ = true;
  }
  skip_depth_ = 0;
  skip_string_ = skip_escape_ = false;
  state_ = State::kSkip;
  return Skip(c);
}

JsonCall::Result JsonCall::Object(char c) {
  if (c == end_ && c != kNoSymbol && arguments_.Close(&pending_)) {
    object_done_ = true;
    Write();
    return begun_ ? Result::kDoneBefore : Result::kReject;
  }
  if (arguments_.Feed(c, &pending_)) {
    object_done_ = true;
    state_ = State::kAfter;
  }
  Write();
  return Result::kMore;
}

// The object inside a JSON string.
JsonCall::Result JsonCall::String(char c) {
  text_.clear();
  const bool closed = decoder_.Feed(c, &text_);
  for (const char t : std::exchange(text_, {})) {
    if (object_done_) continue;
    if (object_open_) {
      object_done_ = arguments_.Feed(t, &pending_);
    } else if (t == '{') {
      arguments_.Begin(t, &pending_);
      object_open_ = true;
    } else if (!IsBlank(t)) {
      return Result::kReject;
    }
  }
  if (closed) {
    if (!object_open_) {
      pending_ = "{";
      object_open_ = true;
    } else if (!object_done_) {
      arguments_.ForceClose(&pending_);
    }
    object_done_ = true;
    state_ = State::kAfter;
  }
  Write();
  return Result::kMore;
}

JsonCall::Result JsonCall::Skip(char c) {
  if (skip_string_) {
    if (skip_escape_) {
      skip_escape_ = false;
    } else if (c == '\\') {
      skip_escape_ = true;
    } else if (c == '"') {
      skip_string_ = false;
    }
    return Result::kMore;
  }
  if (skip_depth_ == 0 && (c == ',' || c == '}' || c == ']' || Tags::IsSymbol(c))) {
    state_ = State::kAfter;
    return After(c);
  }
  if (c == '"') skip_string_ = true;
  if (c == '{' || c == '[') ++skip_depth_;
  if (c == '}' || c == ']') --skip_depth_;
  return Result::kMore;
}

JsonCall::Result JsonCall::After(char c) {
  if (IsBlank(c)) return Result::kMore;
  if (c == ',') {
    state_ = State::kKey;
    return Result::kMore;
  }
  if (c == '}') return End();
  return begun_ ? Result::kDoneBefore : Result::kReject;
}

JsonCall::Result JsonCall::End() {
  if (!has_name_ || (!has_arguments_ && unknown_key_)) return Result::kReject;
  if (!object_open_) {
    pending_ = "{";
    object_open_ = object_done_ = true;
  }
  Write();
  return Result::kDone;
}

}  // namespace holdfast::tools

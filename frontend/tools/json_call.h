#pragma once
// One call written as a JSON object: {"name": NAME, "arguments": {...}}, the keys in any order, "parameters" for "arguments", the arguments
// also as a JSON string that holds the object, or null or absent for none. Other keys ("id", "type", ...) are passed over.
//
// A call begins when its name is a known tool's and its arguments have begun as an object; until then anything may turn out to be text.
#include <string>
#include <string_view>

#include "frontend/tools/call_reader.h"
#include "frontend/tools/object_reader.h"

namespace holdfast::tools {

// The characters of a JSON string behind its first quote, as UTF-8 text; broken escapes are taken as text.
class StringDecoder final {
 public:
  // True: c was the closing quote. Appends the text that c completes; symbols pass as they are.
  bool Feed(char c, std::string* text);

 private:
  void Unit(unsigned unit, std::string* text);
  std::string escape_;
  unsigned high_ = 0;
};

class JsonCall final {
 public:
  enum class Result : uint8_t { kMore, kDone, kDoneBefore, kReject };
  // `end`: the symbol that ends a call from outside, or kNoSymbol. Everything outlives the reader.
  JsonCall(const Tags* tags, char end, const ToolSet* tools, CallSink* sink);

  // Symbols behind the opening brace. kDone: c closed the object; kDoneBefore: the call was over before c. Both only for a call that has
  // begun; the last brace of the arguments and EndCall are left to Complete.
  Result Feed(char c);
  void Complete();
  bool begun() const { return begun_; }

 private:
  enum class State : uint8_t { kKey, kKeyString, kColon, kValue, kName, kObject, kString, kSkip, kAfter };
  Result Key(char c);
  Result Value(char c);
  Result Object(char c);
  Result String(char c);
  Result Skip(char c);
  Result After(char c);
  Result End();
  void Write();                 // gives out what is certain

  const Tags* tags_;
  const char end_;
  const ToolSet* tools_;
  CallSink* sink_;
  State state_ = State::kKey;
  StringDecoder decoder_;
  ObjectReader arguments_;
  std::string text_;            // the string that is read
  std::string key_, name_;
  bool has_name_ = false, has_arguments_ = false, has_keys_ = false, unknown_key_ = false;
  bool object_open_ = false, object_done_ = false;
  bool begun_ = false;
  std::string pending_;         // arguments not given out yet
  uint32_t skip_depth_ = 0;
  bool skip_string_ = false, skip_escape_ = false;
};

}  // namespace holdfast::tools

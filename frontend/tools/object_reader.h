#pragma once
// The arguments of a call as they come, rewritten as one JSON object. Total: whatever is fed, what comes out is the beginning of a valid
// object, and it only grows. Well-formed input is followed exactly; for the rest there is a fixed list of repairs (README.md):
// control characters and broken escapes in strings, single quotes, bare words as strings, Python's True/False/None, missing or doubled
// commas, bare keys, keys without a value, brackets closed in the wrong order or not at all.
//
// The last brace is not written: the caller writes it when the call is certain to be complete, so that arguments that were cut off never
// look whole.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/json_value.h"
#include "frontend/tools/tags.h"

namespace holdfast::tools {

// Appends s as the inside of a JSON string. `s` is UTF-8; symbols are written out when `tags` is given.
void AppendJsonEscaped(std::string_view s, std::string* out);

// A JSON number that a double can hold.
bool IsJsonNumber(std::string_view s);

class ObjectReader final {
 public:
  enum class Style : uint8_t {
    kJson,    // RFC 8259; blanks are kept
    kGemma4,  // strings between quote symbols, bare keys; blanks outside of strings are dropped
  };

  // `schema` (may be null pointer) names the keys that may be separated by '='; kGemma4 only. All must outlive the reader.
  ObjectReader(Style style, const Tags* tags, char quote, const text::JsonValue* schema);

  // The opening bracket was read: '{', or '(' for a call written as in Python.
  void Begin(char bracket, std::string* out);
  // Appends what is certain. True when the object is closed: nothing more may be fed.
  bool Feed(char c, std::string* out);
  // The text ends here although the object is open: closes it, all but the last brace. False inside a JSON string, where an end tag is
  // text of the string; then nothing has happened.
  bool Close(std::string* out);
  // As Close, also out of a string.
  void ForceClose(std::string* out);

 private:
  enum class State : uint8_t { kKey, kBareKey, kColon, kValue, kBareValue, kString, kMaybeClosed, kRawString, kAfterValue };
  struct Level {
    char open;          // '{', '(' or '['
    bool any = false;   // has an element
  };

  bool InObject() const { return levels_.back().open != '['; }
  void StartElement(std::string* out);      // comma and blanks before a key, or before a value of an array
  void WriteBlanks(std::string* out);
  void StartKey(char c, std::string* out);
  void StartValue(char c, std::string* out);
  void BareKey(char c, std::string* out);
  void EndBareKey(std::string* out);
  void Colon(char c, std::string* out);
  void EndBareValue(std::string* out);
  void BareValue(char c, std::string* out);
  void String(char c, std::string* out);
  void Escape(char c, std::string* out);
  void FlushEscape(std::string* out);
  void EndString(std::string* out);
  void StringText(char c, std::string* out);
  void MaybeClosed(char c, std::string* out);
  void RawString(char c, std::string* out);
  void AfterValue(char c, std::string* out);
  void AfterElement() { state_ = State::kAfterValue; }
  void CloseBracket(char c, std::string* out);
  bool IsCloser(char c) const { return c == '}' || c == ']' || (c == ')' && !levels_.empty() && levels_.front().open == '('); }
  bool IsKnownKey(std::string_view key) const;

  Style style_;
  const Tags* tags_;
  char quote_;
  const text::JsonValue* schema_;
  State state_ = State::kKey;
  std::vector<Level> levels_;
  bool done_ = false;
  std::string blanks_;          // kJson: blanks since the last token, with the comma where it stood
  bool comma_ = false;
  bool string_is_key_ = false;
  char string_quote_ = '"';
  bool strict_string_ = true;   // an inner quote ends it; else only one that is followed by what may follow a string
  std::string held_;            // a bare word; or, in strings, what may be their end
  std::string escape_;          // an escape that is not complete
  std::string high_;            // the escape of a high surrogate that waits for its other half
};

}  // namespace holdfast::tools

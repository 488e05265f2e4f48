#pragma once
// Calls whose arguments are written one by one between tags: Qwen3-Coder's <function=NAME><parameter=KEY>VALUE</parameter></function> and
// GLM's NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>. The values are raw text; the tool's schema decides whether a value is a
// string or JSON.
//
// A value may contain its own closing tag: the real one is the first that is followed by what may follow a value.
#include <memory>
#include <string>
#include <string_view>

#include "frontend/tools/answer_parser.h"
#include "frontend/tools/tags.h"

namespace holdfast::tools {

// The symbols of such a format. kNoSymbol where it has none.
struct TaggedSyntax {
  char open, close;                          // the section, with one call
  char function = kNoSymbol;                 // before the name
  char function_close = kNoSymbol;
  char name_end = '>';                       // ends the name: '>' or '\n'
  char key, key_close;                       // key_close: '>' or a symbol
  char value = kNoSymbol;                    // before a value
  char value_close;
  bool framed = false;                       // one line end before and behind a value is not part of it
};

// Which JSON types a schema allows, as far as it says.
class TypeSet final {
 public:
  // `root` resolves local references. A null pointer, an unreadable schema and one with too many references to follow allow everything.
  static TypeSet Of(const text::JsonValue* schema, const text::JsonValue& root);
  bool Allows(const text::JsonValue& value) const;
  bool OnlyStrings() const { return bits_ == kString; }

 private:
  enum Bits : uint8_t { kNull = 1, kBool = 2, kInteger = 4, kNumber = 8, kString = 16, kArray = 32, kObject = 64, kAll = 127 };
  static uint8_t Named(std::string_view type);
  static uint8_t Read(const text::JsonValue& schema, const text::JsonValue& root, int depth, int* steps);
  uint8_t bits_ = kAll;
};

// The arguments object, argument by argument.
class TaggedArguments final {
 public:
  TaggedArguments(const Tags* tags, const text::JsonValue* schema, bool framed) : tags_(tags), schema_(schema), framed_(framed) {}
  void Begin(std::string_view key, std::string* out);
  void Value(char c, std::string* out);
  void End(std::string* out);

 private:
  const Tags* tags_;
  const text::JsonValue* schema_;
  const bool framed_;
  bool any_ = false, at_start_ = false, streams_ = false;
  TypeSet types_;
  std::string held_;            // the whole value, or a line end that may be its frame
};

class TaggedCalls : public CallSyntax {
 public:
  TaggedCalls(const Tags* tags, const TaggedSyntax& syntax, std::string_view name);
  bool Opens(char c, bool) const override { return c == syntax_.open || (syntax_.function != kNoSymbol && c == syntax_.function); }
  std::string_view openers() const override { return openers_; }
  std::unique_ptr<CallReader> NewReader(char opener, const ToolSet& tools, CallSink* sink) const override;
  absl::StatusOr<grammar::Node> CallsGrammar(grammar::Builder& builder, std::span<const CallableTool> tools, bool parallel) const override;

 private:
  grammar::Node Argument(grammar::Builder& builder, grammar::Node key, grammar::Node value) const;
  grammar::Node AnyText(grammar::Builder& builder) const;
  absl::StatusOr<grammar::Node> Value(grammar::Builder& builder, const text::JsonValue& schema, const text::JsonValue& root,
                                      const std::string& path) const;
  absl::StatusOr<grammar::Node> Arguments(grammar::Builder& builder, const CallableTool& tool) const;

  const Tags& tags_;
  const TaggedSyntax syntax_;
  const std::string name_, openers_;
};

}  // namespace holdfast::tools

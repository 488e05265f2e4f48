#pragma once
// Builds the grammar of an answer: which bytes and which special tokens may follow each other. JSON Schemas, regular expressions and tool
// formats are all spelled with it, and Build turns the result into the byte-level pushdown automaton that the workers run
// (proto::Constraint; its format and its matcher are described in worker/constrain/README.md).
//
// A grammar speaks of bytes, never of ordinary tokens: every way to cut the allowed text into tokens is allowed. Special tokens (markers
// and other hidden tokens of the vocabulary) are symbols of their own and occur only where Special() names them. The end of the answer is
// the end of the root: stop tokens are allowed there and nowhere else.
//
// One thread. Nodes belong to the builder that made them. Building is bounded: a grammar beyond the limits ends as kInvalidArgument from
// Build, with what was too large; until then every call is total (a node made after a failure is harmless).
#include <absl/status/statusor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/text/json_value.h"
#include "proto/base/ids.h"

namespace holdfast::proto {
class Constraint;
}

namespace holdfast::grammar {

struct Node {
  uint32_t id = 0;
};

struct BuilderLimits {
  uint32_t max_nodes = 200'000;
  uint32_t max_states = 400'000;       // of all automata together
  uint32_t max_program_bytes = 8 << 20;
  uint32_t max_depth = 512;            // of nodes within nodes, declared rules aside
  uint64_t max_work = 60'000'000;      // elementary steps of Build, about a second
  uint64_t max_schema_work = 20'000'000;   // of combining schemas and bounding patterns, before Build
};

// How a value that a schema describes is spelled.
enum class ValueStyle : uint8_t {
  kJson,       // RFC 8259, no blanks but those of JsonStyle
  kGemma4,     // strings between the quote markers, raw; bare keys; numbers, booleans and null as in JSON
};

struct SchemaStyle {
  ValueStyle style = ValueStyle::kJson;
  TokenId quote = 0;                   // kGemma4: the id of <|"|>
  bool any_whitespace = false;         // kJson: a bounded run of blanks and newlines where RFC 8259 has ws; else one blank after , and :
  bool no_close_tags = false;          // kJson: "</" stands in no string, so that no tag seems to end there: JSON has "<\/" for it
};

class Builder final {
 public:
  explicit Builder(BuilderLimits limits = {});
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  Node Empty();                                              // the empty text
  Node Never();                                              // nothing at all
  Node Literal(std::string_view bytes);
  Node Special(TokenId id);                                  // exactly this special token
  Node CodePoints(std::span<const std::pair<uint32_t, uint32_t>> ranges, bool negated = false);   // one character, as UTF-8
  Node Seq(std::span<const Node> parts);
  Node Seq(std::initializer_list<Node> parts) { return Seq(std::span<const Node>(parts.begin(), parts.size())); }
  Node Choice(std::span<const Node> parts);
  Node Choice(std::initializer_list<Node> parts) { return Choice(std::span<const Node>(parts.begin(), parts.size())); }
  Node Optional(Node part);
  Node Repeat(Node part, uint32_t min, uint32_t max);        // max kNoLimit: any number
  static constexpr uint32_t kNoLimit = UINT32_MAX;
  // Any valid UTF-8 text, also the empty one, in which none of these strings occurs.
  Node TextWithout(std::span<const std::string> forbidden);

  // A small automaton: the labels along any path from state 0 to a final state, one behind the other. States are 0 to states - 1.
  struct Edge {
    uint32_t from = 0;
    Node label;
    uint32_t to = 0;
  };
  Node Graph(uint32_t states, std::span<const Edge> edges, std::span<const uint32_t> finals);

  // Recursion: a name first, its meaning later. A rule that is never defined, or that begins with itself, fails Build.
  Node Declare(std::string_view name);
  void Define(Node declared, Node meaning);

  // A value of this JSON Schema (draft 2020-12 as tools use it: type, enum, const, properties, required, additionalProperties,
  // patternProperties where it can be had, items, prefixItems, min/maxItems, min/maxLength, pattern, format where it is known, bounds of
  // numbers, anyOf, oneOf, allOf where it can be merged, $ref and $defs, nullable; README.md has the list). kInvalidArgument names the path
  // and the keyword that cannot be enforced: nothing is ignored but annotations (title, description, default, examples, $schema, $id,
  // $comment, deprecated, readOnly, writeOnly, x-*, formats that are not known). `path` is how messages call the schema, as
  // "tools[0].function.parameters".
  absl::StatusOr<Node> Schema(const text::JsonValue& schema, const SchemaStyle& style, std::string_view path);
  // Any JSON object, any JSON value.
  Node AnyObject(const SchemaStyle& style);
  Node AnyValue(const SchemaStyle& style);
  // The whole text matches this regular expression (ECMA-262's regular part: no backreferences, no look-around). `without`: a character that
  // shall not occur, 0 for none.
  absl::StatusOr<Node> Regex(std::string_view pattern, std::string_view path, char without = 0);

  absl::StatusOr<proto::Constraint> Build(Node root);

  // What failed so far, OK if nothing did; Build will say the same.
  const absl::Status& status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::grammar

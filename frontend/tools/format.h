#pragma once
// How one family of models writes thoughts and tool calls: how its output is read, and the grammar that makes it write a valid call.
// One file a format; Detect chooses from the chat template, --tool-call-parser and --reasoning-parser override.
//
// Reading is incremental and never fails: what is no well-formed call is content. The events of a text depend on the text and its markers
// alone, not on how it was cut into pieces (neighbouring fragments of one kind joined), so a resumed stream says the same as an undisturbed one.
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/grammar/builder.h"
#include "frontend/text/json_value.h"
#include "frontend/text/vocabulary.h"

namespace holdfast::tools {

// A tool as the request offers it.
struct Tool {
  std::string name;
  text::JsonValue parameters;          // its JSON Schema; null when it declared none
  bool strict = false;
};

// What may be called. kAuto: text or calls, kNone: no calls, kRequired: at least one call.
enum class Mode : uint8_t { kNone, kAuto, kRequired };

struct CallPolicy {
  Mode mode = Mode::kAuto;
  std::vector<std::string> allowed;    // names; empty: every tool
  bool parallel = true;                // false: at most one call
};

// A part of an answer. Calls do not interleave: kCallBegin (text: the whole name), kArguments (text: a fragment of the arguments' JSON
// text; all fragments together are one JSON object), kCallEnd. A call without kCallEnd was cut off.
struct OutputEvent {
  enum class Kind : uint8_t { kContent, kReasoning, kCallBegin, kArguments, kCallEnd };
  Kind kind = Kind::kContent;
  std::string text;
  bool operator==(const OutputEvent&) const = default;
};

// Whole characters of output text (id is kNoToken then), or one marker: a special token that the format asked for, with its text.
struct Piece {
  std::string_view text;
  TokenId marker = text::kNoToken;
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Appends what is certain now.
  virtual void Push(const Piece& piece, std::vector<OutputEvent>* out) = 0;
  // The output ended (`cut`: by max_tokens, not by the model): what was held back is released.
  virtual void Finish(bool cut, std::vector<OutputEvent>* out) = 0;
  // The model has completed a call and writes no more of them under this policy (parallel false): generation may stop.
  virtual bool complete() const = 0;
};

struct ParserOptions {
  std::span<const Tool> tools;         // must outlive the parser; empty: markers of calls are content
  CallPolicy policy;
  bool separate_reasoning = true;      // false: thoughts stay in the content as they were written
  std::string_view prompt_tail;        // the prompt's text behind the last message: a thought may be open there
};

class Format {
 public:
  virtual ~Format() = default;
  virtual std::string_view name() const = 0;                       // "gemma4", "hermes", ...
  // Ids that must reach the parser as markers (of the vocabulary the format was made for).
  virtual std::span<const TokenId> markers() const = 0;
  virtual std::unique_ptr<OutputParser> NewParser(const ParserOptions& options) const = 0;
  // The grammar of a whole answer under the policy: with kRequired, calls and nothing but calls (behind a thought that the prompt left
  // open); with kAuto, text in which every call that is begun is a valid one (strict tools by their schema, others as any object). All
  // arguments follow the tool's schema. kInvalidArgument when a schema cannot be enforced, with its path.
  virtual absl::StatusOr<grammar::Node> Grammar(grammar::Builder& builder, std::span<const Tool> tools, const CallPolicy& policy,
                                                std::string_view prompt_tail) const = 0;
  // Puts a thought that the prompt left open, or may begin, before `answer` (response_format on a thinking model).
  virtual grammar::Node WithReasoning(grammar::Builder& builder, grammar::Node answer, std::string_view prompt_tail) const = 0;
};

// The names Create knows, for messages and --help.
std::span<const std::string_view> FormatNames();
// "" when the template writes no format that is known.
std::string_view DetectTools(std::string_view chat_template, const text::Vocabulary& vocabulary);
std::string_view DetectReasoning(std::string_view chat_template, const text::Vocabulary& vocabulary);
// A tool format with a reasoning format ("" for neither). kInvalidArgument lists the names. Immutable, any thread; the vocabulary outlives it.
absl::StatusOr<std::shared_ptr<const Format>> CreateFormat(std::string_view tools, std::string_view reasoning, const text::Vocabulary& vocabulary);

}  // namespace holdfast::tools

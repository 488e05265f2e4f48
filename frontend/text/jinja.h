#pragma once
// A sandboxed interpreter for chat templates: the part of jinja2 3.1 that such templates use, with the settings Hugging Face renders them
// with (trim_blocks, lstrip_blocks, loop controls, {% generation %}). The output remembers which bytes came from the template and which
// from the request. The template itself is untrusted too: parsing and rendering are bounded by Limits, and there is nothing of the host
// to reach. A parsed template is immutable: any number of threads may render it at once.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/text/jinja_text.h"
#include "frontend/text/json_value.h"

namespace holdfast::text::jinja {

struct Limits {
  // Parsing
  size_t max_source_bytes = 1 << 20;
  size_t max_nodes = 100'000;
  uint32_t max_nesting = 200;           // of statements and of expressions
  // Rendering
  uint64_t max_steps = 20'000'000;      // evaluated nodes, visited items, text moved; a loop's round counts four
  uint32_t max_call_depth = 64;         // macros, callers, recursive loops
  uint32_t max_eval_depth = 1500;       // nested evaluations: bounds the native stack
  uint32_t max_value_depth = 200;       // containers in containers
  size_t max_output_bytes = 64 << 20;
  size_t max_string_bytes = 64 << 20;
  size_t max_list_items = 1 << 20;
  int64_t max_live_bytes = int64_t{512} << 20;  // held by values at one time
};

// Why a rendering stopped.
struct RenderError {
  enum class Kind : uint8_t {
    kRaised,       // raise_exception: message is the template's own
    kUndefined,    // an undefined value was used
    kType,         // an operation its values do not allow
    kSecurity,     // something the sandbox hides
    kLimit,        // a limit was reached
    kUnsupported,  // a filter, test or method that is not there
  };
  Kind kind = Kind::kType;
  std::string message;      // what Python's jinja2 would say, without a position
  uint32_t line = 0;        // 1-based, in the template
  uint32_t column = 0;      // 1-based, in bytes
};

// Where in the output things of the request ended up; offsets are bytes of the text.
struct MessageMark {
  uint32_t index;           // of the message
  size_t begin, end;        // what the round of the loop over the messages wrote for it
};

struct Variable {
  std::string name;
  JsonValue json;
  bool trusted = false;     // a string of ours (a special token's text), not of the request
  bool is_messages = false; // its items are what MessageMark counts
};

struct RenderOptions {
  std::vector<Variable> variables;
  int64_t now = 0;                    // Unix seconds, for strftime_now (local time zone)
  std::string_view none_text = "None";  // how None prints at the top level of an output
  Limits limits;
};

struct RenderOutput {
  Text text;
  std::vector<MessageMark> marks;     // in the order of the output; only rounds that wrote something
  int64_t generation_offset = -1;     // size of the output when add_generation_prompt was last looked at, -1: never
};

struct TemplateNode;

class Template {
 public:
  // kInvalidArgument "NAME:ROW:COLUMN: what is wrong" when it cannot be parsed.
  static absl::StatusOr<Template> Parse(std::string_view source, std::string_view name, const Limits& limits = {});

  // False: *error says why.
  bool Render(const RenderOptions& options, RenderOutput* output, RenderError* error) const;
  // The same with kInvalidArgument: the template's own words when it raised, else "NAME:ROW:COLUMN: message".
  absl::StatusOr<RenderOutput> Render(const RenderOptions& options) const;

  const std::string& name() const;
  // True when the template mentions the variable.
  bool Mentions(std::string_view variable) const;

 private:
  explicit Template(std::shared_ptr<const TemplateNode> root) : root_(std::move(root)) {}
  std::shared_ptr<const TemplateNode> root_;
};

absl::Status ToStatus(const RenderError& error, std::string_view template_name);

}  // namespace holdfast::text::jinja

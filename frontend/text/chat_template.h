#pragma once
// A model's chat template, ready to make prompts: normalises OpenAI messages to what templates expect, renders, and says where in the text
// a later prompt of the same conversation will cut it. Immutable after Create; any number of threads may Render at once.
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/jinja.h"
#include "frontend/text/json_value.h"

namespace holdfast::text {

// The texts of the model's special tokens as templates name them; empty where the model has none.
struct SpecialTokenTexts {
  std::string bos, eos, unk, pad;
};

struct Span {
  std::string text;
  bool trusted = false;  // true: template text or a special token of the model; false: it came with the request
};

struct RenderInput {
  JsonValue messages;                    // array of objects with a string "role"
  JsonValue tools;                       // array, or null for none
  JsonValue kwargs;                      // object of template variables, or null
  bool add_generation_prompt = true;
  bool continue_final_message = false;   // excludes add_generation_prompt: the text ends where the last message's content ends
  int64_t now = 0;                       // Unix seconds
  size_t max_output_bytes = 64 << 20;
};

struct RenderedPrompt {
  std::vector<Span> spans;               // neighbours differ in trust
  // Byte offsets in the concatenated spans, rising, each inside the text: the end of the system-and-tools block, the end of each message,
  // and the place just before the generation prompt.
  std::vector<size_t> anchors;

  std::string Text() const;
};

class ChatTemplate {
 public:
  // Parses the source and tries it on small conversations to learn what it needs. kInvalidArgument "NAME:ROW:COLUMN: ..." when it cannot
  // be parsed.
  static absl::StatusOr<ChatTemplate> Create(std::string_view source, std::string_view name, SpecialTokenTexts tokens);

  // kInvalidArgument: the template's own words when it raised, the place and what was wrong when it failed, or what is wrong with the input.
  absl::StatusOr<RenderedPrompt> Render(const RenderInput& input) const;

  // What the trial conversations showed.
  struct Needs {
    bool object_arguments = true;   // tool call arguments as a mapping, not as JSON text
    bool text_parts = false;        // content may stay an array of text parts
    bool developer_role = false;    // knows the role developer
    bool gemma4 = false;            // writes gemma-4's wire format
    bool fold_tool_results = false; // gemma-4's older template: results belong into the assistant's message
    bool tools = false;             // mentions tools at all
    bool short_call_ids = false;    // takes only call ids of nine letters and digits (Mistral's)
    bool undefined_tools = false;   // cannot take `tools` as none: leave it undefined
  };
  const Needs& needs() const { return needs_; }
  const std::string& name() const { return template_.name(); }

 private:
  ChatTemplate(jinja::Template t, SpecialTokenTexts tokens) : template_(std::move(t)), tokens_(std::move(tokens)) {}
  jinja::RenderOptions Options(const RenderInput& input, JsonValue messages) const;
  void Probe(std::string_view source);
  absl::StatusOr<jinja::RenderOutput> RenderMessages(const RenderInput& input, JsonValue* rendered) const;
  std::vector<size_t> Anchors(const RenderInput& input, const JsonValue& messages, const jinja::RenderOutput& output) const;

  jinja::Template template_;
  SpecialTokenTexts tokens_;
  Needs needs_;
};

}  // namespace holdfast::text

#pragma once
// The frame of an answer that most formats share: text, in which thoughts stand between two tags and sections of calls begin with a tag.
//
// Blanks that belong to the frame are not content: around a thought, between a text and the calls behind it, between and behind calls.
// With thoughts not separated, everything that is no call is content exactly as it was written.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/grammar/builder.h"
#include "frontend/tools/call_reader.h"
#include "frontend/tools/format.h"
#include "frontend/tools/tags.h"

namespace holdfast::tools {

// How thoughts are written. Symbols of the format's tags; kNoSymbol: none.
struct ThoughtSyntax {
  char open = kNoSymbol;
  char close = kNoSymbol;
  // Behind `open`: the name of the channel, "thought\n"; dropped. "" for none.
  std::string_view header;
  // True: a thought may begin anywhere, and a closing tag without a thought is dropped. False: only at the very beginning.
  bool anywhere = false;
};

// A tool that a grammar may call. `path` is how messages call its schema; `enforce`: its arguments follow the schema, else any object.
struct CallableTool {
  const Tool* tool = nullptr;
  std::string path;
  bool enforce = false;
};

// How calls are written. Immutable.
class CallSyntax {
 public:
  virtual ~CallSyntax() = default;
  // Whether a section of calls may begin with this symbol; `fresh`: nothing but blanks stands before it in the answer, or since the last call.
  virtual bool Opens(char c, bool fresh) const = 0;
  // `opener` was read and is not fed. The sink and the tools outlive the reader.
  virtual std::unique_ptr<CallReader> NewReader(char opener, const ToolSet& tools, CallSink* sink) const = 0;

  // All calls of an answer: one, or one or more when `parallel`. What this grammar allows, NewReader's readers read as calls.
  virtual absl::StatusOr<grammar::Node> CallsGrammar(grammar::Builder& builder, std::span<const CallableTool> tools, bool parallel) const = 0;
  // Symbols that open a section wherever they stand.
  virtual std::string_view openers() const = 0;
  // True: a text must not begin with '{', which would open a call.
  virtual bool OpensWithBrace() const { return false; }
};

class AnswerParser final : public OutputParser, private CallSink {
 public:
  // `calls` may be null: a format without tools. Tags and syntax outlive the parser.
  AnswerParser(const Tags& tags, const ThoughtSyntax& thoughts, const CallSyntax* calls, const ParserOptions& options);

  void Push(const Piece& piece, std::vector<OutputEvent>* out) override;
  void Finish(bool cut, std::vector<OutputEvent>* out) override;
  bool complete() const override { return complete_; }

 private:
  enum class Mode : uint8_t { kText, kThought, kCalls };

  void BeginCall(std::string_view name) override;
  void Arguments(std::string_view fragment) override;
  void EndCall() override;

  void Symbol(char c);
  void Text(char c);
  void Thought(char c);
  void ThoughtHeader(char c);
  void ThoughtText(char c);
  void Calls(char c);
  void TextSymbols(std::string_view symbols);   // as content, tags written out
  void OpenThought(char c);
  void OpenCalls(char c);
  void RejectCalls();
  void Emit(OutputEvent::Kind kind, std::string_view symbols);
  bool has_thoughts() const { return thoughts_.open != kNoSymbol; }

  const Tags& tags_;
  const ThoughtSyntax thoughts_;
  const CallSyntax* calls_;
  const ToolSet tools_;
  const bool parallel_;
  const bool separate_;

  Mode mode_ = Mode::kText;
  std::string held_tag_;        // characters that may become a spelled tag
  std::string blanks_;          // blanks that are content only if content follows
  bool fresh_ = true;           // no content, thought or call yet
  bool text_fresh_ = true;      // no content since the last thought or call
  bool drop_blanks_ = false;    // behind a thought
  bool after_call_ = false;     // no content since the last call
  std::string lead_;            // the header of a thought that came without its tag
  std::string text_blanks_;     // blanks_ of the text, while a thought is read
  bool in_header_ = false;
  std::string header_;
  bool thought_fresh_ = true;   // no text in this thought yet
  Mode before_calls_ = Mode::kText;
  std::unique_ptr<CallReader> reader_;
  std::string raw_;             // what the section's reader was fed since its last call
  bool in_call_ = false;
  bool complete_ = false;
  std::vector<OutputEvent>* out_ = nullptr;
  size_t out_begin_ = 0;        // events of the running Push
};

}  // namespace holdfast::tools

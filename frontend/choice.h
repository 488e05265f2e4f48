#pragma once
// One choice's way from token ids to what a client sees:
//
//   id -> detokenizer -> the format's parser (thoughts, text, calls) -> stop strings on the text -> deltas
//
// with the logprob entries kept in step with the text that is released. A function of the ids alone: feeding the same ids in other
// portions gives the same text, thoughts, calls, entries and end. No clock, no loop.
//
// Stop strings look at the text only: a thought and the arguments of a call may contain one. A call or a thought that begins ends what was
// held back as the possible start of a stop string: a stop string does not reach over it.
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/generation.h"
#include "frontend/model_view.h"
#include "frontend/tools/format.h"

namespace holdfast::proto {
class Token;
}

namespace holdfast::text {
class Detokenizer;
class StopMatcher;
}  // namespace holdfast::text

namespace holdfast::api {

// Deltas in the order of the output (see ChoiceDelta for what may share one).
using ChoiceDeltas = std::vector<ChoiceDelta>;

class ChoicePipeline final {
 public:
  struct Options {
    std::vector<std::string> stop;
    bool logprobs = false;
    uint32_t text_offset = 0;           // code points already in the choice's text
    // What tells thoughts and calls from text; null: everything is text. Its markers are the ids that reach it as markers.
    std::unique_ptr<tools::OutputParser> parser;
    std::span<const TokenId> markers;   // outlive the pipeline
    bool show_reasoning = true;         // false: thoughts are counted and not given out
    uint64_t call_nonce = 0;            // what the ids of calls are made from, with the call's index
  };
  // The view outlives the pipeline.
  ChoicePipeline(const ModelView& view, Options options);
  ~ChoicePipeline();

  // Takes the next token and appends to *out what may be shown now. True when the choice has ended, by a stop string or because the call
  // that was allowed is complete: later calls change nothing. An id of the model's stop set adds no text and no logprob entry.
  bool Push(const proto::Token& token, ChoiceDeltas* out);
  // As Push, for a token of an echoed prompt: every one gets an entry, and nothing ends the text.
  void PushPrompt(const proto::Token& token, ChoiceDeltas* out);
  // Code points that stand before this choice's own text. Before the first Push.
  void StartAt(uint32_t text_offset) { options_.text_offset = text_offset; }
  // No token follows: what was held back is released. An incomplete character at the end becomes one U+FFFD. `cut`: the model did not end
  // its answer itself.
  void Finish(bool cut, ChoiceDeltas* out);

  // How it ended; once Push was true or Finish was called.
  ChoiceEnd end() const;

  // All ids taken so far, the end token included: with the prompt they are what a resume submits.
  const std::vector<uint32_t>& ids() const { return ids_; }
  bool stopped() const { return stopped_; }
  uint32_t code_points() const { return options_.text_offset + detokenized_code_points_; }
  // Tokens whose text was a thought's (the markers around it belong to it as far as they come before its text).
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  // A logprob entry on its way: its place in the detokenised output, then, as far as the parser calls that text, in the choice's text.
  struct Entry {
    TokenInfo info;
    size_t begin = 0, end = 0;                  // bytes of the output
    bool open = false;                          // ends inside a character whose rest has not come
    bool is_text = false;                       // a part of it, or all, is text
    bool settled = false;                       // all of it has been told apart
    size_t text_begin = 0, text_end = 0;        // bytes of the text
    size_t skip = 0;                            // bytes of the token before its part of the text
  };
  void Take(const proto::Token& token, bool with_entry, ChoiceDeltas* out);
  void Feed(std::string_view piece, TokenId marker, ChoiceDeltas* out);
  void Handle(std::vector<tools::OutputEvent>* events, ChoiceDeltas* out);
  void Text(std::string_view text, ChoiceDeltas* out);
  void EndText(ChoiceDeltas* out);      // something else follows: what is held back cannot become a stop string any more
  void Call(const tools::OutputEvent& event, ChoiceDeltas* out);
  void SettleEntries(size_t begin, size_t size);
  void ReleaseEntries(ChoiceDeltas* out, bool all);

  const ModelView& view_;
  Options options_;
  std::unique_ptr<text::Detokenizer> detokenizer_;
  std::unique_ptr<text::StopMatcher> stop_;
  std::vector<uint32_t> ids_;
  std::deque<Entry> entries_;
  std::string untold_;                  // with entries and a parser: output that the parser has not told apart, from untold_begin_ on
  size_t untold_begin_ = 0;
  size_t detokenized_ = 0;              // bytes of the output
  uint32_t detokenized_code_points_ = 0;
  size_t text_ = 0;                     // bytes of text the parser gave out
  size_t released_ = 0;                 // of them, bytes given to deltas
  uint32_t calls_ = 0;                  // begun
  size_t argument_bytes_ = 0;           // of the call that is open
  uint32_t undecided_tokens_ = 0, reasoning_tokens_ = 0;
  bool stopped_ = false, cut_ = false;
};

}  // namespace holdfast::api

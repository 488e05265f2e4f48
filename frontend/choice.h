#pragma once
// One choice's way from token ids to text: detokenizer, then stop strings, with the logprob entries kept in step with the text that is
// released. A function of the ids alone: feeding the same ids in other portions gives the same text, entries and end. No clock, no loop.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "frontend/generation.h"
#include "frontend/model_view.h"

namespace holdfast::proto {
class Token;
}

namespace holdfast::text {
class Detokenizer;
class StopMatcher;
}  // namespace holdfast::text

namespace holdfast::api {

class ChoicePipeline final {
 public:
  struct Options {
    std::vector<std::string> stop;
    bool logprobs = false;
    uint32_t text_offset = 0;           // code points already in the choice's text
  };
  // The view outlives the pipeline.
  ChoicePipeline(const ModelView& view, Options options);
  ~ChoicePipeline();

  // Takes the next token and appends to *delta what may be shown now. True when a stop string was completed: the choice has ended, later
  // calls change nothing. An id of the model's stop set adds no text and no logprob entry.
  bool Push(const proto::Token& token, ChoiceDelta* delta);
  // As Push, for a token of an echoed prompt: every one gets an entry, and nothing ends the text.
  void PushPrompt(const proto::Token& token, ChoiceDelta* delta);
  // Code points that stand before this choice's own text. Before the first Push.
  void StartAt(uint32_t text_offset) { options_.text_offset = text_offset; }
  // No token follows: what was held back is released. An incomplete character at the end becomes one U+FFFD.
  void Finish(ChoiceDelta* delta);

  // All ids taken so far, the end token included: with the prompt they are what a resume submits.
  const std::vector<uint32_t>& ids() const { return ids_; }
  bool stopped() const { return stopped_; }
  uint32_t code_points() const { return options_.text_offset + detokenized_code_points_; }

 private:
  struct Entry {
    TokenInfo info;
    size_t begin = 0, end = 0;          // its bytes in the detokenised text
    bool open = false;                  // ends inside a character whose rest has not come
  };
  void Take(const proto::Token& token, bool with_entry, ChoiceDelta* delta);
  void ReleaseEntries(ChoiceDelta* delta, bool all);

  const ModelView& view_;
  Options options_;
  std::unique_ptr<text::Detokenizer> detokenizer_;
  std::unique_ptr<text::StopMatcher> stop_;
  std::vector<uint32_t> ids_;
  std::deque<Entry> entries_;
  size_t detokenized_ = 0;              // bytes out of the detokenizer
  uint32_t detokenized_code_points_ = 0;
  size_t released_ = 0;                 // bytes given to deltas
  bool stopped_ = false;
};

}  // namespace holdfast::api

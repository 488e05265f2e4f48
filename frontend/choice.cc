#include "frontend/choice.h"

#include <algorithm>
#include <utility>

#include "frontend/text/detokenizer.h"
#include "frontend/text/stop_matcher.h"
#include "frontend/text/tokenizer.h"
#include "proto/base/check.h"
#include "proto/base/random.h"
#include "proto/engine.pb.h"

namespace holdfast::api {
namespace {

using Kind = tools::OutputEvent::Kind;

uint32_t CodePoints(std::string_view utf8) {
  return static_cast<uint32_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string CallId(uint64_t nonce, uint32_t index) {
  static constexpr char kDigits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string id = "call_";
  uint64_t a = Mix64(nonce + index), b = Mix64(a ^ nonce);
  for (int i = 0; i < 12; ++i, a /= 36) id.push_back(kDigits[a % 36]);
  for (int i = 0; i < 12; ++i, b /= 36) id.push_back(kDigits[b % 36]);
  return id;
}

// The delta that more of a kind may join without changing the order of the output.
ChoiceDelta& ForReasoning(ChoiceDeltas* out) {
  if (out->empty() || !out->back().text.empty() || !out->back().logprobs.empty() || !out->back().tool_calls.empty()) out->emplace_back();
  return out->back();
}

ChoiceDelta& ForText(ChoiceDeltas* out) {
  if (out->empty() || !out->back().tool_calls.empty()) out->emplace_back();
  return out->back();
}

ToolCallDelta& ForCall(uint32_t index, ChoiceDeltas* out) {
  if (out->empty()) out->emplace_back();
  std::vector<ToolCallDelta>& calls = out->back().tool_calls;
  if (calls.empty() || calls.back().index != index) calls.emplace_back().index = index;
  return calls.back();
}

}  // namespace

ChoicePipeline::ChoicePipeline(const ModelView& view, Options options)
    : view_(view), options_(std::move(options)),
      detokenizer_(std::make_unique<text::Detokenizer>(&view.tokenizer().vocabulary(), text::Detokenizer::Options())) {
  auto stop = text::StopMatcher::Create(options_.stop);
  HF_CHECK(stop.ok());  // api/request refuses empty and ill-formed ones
  stop_ = std::make_unique<text::StopMatcher>(*std::move(stop));
}

ChoicePipeline::~ChoicePipeline() = default;

bool ChoicePipeline::Push(const proto::Token& token, ChoiceDeltas* out) {
  if (stopped_) return true;
  ids_.push_back(token.id());
  ++undecided_tokens_;
  Take(token, options_.logprobs && !view_.IsStop(token.id()), out);
  if (!stopped_ && options_.parser && options_.parser->complete()) {
    EndText(out);
    ReleaseEntries(out, true);
    stopped_ = true;
  }
  return stopped_;
}

void ChoicePipeline::PushPrompt(const proto::Token& token, ChoiceDeltas* out) { Take(token, options_.logprobs, out); }

void ChoicePipeline::Take(const proto::Token& token, bool with_entry, ChoiceDeltas* out) {
  const bool marker = options_.parser && std::find(options_.markers.begin(), options_.markers.end(), token.id()) != options_.markers.end();
  std::string text;
  if (marker) detokenizer_->Finish(&text);  // a marker ends a character that was never completed
  else detokenizer_->Push(token.id(), &text);
  const size_t begin = detokenized_;
  const uint32_t offset = code_points();
  const std::string_view marker_text = marker ? view_.PieceOf(token.id()) : std::string_view();
  detokenized_ += text.size() + marker_text.size();
  detokenized_code_points_ += CodePoints(text);
  // The text that has come completes the characters that earlier tokens began.
  if (!text.empty()) {
    for (auto entry = entries_.rbegin(); entry != entries_.rend() && entry->open; ++entry) {
      entry->open = false;
      entry->end = begin + 1;
    }
  }
  if (with_entry) {
    Entry entry;
    entry.info.bytes = std::string(marker ? marker_text : detokenizer_->TokenBytes(token.id()));
    entry.info.logprob = token.logprob();
    for (const proto::TokenLogprob& one : token.top()) {
      entry.info.top.push_back({std::string(detokenizer_->TokenBytes(one.token())), one.logprob()});
    }
    entry.info.text_offset = offset;
    entry.begin = marker ? begin + text.size() : begin;
    entry.end = detokenized_;
    entry.open = !marker && text.empty() && !entry.info.bytes.empty();
    if (!options_.parser && entry.begin == entry.end && !entry.open) {  // a token without text has its entry all the same
      entry.is_text = entry.settled = true;
      entry.text_begin = entry.text_end = entry.begin;
    }
    entries_.push_back(std::move(entry));
  }
  if (!options_.parser) {
    SettleEntries(begin, text.size());
    Text(text, out);
  } else {
    Feed(text, text::kNoToken, out);
    if (marker) Feed(marker_text, token.id(), out);
  }
  ReleaseEntries(out, false);
}

void ChoicePipeline::Feed(std::string_view piece, TokenId marker, ChoiceDeltas* out) {
  if (piece.empty() || stopped_) return;
  if (options_.logprobs) untold_ += piece;
  std::vector<tools::OutputEvent> events;
  options_.parser->Push({piece, marker}, &events);
  Handle(&events, out);
}

void ChoicePipeline::Handle(std::vector<tools::OutputEvent>* events, ChoiceDeltas* out) {
  bool in_call = false;
  for (tools::OutputEvent& event : *events) {
    if (stopped_) return;
    const uint32_t undecided = std::exchange(undecided_tokens_, 0);
    if (event.kind == Kind::kContent || event.kind == Kind::kReasoning) {
      if (options_.logprobs && !event.text.empty()) {
        // Where the parser took it from: behind what it left out, and behind the call it has just ended.
        const size_t at = in_call ? untold_.rfind(event.text) : untold_.find(event.text);
        if (at != std::string::npos) {
          if (event.kind == Kind::kContent) SettleEntries(untold_begin_ + at, event.text.size());
          untold_begin_ += at + event.text.size();
          untold_.erase(0, at + event.text.size());
        }
        in_call = false;
      }
      if (event.kind == Kind::kContent) {
        Text(event.text, out);
      } else {
        EndText(out);
        reasoning_tokens_ += undecided;
        if (options_.show_reasoning && !event.text.empty()) ForReasoning(out).reasoning += event.text;
      }
      continue;
    }
    in_call = true;
    EndText(out);
    Call(event, out);
  }
  if (in_call) {
    untold_begin_ += untold_.size();
    untold_.clear();
  }
}

void ChoicePipeline::Text(std::string_view text, ChoiceDeltas* out) {
  if (text.empty()) return;
  text_ += text.size();
  std::string shown;
  stopped_ = stop_->Push(text, &shown);
  if (shown.empty()) return;
  released_ += shown.size();
  ForText(out).text += shown;
}

void ChoicePipeline::EndText(ChoiceDeltas* out) {
  std::string shown;
  stop_->Finish(&shown);
  released_ += shown.size();
  if (!shown.empty()) ForText(out).text += shown;
  ReleaseEntries(out, false);
}

void ChoicePipeline::Call(const tools::OutputEvent& event, ChoiceDeltas* out) {
  if (event.kind == Kind::kCallBegin) {
    argument_bytes_ = 0;
    ToolCallDelta& call = ForCall(calls_, out);
    call.id = CallId(options_.call_nonce, calls_);
    call.name = event.text;
    ++calls_;
    return;
  }
  if (calls_ == 0) return;  // against a format's contract, and no reason to fail an answer
  if (event.kind == Kind::kArguments) {
    if (event.text.empty()) return;
    argument_bytes_ += event.text.size();
    ForCall(calls_ - 1, out).arguments += event.text;
    return;
  }
  ToolCallDelta& call = ForCall(calls_ - 1, out);
  if (argument_bytes_ == 0) call.arguments = "{}";
  call.complete = true;
}

void ChoicePipeline::Finish(bool cut, ChoiceDeltas* out) {
  if (stopped_) return;
  std::string text;
  detokenizer_->Finish(&text);
  const size_t begin = detokenized_;
  detokenized_ += text.size();
  detokenized_code_points_ += CodePoints(text);
  for (auto entry = entries_.rbegin(); !text.empty() && entry != entries_.rend() && entry->open; ++entry) {
    entry->open = false;
    entry->end = begin + 1;
  }
  if (!options_.parser) {
    SettleEntries(begin, text.size());
    Text(text, out);
  } else {
    Feed(text, text::kNoToken, out);
    if (!stopped_) {
      std::vector<tools::OutputEvent> events;
      options_.parser->Finish(cut, &events);
      Handle(&events, out);
    }
  }
  if (stopped_) return ReleaseEntries(out, false);
  EndText(out);
  ReleaseEntries(out, true);
  stopped_ = true;
  cut_ = cut;
}

ChoiceEnd ChoicePipeline::end() const {
  ChoiceEnd end;
  if (stop_->matched()) end.stop = stop_->stop(*stop_->matched());
  if (cut_) end.reason = FinishReason::kLength;
  else if (calls_ > 0) end.reason = FinishReason::kToolCalls;
  return end;
}

// The output's bytes [begin, begin + size) are the next bytes of the text.
void ChoicePipeline::SettleEntries(size_t begin, size_t size) {
  const size_t end = begin + size;
  const size_t text = text_;  // before Text counts them
  for (Entry& entry : entries_) {
    if (entry.settled || entry.open) continue;
    if (entry.begin >= end) return;
    if (entry.end <= begin) {  // what it still had was left out
      entry.settled = true;
      continue;
    }
    if (!entry.is_text) {
      entry.text_begin = text + std::max(entry.begin, begin) - begin;
      entry.skip = std::max(entry.begin, begin) - entry.begin;
    }
    entry.is_text = true;
    entry.text_end = text + std::min(entry.end, end) - begin;
    entry.settled = entry.end <= end;
  }
}

// An entry goes out with the text it belongs to, so that a stream never has a chunk of entries alone before the end.
void ChoicePipeline::ReleaseEntries(ChoiceDeltas* out, bool all) {
  while (!entries_.empty()) {
    Entry& entry = entries_.front();
    if (entry.settled && !entry.is_text) {
      entries_.pop_front();
      continue;
    }
    if (stopped_) {
      // What begins behind the cut was never shown; what straddles it shows its part.
      if (!entry.is_text || entry.text_begin >= released_ || entry.open) {
        entries_.clear();
        return;
      }
      entry.text_end = std::min(entry.text_end, released_);
    } else if (!all && (!entry.settled || entry.text_end > released_ || out->empty() || out->back().text.empty() || !out->back().tool_calls.empty())) {
      return;
    } else if (!entry.is_text) {
      entries_.pop_front();  // at the end: part of a thought or a call
      continue;
    }
    // Only a part of the token may be text.
    const size_t size = entry.end - entry.begin, part = entry.text_end - entry.text_begin;
    if (part < size && size == entry.info.bytes.size()) {
      entry.info.bytes = entry.info.bytes.substr(entry.skip, part);
    }
    ForText(out).logprobs.push_back(std::move(entry.info));
    entries_.pop_front();
  }
}

}  // namespace holdfast::api

#include "frontend/choice.h"

#include <algorithm>
#include <utility>

#include "frontend/text/detokenizer.h"
#include "frontend/text/stop_matcher.h"
#include "frontend/text/tokenizer.h"
#include "proto/base/check.h"
#include "proto/engine.pb.h"

namespace holdfast::api {
namespace {

uint32_t CodePoints(std::string_view utf8) {
  return static_cast<uint32_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
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

bool ChoicePipeline::Push(const proto::Token& token, ChoiceDelta* delta) {
  if (stopped_) return true;
  ids_.push_back(token.id());
  Take(token, options_.logprobs && !view_.IsStop(token.id()), delta);
  return stopped_;
}

void ChoicePipeline::PushPrompt(const proto::Token& token, ChoiceDelta* delta) { Take(token, options_.logprobs, delta); }

void ChoicePipeline::Take(const proto::Token& token, bool with_entry, ChoiceDelta* delta) {
  std::string text;
  detokenizer_->Push(token.id(), &text);
  const size_t begin = detokenized_;
  const uint32_t offset = code_points();
  detokenized_ += text.size();
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
    entry.info.bytes = std::string(detokenizer_->TokenBytes(token.id()));
    entry.info.logprob = token.logprob();
    for (const proto::TokenLogprob& one : token.top()) {
      entry.info.top.push_back({std::string(detokenizer_->TokenBytes(one.token())), one.logprob()});
    }
    entry.info.text_offset = offset;
    entry.begin = begin;
    entry.end = detokenized_;
    entry.open = text.empty() && !entry.info.bytes.empty();
    entries_.push_back(std::move(entry));
  }
  const size_t before = delta->text.size();
  stopped_ = stop_->Push(text, &delta->text);
  released_ += delta->text.size() - before;
  ReleaseEntries(delta, false);
}

void ChoicePipeline::Finish(ChoiceDelta* delta) {
  if (stopped_) return;
  std::string text;
  detokenizer_->Finish(&text);
  detokenized_ += text.size();
  detokenized_code_points_ += CodePoints(text);
  const size_t before = delta->text.size();
  stopped_ = stop_->Push(text, &delta->text);
  if (!stopped_) stop_->Finish(&delta->text);
  released_ += delta->text.size() - before;
  if (stopped_) return ReleaseEntries(delta, false);
  ReleaseEntries(delta, true);
  stopped_ = true;
}

// An entry goes out with the text it belongs to, so that a stream never has a chunk of entries alone before the end.
void ChoicePipeline::ReleaseEntries(ChoiceDelta* delta, bool all) {
  while (!entries_.empty()) {
    Entry& entry = entries_.front();
    if (stopped_) {
      // What begins behind the cut was never shown; what straddles it shows its part.
      if (entry.begin >= released_ || entry.open) {
        entries_.clear();
        return;
      }
      if (entry.end > released_ && entry.end - entry.begin == entry.info.bytes.size()) entry.info.bytes.resize(released_ - entry.begin);
    } else if (!all && (entry.open || entry.end > released_ || delta->text.empty())) {
      return;
    }
    delta->logprobs.push_back(std::move(entry.info));
    entries_.pop_front();
  }
}

}  // namespace holdfast::api

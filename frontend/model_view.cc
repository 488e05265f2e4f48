#include "frontend/model_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/text/detokenizer.h"
#include "frontend/text/tokenizer.h"
#include "proto/base/status_wire.h"
#include "proto/model_card.pb.h"

namespace holdfast::api {
namespace {

constexpr size_t kFirstAnchors = 4, kLastAnchors = 60;

// Where later prompts part from this one. Every template opens and closes its parts (system and tools, each message, the opener of the
// turn to generate) with control tokens, so the places before and after them are the candidates; of many the first few (what all
// conversations share) and the last ones count.
std::vector<uint32_t> FindAnchors(const std::vector<uint32_t>& tokens, const text::Vocabulary& vocabulary) {
  std::vector<uint32_t> all;
  const auto add = [&](size_t at) {
    if (at > 0 && at < tokens.size() && (all.empty() || all.back() < at)) all.push_back(static_cast<uint32_t>(at));
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= vocabulary.size() || !vocabulary.IsHidden(tokens[i])) continue;
    add(i);
    add(i + 1);
  }
  if (all.size() > kFirstAnchors + kLastAnchors) all.erase(all.begin() + kFirstAnchors, all.end() - kLastAnchors);
  return all;
}

}  // namespace

ModelView::~ModelView() = default;

absl::StatusOr<std::shared_ptr<const ModelView>> ModelView::Create(std::string_view bytes) {
  proto::ModelCard card;
  if (!card.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return absl::InvalidArgumentError("the bytes are no model card");
  std::shared_ptr<ModelView> view(new ModelView);
  view->fingerprint_ = card.fingerprint();
  view->name_ = card.name();
  view->architecture_ = card.architecture();
  view->quantization_ = card.quantization();
  view->vocab_size_ = card.vocab_size();
  view->context_length_ = card.context_length();
  view->parameter_count_ = card.parameter_count();
  view->file_bytes_ = card.file_bytes();
  if (card.sampling().has_temperature()) view->sampling_.temperature = card.sampling().temperature();
  if (card.sampling().has_top_p()) view->sampling_.top_p = card.sampling().top_p();
  if (card.sampling().has_top_k()) view->sampling_.top_k = card.sampling().top_k();
  if (card.sampling().has_min_p()) view->sampling_.min_p = card.sampling().min_p();
  view->suppress_ids_.assign(card.vocabulary().suppress().begin(), card.vocabulary().suppress().end());
  HF_ASSIGN_OR_RETURN(view->tokenizer_, text::Tokenizer::Create(card));
  return view;
}

const std::vector<uint32_t>& ModelView::stop_ids() const { return tokenizer_->StopTokens(); }

bool ModelView::IsStop(uint32_t id) const { return tokenizer_->IsStopToken(id); }

std::string_view ModelView::PieceOf(uint32_t id) const {
  const text::Vocabulary& vocabulary = tokenizer_->vocabulary();
  if (id >= vocabulary.size()) return {};
  return vocabulary.IsHidden(id) ? vocabulary.stored(id) : vocabulary.bytes(id);
}

std::string ModelView::Decode(const std::vector<uint32_t>& ids) const {
  return text::DetokenizeAll(tokenizer_->vocabulary(), ids, /*render_special=*/true);
}

PreparedPrompt ModelView::FromIds(std::vector<uint32_t> ids) const {
  PreparedPrompt out;
  out.anchors = FindAnchors(ids, tokenizer_->vocabulary());
  out.tokens = std::move(ids);
  return out;
}

PreparedPrompt ModelView::EncodeText(std::string_view text) const {
  const text::TextSpan span{text, true};
  return FromIds(tokenizer_->Encode({&span, 1}, true));
}

absl::StatusOr<PreparedPrompt> ModelView::EncodeChat(const ValidRequest&, int64_t) const {
  return absl::InvalidArgumentError("This model has no chat template: use /v1/completions, or a model whose file has tokenizer.chat_template");
}

}  // namespace holdfast::api

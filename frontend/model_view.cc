#include "frontend/model_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/grammar/response_format.h"
#include "frontend/text/chat_template.h"
#include "frontend/text/detokenizer.h"
#include "frontend/text/tokenizer.h"
#include "frontend/tools/format.h"
#include "proto/base/log.h"
#include "proto/base/status_wire.h"
#include "proto/model_card.pb.h"

namespace holdfast::api {
namespace {

constexpr size_t kFirstAnchors = 4, kLastAnchors = 60;

// Keeps what every conversation shares (the first few) and what the next turn shares (the last ones).
std::vector<uint32_t> Thin(std::vector<uint32_t> all) {
  if (all.size() > kFirstAnchors + kLastAnchors) all.erase(all.begin() + kFirstAnchors, all.end() - kLastAnchors);
  return all;
}

// For a prompt without known structure: parts open and close with control tokens, so the places around them are where prompts part.
std::vector<uint32_t> AroundControlTokens(const std::vector<uint32_t>& tokens, const text::Vocabulary& vocabulary) {
  std::vector<uint32_t> all;
  const auto add = [&](size_t at) {
    if (at > 0 && at < tokens.size() && (all.empty() || all.back() < at)) all.push_back(static_cast<uint32_t>(at));
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= vocabulary.size() || !vocabulary.IsHidden(tokens[i])) continue;
    add(i);
    add(i + 1);
  }
  return Thin(std::move(all));
}

// Byte offsets of the rendered text to token positions: the tokens that end at or before an offset. Empty when the tokens' texts do not
// add up to the text (a tokenizer that normalised it), except for a bos and a leading space put in front.
std::vector<uint32_t> ToPositions(const std::vector<size_t>& offsets, std::string_view text, const std::vector<uint32_t>& tokens,
                                  const text::Vocabulary& vocabulary) {
  const auto length = [&](uint32_t id) {
    if (id >= vocabulary.size()) return size_t{0};
    return vocabulary.IsHidden(id) ? vocabulary.stored(id).size() : vocabulary.bytes(id).size();
  };
  size_t total = 0;
  for (const uint32_t id : tokens) total += length(id);
  size_t skip = 0;
  if (total != text.size() && !tokens.empty() && vocabulary.bos() == tokens[0]) skip = length(tokens[0]);
  if (total == text.size() + skip + 1 && vocabulary.add_space_prefix()) ++skip;
  if (total != text.size() + skip) return {};
  std::vector<uint32_t> out;
  size_t end = 0, next = 0;
  for (uint32_t i = 0; i < tokens.size() && next < offsets.size(); ++i) {
    end += length(tokens[i]);
    // Offsets before the end of this token: the prefix without it.
    while (next < offsets.size() && offsets[next] + skip < end) {
      if (i > 0 && (out.empty() || out.back() < i)) out.push_back(i);
      ++next;
    }
  }
  return Thin(std::move(out));
}

std::string StoredText(const proto::Vocabulary& vocabulary, bool has, uint32_t id) {
  return has && id < static_cast<uint32_t>(vocabulary.tokens_size()) ? vocabulary.tokens(static_cast<int>(id)) : std::string();
}

const proto::ChatTemplate* DefaultTemplate(const proto::ModelCard& card) {
  for (const char* name : {"", "default"}) {
    for (const proto::ChatTemplate& one : card.chat_templates()) {
      if (one.name() == name) return &one;
    }
  }
  return card.chat_templates_size() > 0 ? &card.chat_templates(0) : nullptr;
}

}  // namespace

ModelView::ModelView() : constraints_(std::make_unique<grammar::ConstraintCache>()) {}

ModelView::~ModelView() = default;

bool ModelView::takes_tools() const { return has_tool_format() && template_ && template_->needs().tools; }

void ModelView::ChooseFormat(const ParserNames& parsers, std::string_view chat_template) {
  const text::Vocabulary& vocabulary = tokenizer_->vocabulary();
  const auto choose = [](const std::string& asked, std::string_view found) {
    return asked == "auto" ? std::string(found) : asked == "none" ? std::string() : asked;
  };
  tool_format_ = choose(parsers.tools, tools::DetectTools(chat_template, vocabulary));
  reasoning_format_ = choose(parsers.reasoning, tools::DetectReasoning(chat_template, vocabulary));
  if (tool_format_.empty() && reasoning_format_.empty()) return;
  auto made = tools::CreateFormat(tool_format_, reasoning_format_, vocabulary);
  if (made.ok()) {
    format_ = *std::move(made);
    LogInfo("tool calls are read as {}, thoughts as {}", tool_format_.empty() ? "text" : tool_format_,
            reasoning_format_.empty() ? "text" : reasoning_format_);
    return;
  }
  // The model serves all the same: what it writes is text.
  format_error_ = fmt::format("Tool calls and thoughts of this model cannot be read: {}", MessageOf(made.status()));
  LogWarn("{}", format_error_);
  tool_format_.clear();
  reasoning_format_.clear();
}

absl::StatusOr<std::shared_ptr<const ModelView>> ModelView::Create(std::string_view bytes, const ParserNames& parsers) {
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
  const proto::Vocabulary& vocabulary = card.vocabulary();
  text::SpecialTokenTexts specials;
  specials.bos = StoredText(vocabulary, vocabulary.has_bos(), vocabulary.bos());
  specials.eos = StoredText(vocabulary, vocabulary.has_eos(), vocabulary.eos());
  specials.unk = StoredText(vocabulary, vocabulary.has_unknown(), vocabulary.unknown());
  specials.pad = StoredText(vocabulary, vocabulary.has_padding(), vocabulary.padding());
  const proto::ChatTemplate* const source = DefaultTemplate(card);
  view->ChooseFormat(parsers, source ? std::string_view(source->source()) : std::string_view());
  if (source) {
    auto made = text::ChatTemplate::Create(source->source(), source->name().empty() ? "chat_template" : source->name(), specials);
    if (made.ok()) view->template_ = std::make_unique<const text::ChatTemplate>(*std::move(made));
    else view->template_error_ = fmt::format("The model's chat template cannot be used: {}", MessageOf(made.status()));
  } else {
    view->template_error_ = "This model has no chat template: use /v1/completions, or a file with tokenizer.chat_template";
  }
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
  out.anchors = AroundControlTokens(ids, tokenizer_->vocabulary());
  out.tokens = std::move(ids);
  return out;
}

PreparedPrompt ModelView::EncodeText(std::string_view text) const {
  const text::TextSpan span{text, true};
  return FromIds(tokenizer_->Encode({&span, 1}, true));
}

absl::StatusOr<PreparedPrompt> ModelView::EncodeChat(const ValidRequest& request, int64_t unix_seconds) const {
  if (!template_) return absl::InvalidArgumentError(template_error_);
  text::RenderInput input;
  input.messages = request.messages;
  input.tools = request.template_tools;
  input.kwargs = request.template_kwargs;
  input.add_generation_prompt = request.add_generation_prompt;
  input.continue_final_message = request.continue_final_message;
  input.now = unix_seconds;
  HF_ASSIGN_OR_RETURN(const text::RenderedPrompt rendered, template_->Render(input));
  std::vector<text::TextSpan> spans;
  spans.reserve(rendered.spans.size());
  for (const text::Span& span : rendered.spans) spans.push_back({span.text, span.trusted});
  PreparedPrompt out;
  // What the template wrote behind the last thing that came with the request.
  if (!spans.empty() && spans.back().trusted && !request.continue_final_message) out.tail = std::string(spans.back().text);
  out.tokens = tokenizer_->Encode(spans, true);
  out.anchors = ToPositions(rendered.anchors, rendered.Text(), out.tokens, tokenizer_->vocabulary());
  if (out.anchors.empty()) out.anchors = AroundControlTokens(out.tokens, tokenizer_->vocabulary());
  return out;
}

}  // namespace holdfast::api

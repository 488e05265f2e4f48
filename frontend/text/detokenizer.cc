#include "frontend/text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "frontend/text/utf8.h"

namespace holdfast::text {

Detokenizer::Detokenizer(const Vocabulary* vocabulary, Options options) : vocabulary_(vocabulary), options_(std::move(options)) {
  std::sort(options_.preserved.begin(), options_.preserved.end());
}

std::string_view Detokenizer::TokenBytes(TokenId id) const {
  if (id >= vocabulary_->size()) return {};
  const bool shown = !vocabulary_->IsHidden(id) || options_.render_all ||
                     std::binary_search(options_.preserved.begin(), options_.preserved.end(), id);
  return shown ? vocabulary_->bytes(id) : std::string_view();
}

void Detokenizer::Push(TokenId id, std::string* out) {
  std::string_view bytes = TokenBytes(id);
  if (bytes.empty()) return;
  if (at_start_) {
    at_start_ = false;
    if (options_.drop_leading_space && bytes.front() == ' ') bytes.remove_prefix(1);
  }
  pending_.append(bytes);
  const size_t whole = pending_.size() - IncompleteUtf8Tail(pending_);
  AppendValidUtf8(std::string_view(pending_).substr(0, whole), out);
  pending_.erase(0, whole);
}

void Detokenizer::Finish(std::string* out) {
  AppendValidUtf8(pending_, out);
  pending_.clear();
  at_start_ = true;
}

std::string DetokenizeAll(const Vocabulary& vocabulary, std::span<const TokenId> tokens, bool render_special) {
  if (!tokens.empty() && vocabulary.add_bos() && tokens.front() == vocabulary.bos()) tokens = tokens.subspan(1);
  Detokenizer::Options options;
  options.render_all = render_special;
  // Only a text that starts with ordinary text had a space put in front.
  options.drop_leading_space = vocabulary.add_space_prefix() && !tokens.empty() && tokens.front() < vocabulary.size() &&
                               !vocabulary.IsHidden(tokens.front());
  Detokenizer detokenizer(&vocabulary, std::move(options));
  std::string out;
  for (const TokenId id : tokens) detokenizer.Push(id, &out);
  detokenizer.Finish(&out);
  return out;
}

}  // namespace holdfast::text

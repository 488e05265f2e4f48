#include "frontend/text/tokenizer.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>

#include "frontend/text/tokenizer_spm.h"
#include "proto/base/check.h"
#include "proto/base/status_wire.h"
#include "proto/model_card.pb.h"

namespace holdfast::text {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;

void ReplaceSpaces(std::string_view text, bool prefix, std::string* out) {
  out->clear();
  if (prefix) out->append(kSpaceSymbol);
  for (const char c : text) {
    if (c == ' ') {
      out->append(kSpaceSymbol);
    } else {
      out->push_back(c);
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const proto::ModelCard& card) {
  HF_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Create(card));
  std::unique_ptr<Tokenizer> t(new Tokenizer(std::move(vocabulary)));
  const Vocabulary& v = t->vocabulary_;
  if (v.model() == TokenizerModel::kBpe) {
    const std::string& pre = card.vocabulary().pre();
    const std::optional<SplitPattern> pattern = SplitPatternOf(pre);
    if (!pattern) {
      return absl::InvalidArgumentError(
          fmt::format("model card: pre-tokenizer \"{}\" is not supported; known are {}", pre, KnownSplitPatterns()));
    }
    t->pattern_ = *pattern;
    t->whole_pieces_first_ = *pattern == SplitPattern::kLlamaBpe || *pattern == SplitPattern::kTekken;
  } else if (!v.unknown()) {
    for (unsigned b = 0; b < 256; ++b) {
      if (v.byte_token(static_cast<uint8_t>(b)) == kNoToken) {
        return absl::InvalidArgumentError(fmt::format(
            "model card: there is neither a byte token <0x{:02X}> nor an unknown token, so some text would have no tokens", b));
      }
    }
  }
  if (v.model() != TokenizerModel::kSpm) {
    HF_ASSIGN_OR_RETURN(BpeMerger merger, BpeMerger::Create(card, &v));
    t->merger_ = std::move(merger);
  }
  return t;
}

std::vector<TokenId> Tokenizer::Encode(std::span<const TextSpan> spans, bool add_special, EncodeWork* work) const {
  std::string joined;
  std::vector<uint32_t> trusted;  // begin, end, begin, end, ...; neighbours joined
  for (const TextSpan& span : spans) {
    if (span.text.empty()) continue;
    HF_CHECK(joined.size() + span.text.size() < kMaxText);
    const auto begin = static_cast<uint32_t>(joined.size());
    joined.append(span.text);
    if (!span.trusted) continue;
    if (!trusted.empty() && trusted.back() == begin) trusted.pop_back();
    else trusted.push_back(begin);
    trusted.push_back(static_cast<uint32_t>(joined.size()));
  }
  return EncodeJoined(joined, trusted, Parse::kTrusted, add_special, work);
}

std::vector<TokenId> Tokenizer::EncodePlain(std::string_view text, bool add_special, bool parse_special, EncodeWork* work) const {
  HF_CHECK(text.size() < kMaxText);
  return EncodeJoined(text, {}, parse_special ? Parse::kAll : Parse::kUserDefined, add_special, work);
}

std::vector<TokenId> Tokenizer::EncodeJoined(std::string_view text, std::span<const uint32_t> trusted, Parse parse, bool add_special,
                                             EncodeWork* work) const {
  std::vector<TokenId> out;
  Scratch scratch;
  size_t region = 0;        // index of the first trusted region that ends after `at`
  size_t raw = 0;           // start of the stretch that is not yet encoded
  bool follows_special = true;
  uint64_t steps = 0;
  for (size_t at = 0; at < text.size();) {
    while (region < trusted.size() && trusted[region + 1] <= at) region += 2;
    const size_t trusted_end = region < trusted.size() && trusted[region] <= at ? trusted[region + 1] : 0;
    TokenId found = kNoToken;
    size_t end = 0;
    steps += specials_.Walk(text, at, [&](TokenId id, size_t stop) {
      const bool allowed = vocabulary_.IsOrdinary(id) || parse == Parse::kAll ||
                           (parse == Parse::kUserDefined ? !vocabulary_.IsHidden(id) : stop <= trusted_end);
      if (allowed) {
        found = id;
        end = stop;
      }
    });
    if (found == kNoToken) {
      ++at;
      continue;
    }
    EncodeFragment(text.substr(raw, at - raw), follows_special, &scratch, &out, work);
    out.push_back(found);
    follows_special = true;
    at = raw = end;
  }
  EncodeFragment(text.substr(raw), follows_special, &scratch, &out, work);
  if (work != nullptr) work->steps += steps;
  if (add_special && vocabulary_.add_bos() && (out.empty() || out.front() != *vocabulary_.bos())) {
    out.insert(out.begin(), *vocabulary_.bos());
  }
  if (add_special && vocabulary_.add_eos() && (out.empty() || out.back() != *vocabulary_.eos())) out.push_back(*vocabulary_.eos());
  return out;
}

void Tokenizer::EncodeFragment(std::string_view text, bool follows_special, Scratch* scratch, std::vector<TokenId>* out,
                               EncodeWork* work) const {
  if (text.empty()) return;
  switch (vocabulary_.model()) {
    case TokenizerModel::kSpm:
      ReplaceSpaces(text, vocabulary_.add_space_prefix() && follows_special, &scratch->normalised);
      EncodeSpm(vocabulary_, scratch->normalised, out, work);
      return;
    case TokenizerModel::kGemma4: {
      ReplaceSpaces(text, false, &scratch->normalised);
      const std::string_view all = scratch->normalised;
      for (size_t at = 0; at < all.size();) {
        const bool lines = all[at] == '\n';
        const size_t end = std::min(all.size(), lines ? all.find_first_not_of('\n', at) : all.find('\n', at));
        const std::string_view piece = all.substr(at, end - at);
        const TokenId whole = lines ? vocabulary_.FindOrdinary(piece) : kNoToken;
        if (whole != kNoToken) {
          out->push_back(whole);
        } else {
          merger_->Encode(piece, &scratch->bpe, out, work);
        }
        at = end;
      }
      return;
    }
    case TokenizerModel::kBpe: break;
  }
  SplitText(pattern_, text, &scratch->ends);
  size_t at = 0;
  for (const uint32_t end : scratch->ends) {
    const std::string_view piece = text.substr(at, end - at);
    const TokenId whole = whole_pieces_first_ ? vocabulary_.FindOrdinary(piece) : kNoToken;
    if (whole != kNoToken) {
      out->push_back(whole);
    } else {
      merger_->Encode(piece, &scratch->bpe, out, work);
    }
    at = end;
  }
}

bool Tokenizer::IsStopToken(TokenId id) const { return std::binary_search(StopTokens().begin(), StopTokens().end(), id); }

std::optional<TokenId> Tokenizer::FindToken(std::string_view stored) const {
  const TokenId id = vocabulary_.FindStored(stored);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

}  // namespace holdfast::text

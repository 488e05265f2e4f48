#include "frontend/text/vocabulary.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "frontend/text/unicode.h"
#include "frontend/text/utf8.h"
#include "proto/base/status_wire.h"
#include "proto/model_card.pb.h"

namespace holdfast::text {
namespace {

constexpr std::string_view kHarmonyEnd = "<|end|>";
constexpr std::string_view kGemmaToolResponse = "<|tool_response>";
constexpr std::string_view kSentenceEnd = "</s>";
// Names under which vocabularies are known to store a token that ends a turn or a text.
constexpr std::string_view kStopNames[] = {
    "<|eot_id|>", "<|im_end|>", kHarmonyEnd, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>",
    kSentenceEnd, "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    kGemmaToolResponse,
    "<\xEF\xBD\x9C" "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",  // with U+FF5C and U+2581
    "<\xEF\xBD\x9C" "end of sentence\xEF\xBD\x9C>",
};

absl::Status Bad(std::string message) { return absl::InvalidArgumentError("model card: " + message); }

// GPT-2 writes each byte as a printable character: bytes that are printable in Latin-1 as themselves, the others as U+0100 and up.
bool IsPrintableByte(unsigned b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

class Gpt2Alphabet final {
 public:
  Gpt2Alphabet() {
    char32_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const char32_t c = IsPrintableByte(b) ? static_cast<char32_t>(b) : next++;
      byte_of_[c] = static_cast<int16_t>(b);
    }
  }
  // The bytes that a stored text stands for; false when it is not written in the alphabet.
  bool Decode(std::string_view stored, std::string* out) const {
    out->clear();
    for (size_t at = 0; at < stored.size();) {
      const Utf8Step step = DecodeUtf8(stored, at);
      if (step.kind != Utf8Kind::kOk || step.code_point >= byte_of_.size() || byte_of_[step.code_point] < 0) return false;
      out->push_back(static_cast<char>(byte_of_[step.code_point]));
      at += step.length;
    }
    return true;
  }

 private:
  static constexpr size_t kSize = 256 + 68;  // 68 bytes are not printable
  std::array<int16_t, kSize> byte_of_ = [] {
    std::array<int16_t, kSize> a{};
    a.fill(-1);
    return a;
  }();
};

std::string ReplaceAll(std::string_view s, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = s.find(from, at)) != std::string_view::npos; at = hit + from.size()) {
    out.append(s.substr(at, hit - at)).append(to);
  }
  out.append(s.substr(at));
  return out;
}

// The value of a text of the form <0xXX>, or -1.
int ByteOfName(std::string_view s) {
  if (s.size() != 6 || s.substr(0, 3) != "<0x" || s[5] != '>') return -1;
  int value = -1;
  const auto r = std::from_chars(s.data() + 3, s.data() + 5, value, 16);
  return r.ec == std::errc() && r.ptr == s.data() + 5 ? value : -1;
}

bool OnlyBlanks(std::string_view s) {
  for (size_t at = 0; at < s.size();) {
    const Utf8Step step = DecodeUtf8(s, at);
    if (step.kind != Utf8Kind::kOk || (step.code_point != 0x2581 && ClassOf(step.code_point) != CharClass::kSpace)) return false;
    at += step.length;
  }
  return !s.empty();
}

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Create(const proto::ModelCard& card) {
  Vocabulary v;
  HF_RETURN_IF_ERROR(v.ReadTokens(card));
  HF_RETURN_IF_ERROR(v.IndexStored());
  HF_RETURN_IF_ERROR(v.ReadSpecials(card));
  v.IndexOrdinary();
  return v;
}

absl::Status Vocabulary::ReadTokens(const proto::ModelCard& card) {
  const proto::Vocabulary& in = card.vocabulary();
  if (in.model() == "gpt2") {
    model_ = TokenizerModel::kBpe;
  } else if (in.model() == "llama") {
    model_ = TokenizerModel::kSpm;
  } else if (in.model() == "gemma4") {
    model_ = TokenizerModel::kGemma4;
  } else {
    return Bad(fmt::format("tokenizer model \"{}\" is not supported (gpt2, llama and gemma4 are)", in.model()));
  }
  const size_t count = static_cast<size_t>(in.tokens_size());
  if (count == 0) return Bad("the vocabulary has no tokens");
  if (count > card.vocab_size()) {
    return Bad(fmt::format("the vocabulary has {} tokens but the model only {} logits", count, card.vocab_size()));
  }
  if (in.types_size() != 0 && static_cast<size_t>(in.types_size()) != count) {
    return Bad(fmt::format("{} token types for {} tokens", in.types_size(), count));
  }
  if (in.scores_size() != 0 && static_cast<size_t>(in.scores_size()) != count) {
    return Bad(fmt::format("{} token scores for {} tokens", in.scores_size(), count));
  }
  if (model_ == TokenizerModel::kSpm && in.scores_size() == 0) return Bad("tokenizer model \"llama\" needs token scores");
  uint64_t total = 0;
  for (const std::string& token : in.tokens()) total += token.size();
  if (total >= UINT32_MAX) return Bad(fmt::format("the tokens' texts have {} bytes together; at most 4 GiB are possible", total));

  scores_.assign(in.scores().begin(), in.scores().end());
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (std::isnan(scores_[i])) return Bad(fmt::format("the score of token {} is not a number", i));
  }
  byte_tokens_.fill(kNoToken);
  types_.reserve(count);
  const Gpt2Alphabet alphabet;
  std::string decoded;
  for (size_t i = 0; i < count; ++i) {
    const int type = in.types_size() == 0 ? 1 : in.types(static_cast<int>(i));
    if (type < 0 || type > 6) return Bad(fmt::format("token {} has type {}; known are 0 to 6", i, type));
    types_.push_back(static_cast<TokenType>(type));
    const std::string& text = in.tokens(static_cast<int>(i));
    const bool literal = types_[i] == TokenType::kControl || types_[i] == TokenType::kUnknown;
    stored_.Add(text);
    if (model_ == TokenizerModel::kBpe) {
      const bool in_alphabet = !literal && types_[i] != TokenType::kUserDefined && alphabet.Decode(text, &decoded);
      bytes_.Add(in_alphabet ? decoded : text);
      // A text outside the alphabet cannot come out of byte-level merging: the token is a name, whatever its type says.
      ordinary_.push_back(in_alphabet && !text.empty() && types_[i] != TokenType::kUnused);
      if (in_alphabet && decoded.size() == 1) byte_tokens_[static_cast<uint8_t>(decoded[0])] = static_cast<TokenId>(i);
      continue;
    }
    keys_.Add(ReplaceAll(text, " ", kSpaceSymbol));
    if (const int b = types_[i] == TokenType::kByte ? ByteOfName(text) : -1; b >= 0) {
      byte_tokens_[static_cast<size_t>(b)] = static_cast<TokenId>(i);
      bytes_.Add(std::string(1, static_cast<char>(b)));
      ordinary_.push_back(false);
      continue;
    }
    if (types_[i] == TokenType::kByte) return Bad(fmt::format("token {} is a byte token but its text \"{}\" is not <0xXX>", i, text));
    bytes_.Add(literal ? text : ReplaceAll(text, kSpaceSymbol, " "));
    ordinary_.push_back(!text.empty() && (types_[i] == TokenType::kNormal || types_[i] == TokenType::kUndefined));
  }
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<TokenId>(i);
    if (types_[i] == TokenType::kUserDefined && OnlyBlanks(stored(id))) ordinary_[i] = true;
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::IndexStored() {
  by_stored_.Reserve(size());
  for (TokenId id = 0; id < size(); ++id) {
    if (stored(id).empty()) continue;
    const TokenId other = by_stored_.Add(id, [this](TokenId t) { return stored(t); });
    if (other != kNoToken) return Bad(fmt::format("tokens {} and {} have the same text \"{}\"", other, id, stored(id)));
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadSpecials(const proto::ModelCard& card) {
  const proto::Vocabulary& in = card.vocabulary();
  const auto check = [&](const char* name, uint32_t id) {
    if (id < size()) return absl::OkStatus();
    return Bad(fmt::format("the {} token id {} is outside the vocabulary of {}", name, id, size()));
  };
  std::vector<TokenId> stops;
  const auto read = [&](bool present, uint32_t id, const char* name, std::optional<TokenId>* out, bool ends) {
    if (!present) return absl::OkStatus();
    if (absl::Status status = check(name, id); !status.ok()) return status;
    if (out != nullptr) *out = id;
    if (ends) stops.push_back(id);
    return absl::OkStatus();
  };
  HF_RETURN_IF_ERROR(read(in.has_bos(), in.bos(), "bos", &bos_, false));
  HF_RETURN_IF_ERROR(read(in.has_eos(), in.eos(), "eos", &eos_, true));
  HF_RETURN_IF_ERROR(read(in.has_eot(), in.eot(), "eot", nullptr, true));
  HF_RETURN_IF_ERROR(read(in.has_eom(), in.eom(), "eom", nullptr, true));
  HF_RETURN_IF_ERROR(read(in.has_unknown(), in.unknown(), "unknown", &unknown_, false));
  for (const uint32_t id : in.fim_end()) HF_RETURN_IF_ERROR(read(true, id, "fim", nullptr, true));

  // A name that merging can spell is a word of the language (Qwen has </s> so), not a marker.
  std::vector<std::string_view> spelled;
  for (const std::string& merge : in.merges()) {
    for (const std::string_view name : kStopNames) {
      const size_t space = merge.find(' ', 1);
      if (merge.size() != name.size() + 1 || space == std::string::npos || merge.compare(0, space, name, 0, space) != 0) continue;
      if (merge.compare(space + 1, std::string::npos, name, space) == 0) spelled.push_back(name);
    }
  }
  const auto is_word = [&](std::string_view name, TokenId id) {
    return types_[id] == TokenType::kNormal && std::find(spelled.begin(), spelled.end(), name) != spelled.end();
  };
  const auto has = [&](std::string_view name) { return FindStored(name) != kNoToken; };
  // Harmony ends each message with <|end|> and a turn with one of the other two. Gemma 4 has </s> as a word of HTML.
  const bool harmony = has("<|return|>") && has("<|call|>") && has(kHarmonyEnd);
  const bool gemma4 = has(kGemmaToolResponse);
  for (const std::string_view name : kStopNames) {
    const TokenId id = FindStored(name);
    if (id == kNoToken || (harmony && name == kHarmonyEnd) || (gemma4 && name == kSentenceEnd) || is_word(name, id)) continue;
    stops.push_back(id);
    types_[id] = TokenType::kControl;
    ordinary_[id] = false;
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  stop_tokens_ = std::move(stops);

  // Gemma 4 always starts with bos, whatever its file says.
  add_bos_ = bos_.has_value() && (in.add_bos() || model_ == TokenizerModel::kGemma4);
  add_eos_ = eos_.has_value() && in.add_eos();
  add_space_prefix_ = model_ == TokenizerModel::kSpm && in.add_space_prefix();
  return absl::OkStatus();
}

void Vocabulary::IndexOrdinary() {
  by_key_.Reserve(size());
  for (TokenId id = 0; id < size(); ++id) {
    if (!ordinary_[id]) continue;
    by_key_.Add(id, [this](TokenId t) { return key(t); });
    longest_key_ = std::max(longest_key_, key(id).size());
  }
}

TokenId Vocabulary::FindOrdinary(std::string_view text) const {
  if (text.size() > longest_key_) return kNoToken;
  return by_key_.Find(text, [this](TokenId t) { return key(t); });
}

TokenId Vocabulary::FindStored(std::string_view text) const {
  if (text.empty()) return kNoToken;
  return by_stored_.Find(text, [this](TokenId t) { return stored(t); });
}

}  // namespace holdfast::text

#include "tests/support/tiny_cards.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace holdfast::testing {
namespace {

constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;

uint32_t Add(proto::Vocabulary* v, const std::string& text, int type) {
  v->add_tokens(text);
  v->add_types(type);
  return static_cast<uint32_t>(v->tokens_size() - 1);
}

void AddByteTokens(proto::Vocabulary* v) {
  for (int b = 0; b < 256; ++b) Add(v, fmt::format("<0x{:02X}>", b), kByte);
}

}  // namespace

std::string Gpt2Text(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    const auto printable = [](unsigned x) { return (x >= 33 && x <= 126) || (x >= 161 && x <= 172) || x >= 174; };
    unsigned code = b;
    if (!printable(b)) {
      code = 256;
      for (unsigned x = 0; x < b; ++x) code += printable(x) ? 0 : 1;
    }
    if (code < 0x80) {
      out.push_back(static_cast<char>(code));
    } else {
      out.push_back(static_cast<char>(0xC0 | (code >> 6)));
      out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
  }
  return out;
}

proto::ModelCard TinyBpeCard(const std::vector<std::pair<std::string, std::string>>& merges) {
  proto::ModelCard card;
  proto::Vocabulary* v = card.mutable_vocabulary();
  v->set_model("gpt2");
  v->set_pre("qwen2");
  for (int b = 0; b < 256; ++b) Add(v, Gpt2Text(std::string(1, static_cast<char>(b))), kNormal);
  std::set<std::string> made;
  for (const auto& [left, right] : merges) {
    v->add_merges(Gpt2Text(left) + " " + Gpt2Text(right));
    if (made.insert(left + right).second) Add(v, Gpt2Text(left + right), kNormal);
  }
  v->set_eos(Add(v, "<|endoftext|>", kControl));
  Add(v, "<|im_start|>", kControl);
  v->set_eot(Add(v, "<|im_end|>", kControl));
  Add(v, "<tool_call>", kUserDefined);
  Add(v, "</tool_call>", kUserDefined);
  card.set_vocab_size(static_cast<uint32_t>(v->tokens_size()));
  return card;
}

proto::ModelCard TinySpmCard(const std::vector<std::pair<std::string, float>>& pieces) {
  proto::ModelCard card;
  proto::Vocabulary* v = card.mutable_vocabulary();
  v->set_model("llama");
  v->set_unknown(Add(v, "<unk>", kUnknown));
  v->set_bos(Add(v, "<s>", kControl));
  v->set_eos(Add(v, "</s>", kControl));
  AddByteTokens(v);
  for (const auto& [text, score] : pieces) Add(v, text, kNormal);
  const int before = v->tokens_size() - static_cast<int>(pieces.size());
  for (int i = 0; i < before; ++i) v->add_scores(0);
  for (const auto& piece : pieces) v->add_scores(piece.second);
  v->set_add_bos(true);
  v->set_add_space_prefix(true);
  card.set_vocab_size(static_cast<uint32_t>(v->tokens_size()));
  return card;
}

proto::ModelCard TinySpmCard() {
  std::vector<std::pair<std::string, float>> pieces;
  float score = -1;
  // "</" and "s>" would make the control token </s> if merging looked at all tokens.
  for (const char* text : {"\xE2\x96\x81h", "ell", "\xE2\x96\x81hell", "\xE2\x96\x81hello", "or", "\xE2\x96\x81w", "\xE2\x96\x81wor", "ld",
                           "\xE2\x96\x81world", "</", "s>", "\xE2\x96\x81\xE2\x96\x81", "el", "\xE2\x96\x81", "h", "e", "l", "o", "w", "r", "d", "<", "/",
                           "s", ">", "\n", "\xC3\xA9"}) {
    pieces.emplace_back(text, score);
    score -= 1;
  }
  return TinySpmCard(pieces);
}

proto::ModelCard TinyGemma4Card(const std::vector<std::string>& characters, const std::vector<std::pair<std::string, std::string>>& merges,
                                const std::vector<std::string>& without_token) {
  proto::ModelCard card;
  proto::Vocabulary* v = card.mutable_vocabulary();
  v->set_model("gemma4");
  Add(v, "<pad>", kControl);
  v->set_eos(Add(v, "<eos>", kControl));
  v->set_bos(Add(v, "<bos>", kControl));
  v->set_unknown(Add(v, "<unk>", kControl));
  for (const char* marker : {"<|tool_call>", "<tool_call|>", "<|tool_response>"}) Add(v, marker, kUserDefined);
  Add(v, "<|turn>", kControl);
  v->set_eot(Add(v, "<turn|>", kControl));
  for (const char* text : {"\n", "\n\n", "\n\n\n", "</s>"}) Add(v, text, kUserDefined);
  AddByteTokens(v);
  std::set<std::string> made;
  for (const std::string& c : characters) {
    if (made.insert(c).second) Add(v, c, kNormal);
  }
  for (const auto& [left, right] : merges) {
    v->add_merges(left + " " + right);
    const std::string whole = left + right;
    if (std::find(without_token.begin(), without_token.end(), whole) != without_token.end()) continue;
    if (made.insert(whole).second) Add(v, whole, kNormal);
  }
  card.set_vocab_size(static_cast<uint32_t>(v->tokens_size()));
  return card;
}

proto::ModelCard TinyGemma4Card() {
  std::vector<std::string> characters = {"\xE2\x96\x81", "\xC3\xA9"};
  for (char c = '!'; c <= '~'; ++c) characters.emplace_back(1, c);
  return TinyGemma4Card(characters, {{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"\xE2\x96\x81", "hello"}, {"\xE2\x96\x81", "\xE2\x96\x81"},
                                     {"o", "\xE2\x96\x81"}, {"<", "|"}, {"<|", "t"}, {"a", "a"}, {"aa", "aa"}});
}

}  // namespace holdfast::testing

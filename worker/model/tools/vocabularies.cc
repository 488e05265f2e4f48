#include "worker/model/tools/vocabularies.h"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

namespace holdfast::model {
namespace {

constexpr const char* kGemmaTemplate =
    "{{ bos_token }}{%- for m in messages %}{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (m.content or '') + "
    "'<turn|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|turn>model\\n' }}{%- endif %}";
constexpr const char* kChatmlTemplate =
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class Vocabulary {
 public:
  bool Add(const std::string& text, TokenType type) {
    if (!known_.insert(text).second) return false;
    tokens.push_back(text);
    types.push_back(type);
    return true;
  }
  // left and right must be tokens already; their concatenation becomes one.
  void Merge(const std::string& left, const std::string& right) {
    if (!Add(left + right, kNormal)) return;
    merges.push_back(left + " " + right);
  }
  // Merges a word (a sequence of one-character tokens) left to right.
  void Word(const std::vector<std::string>& characters) {
    std::string left = characters[0];
    for (size_t i = 1; i < characters.size(); ++i) {
      Merge(left, characters[i]);
      left += characters[i];
    }
  }
  void PadTo32(int64_t least = 0) {
    while (tokens.size() % 32 != 0 || static_cast<int64_t>(tokens.size()) < least) Add(fmt::format("<unused{}>", tokens.size()), kUnused);
  }

  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;

 private:
  std::unordered_set<std::string> known_;
};

// Common English words: enough that a prompt is not spelled letter by letter.
constexpr const char* kWords[] = {
    "the",  "and",  "that", "have", "for",  "not",  "with", "you",   "this",  "but",   "his",   "from",  "they",  "say",   "her",
    "she",  "will", "one",  "all",  "would", "there", "their", "what", "out",  "about", "who",   "get",   "which", "when",  "make",
    "can",  "like", "time", "just", "him",  "know", "take", "people", "into", "year",  "your",  "good",  "some",  "could", "them",
    "see",  "other", "than", "then", "now", "look", "only", "come",  "over",  "think", "also",  "back",  "after", "use",   "two",
    "how",  "our",  "work", "first", "well", "way",  "even", "new",   "want",  "because", "any", "these", "give",  "day",   "most",
    "is",   "are",  "was",  "it",   "in",   "on",   "at",   "of",    "to",    "we",    "he",    "my",    "me",    "by",    "do",
    "user", "system", "assistant", "model", "hello", "world", "please", "answer", "question", "help",
};

std::vector<std::string> Characters(const std::string& prefix, const char* word) {
  std::vector<std::string> out;
  if (!prefix.empty()) out.push_back(prefix);
  for (; *word != 0; ++word) out.emplace_back(1, *word);
  return out;
}

void Write(GgufWriter* w, const Vocabulary& v, const char* model) {
  w->String("tokenizer.ggml.model", model);
  w->Strings("tokenizer.ggml.tokens", v.tokens);
  w->I32s("tokenizer.ggml.token_type", v.types);
  w->Strings("tokenizer.ggml.merges", v.merges);
}

}  // namespace

std::string BytePiece(unsigned char byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255); };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

int64_t WriteGemmaVocabulary(GgufWriter* w, int64_t least) {
  Vocabulary v;
  for (const char* t : {"<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>"}) v.Add(t, kControl);
  for (const char* t : {"<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"}) v.Add(t, kUserDefined);
  v.Add("<|think|>", kControl);
  for (const char* t : {"<|channel>", "<channel|>"}) v.Add(t, kUserDefined);
  for (const char* t : {"<|turn>", "<turn|>"}) v.Add(t, kControl);
  for (int b = 0; b < 256; ++b) v.Add(fmt::format("<0x{:02X}>", b), kByte);
  for (int c = 0x21; c < 0x7f; ++c) v.Add(std::string(1, static_cast<char>(c)), kNormal);
  const std::string space = "\xe2\x96\x81";
  for (const char* t : {"\xe2\x96\x81", "\n", "\n\n", "\xc3\xa9"}) v.Add(t, kNormal);
  for (const char* word : kWords) v.Word(Characters("", word));
  for (const char* word : kWords) v.Merge(space, word);
  v.PadTo32(least);
  Write(w, v, "gemma4");
  w->F32s("tokenizer.ggml.scores", std::vector<float>(v.tokens.size(), -1000.f));
  w->U32("tokenizer.ggml.bos_token_id", 2);
  w->U32("tokenizer.ggml.eos_token_id", 1);
  w->U32("tokenizer.ggml.unknown_token_id", 3);
  w->U32("tokenizer.ggml.padding_token_id", 0);
  w->Bool("tokenizer.ggml.add_bos_token", true);
  w->Bool("tokenizer.ggml.add_space_prefix", false);
  w->String("tokenizer.chat_template", kGemmaTemplate);
  return static_cast<int64_t>(v.tokens.size());
}

int64_t WriteChatmlVocabulary(GgufWriter* w) {
  Vocabulary v;
  for (const char* t : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) v.Add(t, kControl);
  for (int b = 0; b < 256; ++b) v.Add(BytePiece(static_cast<unsigned char>(b)), kNormal);
  for (const char* word : kWords) v.Word(Characters("", word));
  for (const char* word : kWords) v.Merge(BytePiece(' '), word);
  v.PadTo32();
  Write(w, v, "gpt2");
  w->String("tokenizer.ggml.pre", "smollm");
  w->U32("tokenizer.ggml.bos_token_id", 1);
  w->U32("tokenizer.ggml.eos_token_id", 2);
  w->U32("tokenizer.ggml.unknown_token_id", 0);
  w->U32("tokenizer.ggml.padding_token_id", 2);
  w->Bool("tokenizer.ggml.add_bos_token", false);
  w->Bool("tokenizer.ggml.add_space_prefix", false);
  w->String("tokenizer.chat_template", kChatmlTemplate);
  return static_cast<int64_t>(v.tokens.size());
}

}  // namespace holdfast::model

#include "tests/support/gguf_vocab.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace holdfast::testing {
namespace {

// GGUF's value types.
constexpr uint32_t kString = 8, kArray = 9;
constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

class Reader final {
 public:
  explicit Reader(std::vector<char> data) : data_(std::move(data)) {}
  template <class T>
  T Number() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view Take(uint64_t n) {
    if (n > data_.size() - at_) throw std::runtime_error("the file ends early");
    at_ += n;
    return std::string_view(data_.data() + (at_ - n), n);
  }
  std::string_view String() { return Take(Number<uint64_t>()); }

 private:
  std::vector<char> data_;
  size_t at_ = 0;
};

struct Value {
  uint32_t type = 0;                     // of the elements when it is an array
  std::vector<std::string_view> items;   // raw bytes of each
  uint64_t AsInt() const {
    uint64_t v = 0;
    std::memcpy(&v, items.at(0).data(), items[0].size());
    return v;
  }
};

Value ReadValue(Reader* r) {
  Value v;
  v.type = r->Number<uint32_t>();
  uint64_t count = 1;
  if (v.type == kArray) {
    v.type = r->Number<uint32_t>();
    count = r->Number<uint64_t>();
  }
  if (v.type > 12 || v.type == kArray) throw std::runtime_error("unknown value type");
  for (uint64_t i = 0; i < count; ++i) v.items.push_back(v.type == kString ? r->String() : r->Take(kSizes[v.type]));
  return v;
}

}  // namespace

std::optional<proto::ModelCard> ReadVocabularyCard(const std::filesystem::path& file, std::string* error) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    *error = "cannot open " + file.string();
    return std::nullopt;
  }
  try {
    Reader r(std::vector<char>(std::istreambuf_iterator<char>(in), {}));
    if (r.Number<uint32_t>() != 0x46554747) throw std::runtime_error("not a GGUF file");  // "GGUF"
    r.Take(4 + 8);
    const auto count = r.Number<uint64_t>();
    proto::ModelCard card;
    proto::Vocabulary* v = card.mutable_vocabulary();
    bool has_add_bos = false, has_prefix = false;
    for (uint64_t i = 0; i < count; ++i) {
      std::string_view key = r.String();
      const Value value = ReadValue(&r);
      constexpr std::string_view kPrefix = "tokenizer.ggml.";
      if (key.substr(0, kPrefix.size()) != kPrefix) continue;
      key.remove_prefix(kPrefix.size());
      if (key == "model") v->set_model(std::string(value.items.at(0)));
      if (key == "pre") v->set_pre(std::string(value.items.at(0)));
      for (const std::string_view item : value.items) {
        if (key == "tokens") v->add_tokens(std::string(item));
        if (key == "merges") v->add_merges(std::string(item));
        if (key == "token_type") {
          int32_t type;
          std::memcpy(&type, item.data(), sizeof(type));
          v->add_types(type);
        }
        if (key == "scores") {
          float score;
          std::memcpy(&score, item.data(), sizeof(score));
          v->add_scores(score);
        }
      }
      if (key == "bos_token_id") v->set_bos(static_cast<uint32_t>(value.AsInt()));
      if (key == "eos_token_id") v->set_eos(static_cast<uint32_t>(value.AsInt()));
      if (key == "unknown_token_id") v->set_unknown(static_cast<uint32_t>(value.AsInt()));
      if (key == "add_bos_token") {
        v->set_add_bos(value.AsInt() != 0);
        has_add_bos = true;
      }
      if (key == "add_space_prefix") {
        v->set_add_space_prefix(value.AsInt() != 0);
        has_prefix = true;
      }
    }
    if (v->model() == "llama") {
      if (!has_add_bos) v->set_add_bos(true);
      if (!has_prefix) v->set_add_space_prefix(true);
    }
    card.set_vocab_size(static_cast<uint32_t>(v->tokens_size()));
    return card;
  } catch (const std::exception& e) {
    *error = file.string() + ": " + e.what();
    return std::nullopt;
  }
}

std::optional<std::filesystem::path> SharedData() {
  const char* env = std::getenv("HOLDFAST_SHARED");
  const std::filesystem::path path = env != nullptr ? std::filesystem::path(env) : std::filesystem::path(HOLDFAST_SOURCE_DIR) / "../shared";
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? std::optional(path) : std::nullopt;
}

}  // namespace holdfast::testing

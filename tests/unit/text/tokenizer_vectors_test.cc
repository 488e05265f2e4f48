// The public test vectors of real vocabularies (46 texts each). They are not in this repository.
#include <catch2/catch.hpp>

#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "frontend/text/detokenizer.h"
#include "frontend/text/tokenizer.h"
#include "frontend/text/utf8.h"
#include "tests/support/gguf_vocab.h"

namespace holdfast::text {
namespace {

std::optional<std::filesystem::path> VocabularyFolder() {
  const auto shared = testing::SharedData();
  std::error_code ignored;
  if (shared && std::filesystem::is_directory(*shared / "golden/vocab", ignored)) return *shared / "golden/vocab";
  std::cout << "SKIP: no shared test data (golden/vocab); set HOLDFAST_SHARED to its folder\n";
  return std::nullopt;
}

std::unique_ptr<Tokenizer> Load(const std::filesystem::path& file) {
  std::string error;
  const auto card = testing::ReadVocabularyCard(file, &error);
  INFO(error);
  REQUIRE(card.has_value());
  auto tokenizer = Tokenizer::Create(*card);
  INFO(tokenizer.status().message());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::string ReadFile(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in.good());
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<std::string> Texts(const std::filesystem::path& file) {
  const std::string all = ReadFile(file);
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> out;
  size_t at = 0;
  for (size_t hit; (hit = all.find(kSeparator, at)) != std::string::npos; at = hit + kSeparator.size()) out.push_back(all.substr(at, hit - at));
  if (at < all.size()) out.push_back(all.substr(at));  // some files end with a separator, some without
  return out;
}

std::string Join(const std::vector<TokenId>& ids) {
  std::string out;
  for (const TokenId id : ids) out.append(" ").append(std::to_string(id));
  return out;
}

void CheckVectors(const std::string& name) {
  const auto folder = VocabularyFolder();
  if (!folder) return;
  const auto tokenizer = Load(*folder / (name + ".gguf"));
  const std::vector<std::string> texts = Texts(*folder / (name + ".inp"));
  std::istringstream expected(ReadFile(*folder / (name + ".out")));
  REQUIRE(texts.size() == 46);
  for (const std::string& text : texts) {
    std::string line;
    REQUIRE(std::getline(expected, line));
    std::istringstream numbers(line);
    const std::vector<TokenId> wanted(std::istream_iterator<TokenId>{numbers}, {});
    const std::vector<TokenId> got = tokenizer->EncodePlain(text, false, false);
    INFO(name << ": " << text);
    CHECK(Join(got) == Join(wanted));
    CHECK(DetokenizeAll(tokenizer->vocabulary(), got, true) == text);
    // Untrusted text without markers, cut anywhere, has the same tokens.
    size_t cut = text.size() / 3;
    const TextSpan spans[] = {{std::string_view(text).substr(0, cut), false}, {std::string_view(text).substr(cut), true}};
    CHECK(Join(tokenizer->Encode(spans, false)) == Join(wanted));
  }
}

TEST_CASE("vectors: gpt-2") { CheckVectors("gpt-2"); }
TEST_CASE("vectors: starcoder") { CheckVectors("starcoder"); }
TEST_CASE("vectors: qwen2") { CheckVectors("qwen2"); }
TEST_CASE("vectors: llama-bpe") { CheckVectors("llama-bpe"); }
TEST_CASE("vectors: llama-spm") { CheckVectors("llama-spm"); }
TEST_CASE("vectors: gemma-4") { CheckVectors("gemma-4"); }

TEST_CASE("round trip: gpt-oss, which has no vectors") {
  const auto folder = VocabularyFolder();
  if (!folder) return;
  const auto tokenizer = Load(*folder / "gpt-oss.gguf");
  for (const std::string& text : Texts(*folder / "gpt-2.inp")) {
    CHECK(DetokenizeAll(tokenizer->vocabulary(), tokenizer->EncodePlain(text, false, true), true) == text);
  }
  const auto id = [&](const char* name) { return *tokenizer->FindToken(name); };
  CHECK(tokenizer->IsStopToken(id("<|return|>")));
  CHECK(tokenizer->IsStopToken(id("<|call|>")));
  CHECK_FALSE(tokenizer->IsStopToken(id("<|end|>")));
  CHECK(tokenizer->IsStopToken(id("<|endoftext|>")));
  CHECK(tokenizer->EncodePlain("<|start|>", false, true) == std::vector<TokenId>{id("<|start|>")});
}

TEST_CASE("real vocabularies: markers of users stay text, and 1 MB without a space stays linear") {
  const auto folder = VocabularyFolder();
  if (!folder) return;
  for (const char* name : {"gemma-4", "llama-spm", "qwen2"}) {
    const auto tokenizer = Load(*folder / (std::string(name) + ".gguf"));
    const Vocabulary& v = tokenizer->vocabulary();
    size_t markers = 0;
    for (TokenId id = 0; id < v.size(); ++id) {
      if (v.IsOrdinary(id) || v.type(id) == TokenType::kNormal || v.stored(id).empty()) continue;
      ++markers;
      const TextSpan untrusted[] = {{v.stored(id), false}};
      for (const TokenId t : tokenizer->Encode(untrusted, false)) {
        if (!v.IsOrdinary(t) && v.type(t) != TokenType::kByte) FAIL(name << ": token " << t << " from the text " << v.stored(id));
      }
    }
    CHECK(markers > 2);
    uint64_t steps[2];
    for (const size_t half : {0, 1}) {
      std::string text;
      while (text.size() < (half == 0 ? 500'000u : 1'000'000u)) text += "Abcdefgh" + std::to_string(text.size());
      EncodeWork work;
      const TextSpan span[] = {{text, false}};
      const std::vector<TokenId> ids = tokenizer->Encode(span, false, &work);
      CHECK(DetokenizeAll(v, ids, true) == text);
      steps[half] = work.steps;
    }
    INFO(name << ": " << steps[0] << " and " << steps[1] << " steps");
    CHECK(static_cast<double>(steps[1]) < 2.1 * static_cast<double>(steps[0]));
  }
}

}  // namespace
}  // namespace holdfast::text

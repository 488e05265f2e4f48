// Any bytes as a constraint program: refused, or run within the limits.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "worker/constrain/engine.h"

namespace constrain = holdfast::constrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto trie = [] {
    std::vector<std::string> texts;
    for (int b = 0; b < 256; ++b) texts.emplace_back(1, static_cast<char>(b));
    texts.resize(264);
    for (const char* word : {"\":", "{\"", "ab", "abc", "true", "\xC3\xA9", "  "}) texts.emplace_back(word);
    return std::make_shared<const constrain::TokenTrie>(texts);
  }();
  std::string bytes = "HFC1";
  bytes.append(reinterpret_cast<const char*>(data), size);
  auto program = constrain::Program::Decode(bytes, trie->vocabulary());
  if (!program.ok()) return 0;
  constrain::EngineLimits limits;
  limits.configurations.max_frames = 20'000;
  limits.configurations.max_sets = 5'000;
  constrain::Engine engine(*std::move(program), trie, limits);
  constrain::Position position;
  std::vector<holdfast::TokenId> history;
  for (size_t step = 0; step < 16 && engine.Advance(history, &position).ok(); ++step) {
    const auto mask = engine.MaskAt(position);
    if (!mask.ok() || (*mask)->few.empty()) break;
    history.push_back((*mask)->few[step * 5 % (*mask)->few.size()]);
  }
  return 0;
}

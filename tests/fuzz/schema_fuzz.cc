// Any bytes as a JSON Schema and as a regular expression: a status or a program that decodes and runs a little, within its limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "frontend/grammar/builder.h"
#include "frontend/text/json_value.h"
#include "proto/base/check.h"
#include "proto/engine.pb.h"
#include "worker/constrain/engine.h"

using holdfast::grammar::Builder;
using holdfast::grammar::BuilderLimits;
using holdfast::grammar::Node;

namespace {

void Run(Builder& builder, const absl::StatusOr<Node>& root) {
  static const auto trie = [] {
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
    bytes.resize(260);
    return std::make_shared<const holdfast::constrain::TokenTrie>(bytes);
  }();
  if (!root.ok()) return;
  const auto built = builder.Build(*root);
  if (!built.ok()) return;
  auto program = holdfast::constrain::Program::Decode(built->program(), trie->vocabulary());
  HF_CHECKF(program.ok(), "what was built is refused: {}", program.status().ToString());
  holdfast::constrain::EngineLimits limits;
  limits.configurations.max_frames = 50'000;
  limits.configurations.max_sets = 10'000;
  holdfast::constrain::Engine engine(*std::move(program), trie, limits);
  holdfast::constrain::Position position;
  std::vector<holdfast::TokenId> history;
  for (int step = 0; step < 24 && engine.Advance(history, &position).ok(); ++step) {
    const auto mask = engine.MaskAt(position);
    if (!mask.ok()) return;
    HF_CHECK((*mask)->complete || (*mask)->count > 0);
    if ((*mask)->count == 0) return;
    HF_CHECK(!(*mask)->dense);  // 260 tokens are few
    history.push_back((*mask)->few[static_cast<size_t>(step) * 7 % (*mask)->few.size()]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  BuilderLimits limits;
  limits.max_nodes = 20'000;
  limits.max_states = 20'000;
  limits.max_work = 500'000;
  Builder builder(limits);
  if ((data[0] & 1) != 0) {
    Run(builder, builder.Regex(text, "fuzz"));
    return 0;
  }
  const auto schema = holdfast::text::ParseJson(text);
  if (!schema.ok()) return 0;
  holdfast::grammar::SchemaStyle style;
  style.style = (data[0] & 2) != 0 ? holdfast::grammar::ValueStyle::kGemma4 : holdfast::grammar::ValueStyle::kJson;
  style.quote = 257;
  style.any_whitespace = (data[0] & 4) != 0;
  Run(builder, builder.Schema(*schema, style, "fuzz"));
  return 0;
}

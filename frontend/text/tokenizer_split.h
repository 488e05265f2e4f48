#pragma once
// Cuts text into the pieces inside which byte-level BPE may merge: the split patterns of tokenizer.ggml.pre, written as scanners over
// code points. Each is linear in the text, has no recursion, and never fails; the pieces cover the text.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::text {

enum class SplitPattern : uint8_t {
  kGpt2,     // 's|'t|'re|'ve|'m|'ll|'d| ?L+| ?N+| ?[^\s L N]+|\s+(?!\S)|\s+
  kSmollm,   // every N alone, then kGpt2 on what lies between
  kLlamaBpe, // (?i:'s|...)|[^\r\n L N]?L+|N{1,3}| ?[^\s L N]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kQwen2,    // as kLlamaBpe, with N alone
  kQwen35,   // as kQwen2, with [L M] for L
  kGpt4o,    // words cut at an upper-case letter after a lower-case one, contraction suffixes, N{1,3}, [\r\n/]* after symbols
  kTekken,   // as kGpt4o without contractions, with N alone
};

// The pattern for a value of tokenizer.ggml.pre; nullopt when it is unknown. "" and "default" are kGpt2.
std::optional<SplitPattern> SplitPatternOf(std::string_view pre);
std::string KnownSplitPatterns();  // for messages: "gpt-2, smollm, ..."

// Byte offsets of the pieces' ends, ascending; the last one is text.size(). Empty for empty text. Bytes that are not UTF-8 count as
// characters of class kOther, one for each maximal bad subpart.
void SplitText(SplitPattern pattern, std::string_view text, std::vector<uint32_t>* ends);

}  // namespace holdfast::text

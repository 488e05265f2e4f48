#pragma once
// Ranges of code points as sequences of byte ranges.
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace holdfast::grammar {

using CodePointRange = std::pair<uint32_t, uint32_t>;  // both ends belong to it

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

struct ByteRange {
  uint8_t lo = 0;
  uint8_t hi = 0;
};

// One to four bytes, each from its range; every combination is valid UTF-8.
struct Utf8Sequence {
  uint32_t length = 0;
  ByteRange bytes[4];
};

// Sorted, disjoint, not touching; surrogates and what lies beyond U+10FFFF left out. Reversed ranges are empty.
std::vector<CodePointRange> Normalise(std::span<const CodePointRange> ranges);
// All other code points. Input and output as Normalise gives them.
std::vector<CodePointRange> Complement(std::span<const CodePointRange> normal);
std::vector<CodePointRange> Intersect(std::span<const CodePointRange> a, std::span<const CodePointRange> b);
bool Contains(std::span<const CodePointRange> normal, uint32_t code_point);

// Precondition: as Normalise gives them.
std::vector<Utf8Sequence> ToUtf8(std::span<const CodePointRange> normal);

}  // namespace holdfast::grammar

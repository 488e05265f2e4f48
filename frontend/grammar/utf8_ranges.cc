#include "frontend/grammar/utf8_ranges.h"

#include <algorithm>

namespace holdfast::grammar {
namespace {

constexpr uint32_t kSurrogates = 0xD800, kAfterSurrogates = 0xE000;
constexpr uint32_t kLastOfLength[] = {0x7F, 0x7FF, 0xFFFF, kMaxCodePoint};

uint32_t Encode(uint32_t c, uint8_t* out) {
  if (c <= 0x7F) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  const uint32_t n = c <= 0x7FF ? 2 : c <= 0xFFFF ? 3 : 4;
  for (uint32_t i = n; i-- > 1; c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  out[0] = static_cast<uint8_t>((0xF00 >> n & 0xFF) | c);
  return n;
}

// lo and hi have the same encoded length. Splits until all bytes behind the first that differs span their whole range.
void Split(uint32_t lo, uint32_t hi, std::vector<Utf8Sequence>* out) {
  for (uint32_t i = 1; i < 4; ++i) {
    const uint32_t mask = (1u << (6 * i)) - 1;
    if ((lo & ~mask) == (hi & ~mask)) break;
    if ((lo & mask) != 0) {
      Split(lo, lo | mask, out);
      Split((lo | mask) + 1, hi, out);
      return;
    }
    if ((hi & mask) != mask) {
      Split(lo, (hi & ~mask) - 1, out);
      Split(hi & ~mask, hi, out);
      return;
    }
  }
  uint8_t a[4], b[4];
  Utf8Sequence s;
  s.length = Encode(lo, a);
  Encode(hi, b);
  for (uint32_t i = 0; i < s.length; ++i) s.bytes[i] = {a[i], b[i]};
  out->push_back(s);
}

}  // namespace

std::vector<CodePointRange> Normalise(std::span<const CodePointRange> ranges) {
  std::vector<CodePointRange> parts;
  for (auto [lo, hi] : ranges) {
    hi = std::min(hi, kMaxCodePoint);
    if (lo > hi) continue;
    if (lo < kSurrogates) parts.push_back({lo, std::min(hi, kSurrogates - 1)});
    if (hi >= kAfterSurrogates) parts.push_back({std::max(lo, kAfterSurrogates), hi});
  }
  std::sort(parts.begin(), parts.end());
  std::vector<CodePointRange> out;
  for (const CodePointRange& r : parts) {
    if (!out.empty() && r.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, r.second);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

std::vector<CodePointRange> Complement(std::span<const CodePointRange> normal) {
  std::vector<CodePointRange> out;
  uint32_t next = 0;
  for (const auto& [lo, hi] : normal) {
    if (lo > next) out.push_back({next, lo - 1});
    next = hi + 1;
  }
  if (next <= kMaxCodePoint) out.push_back({next, kMaxCodePoint});
  return Normalise(out);
}

std::vector<CodePointRange> Intersect(std::span<const CodePointRange> a, std::span<const CodePointRange> b) {
  std::vector<CodePointRange> out;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const uint32_t lo = std::max(a[i].first, b[k].first), hi = std::min(a[i].second, b[k].second);
    if (lo <= hi) out.push_back({lo, hi});
    a[i].second < b[k].second ? ++i : ++k;
  }
  return out;
}

bool Contains(std::span<const CodePointRange> normal, uint32_t code_point) {
  const auto it = std::upper_bound(normal.begin(), normal.end(), CodePointRange{code_point, UINT32_MAX});
  return it != normal.begin() && std::prev(it)->second >= code_point;
}

std::vector<Utf8Sequence> ToUtf8(std::span<const CodePointRange> normal) {
  std::vector<Utf8Sequence> out;
  for (auto [lo, hi] : normal) {
    for (const uint32_t last : kLastOfLength) {
      if (lo > hi) break;
      if (lo > last) continue;
      Split(lo, std::min(hi, last), &out);
      lo = last + 1;
    }
  }
  return out;
}

}  // namespace holdfast::grammar

#pragma once
// What kernels_gpu measures: the shapes of SmolLM2-135M, and of the model of the field report, a mixture of experts of 26 B parameters
// (gemma4 26B.A4B: width 2816, 30 layers, five of six with a window of 1024; 16 heads of 256 on 8 there, of 512 on 2 in the others; 128 experts
// 704 wide, 8 a token, beside a feed-forward network 2112 wide; a vocabulary of 262144).
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "kernels/quant_blocks.h"

namespace holdfast::bench {

inline constexpr const char *kSmolLm2 = "SmolLM2", *kLarge = "26B";

struct ProductCase {
  kernels::DType type;
  const char* model;
  int64_t out, in;
};
inline std::vector<ProductCase> ProductCases(bool prefill) {
  using enum kernels::DType;
  std::vector<ProductCase> all;
  // Every type in one shape, the queries of a layer without a window.
  for (const kernels::DType type : {kQ4_0, kQ4_1, kQ5_0, kQ8_0, kIQ4_NL, kMXFP4, kQ4_K, kQ6_K, kF16, kBF16}) all.push_back({type, kLarge, 8192, 2816});
  if (!prefill) all.push_back({kQ4_0, kLarge, 262144, 2816});                                                      // logits
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{4096, 2816}, {2816, 4096}, {2112, 2816}, {2816, 2112}}) all.push_back({kQ4_0, kLarge, out, in});
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{576, 576}, {1536, 576}, {576, 1536}}) all.push_back({kQ4_1, kSmolLm2, out, in});
  return all;
}
inline ProductCase Smaller(ProductCase c) {
  c.out = std::min<int64_t>(c.out, 40);
  c.in = kernels::InfoOf(c.type).block_elements == 256 ? 256 : 96;
  return c;
}
inline int64_t PackedBytesOf(const kernels::Ops& ops, kernels::DType type, int64_t out, int64_t in) {
  return ops.LayoutOf(type, out, in, kernels::WeightUse::kMatMul).bytes;
}

struct ExpertsCase {
  const char* model;
  int32_t experts, used;
  int64_t dim, width;
};
inline ExpertsCase TheExperts() { return {kLarge, 128, 8, 2816, 704}; }

struct AttentionCase {
  const char* model;
  int32_t heads, kv_heads, dim, window;
  int32_t start, rows, requests;   // each request's tokens [start, start + rows)
};
inline std::vector<AttentionCase> AttentionCases(bool prefill) {
  constexpr int32_t kContext = 8192, kChunk = 512;
  std::vector<AttentionCase> all;
  for (AttentionCase c : {AttentionCase{kSmolLm2, 9, 3, 64, 0, 0, 0, 0}, {kLarge, 16, 8, 256, 1024, 0, 0, 0}, {kLarge, 16, 2, 512, 0, 0, 0, 0}}) {
    if (prefill) {
      c.requests = 1;
      c.start = 0, c.rows = 4096;
      all.push_back(c);
      c.start = kContext - kChunk, c.rows = kChunk;
      all.push_back(c);
      continue;
    }
    c.start = kContext - 1, c.rows = 1;
    for (const int32_t requests : {1, 4, 16, 64}) {
      c.requests = requests;
      all.push_back(c);
    }
  }
  return all;
}
inline AttentionCase Smaller(AttentionCase c) {
  c.heads = c.heads / c.kv_heads * 2;
  c.kv_heads = 2;
  c.dim = std::min(c.dim, 64);
  c.window = c.window > 0 ? 24 : 0;
  c.requests = std::min(c.requests, 3);
  c.rows = c.rows > 1 ? 20 : 1;
  c.start = c.start > 0 ? 50 : 0;
  return c;
}

inline void ListShapes() {
  for (const bool prefill : {false, true}) {
    std::vector<std::pair<int64_t, int64_t>> seen;
    for (const ProductCase& c : ProductCases(prefill)) {
      if (std::find(seen.begin(), seen.end(), std::pair(c.out, c.in)) != seen.end()) continue;
      seen.emplace_back(c.out, c.in);
      for (const int rows : prefill ? std::vector<int>{512, 2048} : std::vector<int>{1, 4, 16, 64}) {
        fmt::print("{{\"kind\":\"product\",\"model\":\"{}\",\"out\":{},\"in\":{},\"rows\":{}}}\n", c.model, c.out, c.in, rows);
      }
    }
    for (const AttentionCase& c : AttentionCases(prefill)) {
      fmt::print("{{\"kind\":\"attention\",\"model\":\"{}\",\"heads\":{},\"kv_heads\":{},\"dim\":{},\"window\":{},\"start\":{},\"rows\":{},\"requests\":{}}}\n", c.model, c.heads,
                 c.kv_heads, c.dim, c.window, c.start, c.rows, c.requests);
    }
  }
}

}  // namespace holdfast::bench

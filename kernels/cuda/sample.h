#pragma once
// Drawing tokens on the device: what is launched, and the memory it works in. Nothing here depends on what a row asks for except what the
// device memory says, so that a recorded launch can be replayed: grids follow from rows and vocabulary, every address is fixed.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/draw.h"
#include "kernels/view.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// A DrawSpec as kernels see it: every pointer is device memory.
struct DrawRow {
  int32_t slot = -1;                   // where the token goes; < 0: this row is not drawn from, and stays as it is
  uint32_t greedy = 0;
  float inverse = 0.f;                 // InverseTemperature
  float min_p = 0.f;
  uint32_t top_k = 0;                  // 0: off
  uint32_t by_mass = 0;                // whether top_p is on
  uint64_t top_p = 0, u = 0;           // FractionOf
  const uint64_t* allowed = nullptr;   // null: every token
  const TokenId* suppressed = nullptr;
  const TokenBias* bias = nullptr;
  const TokenId* recent = nullptr;
  const TokenCount* generated = nullptr;
  int32_t suppressed_count = 0, bias_count = 0, recent_count = 0, generated_count = 0;
  float repetition_penalty = 1.f, frequency_penalty = 0.f, presence_penalty = 0.f;
};

inline constexpr int kDrawChunk = 4096;       // tokens a block of most kernels takes
inline constexpr int kDrawBuckets = 64 * 28;  // by distance to the best token: 64 a nat, down to where weights are zero

inline constexpr int64_t DrawChunks(int64_t vocab) { return (vocab + kDrawChunk - 1) / kDrawChunk; }

// What one chunk of a row knows of its best token.
struct ChunkPeak {
  uint64_t key = 0;                    // OrderKey; 0: every logit is -inf
  uint32_t flags = 0;                  // kPeak...
  uint32_t unused = 0;
};
inline constexpr uint32_t kPeakNotFinite = 1, kPeakAny = 2, kPeakEditedNotFinite = 4;   // as given: NaN or +inf; above -inf. After the edits

// Device memory of draws of up to `rows` rows a call; each pointer is the start of an array.
struct DrawMemory {
  DrawRow* rows = nullptr;             // [rows] written before each draw
  ChunkPeak* peaks = nullptr;          // [rows][chunks]
  uint32_t* counts = nullptr;          // [rows][kDrawBuckets]
  unsigned long long* masses = nullptr;       // [rows][kDrawBuckets]
  unsigned long long* thresholds = nullptr;   // [rows] least key that top_k and top_p keep
  unsigned long long* chunk_masses = nullptr; // [rows][chunks]
  Drawn* drawn = nullptr;              // [slots] the results
};

// Draws as memory.rows says, one row of logits each. Five launches. vocab < 2^23.
void DrawTokens(cudaStream_t stream, Mat logits, const DrawMemory& memory);

// tokens[t] = the token in slot awaited[t], where that is not negative.
void TakeDrawn(cudaStream_t stream, const Drawn* drawn, const int32_t* awaited, int64_t count, uint32_t* tokens);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

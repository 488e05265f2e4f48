#pragma once
// The one place that says how many pages serving takes: start-up, chunk cap, admission, resize and status all ask Evaluate.
//
// Window group of window W, page size ps, N running requests, steps of at most B tokens, D + 1 steps in flight:
//   w1        = W - 1 for ps = 1, else ceil((W-2)/ps) + 2      pages one row's window can meet
//   need(N,B) = N*w1 + floor((D+1)*max(B,N)/ps)                pages no schedule exceeds
// because a row holds only pages meeting [settled-W+1, launched), at most ceil((W-2+I_r)/ps)+1 of them, and the I_r sum to (D+1)*max(B,N).
// So with need <= capacity - quarantined a row that needs a page finds a free one or one that only the index holds: taking cannot fail.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/kv/units.h"

namespace holdfast::kv {

inline constexpr uint32_t kSmallestChunk = 256;  // tokens a step must be able to compute, when the configured chunk allows it

struct CapacityQuestion {
  uint32_t page_size = 16;
  std::vector<uint32_t> windows;  // of each group; 0 = full attention
  uint32_t max_running = 1;       // N
  uint32_t chunk = 1;             // B
  uint32_t overlap_depth = 0;     // D
  uint32_t max_seq_len = 0;       // prompt + generated; only `recommended` of the full pool uses it
};

struct GroupCapacity {
  uint32_t floor = 0;        // pages below which max_running requests cannot be served with the smallest chunk
  uint32_t recommended = 0;  // pages from which on the chunk is not capped (full: one request of max_seq_len fits)
};

struct CapacityAnswer {
  bool ok = false;               // every group has its floor
  std::vector<GroupCapacity> groups;
  uint32_t chunk = 0;            // tokens a step may compute: B, or less where a window pool caps it; >= the smallest chunk when ok
  uint32_t running = 0;          // requests that may run: N when ok, fewer when pages are missing, 0 when not even one can
  uint32_t tokens_in_flight = 0; // most launched, unsettled tokens of all rows together (UINT32_MAX without window groups)
  std::string message;           // not ok: which pool, both numbers, and what would work
};

// w1
uint32_t WindowPagesPerRow(uint32_t window, uint32_t page_size);
// need(N,B), in pages
uint64_t WindowNeed(uint32_t window, uint32_t page_size, uint32_t running, uint32_t chunk, uint32_t overlap_depth);
// Pages of a full pool below which `running` requests cannot be served with the smallest chunk.
uint64_t FullNeed(uint32_t page_size, uint32_t running, uint32_t chunk);
// Tokens of the smallest chunk that serves `running` decodes beside a prefill.
uint32_t SmallestChunk(uint32_t running, uint32_t chunk);

// usable[g]: pages of group g that can be handed out (capacity less quarantined).
CapacityAnswer Evaluate(const CapacityQuestion& question, std::span<const uint32_t> usable);

// The two limits alone, without allocating: what Plan asks at every step. Same arithmetic.
struct StepLimits {
  uint32_t chunk = 0;
  uint32_t running = 0;
  uint32_t tokens_in_flight = 0;
};
StepLimits EvaluateStep(const CapacityQuestion& question, std::span<const uint32_t> usable);

// "full", "window-1024"
std::string PoolName(uint32_t window);

}  // namespace holdfast::kv

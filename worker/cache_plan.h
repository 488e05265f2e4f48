#pragma once
// How large the page pools are: from flags, the model's page costs and the memory there is. A pure function, so that every refusal and every
// number in a log line is a test.
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/kv/units.h"

namespace holdfast::worker {

struct GroupCost {
  uint32_t window = 0;             // 0 = full attention
  uint64_t page_bytes = 0;
};

struct CachePlanInput {
  std::vector<GroupCost> groups;   // the full group, if any, first
  uint32_t page_size = 16;
  uint32_t max_running = 8;        // N
  uint32_t prefill_chunk = 512;    // B
  uint32_t overlap_depth = 0;      // D
  uint32_t context_length = 0;
  uint64_t memory_bytes = 0;       // available, before weights
  uint64_t weight_bytes = 0;       // still to be taken out of it
  uint64_t activation_bytes = 0;   // of a step, likewise
  std::string memory_name = "available";   // "free on the device": follows its size in messages
  double memory_ratio = 0.85;
  std::optional<uint32_t> max_seq_len;
  std::optional<uint32_t> num_tokens;
  std::optional<uint32_t> kv_reserve_tokens;
  std::optional<double> swa_ratio;
};

struct CachePlan {
  kv::CacheShape shape;
  uint32_t max_seq_len = 0;
  std::vector<std::string> notes;  // arithmetic and warnings, one log line each
};

// kInvalidArgument: the flags cannot work (numbers, and the nearest value that does); kResourceExhausted: the memory is too small.
absl::StatusOr<CachePlan> PlanCache(const CachePlanInput& input);

}  // namespace holdfast::worker

#pragma once
// A worker's flags. What is impossible by itself is refused here (exit 64); what only the model or the memory can show to be impossible is
// refused by PlanCache and Scheduler::Create, with the same exit code.
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "proto/base/log.h"

namespace holdfast::worker {

struct WorkerConfig {
  // Given by the supervisor.
  std::string supervisor;                    // "unix:/run/holdfast/supervisor.sock"
  std::string token;                         // from the environment (HOLDFAST_WORKER_TOKEN)
  uint64_t generation = 0;
  uint32_t rank = 0;
  uint32_t tp = 1;
  int lifeline_fd = -1;
  int group_fd = -1;                         // inherited memory that the ranks of this generation share (tp/group.h); needed when tp > 1
  int keep_fd = -1;                          // inherited socket to who keeps weights and recording beyond our life (link/keeper.h); -1 = nobody
  std::string flight_record;                 // file for the last steps, written when something goes wrong; empty = none
  bool safe = false;                         // the safe profile: no prefix cache, an audit each step, no CUDA graphs, one step at a time

  // The operator's.
  std::string model;
  uint32_t max_running = 8;
  uint32_t prefill_chunk = 512;
  std::optional<uint32_t> max_seq_len;
  uint32_t max_queue = 256;
  std::string kv_dtype = "auto";
  std::optional<uint32_t> num_tokens;
  std::optional<uint32_t> kv_reserve_tokens;
  uint32_t reserve_output_tokens = 4096;     // of max_tokens, what admission reserves pages for; 0 = all
  double memory_ratio = 0.85;
  std::optional<double> swa_ratio;
  uint32_t page_size = 16;
  bool prefix_cache = true;
  int threads = 0;
  std::string backend = "auto";              // auto | cpu | cuda | reference
  std::string cpu_isa = "auto";
  bool cuda_graphs = true;                   // decode steps as CUDA graphs; not in the safe profile
  std::string collectives = "auto";          // auto | nccl | host: how ranks with a device each sum (tp/device_group.h)
  bool check_tensors = false;
  uint32_t audit_period = 256;
  std::optional<uint32_t> overlap;           // steps launched beyond the one that computes, 0 or 1; unset = as the backend is (Runtime)
  LogLevel log_level = LogLevel::kInfo;
};

// kInvalidArgument with what was wrong and what would work. `help` (not null) receives the text of --help when that was asked for.
absl::StatusOr<WorkerConfig> ParseWorkerConfig(int argc, const char* const* argv, std::string* help);

}  // namespace holdfast::worker

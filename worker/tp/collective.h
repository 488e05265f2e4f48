#pragma once
// What the ranks of a tensor-parallel group say to each other while they compute a step. Every rank makes the same calls in the same order
// with the same shapes; a call returns when its result is there.
//
// Reductions add in the order of ranks, 0 first, for every element, however long the message and wherever the element lies in it: results
// are the same from run to run, the same on every rank, and a row's sum does not depend on what else is in the batch.
//
// Errors stick: after the first failure every call returns it at once and leaves its arguments as they are. kUnavailable: a peer is gone;
// kDeadlineExceeded: a peer did not come in time; kCancelled: the owner was told to stop.
//
// Threads: one caller. Memory is host memory.
#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/view.h"

namespace holdfast::tp {

// The peers are gone or late: exit 74, and the supervisor finds out whose fault it is.
inline bool IsPeerFault(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status); }

class Collective {
 public:
  virtual ~Collective() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;

  // x[i] = sum over ranks of their x[i], on every rank.
  virtual absl::Status AllReduceSum(std::span<float> x) = 0;
  // Rank r has columns [sum of columns[0..r), + columns[r]) of a matrix with mine.rows rows; `all` receives the whole matrix. A rank that
  // does not want it passes an all without data.
  virtual absl::Status AllGatherColumns(kernels::ConstMat mine, std::span<const int64_t> columns, kernels::Mat all) = 0;
  // message = rank root's message, on every rank.
  virtual absl::Status Broadcast(uint32_t root, std::vector<std::byte>* message) = 0;
  // out[r] = rank r's value, on every rank.
  virtual absl::Status AllGather(uint64_t value, std::vector<uint64_t>* out) = 0;
};

}  // namespace holdfast::tp

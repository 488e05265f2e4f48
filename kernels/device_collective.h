#pragma once
// What the ranks of a group say to each other from device to device: the calls of worker/tp/collective.h whose data never comes to the host.
// A backend that offers it (Ops::ranks) enqueues each call like any of its operations; results are there for whatever is enqueued after.
//
// Every rank makes the same calls in the same order with the same shapes. Reductions add in the order of ranks, 0 first, for every element,
// however long the message and wherever the element lies in it: the bits are those of the collectives on the host, the same on every rank and
// from run to run, and a row's sum does not depend on what else is in the batch.
//
// Errors stick and are told by status() and by Ops::Health(), with the codes of worker/tp/collective.h: kUnavailable: a peer is gone;
// kDeadlineExceeded: a peer did not come in time; kCancelled: the owner was told to stop; kAborted: this rank's device failed. They show while
// the host waits (Ops::Sync), since no call waits by itself. After the first one every call does nothing.
//
// Threads: the backend's caller.
#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kernels/nccl.h"
#include "kernels/view.h"
#include "proto/base/clock.h"

namespace holdfast::kernels {

class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;
  virtual std::string Describe() const = 0;            // "NCCL 2.28.9"
  virtual const absl::Status& status() const = 0;

  // x[i] = sum over ranks of their x[i], on every rank; n floats.
  virtual void AllReduceSum(float* x, int64_t n) = 0;
  // Rank r has columns [sum of columns[0..r), + columns[r]) of a matrix with mine.rows rows, contiguous; on rank 0 `all` becomes the whole
  // matrix. The other ranks' `all` is not looked at.
  virtual void GatherColumns(ConstMat mine, std::span<const int64_t> columns, Mat all) = 0;
};

// How a backend becomes one of several ranks.
struct JoinSpec {
  const nccl::Api* nccl = nullptr;                     // outlives the backend
  nccl::UniqueId id;                                   // the same on every rank, made by rank 0
  uint32_t rank = 0, size = 1;
  Duration at_most = std::chrono::seconds(60);         // until all have come
  int64_t piece = int64_t{16} << 20;                   // floats: longer messages are cut, and so much memory is taken to receive them
  // Asked on the caller's thread whenever the backend has waited a while, with when that wait began: an error ends the wait, the
  // communicator, and is status() from then on.
  std::function<absl::Status(Instant began)> look;
};

}  // namespace holdfast::kernels

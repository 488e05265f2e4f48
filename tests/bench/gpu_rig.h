#pragma once
// A device that is measured: the CUDA backend as the server has it, and the device's own clock beside it. Needs no CUDA header.
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/ops.h"

namespace holdfast::bench {

class GpuRig {
 public:
  virtual ~GpuRig() = default;
  virtual kernels::Ops& ops() = 0;
  // "CUDA 13.0 driver, 13.0 runtime"
  virtual std::string Versions() const = 0;
  virtual int multiprocessors() const = 0;
  // Seconds the device takes for what `calls` enqueues, by events on the backend's stream. The stream is held until all is enqueued, so that
  // the host's time for launches is no part of it: at most kMostLaunches kernels, and nothing that waits for the device (each call was made
  // once before: kernels are loaded and scratch has grown). nullopt: not measured (the device has no clock, it failed, or the host needed
  // longer than the stream was held).
  virtual std::optional<double> Seconds(const std::function<void()>& calls) = 0;
  // Enqueues bf16 multiplies out of registers, `rounds` of them in each of 8 chains of every warp; returns their floating point operations.
  // sums: one float a thread (MmaThreads()), each 8 * 16 * rounds when all is right.
  virtual double EnqueueMma(int blocks, int rounds, float* sums) = 0;
  // The product of two square bf16 matrices by the vendor's library: FLOP/s and what was called, or why there is none.
  virtual absl::StatusOr<double> LibraryFlops(std::string* called) = 0;
};

inline constexpr int kMostLaunches = 900;   // the driver takes about a thousand before a launch waits
inline constexpr int kMmaThreads = 256;     // a block

// Statuses as of kernels::MakeCudaOps.
absl::StatusOr<std::unique_ptr<GpuRig>> MakeGpuRig(int device);
// The SIMT machine of tests/support/simt: right or wrong, but no clock.
absl::StatusOr<std::unique_ptr<GpuRig>> MakeEmulatedRig();

}  // namespace holdfast::bench

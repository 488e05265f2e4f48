#pragma once
// Runtimes on the emulated device.
#include "proto/base/finding.h"
#include "tests/support/simt/emulated_ops.h"

namespace holdfast::worker {

class CountedFindings final : public FindingSink {
 public:
  void Report(Finding) override { ++count; }
  int count = 0;
};

// A MakeCuda.
inline absl::StatusOr<std::unique_ptr<kernels::Ops>> Emulated(const kernels::CudaOptions& options) { return kernels::cuda_emulated::MakeOps(options); }

}  // namespace holdfast::worker

#pragma once
// Which backend a worker computes with, and why.
#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "kernels/ops.h"
#include "proto/base/exit_code.h"
#include "worker/config.h"

namespace holdfast::worker {

struct ChosenBackend {
  std::unique_ptr<kernels::Ops> ops;   // null: `code` and `why` say what is the matter
  std::string why;                     // for the log: "no NVIDIA driver"; of a refusal, its words
  ExitCode code = ExitCode::kOk;
  bool passed_over = false;            // with auto: a device is there, and this build, its driver or their number does not serve
};

// Makes the CUDA backend; a test has its own.
using MakeCuda = std::function<absl::StatusOr<std::unique_ptr<kernels::Ops>>(const kernels::CudaOptions&)>;

// --backend auto takes CUDA when every rank has a device that this build can use, else the CPU. A device that is there but busy is waited for
// (exit 72), also with auto: a group that lost its worker would otherwise come back many times slower because its memory was not free yet.
// --backend cuda where there is none is a configuration that cannot work (exit 64). Rank r takes device r.
ChosenBackend ChooseBackend(const WorkerConfig& config, int threads, const MakeCuda& make_cuda = kernels::MakeCudaOps);

}  // namespace holdfast::worker

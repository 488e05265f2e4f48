#include "tests/bench/gpu_rig.h"

namespace holdfast::bench {

absl::StatusOr<std::unique_ptr<GpuRig>> MakeGpuRig(int) { return absl::UnimplementedError("this build has no CUDA backend: nvcc was not found when it was configured"); }

}  // namespace holdfast::bench

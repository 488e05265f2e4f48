// The one place that knows which backends this build has.
#include "kernels/ops.h"

#if defined(HOLDFAST_WITH_CUDA)
#include "kernels/cuda/make_ops.h"
#endif

namespace holdfast::kernels {

absl::Status Ops::JoinRanks(const JoinSpec&) { return absl::FailedPreconditionError("this backend has no collectives of its own"); }

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(const CudaOptions& options) {
#if defined(HOLDFAST_WITH_CUDA)
  return cuda::MakeOps(options);
#else
  static_cast<void>(options);
  return absl::UnimplementedError("this build has no CUDA backend (nvcc was not found when it was configured)");
#endif
}

}  // namespace holdfast::kernels

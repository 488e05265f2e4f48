#pragma once
// Makes the CUDA backend of this build's namespace; needs no CUDA header.
#include <absl/status/statusor.h>

#include <memory>

#include "kernels/ops.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// As kernels::MakeCudaOps.
absl::StatusOr<std::unique_ptr<Ops>> MakeOps(const CudaOptions& options);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

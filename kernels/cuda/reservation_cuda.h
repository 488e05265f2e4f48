#pragma once
// Reserved device addresses, backed by physical memory granule by granule through the driver's virtual memory functions. The driver is
// asked for by name (cudaGetDriverEntryPointByVersion), so that nothing links libcuda.
#include <memory>

#include "kernels/reservation.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// device: the current one. The caller waits for the device before it releases what kernels may still use.
absl::StatusOr<std::unique_ptr<Reservation>> ReserveDevice(int device, int64_t bytes);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

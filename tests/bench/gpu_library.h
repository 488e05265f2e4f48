#pragma once
// cuBLAS, if it can be found when the program runs: nothing links it.
#include <absl/status/statusor.h>
#include <cuda_runtime.h>

#include <functional>
#include <optional>
#include <string>

namespace holdfast::bench {

// FLOP/s of an 8192 x 8192 x 8192 product in bf16 with sums in f32, median of five. called: "cuBLAS 13.0, 8192^3". seconds times what it is given
// on the stream.
absl::StatusOr<double> LibraryMatMulFlops(cudaStream_t stream, const std::function<std::optional<double>(const std::function<void()>&)>& seconds,
                                          std::string* called);

}  // namespace holdfast::bench

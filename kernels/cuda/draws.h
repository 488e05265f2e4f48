#pragma once
// The host's side of drawing tokens on the device: memory, what is sent before a draw, and what comes back.
//
// Threads: one, the backend's caller. Errors are kept in `errors`.
#include <cstdint>
#include <span>

#include "kernels/cuda/sample.h"
#include "kernels/cuda/staging.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

class Draws {
 public:
  Draws(Errors* errors, cudaStream_t stream, Downloads* downloads);
  // As Ops::ReserveDraws. May be called again, when nothing is under way.
  void Reserve(int64_t rows, int64_t slots, int64_t vocab);
  // A new step: its tokens (device memory) that await what was drawn take it.
  void BeginStep(std::span<const int32_t> awaited, uint32_t* tokens);
  // As Ops::Draw.
  void Draw(Mat logits, std::span<const DrawSpec> specs, Drawn* out);

 private:
  Errors* errors_;
  cudaStream_t stream_;
  Downloads* downloads_;
  Uploads uploads_;            // specs, their lists and masks
  DeviceScratch memory_;
  DrawMemory at_;
  int64_t rows_ = 0, slots_ = 0, vocab_ = 0;
};

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// Collectives of several devices over NCCL, enqueued on the backend's stream.
//
// NCCL moves the bytes, and a kernel of ours adds: what order NCCL's own reductions add in depends on the length of the message, on how many
// channels and which algorithm the library takes for it, and on where in the message an element lies, so that a row's sum would depend on
// what else is in the batch. Here every element is added in the order of ranks, by whoever adds it:
//  - short messages: every rank receives all parts and adds them (one call of NCCL);
//  - long ones: rank r receives everybody's r-th part, adds, and sends the sum to everybody (two). That moves what a ring moves.
// The bits are the same, so where one ends and the other begins is a matter of speed alone.
//
// The communicator does not block: a call that has not finished is looked at until it has, since nothing may be enqueued behind it before.
#include <cuda_runtime.h>

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "kernels/cuda/staging.h"
#include "kernels/device_collective.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

class NcclCollective final : public DeviceCollective {
 public:
  // On the current device. Tries each kind of call once, so that what NCCL allocates for it is there before anybody counts free memory.
  // `errors` outlives this and waits through it from now on.
  static absl::StatusOr<std::unique_ptr<NcclCollective>> Join(Errors* errors, cudaStream_t stream, const JoinSpec& spec);
  ~NcclCollective() override;

  std::string Describe() const override;
  const absl::Status& status() const override { return status_; }
  void AllReduceSum(float* x, int64_t n) override;
  void GatherColumns(ConstMat mine, std::span<const int64_t> columns, Mat all) override;

 private:
  NcclCollective(Errors* errors, cudaStream_t stream, const JoinSpec& spec)
      : errors_(errors), stream_(stream), spec_(spec), scratch_(errors) {}
  int ranks() const { return static_cast<int>(spec_.size); }
  int rank() const { return static_cast<int>(spec_.rank); }
  bool usable() const { return status_.ok() && errors_->ok(); }
  absl::Status Connect();
  absl::Status TryOut();
  // Waits until the library has done with a call that answered `result`. False: the communicator is gone.
  bool Settle(nccl::Result result, const char* doing);
  // What f sends and receives is one call.
  template <class F>
  void Together(const char* doing, F&& f);
  void SumShort(float* x, int64_t n);
  void SumLong(float* x, int64_t n);
  // Asked while the host waits.
  bool GoOn(Instant began);
  void Break(absl::Status why);
  absl::Status StatusOf(nccl::Result result, const char* doing) const;

  Errors* const errors_;
  const cudaStream_t stream_;
  const JoinSpec spec_;
  DeviceScratch scratch_;
  nccl::Comm* comm_ = nullptr;
  bool joined_ = false;
  absl::Status status_;
};

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

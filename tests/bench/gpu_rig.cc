// Compiled once for the device and once more for the SIMT machine (gpu_rig_emulated.cc).
#include "tests/bench/gpu_rig.h"

#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include <fmt/format.h>

#include "kernels/cuda/ops_cuda.h"
#include "tests/bench/gpu_mma.h"
#if defined(__linux__) && !defined(HF_EMULATED_RIG)
#include "tests/bench/gpu_library.h"
#endif

namespace holdfast::bench {
namespace HF_CUDA_NAMESPACE {
namespace {

// Holds the stream at a host function until it is opened, but not for longer than a second: nothing hangs when a launch waits for the device.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false, gave_up = false;
  static void Wait(void* self) {
    Gate& gate = *static_cast<Gate*>(self);
    std::unique_lock lock(gate.mutex);
    gate.gave_up = !gate.changed.wait_for(lock, std::chrono::seconds(1), [&] { return gate.open; });
  }
  void Open() {
    std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
};

class Rig final : public GpuRig {
 public:
  Rig(std::unique_ptr<kernels::Ops> ops, int device) : ops_(std::move(ops)), device_(device) {
    stream_ = static_cast<kernels::HF_CUDA_NAMESPACE::CudaOps&>(*ops_).stream();
    cudaEventCreateWithFlags(&begin_, 0);
    cudaEventCreateWithFlags(&end_, 0);
  }
  ~Rig() override {
    ops_->Sync();
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  kernels::Ops& ops() override { return *ops_; }
  std::string Versions() const override {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return fmt::format("driver for CUDA {}.{}, built with {}.{}", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  int multiprocessors() const override {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, device_) == cudaSuccess ? properties.multiProcessorCount : 0;
  }
  std::optional<double> Seconds(const std::function<void()>& calls) override {
    ops_->Sync();
    Gate gate;
    bool ok = cudaLaunchHostFunc(stream_, Gate::Wait, &gate) == cudaSuccess;
    ok = cudaEventRecord(begin_, stream_) == cudaSuccess && ok;
    calls();
    ok = cudaEventRecord(end_, stream_) == cudaSuccess && ok;
    gate.Open();
    ops_->Sync();   // also keeps the gate until it was passed
    float ms = 0;
    ok = cudaEventElapsedTime(&ms, begin_, end_) == cudaSuccess && ok;
    if (!ok) cudaGetLastError();
    if (!ok || gate.gave_up || !ops_->Health().ok() || ms <= 0) return std::nullopt;
    return ms * 1e-3;
  }
  double EnqueueMma(int blocks, int rounds, float* sums) override {
    MmaLoop(stream_, blocks, kMmaThreads, rounds, sums);
    return 2.0 * 16 * 8 * 16 * kChains * rounds * (kMmaThreads / 32) * blocks;
  }
  absl::StatusOr<double> LibraryFlops(std::string* called) override {
#if defined(HF_EMULATED_RIG)
    *called = "";
    return absl::UnimplementedError("an emulated device has no libraries");
#else
    return LibraryMatMulFlops(stream_, [this](const std::function<void()>& f) { return Seconds(f); }, called);
#endif
  }

 private:
  std::unique_ptr<kernels::Ops> ops_;
  int device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace
}  // namespace HF_CUDA_NAMESPACE

#if defined(HF_EMULATED_RIG)
absl::StatusOr<std::unique_ptr<GpuRig>> MakeEmulatedRig() {
  constexpr int device = 0;
#else
absl::StatusOr<std::unique_ptr<GpuRig>> MakeGpuRig(int device) {
#endif
  kernels::CudaOptions options;
  options.device = device;
  auto ops = kernels::HF_CUDA_NAMESPACE::MakeOps(options);
  if (!ops.ok()) return ops.status();
  return std::unique_ptr<GpuRig>(std::make_unique<HF_CUDA_NAMESPACE::Rig>(*std::move(ops), device));
}

}  // namespace holdfast::bench

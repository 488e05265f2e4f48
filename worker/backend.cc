#include "worker/backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include "proto/base/status_wire.h"

namespace holdfast::worker {
namespace {

ChosenBackend Cpu(const WorkerConfig& config, int threads, std::string why) {
  kernels::CpuOptions options;
  options.threads = threads;
  options.isa = config.cpu_isa;
  ChosenBackend chosen{kernels::MakeCpuOps(options), std::move(why), ExitCode::kOk, false};
  if (chosen.ops != nullptr) return chosen;
  return {nullptr, fmt::format("--cpu-isa {} is not available on this machine; --cpu-isa auto works", config.cpu_isa), ExitCode::kConfig, false};
}

}  // namespace

ChosenBackend ChooseBackend(const WorkerConfig& config, int threads, const MakeCuda& make_cuda) {
  if (config.backend == "reference") return {kernels::MakeReferenceOps(), "--backend reference", ExitCode::kOk, false};
  if (config.backend == "cpu") return Cpu(config, threads, "--backend cpu");
  kernels::CudaOptions options;
  options.device = static_cast<int>(config.rank);
  options.devices = static_cast<int>(config.tp);
  options.graphs = config.cuda_graphs;
  auto cuda = make_cuda(options);
  const bool asked = config.backend == "cuda";
  if (cuda.ok()) return {*std::move(cuda), asked ? "--backend cuda" : "a CUDA device is there", ExitCode::kOk, false};
  const absl::Status& status = cuda.status();
  std::string why(MessageOf(status));
  if (absl::IsUnavailable(status)) return {nullptr, fmt::format("{} (busy; --backend cpu works without it)", why), ExitCode::kDeviceBusy, false};
  if (absl::IsAborted(status)) return {nullptr, std::move(why), ExitCode::kDevice, false};
  if (!asked) {
    ChosenBackend cpu = Cpu(config, threads, std::move(why));
    cpu.passed_over = absl::IsUnimplemented(status) ? access("/proc/driver/nvidia/version", F_OK) == 0 : !absl::IsNotFound(status);
    return cpu;
  }
  return {nullptr, fmt::format("--backend cuda: {}; --backend auto takes the CPU then", why), ExitCode::kConfig, false};
}

}  // namespace holdfast::worker

#include "worker/backend.h"

#include <catch2/catch.hpp>

namespace holdfast::worker {
namespace {

ChosenBackend Choose(const std::string& backend, absl::StatusOr<std::unique_ptr<kernels::Ops>> cuda, kernels::CudaOptions* asked = nullptr) {
  WorkerConfig config;
  config.backend = backend;
  config.cuda_graphs = backend == "cuda";
  config.rank = 1;
  config.tp = 2;
  return ChooseBackend(config, 1, [&](const kernels::CudaOptions& options) {
    if (asked != nullptr) *asked = options;
    return std::move(cuda);
  });
}

bool Says(const ChosenBackend& c, const char* words) { return c.why.find(words) != std::string::npos; }

TEST_CASE("auto takes CUDA where it can, the CPU where there is none, and waits for a device that is busy") {
  kernels::CudaOptions asked;
  // The reference stands for a device: what matters is which of the two is taken.
  const auto taken = Choose("auto", kernels::MakeReferenceOps(), &asked);
  REQUIRE(taken.ops != nullptr);
  CHECK(taken.ops->Describe().find("reference") == 0);
  CHECK(Says(taken, "device is there"));
  CHECK(asked.device == 1);
  CHECK(asked.devices == 2);
  CHECK_FALSE(asked.graphs);
  Choose("cuda", kernels::MakeReferenceOps(), &asked);
  CHECK(asked.graphs);
  for (const absl::Status& none : {absl::NotFoundError("no NVIDIA driver"), absl::UnimplementedError("no CUDA backend"), absl::OutOfRangeError("1 CUDA devices"),
                                   absl::FailedPreconditionError("no code for it")}) {
    const auto cpu = Choose("auto", none);
    REQUIRE(cpu.ops != nullptr);
    CHECK(cpu.ops->Describe().find("cpu") == 0);
    CHECK(Says(cpu, std::string(none.message()).c_str()));
    // A device that is there and not taken is worth a warning.
    if (!absl::IsUnimplemented(none)) CHECK(cpu.passed_over == !absl::IsNotFound(none));
    const auto refused = Choose("cuda", none);
    CHECK(refused.ops == nullptr);
    CHECK(refused.code == ExitCode::kConfig);
    CHECK(Says(refused, std::string(none.message()).c_str()));
    CHECK(Says(refused, "--backend auto"));
  }
  for (const char* backend : {"auto", "cuda"}) {
    const auto busy = Choose(backend, absl::UnavailableError("CUDA device 1: all CUDA-capable devices are busy"));
    CHECK(busy.ops == nullptr);
    CHECK(busy.code == ExitCode::kDeviceBusy);
    const auto broken = Choose(backend, absl::AbortedError("CUDA device 1: uncorrectable error"));
    CHECK(broken.ops == nullptr);
    CHECK(broken.code == ExitCode::kDevice);
  }
}

TEST_CASE("cpu and reference ask no device") {
  for (const char* backend : {"cpu", "reference"}) {
    const auto chosen = Choose(backend, absl::InternalError("nobody may ask"));
    REQUIRE(chosen.ops != nullptr);
    CHECK(chosen.ops->Describe().find(backend) == 0);
  }
  WorkerConfig config;
  config.backend = "cpu";
  config.cpu_isa = "fastest";
  CHECK(ChooseBackend(config, 1).code == ExitCode::kConfig);
}

}  // namespace
}  // namespace holdfast::worker

// What the CUDA backend does around its kernels: why a device cannot be used, what it says when one fails, memory that is reserved and backed.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>

#include <algorithm>

#include "tests/support/simt/memory.h"
#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {
namespace {

std::unique_ptr<Ops> Emulated() {
  auto ops = cuda_emulated::MakeOps({});
  REQUIRE(ops.ok());
  return *std::move(ops);
}

// The device as given, until the test ends.
struct Device {
  explicit Device(const simt::FakeDevice& d) { simt::TheFakeDevice() = d; }
  ~Device() { simt::TheFakeDevice() = {}; }
};

TEST_CASE("a device that cannot be used says why") {
  const auto refused = [](const simt::FakeDevice& d, const CudaOptions& options = {}) {
    const Device device(d);
    const auto made = cuda_emulated::MakeOps(options);
    REQUIRE(!made.ok());
    return made.status();
  };
  const auto says = [](const absl::Status& s, absl::StatusCode code, const char* words) {
    INFO(s);
    CHECK(s.code() == code);
    CHECK(std::string(s.message()).find(words) != std::string::npos);
  };
  simt::FakeDevice d;
  d.count_error = cudaErrorInsufficientDriver;
  says(refused(d), absl::StatusCode::kNotFound, "no NVIDIA driver");
  d.count_error = cudaErrorNoDevice;
  says(refused(d), absl::StatusCode::kNotFound, "no CUDA device");
  d = {};
  d.count = 0;
  says(refused(d), absl::StatusCode::kNotFound, "no CUDA device");
  says(refused({}, {1, 1}), absl::StatusCode::kOutOfRange, "1 CUDA devices, where 2 are needed");
  says(refused({}, {0, 2}), absl::StatusCode::kOutOfRange, "1 CUDA devices, where 2 are needed");
  d = {};
  d.use_error = cudaErrorDevicesUnavailable;
  says(refused(d), absl::StatusCode::kUnavailable, "CUDA device 0");
  d.use_error = cudaErrorMemoryAllocation;
  says(refused(d), absl::StatusCode::kUnavailable, "cudaErrorMemoryAllocation");
  d = {};
  d.launch_error = cudaErrorNoKernelImageForDevice;
  says(refused(d), absl::StatusCode::kFailedPrecondition, "compute capability 9.0; this build has code for emulated");
  CHECK(Emulated()->Describe().find("cuda 0: emulated") == 0);
}

TEST_CASE("without CUDA in the build or a device in the machine, the real backend says so") {
  const auto real = MakeCudaOps({});
  if (real.ok()) return;
  INFO(real.status());
  CHECK(real.status().code() != absl::StatusCode::kUnknown);
  CHECK(!real.status().message().empty());
}

TEST_CASE("a device that fails stays failed, and nothing is drawn from it unnoticed") {
  const auto ops = Emulated();
  const Held<float> x(*ops, std::vector<float>(64, 1.f), 64);
  ops->Scale(x.mat(), 2.f);
  ops->Sync();
  CHECK(ops->Health().ok());
  simt::TheFakeDevice().next_sync_error = cudaErrorIllegalAddress;
  ops->Sync();
  CHECK(ops->Health().code() == absl::StatusCode::kAborted);
  INFO(ops->Health());
  CHECK(std::string(ops->Health().message()).find("waiting for the device") != std::string::npos);
  ops->Scale(x.mat(), 2.f);
  ops->Sync();
  CHECK(ops->Health().code() == absl::StatusCode::kAborted);
}

TEST_CASE("a kernel that leaves its memory makes the device fail") {
  const auto ops = Emulated();
  const Held<float> x(*ops, std::vector<float>(64, 1.f), 64);
  simt::CatchReports reports;
  ops->Scale(Mat(x.data(), 1, 65), 2.f);
  ops->Sync();
  CHECK(ops->Health().code() == absl::StatusCode::kAborted);
  const auto said = reports.Take();
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("beyond the end of an allocation of 256 bytes") != std::string::npos);
}

TEST_CASE("no room on the device is told, not thrown") {
  const auto ops = Emulated();
  const size_t before = simt::DeviceBytes();
  simt::SetDeviceBytes(simt::DeviceBytesUsed() + (1 << 20));
  CHECK(ops->FreeMemory() == 1 << 20);
  const Buffer none = ops->Allocate(2 << 20);
  CHECK(none.data() == nullptr);
  CHECK(ops->Health().code() == absl::StatusCode::kResourceExhausted);
  INFO(ops->Health());
  CHECK(std::string(ops->Health().message()).find("2.0 MiB were asked for, 1.0 MiB were left") != std::string::npos);
  simt::SetDeviceBytes(before);
}

TEST_CASE("reserved memory keeps its address and contents while parts of it come and go") {
  for (const bool device : {false, true}) {
    INFO((device ? "device" : "host"));
    const auto ops = device ? Emulated() : Cpu("auto", 1);
    auto reserved = ops->Reserve(10 << 20);
    REQUIRE(reserved.ok());
    Reservation& r = **reserved;
    CHECK(r.bytes() >= 10 << 20);
    const int64_t g = r.granule();
    REQUIRE(r.Back(0, 3 * g, true).ok());
    REQUIRE(r.Back(g, 5 * g - 7, true).ok());   // what was backed stays
    std::vector<std::byte> page(static_cast<size_t>(g), std::byte{42}), seen(page.size());
    ops->CopyFromHost(r.base(), page.data(), g);
    ops->CopyFromHost(r.base() + 4 * g, page.data(), g);
    ops->Sync();
    r.Release(g, 4 * g);
    for (const int64_t at : {int64_t{0}, 4 * g}) {
      ops->CopyToHost(seen.data(), r.base() + at, g);
      ops->Sync();
      CHECK(seen == page);
    }
    REQUIRE(r.Back(g, 2 * g, true).ok());
    ops->CopyToHost(seen.data(), r.base() + g, g);
    ops->Sync();
    CHECK(seen != page);
    CHECK(ops->Health().ok());
    if (!device) continue;
    simt::CatchReports reports;
    ops->CopyToHost(seen.data(), r.base() + 2 * g, 8);
    ops->Sync();
    const auto said = reports.Take();
    REQUIRE(said.size() == 1);
    INFO(said[0]);
    CHECK(said[0].find("where nothing is backed") != std::string::npos);
  }
  const auto ops = Emulated();
  auto large = ops->Reserve(int64_t{8} << 30);
  REQUIRE(large.ok());
  const size_t before = simt::DeviceBytes();
  simt::SetDeviceBytes(simt::DeviceBytesUsed() + (4 << 20));
  const absl::Status s = (*large)->Back(0, int64_t{8} << 30, true);
  simt::SetDeviceBytes(before);
  CHECK(s.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(s.message()).find("MiB left") != std::string::npos);
}

// Uploads take turns in two halves; work runs when it is waited for, so a half that were written too early would show.
TEST_CASE("many small uploads without a wait arrive as they were") {
  const auto ops = Emulated();
  std::vector<float> x(50 * 8);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const Held<float> from(*ops, x, 8);
  std::vector<Held<float>> to;
  std::vector<std::vector<int32_t>> rows;
  for (int i = 0; i < 60; ++i) {
    rows.emplace_back(i % 7 == 6 ? 9000 : 600);
    for (size_t r = 0; r < rows.back().size(); ++r) rows.back()[r] = static_cast<int32_t>((r * 7 + static_cast<size_t>(i)) % 50);
    to.emplace_back(*ops, std::vector<float>(rows.back().size() * 8), 8);
    ops->GatherRows(from.mat(), rows.back(), to.back().mat());
    std::fill(rows.back().begin() + 5, rows.back().end(), 0);  // the caller's memory may go
  }
  bool right = true;
  for (size_t i = 0; i < to.size(); ++i) {
    const auto got = to[i].Get();
    for (size_t r = 0; r < got.size() / 8; ++r) right = right && got[r * 8] == static_cast<float>((r * 7 + i) % 50 * 8);
  }
  CHECK(right);
  CHECK(ops->Health().ok());
}

// A copy that finds no room in pinned memory waits for the device and is there at once; one that does comes with the wait for its step. A step of
// many rows of logits finds room for all of them the second time, not for one more each time.
TEST_CASE("what a step downloads arrives where pinned memory is refused, and the device is well") {
  const auto ops = Emulated();
  simt::TheFakeDevice().most_pinned = size_t{6} << 20;
  constexpr int kRows = 9, kWidth = 1 << 18;
  const Held<float> from(*ops, std::vector<float>(kWidth, 1.f), kWidth);
  for (int step = 0; step < 3; ++step) {
    std::vector<float> to(static_cast<size_t>(kRows) * kWidth);
    for (int r = 0; r < kRows; ++r) {
      ops->CopyToHost(reinterpret_cast<std::byte*>(to.data() + int64_t{r} * kWidth), reinterpret_cast<const std::byte*>(from.mat().data), int64_t{kWidth} * 4);
    }
    ops->Wait(ops->Mark());
    CHECK(std::count(to.begin(), to.end(), 1.f) == int64_t{kRows} * kWidth);
  }
  simt::TheFakeDevice() = {};
  CHECK(ops->Health().ok());
}

TEST_CASE("what a step downloads has room from its second time on") {
  const auto ops = Emulated();
  constexpr int kRows = 24, kWidth = 1 << 18;   // 24 MiB, six times what there is room for at first
  const Held<float> from(*ops, std::vector<float>(kWidth, 1.f), kWidth);
  std::vector<float> to(static_cast<size_t>(kRows) * kWidth);
  for (int step = 0; step < 5; ++step) {
    std::fill(to.begin(), to.end(), 0.f);
    for (int r = 0; r < kRows; ++r) {
      ops->CopyToHost(reinterpret_cast<std::byte*>(to.data() + int64_t{r} * kWidth), reinterpret_cast<const std::byte*>(from.mat().data), int64_t{kWidth} * 4);
    }
    INFO("step " << step);
    const auto early = std::count(to.begin(), to.end(), 1.f) / kWidth;
    CHECK((step == 0 || early == 0));
    ops->Wait(ops->Mark());
    CHECK(std::count(to.begin(), to.end(), 1.f) == int64_t{kRows} * kWidth);
  }
  CHECK(ops->Health().ok());
}

}  // namespace
}  // namespace holdfast::kernels::test

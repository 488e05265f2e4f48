#include "kernels/cuda/reservation_cuda.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <fmt/format.h>

#include <vector>

#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

// The driver's functions, each by the name and version that its declaration in cuda.h has.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) access = nullptr;
  const char* missing = nullptr;
};

const Driver& TheDriver() {
  static const Driver driver = [] {
    Driver d;
    const auto find = [&](auto* function, const char* name) {
      void* p = nullptr;
      cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
      constexpr unsigned kVersion = 11020;  // all of them are older
      if (cudaGetDriverEntryPointByVersion(name, &p, kVersion, cudaEnableDefault, &result) != cudaSuccess || result != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        d.missing = name;
        return;
      }
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(p);
    };
    find(&d.granularity, "cuMemGetAllocationGranularity");
    find(&d.reserve, "cuMemAddressReserve");
    find(&d.free, "cuMemAddressFree");
    find(&d.create, "cuMemCreate");
    find(&d.release, "cuMemRelease");
    find(&d.map, "cuMemMap");
    find(&d.unmap, "cuMemUnmap");
    find(&d.access, "cuMemSetAccess");
    return d;
  }();
  return driver;
}

class DeviceReservation final : public Reservation {
 public:
  DeviceReservation(const Driver& driver, int device, CUdeviceptr base, int64_t bytes, int64_t granule)
      : driver_(driver), device_(device), base_(base), bytes_(bytes), granule_(granule), backed_(static_cast<size_t>(bytes / granule), false) {}
  ~DeviceReservation() override {
    cudaDeviceSynchronize();
    Release(0, bytes_);
    driver_.free(base_, static_cast<size_t>(bytes_));
  }
  std::byte* base() const override { return reinterpret_cast<std::byte*>(base_); }
  int64_t bytes() const override { return bytes_; }
  int64_t granule() const override { return granule_; }

  absl::Status Back(int64_t begin, int64_t end, bool) override {
    HF_CHECK(begin >= 0 && end <= bytes_);
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device_;
    const size_t size = static_cast<size_t>(granule_);
    for (int64_t g = begin / granule_; g * granule_ < end; ++g) {
      if (backed_[static_cast<size_t>(g)]) continue;
      const CUdeviceptr at = base_ + static_cast<CUdeviceptr>(g * granule_);
      CUmemGenericAllocationHandle handle{};
      const CUresult made = driver_.create(&handle, size, &prop, 0);
      if (made != CUDA_SUCCESS) {
        size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        return absl::ResourceExhaustedError(fmt::format("the device has {} of {} MiB left (driver error {})", free >> 20, total >> 20, static_cast<int>(made)));
      }
      CUmemAccessDesc access{};
      access.location = prop.location;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      CUresult mapped = driver_.map(at, size, 0, handle, 0);
      driver_.release(handle);  // the mapping keeps the memory
      if (mapped == CUDA_SUCCESS) {
        mapped = driver_.access(at, size, &access, 1);
        if (mapped != CUDA_SUCCESS) driver_.unmap(at, size);
      }
      if (mapped != CUDA_SUCCESS) return absl::ResourceExhaustedError(fmt::format("the driver cannot map memory (error {})", static_cast<int>(mapped)));
      backed_[static_cast<size_t>(g)] = true;
    }
    return absl::OkStatus();
  }

  void Release(int64_t begin, int64_t end) override {
    for (int64_t g = (begin + granule_ - 1) / granule_; g * granule_ < end; ++g) {
      if (!backed_[static_cast<size_t>(g)]) continue;
      driver_.unmap(base_ + static_cast<CUdeviceptr>(g * granule_), static_cast<size_t>(granule_));
      backed_[static_cast<size_t>(g)] = false;
    }
  }

 private:
  const Driver& driver_;
  int device_;
  CUdeviceptr base_;
  int64_t bytes_, granule_;
  std::vector<bool> backed_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Reservation>> ReserveDevice(int device, int64_t bytes) {
  const Driver& driver = TheDriver();
  if (driver.missing != nullptr) return absl::FailedPreconditionError(fmt::format("the NVIDIA driver has no {}", driver.missing));
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  size_t granule = 0;
  CUresult e = driver.granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (e != CUDA_SUCCESS || granule == 0) return absl::FailedPreconditionError(fmt::format("CUDA device {} has no virtual memory (driver error {})", device, static_cast<int>(e)));
  const int64_t rounded = (bytes + static_cast<int64_t>(granule) - 1) / static_cast<int64_t>(granule) * static_cast<int64_t>(granule);
  CUdeviceptr base = 0;
  e = driver.reserve(&base, static_cast<size_t>(rounded), 0, 0, 0);
  if (e != CUDA_SUCCESS) return absl::ResourceExhaustedError(fmt::format("driver error {}", static_cast<int>(e)));
  return std::make_unique<DeviceReservation>(driver, device, base, rounded, static_cast<int64_t>(granule));
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

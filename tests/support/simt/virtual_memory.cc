// The driver's virtual memory, and how the runtime finds it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <map>
#include <string>

#include "tests/support/simt/memory.h"
#include "tests/support/simt/streams.h"

namespace simt {

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kVirtualPage;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* p, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  if (bytes == 0 || bytes % kVirtualPage != 0) return CUDA_ERROR_INVALID_VALUE;
  *p = reinterpret_cast<CUdeviceptr>(VirtualReserve(bytes));
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes) {
  return VirtualRelease(reinterpret_cast<void*>(p), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
// A handle is the size: memory is taken when it is mapped. What cannot be mapped then could not have been created.
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  if (bytes == 0 || bytes % kVirtualPage != 0) return CUDA_ERROR_INVALID_VALUE;
  if (DeviceBytesUsed() + bytes > DeviceBytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  if (offset != 0 || handle != bytes) return CUDA_ERROR_INVALID_VALUE;
  return VirtualMap(reinterpret_cast<void*>(p), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemUnmap(CUdeviceptr p, size_t bytes) {
  DrainAll();
  return VirtualUnmap(reinterpret_cast<void*>(p), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string, void*> all = {
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&cuMemGetAllocationGranularity)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&cuMemAddressReserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&cuMemAddressFree)},
      {"cuMemCreate", reinterpret_cast<void*>(&cuMemCreate)},
      {"cuMemRelease", reinterpret_cast<void*>(&cuMemRelease)},
      {"cuMemMap", reinterpret_cast<void*>(&cuMemMap)},
      {"cuMemUnmap", reinterpret_cast<void*>(&cuMemUnmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&cuMemSetAccess)},
  };
  const auto it = all.find(symbol);
  *function = it == all.end() ? nullptr : it->second;
  if (result != nullptr) *result = it == all.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return Answer(it == all.end() ? cudaErrorSymbolNotFound : cudaSuccess);
}

}  // namespace simt

// The runtime's functions: streams as queues, memory of memory.h.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "proto/base/check.h"
#include "tests/support/simt/memory.h"

namespace simt {

using Work = std::function<void()>;

struct Graph {
  std::vector<Work> work;
};

struct Stream {
  std::recursive_mutex drain;        // held while work runs
  std::mutex mutex;
  std::deque<Work> queue;
  uint64_t put = 0, done = 0;
  Graph* capture = nullptr;
};

struct Event {
  Stream* stream = nullptr;
  uint64_t at = 0;
};

namespace {

thread_local cudaError_t g_last = cudaSuccess;

struct Pinned {
  std::mutex mutex;
  std::map<uintptr_t, size_t> ranges;
};
Pinned& ThePinned() {
  static Pinned* p = new Pinned;
  return *p;
}
struct Streams {
  std::mutex mutex;
  std::vector<Stream*> all;
  Stream legacy;
};
Streams& TheStreams() {
  static Streams* s = new Streams;
  return *s;
}

Stream* Of(cudaStream_t s) { return s == nullptr ? &TheStreams().legacy : s; }

cudaError_t Answer(cudaError_t e) {
  if (e == cudaSuccess && Faulted()) e = cudaErrorLaunchFailure;
  if (e != cudaSuccess) g_last = e;
  return e;
}

void DrainTo(Stream* s, uint64_t until) {
  std::lock_guard running(s->drain);
  for (;;) {
    Work work;
    {
      std::lock_guard lock(s->mutex);
      if (s->done >= until || s->queue.empty()) return;
      work = std::move(s->queue.front());
      s->queue.pop_front();
    }
    if (!Faulted()) work();
    std::lock_guard lock(s->mutex);
    ++s->done;
  }
}

uint64_t PutSoFar(Stream* s) {
  std::lock_guard lock(s->mutex);
  return s->put;
}

void DrainAll() {
  std::vector<Stream*> all;
  {
    std::lock_guard lock(TheStreams().mutex);
    all = TheStreams().all;
  }
  all.push_back(&TheStreams().legacy);
  for (Stream* s : all) DrainTo(s, PutSoFar(s));
}

void Put(cudaStream_t stream, Work work) {
  Stream* s = Of(stream);
  std::lock_guard lock(s->mutex);
  if (s->capture != nullptr) {
    s->capture->work.push_back(std::move(work));
    return;
  }
  s->queue.push_back(std::move(work));
  ++s->put;
}

bool IsPinned(const void* p) {
  Pinned& pinned = ThePinned();
  std::lock_guard lock(pinned.mutex);
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  auto it = pinned.ranges.upper_bound(at);
  return it != pinned.ranges.begin() && at < std::prev(it)->first + std::prev(it)->second;
}

}  // namespace

FakeDevice& TheFakeDevice() {
  static FakeDevice device;
  return device;
}

const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t e) { return e == cudaErrorLaunchFailure ? "unspecified launch failure" : cudaGetErrorName(e); }
cudaError_t cudaGetLastError() {
  const cudaError_t e = Answer(cudaSuccess) != cudaSuccess ? cudaErrorLaunchFailure : g_last;
  g_last = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError() { return Faulted() ? cudaErrorLaunchFailure : g_last; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = TheFakeDevice().count_error == cudaSuccess ? TheFakeDevice().count : 0;
  if (TheFakeDevice().count_error != cudaSuccess) return Answer(TheFakeDevice().count_error);
  return Answer(TheFakeDevice().count == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= TheFakeDevice().count) return Answer(cudaErrorInvalidDevice);
  return Answer(TheFakeDevice().use_error);
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return Answer(cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  if (device < 0 || device >= TheFakeDevice().count) return Answer(cudaErrorInvalidDevice);
  *out = {};
  std::strncpy(out->name, "emulated", sizeof(out->name) - 1);
  out->totalGlobalMem = DeviceBytes();
  out->major = 9;
  out->multiProcessorCount = 4;
  out->sharedMemPerBlockOptin = 227 << 10;
  return Answer(cudaSuccess);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeMode: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    default: return Answer(cudaErrorInvalidValue);
  }
  return Answer(cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheFakeDevice().count_error == cudaErrorInsufficientDriver ? 0 : 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  DrainAll();
  CheckMemory("at cudaDeviceSynchronize");
  return Answer(cudaSuccess);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = DeviceBytes();
  *free = DeviceBytes() - DeviceBytesUsed();
  return Answer(cudaSuccess);
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = nullptr;
  if (Faulted()) return Answer(cudaErrorLaunchFailure);
  *p = DeviceAllocate(bytes);
  return Answer(*p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* p) {
  if (p == nullptr) return Answer(TheFakeDevice().use_error);
  DrainAll();
  CheckMemory("at cudaFree");
  return Answer(DeviceFree(p) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*p == nullptr) return Answer(cudaErrorMemoryAllocation);
  std::memset(*p, 0xff, bytes);
  std::lock_guard lock(ThePinned().mutex);
  ThePinned().ranges[reinterpret_cast<uintptr_t>(*p)] = bytes;
  return Answer(cudaSuccess);
}
cudaError_t cudaFreeHost(void* p) {
  if (p == nullptr) return Answer(cudaSuccess);
  DrainAll();
  {
    std::lock_guard lock(ThePinned().mutex);
    if (ThePinned().ranges.erase(reinterpret_cast<uintptr_t>(p)) == 0) return Answer(cudaErrorInvalidValue);
  }
  std::free(p);
  return Answer(cudaSuccess);
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return Answer(cudaSuccess);
  const bool from_device = IsDevice(src), to_device = IsDevice(dst);
  const cudaMemcpyKind is = from_device ? (to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                                        : (to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
  if (kind != cudaMemcpyDefault && kind != is) return Answer(cudaErrorInvalidValue);
  const bool pageable = (!from_device && !IsPinned(src)) || (!to_device && !IsPinned(dst));
  if (pageable && Of(stream)->capture != nullptr) return Answer(cudaErrorStreamCaptureUnsupported);
  if (is == cudaMemcpyHostToDevice && pageable) {
    auto bytes_now = std::make_shared<std::vector<std::byte>>(static_cast<const std::byte*>(src), static_cast<const std::byte*>(src) + bytes);
    Put(stream, [dst, bytes_now] { GuardedCopy(dst, bytes_now->data(), bytes_now->size()); });
    return Answer(cudaSuccess);
  }
  Put(stream, [dst, src, bytes] { GuardedCopy(dst, src, bytes); });
  if (pageable) DrainTo(Of(stream), PutSoFar(Of(stream)));
  return Answer(cudaSuccess);
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t e = cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
  if (e != cudaSuccess) return e;
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return Answer(cudaSuccess);
  if (!IsDevice(dst)) return Answer(cudaErrorInvalidValue);
  Put(stream, [=] {
    const std::vector<std::byte> fill(bytes, static_cast<std::byte>(value));
    GuardedCopy(dst, fill.data(), bytes);
  });
  return Answer(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream;
  std::lock_guard lock(TheStreams().mutex);
  TheStreams().all.push_back(*stream);
  return Answer(TheFakeDevice().use_error);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  DrainTo(stream, PutSoFar(stream));
  std::lock_guard lock(TheStreams().mutex);
  std::erase(TheStreams().all, stream);
  delete stream;
  return Answer(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Stream* s = Of(stream);
  if (s->capture != nullptr) return Answer(cudaErrorStreamCaptureUnsupported);
  DrainTo(s, PutSoFar(s));
  CheckMemory("at cudaStreamSynchronize");
  if (TheFakeDevice().next_sync_error != cudaSuccess) return Answer(std::exchange(TheFakeDevice().next_sync_error, cudaSuccess));
  return Answer(cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Stream* s = Of(stream);
  DrainTo(s, PutSoFar(s));
  return Answer(cudaSuccess);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->stream == nullptr) return Answer(cudaSuccess);
  Put(stream, [other = event->stream, at = event->at] { DrainTo(other, at); });
  return Answer(cudaSuccess);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*f)(void*), void* data) {
  Put(stream, [f, data] { f(data); });
  return Answer(cudaSuccess);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new Event;
  return Answer(cudaSuccess);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return Answer(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (Of(stream)->capture != nullptr) return Answer(cudaErrorStreamCaptureUnsupported);
  event->stream = Of(stream);
  event->at = PutSoFar(event->stream);
  return Answer(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->stream != nullptr) DrainTo(event->stream, event->at);
  return Answer(cudaSuccess);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return Answer(cudaErrorNotSupported); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->capture != nullptr) return Answer(cudaErrorStreamCaptureUnsupported);
  stream->capture = new Graph;
  return Answer(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->capture, nullptr);
  return Answer(*graph == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new Graph(*graph);
  return Answer(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& w : exec->work) Put(stream, w);
  return Answer(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Answer(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return Answer(cudaSuccess);
}

cudaError_t EnqueueLaunch(LaunchSpec spec, cudaStream_t stream) {
  if (Faulted()) return Answer(cudaErrorLaunchFailure);
  if (TheFakeDevice().launch_error != cudaSuccess) return Answer(TheFakeDevice().launch_error);
  Put(stream, [spec = std::move(spec)] { RunLaunch(spec); });
  return Answer(cudaSuccess);
}

// ---- virtual memory ----------------------------------------------------------------------------------------------------------------------

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

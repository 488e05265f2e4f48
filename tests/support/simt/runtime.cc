// The runtime's functions: streams as queues, memory of memory.h.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/check.h"
#include "tests/support/simt/memory.h"
#include "tests/support/simt/streams.h"

namespace simt {

namespace {

thread_local cudaError_t g_last = cudaSuccess;
thread_local int g_device = 0;

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
  std::map<int, Stream> legacy;      // of each device
};
Streams& TheStreams() {
  static Streams* s = new Streams;
  return *s;
}

bool IsPinned(const void* p) {
  Pinned& pinned = ThePinned();
  std::lock_guard lock(pinned.mutex);
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  auto it = pinned.ranges.upper_bound(at);
  return it != pinned.ranges.begin() && at < std::prev(it)->first + std::prev(it)->second;
}

}  // namespace

Stream* Of(cudaStream_t s) {
  if (s != nullptr) return s;
  std::lock_guard lock(TheStreams().mutex);
  Stream& legacy = TheStreams().legacy[g_device];
  legacy.device = g_device;
  return &legacy;
}

cudaError_t Answer(cudaError_t e) {
  if (e == cudaSuccess && Faulted()) e = cudaErrorLaunchFailure;
  if (e != cudaSuccess) g_last = e;
  return e;
}

bool TryTo(Stream* s, uint64_t until) {
  std::lock_guard running(s->drain);
  for (;;) {
    Work* work = nullptr;
    {
      std::lock_guard lock(s->mutex);
      if (s->done >= until || s->queue.empty()) return true;
      work = &s->queue.front();      // a deque's elements stay where they are when others come
    }
    if (!Faulted() && !(*work)()) return false;
    std::lock_guard lock(s->mutex);
    s->queue.pop_front();
    ++s->done;
  }
}

void DrainTo(Stream* s, uint64_t until) {
  while (!TryTo(s, until)) std::this_thread::yield();
}

uint64_t PutSoFar(Stream* s) {
  std::lock_guard lock(s->mutex);
  return s->put;
}

void DrainAll() {
  std::vector<Stream*> all;
  {
    std::lock_guard lock(TheStreams().mutex);
    for (Stream* s : TheStreams().all) {
      if (s->device == g_device) all.push_back(s);
    }
  }
  all.push_back(Of(nullptr));
  for (Stream* s : all) DrainTo(s, PutSoFar(s));
}

cudaError_t PutWork(cudaStream_t stream, Work work) {
  Stream* s = Of(stream);
  std::lock_guard lock(s->mutex);
  if (s->capture != nullptr) {
    if (s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    s->capture->graph->work.push_back(std::move(work));
    return cudaSuccess;
  }
  s->queue.push_back(std::move(work));
  ++s->put;
  return cudaSuccess;
}

AtomicCounts& Counting() {
  static AtomicCounts counts;
  return counts;
}
Counts TheCounts() { return {Counting().launches, Counting().copies, Counting().graph_launches, Counting().waits}; }

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
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
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
  g_device = device;
  return Answer(TheFakeDevice().use_error);
}
cudaError_t cudaGetDevice(int* device) {
  *device = g_device;
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
  if (const cudaError_t e = UnsafeWhileCapturing(); e != cudaSuccess) return Answer(e);
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
  if (const cudaError_t e = UnsafeWhileCapturing(); e != cudaSuccess) return Answer(e);
  if (Faulted()) return Answer(cudaErrorLaunchFailure);
  *p = DeviceAllocate(bytes);
  return Answer(*p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* p) {
  if (p == nullptr) return Answer(TheFakeDevice().use_error);
  if (const cudaError_t e = UnsafeWhileCapturing(); e != cudaSuccess) return Answer(e);
  DrainAll();
  CheckMemory("at cudaFree");
  return Answer(DeviceFree(p) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = nullptr;
  if (const cudaError_t e = UnsafeWhileCapturing(); e != cudaSuccess) return Answer(e);
  if (bytes > TheFakeDevice().most_pinned) return Answer(cudaErrorMemoryAllocation);
  *p = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*p == nullptr) return Answer(cudaErrorMemoryAllocation);
  std::memset(*p, 0xff, bytes);
  std::lock_guard lock(ThePinned().mutex);
  ThePinned().ranges[reinterpret_cast<uintptr_t>(*p)] = bytes;
  return Answer(cudaSuccess);
}
cudaError_t cudaFreeHost(void* p) {
  if (p == nullptr) return Answer(cudaSuccess);
  if (const cudaError_t e = UnsafeWhileCapturing(); e != cudaSuccess) return Answer(e);
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
  if (pageable) {
    if (const cudaError_t e = NotWhileCapturing(Of(stream)); e != cudaSuccess) return Answer(e);
  }
  ++Counting().copies;
  if (is == cudaMemcpyHostToDevice && pageable) {
    auto bytes_now = std::make_shared<std::vector<std::byte>>(static_cast<const std::byte*>(src), static_cast<const std::byte*>(src) + bytes);
    return Answer(Put(stream, [dst, bytes_now] { GuardedCopy(dst, bytes_now->data(), bytes_now->size()); }));
  }
  const cudaError_t put = Put(stream, [dst, src, bytes] { GuardedCopy(dst, src, bytes); });
  if (pageable) DrainTo(Of(stream), PutSoFar(Of(stream)));
  return Answer(put);
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t e = UnsafeWhileCapturing(); e != cudaSuccess) return Answer(e);
  const cudaError_t e = cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
  if (e != cudaSuccess) return e;
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return Answer(cudaSuccess);
  if (!IsDevice(dst)) return Answer(cudaErrorInvalidValue);
  return Answer(Put(stream, [=] {
    const std::vector<std::byte> fill(bytes, static_cast<std::byte>(value));
    GuardedCopy(dst, fill.data(), bytes);
  }));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream;
  (*stream)->device = g_device;
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
  if (const cudaError_t e = NotWhileCapturing(s); e != cudaSuccess) return Answer(e);
  ++Counting().waits;
  DrainTo(s, PutSoFar(s));
  CheckMemory("at cudaStreamSynchronize");
  return Answer(std::exchange(TheFakeDevice().next_sync_error, cudaSuccess));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Stream* s = Of(stream);
  if (const cudaError_t e = NotWhileCapturing(s); e != cudaSuccess) return Answer(e);
  if (!TryTo(s, PutSoFar(s))) return Answer(cudaErrorNotReady);
  CheckMemory("at cudaStreamQuery");
  if (TheFakeDevice().next_sync_error != cudaSuccess) return Answer(std::exchange(TheFakeDevice().next_sync_error, cudaSuccess));
  return Answer(cudaSuccess);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->stream == nullptr) return Answer(cudaSuccess);
  if (event->captured) {
    if (event->stream == Of(stream)) return Answer(cudaSuccess);
    Publish("a stream waits for an event of a capture: this machine captures one stream alone");
    return Answer(cudaErrorNotSupported);
  }
  if (Of(stream)->capture != nullptr) {   // on work that the graph will not have
    NotWhileCapturing(Of(stream));
    return Answer(cudaErrorStreamCaptureIsolation);
  }
  return Answer(PutWork(stream, [other = event->stream, at = event->at] { return TryTo(other, at); }));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*f)(void*), void* data) {
  return Answer(Put(stream, [f, data] { f(data); }));
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
  event->stream = Of(stream);
  event->captured = event->stream->capture != nullptr;
  event->at = PutSoFar(event->stream);
  return Answer(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->captured) {
    NotWhileCapturing(event->stream);
    return Answer(cudaErrorCapturedEvent);
  }
  if (const cudaError_t e = UnsafeWhileCapturing(); e != cudaSuccess) return Answer(e);
  ++Counting().waits;
  if (event->stream != nullptr) DrainTo(event->stream, event->at);
  CheckMemory("at cudaEventSynchronize");
  return Answer(std::exchange(TheFakeDevice().next_sync_error, cudaSuccess));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->captured || event->stream == nullptr || TryTo(event->stream, event->at)) return cudaEventSynchronize(event);
  return Answer(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return Answer(cudaErrorNotSupported); }

cudaError_t EnqueueLaunch(LaunchSpec spec, cudaStream_t stream) {
  if (Faulted()) return Answer(cudaErrorLaunchFailure);
  if (TheFakeDevice().launch_error != cudaSuccess) return Answer(TheFakeDevice().launch_error);
  ++Counting().launches;
  return Answer(Put(stream, [spec = std::move(spec)] { RunLaunch(spec); }));
}

cudaError_t EnqueueAttempt(cudaStream_t stream, std::function<bool()> attempt) {
  if (Faulted()) return Answer(cudaErrorLaunchFailure);
  if (const cudaError_t e = NotWhileCapturing(Of(stream)); e != cudaSuccess) return Answer(e);  // nobody needs it yet
  return Answer(PutWork(stream, std::move(attempt)));
}

}  // namespace simt

// Graphs on the SIMT machine: what a capture records, what a launch of it does, and what a program may not do meanwhile.
#include <catch2/catch.hpp>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "tests/support/simt/memory.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

__global__ void AddKernel(float* to, const float* from, float factor) { to[threadIdx.x] += from[threadIdx.x] * factor; }

constexpr int kCount = 32;

class Device {
 public:
  Device() { REQUIRE(cudaMalloc(&data, kCount * 4) == cudaSuccess); }
  ~Device() { Free(); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  void Free() { cudaFree(std::exchange(data, nullptr)); }
  void Fill(float v) {
    const std::vector<float> all(kCount, v);
    REQUIRE(cudaMemcpy(data, all.data(), kCount * 4, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  float First() const {
    std::vector<float> all(kCount);
    REQUIRE(cudaMemcpy(all.data(), data, kCount * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    return all[0];
  }
  float* data = nullptr;
};

struct Pinned {
  Pinned() { REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&data), kCount * 4) == cudaSuccess); }
  ~Pinned() { cudaFreeHost(data); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  void Fill(float v) { std::fill(data, data + kCount, v); }
  float* data = nullptr;
};

struct OneStream {
  OneStream() { REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess); }
  ~OneStream() { cudaStreamDestroy(s); }
  OneStream(const OneStream&) = delete;
  OneStream& operator=(const OneStream&) = delete;
  cudaStream_t s = nullptr;
};

cudaGraphExec_t Captured(cudaStream_t stream, const std::function<void()>& work) {
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  work();
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  return exec;
}

TEST_CASE("a capture runs nothing, and each launch of its graph runs launches and copies in order with the arguments of then") {
  OneStream stream;
  Device sum, part;
  Pinned pinned;
  sum.Fill(0.f);
  pinned.Fill(1.f);
  float factor = 2.f;
  const simt::Counts before = simt::TheCounts();
  cudaGraphExec_t exec = Captured(stream.s, [&] {
    cudaMemcpyAsync(part.data, pinned.data, kCount * 4, cudaMemcpyHostToDevice, stream.s);
    Launch(AddKernel, 1, kCount, 0, stream.s, sum.data, part.data, factor);
    cudaMemsetAsync(part.data, 0, kCount * 4, stream.s);
  });
  factor = 100.f;   // by value
  REQUIRE(cudaStreamSynchronize(stream.s) == cudaSuccess);
  CHECK(sum.First() == 0.f);
  for (int i = 1; i <= 3; ++i) {
    pinned.Fill(static_cast<float>(i));   // what is behind an address is read at the launch
    REQUIRE(cudaGraphLaunch(exec, stream.s) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream.s) == cudaSuccess);
  }
  CHECK(sum.First() == 12.f);
  CHECK(part.First() == 0.f);
  // A launch that was asked for stays when the graph goes.
  pinned.Fill(1.f);
  REQUIRE(cudaGraphLaunch(exec, stream.s) == cudaSuccess);
  REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream.s) == cudaSuccess);
  CHECK(sum.First() == 14.f);
  CHECK(simt::TheCounts().launches == before.launches + 1);
  CHECK(simt::TheCounts().graph_launches == before.graph_launches + 4);
}

TEST_CASE("what a capture does not allow says so, and makes it invalid") {
  Device a;
  Pinned pinned;
  std::vector<float> pageable(kCount);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  const auto refused = [&](cudaError_t want, const std::function<cudaError_t(cudaStream_t)>& call) {
    OneStream stream;
    REQUIRE(cudaStreamBeginCapture(stream.s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(call(stream.s) == want);
    // What comes after it is lost, too.
    CHECK(cudaMemsetAsync(a.data, 0, 4, stream.s) == cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream.s, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    // The stream is as before.
    CHECK(cudaMemsetAsync(a.data, 0, 4, stream.s) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream.s) == cudaSuccess);
    cudaGetLastError();
  };
  refused(cudaErrorStreamCaptureUnsupported, [](cudaStream_t s) { return cudaStreamSynchronize(s); });
  refused(cudaErrorStreamCaptureUnsupported, [](cudaStream_t s) { return cudaStreamQuery(s); });
  refused(cudaErrorStreamCaptureUnsupported, [](cudaStream_t) { return cudaDeviceSynchronize(); });
  refused(cudaErrorStreamCaptureUnsupported, [](cudaStream_t) {
    void* p = nullptr;
    return cudaMalloc(&p, 64);
  });
  refused(cudaErrorStreamCaptureUnsupported, [&](cudaStream_t) { return cudaFree(a.data); });
  refused(cudaErrorStreamCaptureUnsupported, [&](cudaStream_t) { return cudaFreeHost(pinned.data); });
  refused(cudaErrorStreamCaptureUnsupported, [&](cudaStream_t) { return cudaEventSynchronize(event); });
  refused(cudaErrorStreamCaptureUnsupported,
          [&](cudaStream_t s) { return cudaMemcpyAsync(a.data, pageable.data(), kCount * 4, cudaMemcpyHostToDevice, s); });
  refused(cudaErrorStreamCaptureIsolation, [&](cudaStream_t s) {
    OneStream other;
    cudaEventRecord(event, other.s);
    return cudaStreamWaitEvent(s, event);
  });
  refused(cudaErrorCapturedEvent, [&](cudaStream_t s) {
    cudaEventRecord(event, s);
    return cudaEventQuery(event);
  });
  cudaEventDestroy(event);
}

TEST_CASE("a capture begins once, ends where it began, and is its thread's business where it says so") {
  OneStream stream;
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream.s, &graph) == cudaErrorIllegalState);
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    REQUIRE(cudaStreamBeginCapture(stream.s, mode) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(stream.s, mode) == cudaErrorIllegalState);
    cudaError_t ended = cudaSuccess, allocated = cudaSuccess;
    std::thread([&] {
      cudaGraph_t none = nullptr;
      ended = cudaStreamEndCapture(stream.s, &none);
      void* p = nullptr;
      allocated = cudaMalloc(&p, 64);
      if (p != nullptr) cudaFree(p);
    }).join();
    CHECK(ended == cudaErrorStreamCaptureWrongThread);
    CHECK(allocated == (mode == cudaStreamCaptureModeGlobal ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
    CHECK(cudaStreamEndCapture(stream.s, &graph) == (mode == cudaStreamCaptureModeGlobal ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
    if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  cudaGetLastError();
}

TEST_CASE("drill: a graph that uses memory which was freed, and one that was destroyed, are told") {
  const auto told = [](const std::function<void(cudaStream_t)>& misuse, const char* words) {
    OneStream stream;
    simt::CatchReports reports;
    misuse(stream.s);
    cudaStreamSynchronize(stream.s);
    const auto said = reports.Take();
    cudaGetLastError();
    REQUIRE(said.size() == 1);
    INFO(said[0]);
    CHECK(said[0].find(words) != said[0].npos);
  };
  told([](cudaStream_t s) {
    Device to, from;
    cudaGraphExec_t exec = Captured(s, [&] { Launch(AddKernel, 1, kCount, 0, s, to.data, from.data, 1.f); });
    CHECK(cudaGraphLaunch(exec, s) == cudaSuccess);
    from.Free();
    Device again;   // addresses are not used twice: the new memory is not taken for the old
    CHECK(cudaGraphLaunch(exec, s) == cudaSuccess);
    cudaStreamSynchronize(s);
    cudaGraphExecDestroy(exec);
  }, "AddKernel, block (0,0,0) of (1,1,1)");
  told([](cudaStream_t s) {
    Device to;
    Pinned from;
    cudaGraphExec_t exec = Captured(s, [&] { cudaMemcpyAsync(to.data, from.data, kCount * 4, cudaMemcpyHostToDevice, s); });
    to.Free();
    cudaGraphLaunch(exec, s);
    cudaStreamSynchronize(s);
    cudaGraphExecDestroy(exec);
  }, "of freed memory of 128 bytes");
  told([](cudaStream_t s) {
    Device to;
    cudaGraphExec_t exec = Captured(s, [&] { cudaMemsetAsync(to.data, 0, 4, s); });
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(cudaGraphLaunch(exec, s) == cudaErrorInvalidValue);
  }, "a graph that was destroyed");
}

}  // namespace
}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// Streams of the emulated runtime: queues whose work runs when somebody waits, and what a capture makes of them.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace simt {

using Work = std::function<bool()>;   // false: not yet, something waits for another device

// Launches and copies with their arguments, in order. An executable graph is a copy of it.
struct Graph {
  std::vector<Work> work;
};

struct Capture {
  Graph* graph = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  std::atomic<bool> invalid = false;   // something was called that a capture does not allow: cudaStreamEndCapture says so
};

struct Stream {
  int device = 0;
  std::recursive_mutex drain;        // held while work runs
  std::mutex mutex;
  std::deque<Work> queue;
  uint64_t put = 0, done = 0;
  Capture* capture = nullptr;
};

struct Event {
  Stream* stream = nullptr;
  uint64_t at = 0;
  bool captured = false;             // recorded into a graph: nobody can wait for it
};

struct AtomicCounts {
  std::atomic<uint64_t> launches = 0, copies = 0, graph_launches = 0, waits = 0;
};
AtomicCounts& Counting();            // what TheCounts gives

Stream* Of(cudaStream_t stream);     // null: the legacy one of this thread's device
cudaError_t Answer(cudaError_t e);   // what a call returns: e, kept for cudaGetLastError, or the device's fault
bool TryTo(Stream* s, uint64_t until);   // runs what can run; false: something waits for another device
void DrainTo(Stream* s, uint64_t until);
uint64_t PutSoFar(Stream* s);
void DrainAll();                     // of this thread's device: another's may wait for ours
// Into the queue, or into the graph that the stream captures. Not ok: the capture was invalidated before.
cudaError_t PutWork(cudaStream_t stream, Work work);
template <class F>
cudaError_t Put(cudaStream_t stream, F f) {
  return PutWork(stream, [f = std::move(f)]() mutable {
    f();
    return true;
  });
}

// What a capturing stream does not do (a wait, a query, a pageable copy): cudaSuccess when it captures nothing; else the capture is invalid from
// now on, and this is the answer.
cudaError_t NotWhileCapturing(Stream* s);
// "Potentially unsafe" calls (cudaMalloc, cudaFree, waits): the same for the captures that forbid them to this thread, on whatever stream.
cudaError_t UnsafeWhileCapturing();

}  // namespace simt

// Capture of a stream into a graph, and graphs as work of a stream. What a graph holds are addresses: memory that was freed since is an access
// outside an allocation when it is launched.
#include <algorithm>
#include <set>
#include <utility>

#include "tests/support/simt/machine.h"
#include "tests/support/simt/streams.h"

namespace simt {
namespace {

struct Captures {
  std::mutex mutex;
  std::vector<Capture*> active;
};
Captures& TheCaptures() {
  static Captures* c = new Captures;
  return *c;
}

// Graphs that were not destroyed: what is launched or destroyed once more is told.
struct Graphs {
  std::mutex mutex;
  std::set<const Graph*> alive;
};
Graphs& TheGraphs() {
  static Graphs* g = new Graphs;
  return *g;
}
Graph* Made(Graph* g) {
  std::lock_guard lock(TheGraphs().mutex);
  TheGraphs().alive.insert(g);
  return g;
}
bool IsAlive(const Graph* g, const char* doing) {
  {
    std::lock_guard lock(TheGraphs().mutex);
    if (TheGraphs().alive.contains(g)) return true;
  }
  if (g != nullptr) Publish(std::string(doing) + ": a graph that was destroyed");
  return false;
}
cudaError_t Destroy(Graph* g, const char* doing) {
  if (!IsAlive(g, doing)) return cudaErrorInvalidValue;
  std::lock_guard lock(TheGraphs().mutex);
  TheGraphs().alive.erase(g);
  delete g;
  return cudaSuccess;
}

}  // namespace

cudaError_t NotWhileCapturing(Stream* s) {
  std::lock_guard lock(s->mutex);
  if (s->capture == nullptr) return cudaSuccess;
  return s->capture->invalid.exchange(true) ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnsupported;
}

cudaError_t UnsafeWhileCapturing() {
  std::lock_guard lock(TheCaptures().mutex);
  cudaError_t e = cudaSuccess;
  for (Capture* c : TheCaptures().active) {
    if (c->mode == cudaStreamCaptureModeRelaxed || (c->mode == cudaStreamCaptureModeThreadLocal && c->thread != std::this_thread::get_id())) continue;
    c->invalid = true;
    e = cudaErrorStreamCaptureUnsupported;
  }
  return e;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return Answer(cudaErrorStreamCaptureUnsupported);
  if (Faulted()) return Answer(cudaErrorLaunchFailure);
  std::lock_guard lock(stream->mutex);
  if (stream->capture != nullptr) return Answer(cudaErrorIllegalState);
  stream->capture = new Capture{new Graph, mode, std::this_thread::get_id(), false};
  std::lock_guard all(TheCaptures().mutex);
  TheCaptures().active.push_back(stream->capture);
  return Answer(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr) return Answer(cudaErrorIllegalState);
  std::lock_guard lock(stream->mutex);
  Capture* capture = stream->capture;
  if (capture == nullptr) return Answer(cudaErrorIllegalState);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) return Answer(cudaErrorStreamCaptureWrongThread);
  stream->capture = nullptr;
  {
    std::lock_guard all(TheCaptures().mutex);
    std::erase(TheCaptures().active, capture);
  }
  const bool invalid = capture->invalid;
  if (invalid) {
    delete capture->graph;
  } else {
    *graph = Made(capture->graph);
  }
  delete capture;
  return Answer(invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = nullptr;
  if (TheFakeDevice().instantiate_error != cudaSuccess) return Answer(TheFakeDevice().instantiate_error);
  if (!IsAlive(graph, "cudaGraphInstantiate")) return Answer(cudaErrorInvalidValue);
  *exec = Made(new Graph(*graph));
  return Answer(cudaSuccess);
}

// The work of one launch is that of the graph as it is now: destroying it afterwards takes nothing back, as on a device.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (!IsAlive(exec, "cudaGraphLaunch")) return Answer(cudaErrorInvalidValue);
  ++Counting().graph_launches;
  for (const Work& w : exec->work) {
    if (const cudaError_t e = PutWork(stream, w); e != cudaSuccess) return Answer(e);
  }
  return Answer(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return Answer(Destroy(graph, "cudaGraphDestroy")); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return Answer(Destroy(exec, "cudaGraphExecDestroy")); }

}  // namespace simt

// Steps that come again, as graphs: some hundred launches become one.
//
// A graph holds addresses and grids. The step's batch and the attention's lists lie at addresses that stay (BeginStep fills them before), grids
// of a step of single rows follow from the number of rows, KV pools never move, and whatever else is replaced (Errors::moves) drops every graph.
#include <algorithm>

#include "kernels/cuda/ops_cuda.h"
#include "proto/base/log.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr size_t kMostGraphs = 48;        // kept; a shape that was not used for longest goes first
constexpr int kMostFailures = 3;          // of captures, before no more are tried

uint64_t Mix(uint64_t a, uint64_t b) { return (a ^ b) * 0x9E3779B97F4A7C15ull ^ (a >> 29); }

}  // namespace

// Powers of two, and steps of half of them from 16 on: at most a third of a bucket is padding above 16 rows.
int64_t CudaOps::PaddedRows(int64_t rows) const {
  if (!graphs_on_) return rows;
  int64_t bucket = 1;
  while (bucket < rows) bucket *= 2;
  return bucket > 16 && rows <= bucket / 4 * 3 ? bucket / 4 * 3 : bucket;
}

uint64_t CudaOps::AttentionVariant() const {
  uint64_t v = Mix(static_cast<uint64_t>(on_device_.rows), batch_.groups.size());
  for (const auto& p : attention_plans_) v = Mix(v, reinterpret_cast<uintptr_t>(p.get()) * 4 + (p->current ? 2 : 0) + (p->plan.combine.empty() ? 0 : 1));
  return v;
}

void CudaOps::DropGraphs() {
  for (const RepeatedStep& r : repeated_) {
    if (r.graph != nullptr) cudaGraphExecDestroy(r.graph);
  }
  repeated_.clear();
}

void CudaOps::Repeatable(uint64_t shape, absl::FunctionRef<void()> work) {
  normed_ = {};   // what is recorded follows from the calls in `work` alone
  if (!graphs_on_ || !single_rows_ || !ok()) return work();
  if (graph_moves_ != errors_.moves()) DropGraphs();
  graph_moves_ = errors_.moves();
  const uint64_t variant = AttentionVariant();
  auto it = std::find_if(repeated_.begin(), repeated_.end(), [&](const RepeatedStep& r) { return r.shape == shape && r.variant == variant; });
  if (it == repeated_.end()) {
    // By its calls the first time: scratch memory grows, and kernels are loaded.
    work();
    if (graph_moves_ != errors_.moves()) DropGraphs();
    graph_moves_ = errors_.moves();
    if (repeated_.size() >= kMostGraphs) {
      const auto oldest = std::min_element(repeated_.begin(), repeated_.end(), [](const auto& a, const auto& b) { return a.used < b.used; });
      if (oldest->graph != nullptr) cudaGraphExecDestroy(oldest->graph);
      repeated_.erase(oldest);
    }
    repeated_.push_back({shape, AttentionVariant(), ++graph_uses_, nullptr});
    return;
  }
  it->used = ++graph_uses_;
  if (it->graph == nullptr) it->graph = Capture(work);
  if (it->graph != nullptr) {
    const cudaError_t e = cudaGraphLaunch(it->graph, stream_);
    if (e == cudaSuccess) return;
    cudaGetLastError();
    if (++captures_failed_ == 1) LogWarn("a CUDA graph could not be launched: {} ({}); the step's calls are made one by one", cudaGetErrorString(e), cudaGetErrorName(e));
    cudaGraphExecDestroy(it->graph);
    it->graph = nullptr;
  }
  for (auto& r : rope_) r->current = false;   // what was recorded did not run
  normed_ = {};
  if (captures_failed_ >= kMostFailures) {
    LogWarn("no more CUDA graphs are tried after {} that failed; decode steps are launched call by call until a restart", captures_failed_);
    graphs_on_ = false;
  }
  work();
}

cudaGraphExec_t CudaOps::Capture(absl::FunctionRef<void()> work) {
  errors_.Check(cudaGetLastError(), "launching a kernel");   // of what came before: no fault of the graph's, and not to be forgotten with it
  if (!ok()) return nullptr;
  cudaError_t e = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  const char* doing = "beginning";
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  if (e == cudaSuccess) {
    errors_.BeginTrial();
    for (auto& r : rope_) r->current = false;   // the graph makes its own
    work();
    const cudaError_t launches = cudaGetLastError(), ended = cudaStreamEndCapture(stream_, &graph);
    const Errors::Failure own = errors_.EndTrial();
    e = own.error != cudaSuccess ? own.error : launches != cudaSuccess ? launches : ended;
    doing = own.error != cudaSuccess ? own.doing : "recording";
  }
  if (e == cudaSuccess) {
    e = cudaGraphInstantiate(&exec, graph, 0);
    doing = "instantiating";
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (e == cudaSuccess) return exec;
  cudaGetLastError();
  if (++captures_failed_ == 1) {
    LogWarn("a step could not be made a CUDA graph ({}: {}, {}); its calls are made one by one", doing, cudaGetErrorString(e), cudaGetErrorName(e));
  }
  return nullptr;
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// WeightStore: all weights of a model in one arena, packed for the backend. The arena is a memfd, sealed against writing and resizing
// once it is filled; a later process of the same model and backend maps it (Attach) instead of reading and packing the file again.
//
// Layout of the arena: a header of 4096 bytes (magic, version, digest of the layout, fingerprint of the file, size), then the tensors in
// the plan's order, each at a multiple of its alignment (>= 64). The layout is a function of the plan and of Ops::LayoutOf alone.
//
// Where the host does not share the backend's memory (Ops::HostMemory), the arena is copied to it once, and weights and vectors are of the copy.
//
// Threads: immutable once made; const methods from any thread. Weights and vectors are views that live as long as the store.
#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/ops.h"
#include "proto/base/unique_fd.h"
#include "worker/model/gguf_file.h"
#include "worker/model/tensor_plan.h"

namespace holdfast::model {

struct LoadProgress {
  const char* phase = "repacking";   // "reading" | "repacking", as worker.proto's Progress.phase
  uint64_t done_bytes = 0;           // of the file's tensor bytes
  uint64_t total_bytes = 0;
};

struct WeightOptions {
  int threads = 0;                   // loader threads; 0 = one per core this process may use, at most 8
  bool check_values = false;         // also refuse non-finite scales and values (costs a pass over the data)
  bool check_memory = true;          // refuse before allocating when the machine or cgroup has no room
  // Called on the calling thread about every 50 ms and once at the end. Returning false gives the load up (kCancelled).
  std::function<bool(const LoadProgress&)> progress;
};

class WeightStore {
 public:
  // Reads and packs. kResourceExhausted with the numbers when there is no room; kDataLoss when the file shrank; else as GgufFile::Read.
  static absl::StatusOr<std::shared_ptr<const WeightStore>> Create(const GgufFile& file, const TensorPlan& plan, kernels::Ops& ops,
                                                                   const WeightOptions& options);
  // Maps a sealed memfd that an earlier Create of the same file, plan and backend made. kFailedPrecondition when it is not that: the
  // caller then uses Create. Takes the descriptor.
  static absl::StatusOr<std::shared_ptr<const WeightStore>> Attach(UniqueFd fd, const GgufFile& file, const TensorPlan& plan,
                                                                   kernels::Ops& ops);
  ~WeightStore();

  // Absent tensors give an empty Weight / Vec (optional ones); the model knows which must be there.
  kernels::Weight matrix(std::string_view name) const;
  kernels::Vec vector(std::string_view name) const;
  // The same, for the host to read, wherever the backend computes.
  kernels::Vec host_vector(std::string_view name) const;

  uint64_t bytes() const { return bytes_; }       // of the arena
  int fd() const { return fd_.get(); }            // sealed; to hand over by SCM_RIGHTS or inheritance (dup it)
  uint64_t layout_digest() const { return layout_digest_; }

  // Arena bytes that Create will need, without allocating: header, tensors, padding.
  static uint64_t BytesNeeded(const TensorPlan& plan, const kernels::Ops& ops);

 private:
  struct Slot;
  struct Layout;
  class Packer;
  WeightStore() = default;
  static Layout MakeLayout(const TensorPlan& plan, const kernels::Ops& ops);
  absl::Status MapSealed(const Layout& layout, kernels::Ops& ops);

  UniqueFd fd_;
  const std::byte* base_ = nullptr;
  kernels::Buffer on_device_;                     // the arena again, or empty
  uint64_t bytes_ = 0;
  uint64_t layout_digest_ = 0;
  absl::flat_hash_map<std::string, kernels::Weight> matrices_;
  absl::flat_hash_map<std::string, kernels::Vec> vectors_;
};

}  // namespace holdfast::model

#pragma once
// A model on a backend with a page pool, driven without a scheduler: sequences get pages from a bump allocator, window tables lose the
// pages left of the window, and every row's logits come back.
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "worker/exec/batch_buffers.h"
#include "worker/exec/kv_storage.h"
#include "worker/model/kv_plan.h"
#include "worker/model/model.h"
#include "worker/tp/collective.h"

namespace holdfast::test {

struct HarnessOptions {
  kernels::KvDType dtype = kernels::KvDType::kF16;
  int32_t page_size = 16;
  uint32_t pages = 256;              // a group
  tp::Collective* ranks = nullptr;   // compute as this rank of several; Step then gives logits to rank 0 alone
};

class ModelHarness {
 public:
  static absl::StatusOr<std::unique_ptr<ModelHarness>> Open(const std::string& path, kernels::Ops* ops, const HarnessOptions& options);
  static absl::StatusOr<std::unique_ptr<ModelHarness>> Open(const model::GgufFile& file, kernels::Ops* ops, const HarnessOptions& options);

  // A new empty sequence; `prefix_of` >= 0 shares the whole pages of that sequence's first `prefix` tokens (a multiple of page_size).
  int NewSequence(int prefix_of = -1, uint32_t prefix = 0);

  struct Feed {
    int sequence = 0;
    std::vector<uint32_t> tokens;
  };
  // One step over all feeds; returns [total tokens][vocab] logits, feeds in order. A step of one token each is padded and repeated as the executor
  // does it.
  std::vector<float> Step(const std::vector<Feed>& feeds);

  uint32_t length(int sequence) const { return sequences_[sequence].length; }
  const model::Hparams& hparams() const { return model_->hparams(); }
  const model::KvPlan& plan() const { return storage_->plan(); }
  exec::KvStorage& storage() { return *storage_; }
  // Moves every page to a fresh one and follows in the tables.
  void MoveAllPages();

 private:
  struct Sequence {
    uint32_t length = 0;
    std::vector<std::vector<int32_t>> tables;   // [group][block]
    std::vector<uint32_t> history;
  };
  ModelHarness() = default;

  kernels::Ops* ops_ = nullptr;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<exec::KvStorage> storage_;
  exec::BatchBuffers batch_;
  kernels::Buffer logits_;
  bool divided_ = false;                        // among ranks
  uint64_t shape_ = 0;                          // of steps of one token each
  std::vector<Sequence> sequences_;
  std::vector<uint32_t> next_page_;             // [group]
  uint64_t step_ = 0;
};

// Normalised mean squared error of a against the reference b: sum (a-b)^2 / sum b^2.
double Nmse(std::span<const float> a, std::span<const float> b);
size_t Argmax(std::span<const float> row);

}  // namespace holdfast::test

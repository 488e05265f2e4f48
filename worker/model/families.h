#pragma once
// The seam between model.cc and the files of the architecture families: what each needs from the file, and how to make it.
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/model/model.h"
#include "worker/model/tensor_plan.h"

namespace holdfast::model {

// What of a tensor a rank takes. Empty ranges: everything.
struct Cut {
  Range rows;                // of each expert
  Range columns;
  bool halves = false;       // rows are of each half of a gate_up matrix
};

// Collects a plan; the first error sticks and later calls do nothing. Dims are given as in the file, fastest axis first, of the whole
// tensor; a cut says which part this rank holds.
class PlanBuilder {
 public:
  PlanBuilder(const GgufFile& file, const Shard& shard, std::vector<PlannedTensor>* out) : file_(file), shard_(shard), out_(out) {}

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }
  const LayerShard& share(int layer) const { return shard_.layers[static_cast<size_t>(layer)]; }
  void Matrix(const std::string& name, int64_t in, int64_t out, const Cut& cut = {}, kernels::WeightUse use = kernels::WeightUse::kMatMul,
              int64_t experts = 1);
  void Rows(const std::string& name, int64_t in, int64_t out, Range rows) { Matrix(name, in, out, {rows, {}, false}); }
  void Columns(const std::string& name, int64_t in, int64_t out, Range columns) { Matrix(name, in, out, {{}, columns, false}); }
  void Vocabulary(const std::string& name, int64_t in, int64_t out, kernels::WeightUse use) { Matrix(name, in, out, {shard_.vocab, {}, false}, use); }
  void Vector(const std::string& name, int64_t size, int64_t experts = 1, Range elements = {});
  void OptionalVector(const std::string& name, int64_t size, int64_t experts = 1, Range elements = {}) {
    if (Has(name)) Vector(name, size, experts, elements);
  }
  // Elements [first, first + size) of a source of `total`: rows of a fused matrix, or that part of its bias, under a name of its own.
  void MatrixSlice(const std::string& name, const std::string& source, int64_t in, Range rows, int64_t total);
  void VectorSlice(const std::string& name, const std::string& source, Range elements, int64_t total);
  // blk.N.attn_{q,k,v}.weight and optional biases, or the same out of attn_qkv.
  void Qkv(const Hparams& h, int layer);
  // gate, up (or both in one: gate_up) and down of an expert layer.
  void MoeExperts(const Hparams& h, int layer);
  // A tensor the file may hold and the model does without: not worth a log line.
  void Tolerate(const std::string& name) { used_.insert(name); }

  const absl::Status& status() const { return status_; }
  size_t Unused() const;  // tensors of the file nobody asked for
  std::string FirstUnused() const;

 private:
  const GgufTensor* Find(const std::string& name, std::vector<int64_t> dims);

  const GgufFile& file_;
  const Shard& shard_;
  std::vector<PlannedTensor>* out_;
  absl::flat_hash_set<std::string> used_;
  absl::Status status_;
};

std::string LayerName(int layer, std::string_view suffix);  // "blk.3.attn_q.weight"

void PlanLlama(const Hparams& h, PlanBuilder* plan);        // llama, qwen2, qwen3, qwen3moe
void PlanGemma3(const Hparams& h, PlanBuilder* plan);
void PlanGemma4(const Hparams& h, PlanBuilder* plan);
void PlanGptOss(const Hparams& h, PlanBuilder* plan);

std::unique_ptr<Model> MakeLlama(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks);
std::unique_ptr<Model> MakeGemma3(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks);
std::unique_ptr<Model> MakeGemma4(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks);
std::unique_ptr<Model> MakeGptOss(const Hparams& h, std::shared_ptr<const WeightStore> weights, tp::Collective* ranks);

}  // namespace holdfast::model

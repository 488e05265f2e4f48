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

// Collects a plan; the first error sticks and later calls do nothing. Dims are given as in the file, fastest axis first.
class PlanBuilder {
 public:
  PlanBuilder(const GgufFile& file, std::vector<PlannedTensor>* out) : file_(file), out_(out) {}

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }
  void Matrix(const std::string& name, int64_t in, int64_t out, kernels::WeightUse use = kernels::WeightUse::kMatMul, int64_t experts = 1);
  void Experts(const std::string& name, int64_t in, int64_t out, int64_t experts) { Matrix(name, in, out, kernels::WeightUse::kMatMul, experts); }
  void Vector(const std::string& name, int64_t size, int64_t experts = 1);
  void OptionalVector(const std::string& name, int64_t size, int64_t experts = 1) {
    if (Has(name)) Vector(name, size, experts);
  }
  // Rows [first_row, first_row + out) of a fused matrix of `total` rows, or that part of its bias, under a name of its own.
  void MatrixSlice(const std::string& name, const std::string& source, int64_t in, int64_t out, int64_t first_row, int64_t total);
  void VectorSlice(const std::string& name, const std::string& source, int64_t size, int64_t first, int64_t total);
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
  std::vector<PlannedTensor>* out_;
  absl::flat_hash_set<std::string> used_;
  absl::Status status_;
};

std::string LayerName(int layer, std::string_view suffix);  // "blk.3.attn_q.weight"

void PlanLlama(const Hparams& h, PlanBuilder* plan);        // llama, qwen2, qwen3, qwen3moe
void PlanGemma3(const Hparams& h, PlanBuilder* plan);
void PlanGemma4(const Hparams& h, PlanBuilder* plan);
void PlanGptOss(const Hparams& h, PlanBuilder* plan);

std::unique_ptr<Model> MakeLlama(const Hparams& h, std::shared_ptr<const WeightStore> weights);
std::unique_ptr<Model> MakeGemma3(const Hparams& h, std::shared_ptr<const WeightStore> weights);
std::unique_ptr<Model> MakeGemma4(const Hparams& h, std::shared_ptr<const WeightStore> weights);
std::unique_ptr<Model> MakeGptOss(const Hparams& h, std::shared_ptr<const WeightStore> weights);

}  // namespace holdfast::model

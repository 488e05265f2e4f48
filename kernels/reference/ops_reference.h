#pragma once
// The oracle: every operation as its formula says, double accumulation, one thread, weights in the file's layout.
// KV pages hold, one after another: K codes [kv_heads][page_size][head_dim_k], V codes [kv_heads][page_size][head_dim_v], and for the
// 8-bit types K scales [kv_heads][page_size][head_dim_k / 32] and V scales likewise (fp16).
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace holdfast::kernels {

class ReferenceOps final : public Ops {
 public:
  std::string Describe() const override { return "reference, 1 thread"; }
  Buffer Allocate(int64_t bytes) override;
  void Sync() override {}
  void CopyToHost(std::byte* dst, const std::byte* src, int64_t bytes) override;
  WeightLayout LayoutOf(DType type, int64_t out, int64_t in, WeightUse use) const override;
  void Pack(DType type, int64_t out, int64_t in, const WeightLayout& layout, const std::byte* src, std::byte* dst) const override;
  void BeginStep(const Batch& batch) override { batch_ = &batch; }
  void Embed(const Weight& table, float scale, Mat out) override;
  void EmbedPart(const Weight& table, int64_t first, float scale, Mat out) override;
  void RmsNorm(ConstMat x, Vec weight, float eps, Mat out) override;
  void AddRmsNorm(Mat x, ConstMat y, Vec weight, float eps) override;
  void MatMul(ConstMat x, std::span<const Product> products) override;
  void GatedMatMul(ConstMat x, const Weight& gate, const Weight& up, Activation activation, Mat out) override;
  void Gated(ConstMat gate, ConstMat up, Activation activation, Mat out) override;
  void Rope(Mat x, int32_t heads, const RopeParams& params) override;
  void StoreKv(const KvLayer& layer, ConstMat k, ConstMat v) override;
  void Attention(const KvLayer& layer, ConstMat q, const AttentionParams& params, Mat out) override;
  void Route(ConstMat logits, RouterNorm norm, Routing out) override;
  void MoeFfn(ConstMat x, const Routing& routing, const MoeParams& params, Mat out) override;
  void Add(Mat x, ConstMat y) override;
  void Scale(Mat x, float factor) override;
  void ScaleColumns(Mat x, Vec factors) override;
  void Multiply(Mat x, ConstMat y) override;
  void ActivateInPlace(Mat x, Activation activation) override;
  void Softcap(Mat x, float cap) override;
  void GatherRows(ConstMat x, std::span<const int32_t> rows, Mat out) override;
  int64_t KvPageBytes(KvDType type, int32_t page_size, int32_t kv_heads, int32_t head_dim_k, int32_t head_dim_v) const override;
  void CopyPage(std::byte* dst, const std::byte* src, int64_t bytes) override;

 private:
  // y[0..out) = W x for one row and one expert.
  void MultiplyRow(const Weight& w, int64_t expert, const float* x, double* y);

  const Batch* batch_ = nullptr;
  std::vector<float> row_;
};

}  // namespace holdfast::kernels

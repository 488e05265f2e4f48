#pragma once
// The CPU backend: packed weights, int8 activations for quantised weights, paged attention, one thread pool.
//
// Numerics: F32, F16 and BF16 weights are multiplied in f32; every other type takes the activations as int8 with one scale per 32 values
// and sums the blocks in f32, in order of K. Attention is f32 over the stored keys and values.
#include <atomic>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace holdfast::kernels {

// Memory that grows and is reused; contents undefined after each Get.
class Scratch final {
 public:
  std::byte* Get(int64_t bytes);
  template <class T>
  T* Of(int64_t count) { return reinterpret_cast<T*>(Get(count * static_cast<int64_t>(sizeof(T)))); }

 private:
  Buffer buffer_;
};

class CpuOps final : public Ops {
 public:
  CpuOps(const KernelTable& kernels, int threads) : kernels_(kernels), pool_(threads) {}

  std::string Describe() const override;
  Buffer Allocate(int64_t bytes) override;
  void Sync() override {}
  void CopyToHost(std::byte* dst, const std::byte* src, int64_t bytes) override;
  WeightLayout LayoutOf(DType type, int64_t out, int64_t in, WeightUse use) const override;
  void Pack(DType type, int64_t out, int64_t in, const WeightLayout& layout, const std::byte* src, std::byte* dst) const override;
  void BeginStep(const Batch& batch) override;
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
  // Cosines and sines of the step's rows, [T][dims/2], made once per step and kind of rotation.
  struct RopeTable {
    RopeParams params;
    std::vector<double> frequencies;  // [dims/2], kept between steps
    std::vector<float> cosine, sine;
    bool current = false;
  };
  struct MoeSegments;

  const RopeTable& TableFor(const RopeParams& params);

  // f(i) for i in [0, count), each once: inline when `work` (roughly, nanoseconds of one core) is too small to share, else threads take
  // the next i in turn.
  template <class F>
  void ForEach(int64_t count, int64_t work, F&& f) {
    if (pool_.threads() == 1 || count <= 1 || work < kWorthSharing) {
      for (int64_t i = 0; i < count; ++i) f(i);
      return;
    }
    next_.store(0, std::memory_order_relaxed);
    pool_.Run([&](int) {
      for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) f(i);
    });
  }
  // f(row, first, last) over pieces of rows x cols elements.
  template <class F>
  void ForElements(int64_t rows, int64_t cols, int64_t per_element, F&& f);

  // Panels of x for weights of this kind: quantised or float.
  static bool TakesFloat(const Weight& w);
  int64_t PanelRowBytes(bool is_float, int64_t in) const;
  void MakePanel(bool is_float, const RowSource& x, int64_t rows, int64_t in, std::byte* panel);
  GemmArgs ArgsFor(const Weight& w, int64_t expert, const std::byte* panel, int64_t rows) const;
  void RunGemm(const Weight& w, GemmArgs args, int64_t g0, int64_t g1) const;

  static constexpr int64_t kWorthSharing = 4000;

  const KernelTable& kernels_;
  ThreadPool pool_;
  alignas(64) std::atomic<int64_t> next_{0};
  Batch batch_;
  std::vector<RopeTable> rope_;
  Scratch quant_panel_, float_panel_, wide_, moe_out_, state_;
  std::vector<Scratch> of_thread_ = std::vector<Scratch>(static_cast<size_t>(pool_.threads()));
};

}  // namespace holdfast::kernels

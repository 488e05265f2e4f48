#pragma once
// The CUDA backend: one device, one stream, every call enqueued on it. This class checks shapes and keeps what a step needs on the device;
// the arithmetic is in the .cu files, one header each.
//
// Numerics are the CPU backend's: F32, F16 and BF16 weights are multiplied in f32, every other type takes the activations as int8 with one
// scale per 32 values. Sums have another, equally fixed order, so last bits differ from the CPU's.
//
// Errors: nothing throws. The first error of the runtime stays in `errors_`; calls after it do as little harm as they can, and Health() tells.
#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/batch.h"
#include "kernels/cuda/collective_nccl.h"
#include "kernels/cuda/draws.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/make_ops.h"
#include "kernels/cuda/panel.h"
#include "kernels/cuda/staging.h"
#include "kernels/ops.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

class CudaOps final : public Ops {
 public:
  static absl::StatusOr<std::unique_ptr<Ops>> Make(const CudaOptions& options);
  ~CudaOps() override;
  cudaStream_t stream() const { return stream_; }   // that every call is enqueued on; for who measures

  std::string Describe() const override { return collective_ == nullptr ? description_ : description_ + ", " + collective_->Describe(); }
  Buffer Allocate(int64_t bytes) override;
  void Sync() override;
  void CopyToHost(std::byte* dst, const std::byte* src, int64_t bytes) override;
  void CopyFromHost(std::byte* dst, const std::byte* src, int64_t bytes) override;
  bool HostMemory() const override { return false; }
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(int64_t bytes) override;
  int64_t FreeMemory() const override;
  absl::Status Health() const override;
  absl::Status JoinRanks(const JoinSpec& spec) override;
  void LeaveRanks() override;
  DeviceCollective* ranks() override {
    normed_ = {};  // who asks is about to write rows that this class does not see
    return collective_.get();
  }
  WeightLayout LayoutOf(DType type, int64_t out, int64_t in, WeightUse use) const override;
  void Pack(DType type, int64_t out, int64_t in, const WeightLayout& layout, const std::byte* src, std::byte* dst) const override;
  void BeginStep(const Batch& batch) override;
  int64_t PaddedRows(int64_t rows) const override;
  void Repeatable(uint64_t shape, absl::FunctionRef<void()> work) override;
  void Embed(const Weight& table, float scale, Mat out) override;
  void EmbedPart(const Weight& table, int64_t first, float scale, Mat out) override;
  void RmsNorm(ConstMat x, Vec weight, float eps, Mat out) override;
  void NormForProducts(ConstMat x, Vec weight, float eps, Mat out) override;
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
  bool DrawsTokens() const override { return true; }
  void ReserveDraws(int64_t rows, int64_t slots, int64_t vocab) override { draws_.Reserve(rows, slots, vocab); }
  void Draw(Mat logits, std::span<const DrawSpec> specs, Drawn* out) override;
  uint64_t Mark() override { return downloads_.Mark(); }
  void Wait(uint64_t mark) override;
  int64_t KvPageBytes(KvDType type, int32_t page_size, int32_t kv_heads, int32_t head_dim_k, int32_t head_dim_v) const override;
  void CopyPage(std::byte* dst, const std::byte* src, int64_t bytes) override;

 private:
  // Cosines and sines of the step's rows, made once per step and kind of rotation.
  struct RopeCache {
    explicit RopeCache(Errors* errors) : table(errors) {}
    RopeParams params;
    DeviceScratch table;
    bool current = false;
  };

  // How the step's attention is cut, made once per step and kind of layer.
  struct PlannedAttention {
    PlannedAttention(Errors* errors, cudaStream_t stream) : lists(errors, stream) {}
    AttentionPlan plan;
    AttentionWork work;
    StepBlock lists;
    bool current = false;            // of this step
    bool wanted = false;             // by a call of this step
  };

  // A step that came before. Two graphs of a shape differ in the attention's launches: whether anything is to be combined.
  struct RepeatedStep {
    uint64_t shape = 0, variant = 0, used = 0;
    cudaGraphExec_t graph = nullptr;     // null: its calls were made once
  };

  CudaOps(int device, cudaStream_t stream, std::string description, const AttentionDevice& attention_device, bool graphs);
  bool ok() const { return errors_.ok(); }
  void EmbedTokens(const Weight& table, const uint32_t* tokens, float scale, Mat out);
  // Panics when a weight was not packed by this backend, or has another width than x.
  static void CheckWeight(const Weight& w, int64_t in);
  // Every call that writes activations says so: what was made of them earlier is no longer theirs.
  void Wrote(const void* first, int64_t bytes);
  void Wrote(ConstMat m) { Wrote(m.data, m.rows == 0 ? 0 : ((m.rows - 1) * m.stride + m.cols) * int64_t{sizeof(float)}); }
  // x as weights of the type take it. Overwrites the last one of the kind. No pieces: no room.
  PanelView PanelFor(DType weights, ConstMat x);
  const float* RopeTableFor(const RopeParams& params);
  // The step's plans of the kinds of layers that the last step had, so that a graph finds them; the others come with their first call.
  void PrepareAttention();
  void PlanStep(PlannedAttention* planned);
  const AttentionWork* AttentionWorkFor(const AttentionShape& shape);   // null: no memory
  uint64_t AttentionVariant() const;
  cudaGraphExec_t Capture(absl::FunctionRef<void()> work);              // null: it cannot be one
  void DropGraphs();

  struct StreamOwner {               // the last to go: what was used on it is freed before
    cudaStream_t stream;
    ~StreamOwner() { cudaStreamDestroy(stream); }
  };

  int device_;
  cudaStream_t stream_;
  StreamOwner stream_owner_{stream_};
  std::string description_;
  Errors errors_;
  StepBlock step_;                     // the step's batch
  Uploads uploads_;                    // what one kernel reads
  Downloads downloads_;
  Draws draws_{&errors_, stream_, &downloads_};
  DeviceScratch panels_[2] = {DeviceScratch(&errors_), DeviceScratch(&errors_)};   // of a product's activations: int8, float (panel.h)
  ConstMat normed_;                    // rows whose int8 panel NormForProducts made; none when it or they are no longer what they were
  bool takes_int8_ = false;            // some product did
  DeviceScratch experts_{&errors_};    // rows sorted by expert
  DeviceScratch wide_{&errors_};       // intermediate rows of GatedMatMul and MoeFfn
  DeviceScratch record_sums_{&errors_}, record_values_{&errors_};   // of split attention (attention_plan.h)
  DeviceScratch part_tokens_{&errors_};  // of EmbedPart
  AttentionDevice attention_device_;
  std::unique_ptr<NcclCollective> collective_;  // null: one rank

  Batch batch_;                        // as given: host memory
  DeviceBatch on_device_;
  std::vector<DeviceTables> tables_;   // [group]
  std::vector<std::unique_ptr<RopeCache>> rope_;
  std::vector<SequenceSpan> spans_;    // the batch's, then one for each row of padding
  size_t padding_ = 0;
  bool single_rows_ = false;           // every span is one row
  std::vector<std::unique_ptr<PlannedAttention>> attention_plans_;
  bool step_had_calls_ = false;        // of Attention, since BeginStep

  bool graphs_on_;
  int captures_failed_ = 0;
  uint64_t graph_moves_ = 0, graph_uses_ = 0;   // Errors::moves() when the graphs were recorded; a clock
  std::vector<RepeatedStep> repeated_;
};

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

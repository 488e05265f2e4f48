#include <algorithm>
#include <memory>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/kv_store.h"
#include "kernels/cuda/ops_cuda.h"
#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {
KvPageLayout PageOf(const KvLayer& l) { return LayoutOfPage(l.dtype, l.page_size, l.kv_heads, l.head_dim_k, l.head_dim_v); }
}  // namespace

int64_t CudaOps::KvPageBytes(KvDType type, int32_t page_size, int32_t kv_heads, int32_t head_dim_k, int32_t head_dim_v) const {
  HF_CHECKF(!KvIsQuantized(type) || (head_dim_k % kKvBlock == 0 && head_dim_v % kKvBlock == 0),
            "{} KV needs head dimensions that are multiples of {}: {}, {}", KvDTypeName(type), kKvBlock, head_dim_k, head_dim_v);
  return LayoutOfPage(type, page_size, kv_heads, head_dim_k, head_dim_v).bytes;
}

void CudaOps::StoreKv(const KvLayer& layer, ConstMat k, ConstMat v) {
  HF_CHECK(k.cols == int64_t{layer.kv_heads} * layer.head_dim_k && v.cols == int64_t{layer.kv_heads} * layer.head_dim_v && k.rows == v.rows);
  HF_CHECK(k.rows == static_cast<int64_t>(batch_.positions.size()) && layer.group < static_cast<int32_t>(tables_.size()));
  if (ok()) HF_CUDA_NAMESPACE::StoreKv(stream_, layer, PageOf(layer), on_device_, tables_[static_cast<size_t>(layer.group)], k, v);
}

void CudaOps::PrepareAttention() {
  for (auto& p : attention_plans_) p->current = false;
  // Kinds of layers that the last step's calls did not have are of another model; a graph that was launched instead of calls has those it had.
  if (step_had_calls_) std::erase_if(attention_plans_, [](const auto& p) { return !p->wanted; });
  step_had_calls_ = false;
  for (auto& p : attention_plans_) {
    PlanStep(p.get());
    p->wanted = false;
  }
}

void CudaOps::PlanStep(PlannedAttention* planned) {
  const AttentionShape shape = planned->plan.shape;
  planned->plan = PlanAttention(shape, spans_, attention_device_, padding_);
  const AttentionPlan& plan = planned->plan;
  const AttentionLists at = ListsOf(plan);
  AttentionWork& work = planned->work;
  work = AttentionWork{.plan = &plan};
  // Layers take turns: the records of one are read before the next one's are written.
  const int64_t records = plan.records * shape.kv_heads;
  if (records > 0 && (record_sums_.Of<float2>(records) == nullptr || record_values_.Of<float>(records * shape.dim_v) == nullptr)) return;
  std::byte* host = planned->lists.Begin(at.bytes);
  if (host == nullptr) return;
  WriteLists(plan, host);
  planned->lists.Send(at.bytes);
  const std::byte* lists = planned->lists.device();
  work.counts = reinterpret_cast<const AttentionCounts*>(lists);
  work.combine = reinterpret_cast<const CombineItem*>(lists + at.combine);
  work.narrow = reinterpret_cast<const AttentionItem*>(lists + at.narrow);
  work.wide = reinterpret_cast<const AttentionItem*>(lists + at.wide);
  planned->current = true;
}

const AttentionWork* CudaOps::AttentionWorkFor(const AttentionShape& shape) {
  auto it = std::find_if(attention_plans_.begin(), attention_plans_.end(), [&](const auto& p) { return p->plan.shape == shape; });
  if (it == attention_plans_.end()) {
    it = attention_plans_.insert(it, std::make_unique<PlannedAttention>(&errors_, stream_));
    (*it)->plan.shape = shape;
  }
  PlannedAttention& planned = **it;
  planned.wanted = step_had_calls_ = true;
  if (!planned.current) PlanStep(&planned);
  if (!planned.current) return nullptr;
  // Where they are now: a plan made since may have moved them.
  planned.work.record_sums = record_sums_.Of<float2>(0);
  planned.work.record_values = record_values_.Of<float>(0);
  return &planned.work;
}

void CudaOps::Attention(const KvLayer& layer, ConstMat q, const AttentionParams& p, Mat out) {
  Wrote(out);
  HF_CHECK(p.heads > 0 && p.heads % layer.kv_heads == 0 && q.cols == int64_t{p.heads} * layer.head_dim_k && out.cols == int64_t{p.heads} * layer.head_dim_v);
  HF_CHECK(p.sinks.empty() || static_cast<int64_t>(p.sinks.size()) == p.heads);
  HF_CHECKF(layer.head_dim_k <= kMostHeadDim && layer.head_dim_v <= kMostHeadDim, "head dimensions {} and {}", layer.head_dim_k, layer.head_dim_v);
  HF_CHECK(q.rows == static_cast<int64_t>(batch_.positions.size()) && layer.group < static_cast<int32_t>(tables_.size()));
  if (!ok() || q.rows == 0) return;
  const DeviceTables& tables = tables_[static_cast<size_t>(layer.group)];
  const AttentionWork* work = AttentionWorkFor({layer.dtype, p.heads, layer.kv_heads, layer.head_dim_k, layer.head_dim_v, tables.window});
  if (work != nullptr && ok()) HF_CUDA_NAMESPACE::Attention(stream_, layer, PageOf(layer), on_device_, tables, *work, q, p, out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

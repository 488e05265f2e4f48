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

AttentionWork CudaOps::AttentionWorkFor(const AttentionShape& shape) {
  const auto it = std::find_if(attention_plans_.begin(), attention_plans_.end(), [&](const auto& p) { return p->plan.shape == shape; });
  PlannedAttention& planned = it != attention_plans_.end() ? **it : *attention_plans_.emplace_back(std::make_unique<PlannedAttention>(&errors_));
  AttentionWork& work = planned.work;
  if (!planned.current) {
    planned.plan = PlanAttention(shape, batch_.sequences, attention_device_);
    planned.current = true;
    work = AttentionWork{.plan = &planned.plan};
    // One piece: the items of both launches and those to combine.
    const AttentionPlan& plan = planned.plan;
    const int64_t narrow = static_cast<int64_t>(plan.narrow.items.size() * sizeof(AttentionItem)), wide = static_cast<int64_t>(plan.wide.items.size() * sizeof(AttentionItem));
    const int64_t combine = static_cast<int64_t>(plan.combine.size() * sizeof(CombineItem));
    const Uploads::Piece piece = uploads_.Take(narrow + wide + combine);
    std::byte* lists = planned.lists.Of<std::byte>(narrow + wide + combine);
    if (piece.host == nullptr || lists == nullptr) return work;
    std::copy_n(reinterpret_cast<const std::byte*>(plan.narrow.items.data()), narrow, piece.host);
    std::copy_n(reinterpret_cast<const std::byte*>(plan.wide.items.data()), wide, piece.host + narrow);
    std::copy_n(reinterpret_cast<const std::byte*>(plan.combine.data()), combine, piece.host + narrow + wide);
    uploads_.Send(piece);
    CopyPage(lists, piece.device, piece.bytes);   // pieces are for one kernel; the lists serve every layer of the step
    work.narrow = reinterpret_cast<const AttentionItem*>(lists);
    work.wide = reinterpret_cast<const AttentionItem*>(lists + narrow);
    work.combine = reinterpret_cast<const CombineItem*>(lists + narrow + wide);
  }
  // Layers take turns: the records of one are read before the next one's are written.
  const int64_t records = planned.plan.records * shape.kv_heads;
  std::byte* scratch = attention_.Of<std::byte>(records * (static_cast<int64_t>(sizeof(float2)) + int64_t{shape.dim_v} * 4));
  work.record_sums = reinterpret_cast<float2*>(scratch);
  work.record_values = reinterpret_cast<float*>(scratch + records * static_cast<int64_t>(sizeof(float2)));
  return work;
}

void CudaOps::Attention(const KvLayer& layer, ConstMat q, const AttentionParams& p, Mat out) {
  HF_CHECK(p.heads > 0 && p.heads % layer.kv_heads == 0 && q.cols == int64_t{p.heads} * layer.head_dim_k && out.cols == int64_t{p.heads} * layer.head_dim_v);
  HF_CHECK(p.sinks.empty() || static_cast<int64_t>(p.sinks.size()) == p.heads);
  HF_CHECKF(layer.head_dim_k <= kMostHeadDim && layer.head_dim_v <= kMostHeadDim, "head dimensions {} and {}", layer.head_dim_k, layer.head_dim_v);
  HF_CHECK(q.rows == static_cast<int64_t>(batch_.positions.size()) && layer.group < static_cast<int32_t>(tables_.size()));
  if (!ok() || q.rows == 0) return;
  const DeviceTables& tables = tables_[static_cast<size_t>(layer.group)];
  const AttentionWork work = AttentionWorkFor({layer.dtype, p.heads, layer.kv_heads, layer.head_dim_k, layer.head_dim_v, tables.window});
  if (ok()) HF_CUDA_NAMESPACE::Attention(stream_, layer, PageOf(layer), on_device_, tables, work, q, p, out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

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

void CudaOps::Attention(const KvLayer& layer, ConstMat q, const AttentionParams& p, Mat out) {
  HF_CHECK(p.heads > 0 && p.heads % layer.kv_heads == 0 && q.cols == int64_t{p.heads} * layer.head_dim_k && out.cols == int64_t{p.heads} * layer.head_dim_v);
  HF_CHECK(p.sinks.empty() || static_cast<int64_t>(p.sinks.size()) == p.heads);
  HF_CHECKF(layer.head_dim_k <= kMostHeadDim && layer.head_dim_v <= kMostHeadDim, "head dimensions {} and {}", layer.head_dim_k, layer.head_dim_v);
  HF_CHECK(q.rows == static_cast<int64_t>(batch_.positions.size()) && layer.group < static_cast<int32_t>(tables_.size()));
  if (ok()) HF_CUDA_NAMESPACE::Attention(stream_, layer, PageOf(layer), on_device_, tables_[static_cast<size_t>(layer.group)], q, p, out);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// Where a page of the CUDA backend keeps its values, one array after another: K codes [kv_heads][page_size][head_dim_k], V codes
// [kv_heads][page_size][head_dim_v], and for the 8-bit types K scales [kv_heads][page_size][head_dim_k / 32] and V scales likewise (fp16).
#include <cstdint>

#include "kernels/kv_block.h"
#include "kernels/view.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// One kind (K or V) in a page. Offsets in bytes.
struct KvPlane {
  int64_t codes = 0, scales = 0;
  int32_t page_size = 0, dim = 0;

  // Index of element i of a head's slot.
  HF_HD int64_t Index(int64_t head, int64_t slot, int64_t i) const { return (head * page_size + slot) * dim + i; }
};

struct KvPageLayout {
  KvPlane k, v;
  int64_t bytes = 0;
};

inline KvPageLayout LayoutOfPage(KvDType type, int32_t page_size, int32_t kv_heads, int32_t dim_k, int32_t dim_v) {
  const int64_t width = KvIsQuantized(type) ? 1 : 2, slots = int64_t{page_size} * kv_heads;
  const int64_t codes = (slots * (dim_k + dim_v) * width + 1) / 2 * 2;
  KvPageLayout l;
  l.k = {0, codes, page_size, dim_k};
  l.v = {slots * dim_k * width, codes + slots * (dim_k / kKvBlock) * 2, page_size, dim_v};
  l.bytes = codes + (width == 1 ? slots * (dim_k + dim_v) / kKvBlock * 2 : 0);
  l.bytes = (l.bytes + 63) / 64 * 64;
  return l;
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

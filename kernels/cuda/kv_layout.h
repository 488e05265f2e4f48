#pragma once
// Where a page of the CUDA backend keeps its values, one array after another, each at a multiple of 16 bytes: K codes
// [kv_heads][page_size][pitch_k], V codes [kv_heads][page_size][pitch_v], and for the 8-bit types K scales
// [kv_heads][page_size][head_dim_k / 32] and V scales likewise (fp16). A pitch is the head dimension rounded up to 16 elements (zeros), so
// that a slot of a head is whole 16-byte pieces; slots of a head follow each other, so that neighbouring keys are one run of memory.
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
  int32_t page_size = 0, dim = 0, pitch = 0;   // slots; elements, and elements from a slot to the next

  // Index of a slot of a head: times pitch, its first code; times dim / 32, its first scale.
  HF_HD int64_t Slot(int64_t head, int64_t slot) const { return head * page_size + slot; }
};

struct KvPageLayout {
  KvPlane k, v;
  int64_t bytes = 0;
};

inline KvPageLayout LayoutOfPage(KvDType type, int32_t page_size, int32_t kv_heads, int32_t dim_k, int32_t dim_v) {
  const int64_t width = KvIsQuantized(type) ? 1 : 2, slots = int64_t{page_size} * kv_heads;
  KvPageLayout l;
  const auto place = [&](int64_t bytes) {
    const int64_t at = l.bytes;
    l.bytes += (bytes + 15) / 16 * 16;
    return at;
  };
  l.k = {0, 0, page_size, dim_k, (dim_k + 15) / 16 * 16};
  l.v = {0, 0, page_size, dim_v, (dim_v + 15) / 16 * 16};
  l.k.codes = place(slots * l.k.pitch * width);
  l.v.codes = place(slots * l.v.pitch * width);
  if (width == 1) {
    l.k.scales = place(slots * (dim_k / kKvBlock) * 2);
    l.v.scales = place(slots * (dim_v / kKvBlock) * 2);
  }
  l.bytes = (l.bytes + 63) / 64 * 64;
  return l;
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

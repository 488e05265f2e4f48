#pragma once
// Where a page of the CPU backend keeps its values. Heads follow each other; a head holds K codes, V codes and, for 8-bit types, K and V
// scales (see AttendArgs for the order within). Sizes in bytes.
#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/kv_block.h"
#include "proto/base/check.h"

namespace holdfast::kernels {

struct KvPageLayout {
  bool tiled;             // K in tiles of 16 keys
  int64_t head_bytes;
  int64_t k_scales, v_codes, v_scales;  // within a head; K codes begin it
  int64_t page_bytes;

  KvPageLayout(KvDType type, int32_t page_size, int32_t kv_heads, int32_t dim_k, int32_t dim_v) {
    HF_CHECKF(page_size > 0 && kv_heads > 0 && dim_k > 0 && dim_v > 0, "page of {} tokens, {} heads, {} + {}", page_size, kv_heads, dim_k, dim_v);
    const bool scaled = KvIsQuantized(type);
    HF_CHECKF(!scaled || (dim_k % kKvBlock == 0 && dim_v % kKvBlock == 0), "{} KV needs head dimensions that are multiples of {}: {}, {}",
              KvDTypeName(type), kKvBlock, dim_k, dim_v);
    const int64_t width = scaled ? 1 : 2, slots = page_size;
    tiled = page_size % kKeyTile == 0;
    v_codes = slots * dim_k * width;
    k_scales = v_codes + slots * ValuePitch(dim_v) * width;
    k_scales = (k_scales + 1) / 2 * 2;
    v_scales = k_scales + (scaled ? slots * (dim_k / kKvBlock) * 2 : 0);
    head_bytes = v_scales + (scaled ? slots * (dim_v / kKvBlock) * 2 : 0);
    head_bytes = (head_bytes + 63) / 64 * 64;
    page_bytes = head_bytes * kv_heads;
  }
};

}  // namespace holdfast::kernels

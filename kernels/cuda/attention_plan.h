#pragma once
// How a step's attention is cut into blocks of the device. Host code without a device: tested as such.
//
// Rows and sums. The query rows of a kv head are packed: packed row r of a sequence is query head r % G of its token r / G (G = heads per kv
// head), so that all heads of a group share each load of a key. A row's keys are cut at absolute positions, multiples of partition_keys
// (partitions) and tile_keys (tiles). A row's result has one order whatever else shares the step: within a partition tile after tile, then
// partition after partition. Who computes a partition does not matter: one block after the other (a direct item), or each by a block of its
// own that leaves a record, with the combining kernel after them (split items). Both add in the same order, to the same bits.
//
// Steps that are repeated (Ops::Repeatable). Of a step of single rows, everything but the contents of the lists follows from the number of rows:
// grids, and where the lists begin. How many items there are is read on the device.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/view.h"

#if !defined(HF_CUDA_NAMESPACE)
#define HF_CUDA_NAMESPACE cuda
#endif

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// The shape of a block's work: 16 * mt * wm packed rows by tile_keys keys, on wm * wn = 4 warps; a warp has nv * 8 of the value's dimensions.
struct AttentionTile {
  int32_t tile_keys = 0, wm = 0, wn = 0, mt = 0, nv = 0;
  bool operator==(const AttentionTile&) const = default;
  int32_t rows() const { return 16 * mt * wm; }
};

struct AttentionShape {
  KvDType type = KvDType::kF16;
  int32_t heads = 0, kv_heads = 0, dim_k = 0, dim_v = 0, window = 0;
  bool operator==(const AttentionShape&) const = default;
  int32_t group() const { return heads / kv_heads; }
  // Both follow from the head dimensions alone: they are part of the order of the sums.
  int32_t tile_keys() const;
  int32_t partition_keys() const;
};

// What the device has for a block.
struct AttentionDevice {
  int32_t multiprocessors = 0;
  int64_t shared_bytes = 0;      // a block's most
};

// Bytes of shared memory of a block with a ring of `buffers` tiles of keys or values, and where the parts of it begin.
struct AttentionShared {
  int64_t query = 0, ring = 0, buffer_bytes = 0, weights = 0, tops = 0, sums = 0, page_of = 0, slot_of = 0, bytes = 0;
};
AttentionShared SharedOf(const AttentionShape& shape, const AttentionTile& tile, int32_t buffers);

// Packed rows [first_row, first_row + rows) of a sequence, partitions [partition, partition + partitions), for every kv head: a block's work, with
// its kv head, of a wide launch; a block of a narrow one does one after another. No partitions: the rows' results are zeros (padding).
struct AttentionItem {
  int32_t sequence = 0, first_row = 0, rows = 0;
  int32_t partition = 0, partitions = 0;
  int32_t record = -1;           // split: of row first_row (times kv_heads, plus the kv head); -1: direct
};
// Rows to combine: of row first_row + i (i < rows) and partition p (p < partitions) the record is record + p * step + i.
struct CombineItem {
  int32_t sequence = 0, first_row = 0, rows = 0, partitions = 0, record = 0, step = 0;
};

struct AttentionLaunch {
  AttentionTile tile;
  int32_t buffers = 0;
  int32_t together = 0;          // blocks that a multiprocessor has room for
  int64_t blocks = 0;            // the grid
  std::vector<AttentionItem> items;
};

struct AttentionPlan {
  AttentionShape shape;
  AttentionLaunch narrow, wide;  // few packed rows a block (decode), many (prefill); items may be empty
  std::vector<CombineItem> combine;
  int64_t combine_slots = 0;     // room for items to combine: of single rows, the most there can be; the grid over kv_heads
  int64_t records = 0;           // times kv_heads
};

// A plan's lists in one piece of memory, as the device takes them.
struct AttentionCounts {
  int32_t narrow = 0, wide = 0, combine = 0, unused = 0;
};
struct AttentionLists {
  int64_t combine = 0, narrow = 0, wide = 0, bytes = 0;   // where they begin, behind the counts
};
AttentionLists ListsOf(const AttentionPlan& plan);
void WriteLists(const AttentionPlan& plan, std::byte* to);

inline constexpr int kMostHeadDim = 512;
inline constexpr int kAttentionTerms = 2;  // a query or a weight is the sum of so many 16-bit values: rounded, and what that lost
inline constexpr int kCombineRows = 4;     // rows of a CombineItem

// False when no tile fits a block's shared memory on the device.
bool AttentionFits(const AttentionShape& shape, const AttentionDevice& device);
// The last `padding` of the sequences stand for rows that no sequence has.
AttentionPlan PlanAttention(const AttentionShape& shape, std::span<const SequenceSpan> sequences, const AttentionDevice& device, size_t padding = 0);

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#include "kernels/cuda/attention_plan.h"

#include <algorithm>
#include <cstring>

#include "kernels/kv_block.h"
#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int64_t kMostRecordBytes = int64_t{64} << 20;   // of split prefills; decodes need theirs anyway
constexpr int32_t kNarrowRows = 32;                       // up to here a sequence's packed rows are cut into blocks of 16
constexpr int32_t kMostBuffers = 6;                       // of the ring: 3 tiles ahead stay within the two partitions whose pages are at hand

int32_t Pitch(int32_t dim) { return (dim + 15) / 16 * 16; }
int32_t Widest(const AttentionShape& s) { return std::max(s.dim_k, s.dim_v); }

AttentionTile NarrowTile(const AttentionShape& s) {
  const int32_t dim = Widest(s);
  return {s.tile_keys(), 1, 4, 1, dim <= 128 ? 4 : dim <= 256 ? 8 : 16};
}
AttentionTile WideTile(const AttentionShape& s) {
  const int32_t dim = Widest(s);
  if (dim <= 128) return {s.tile_keys(), 4, 1, 2, 16};
  if (dim <= 256) return {s.tile_keys(), 2, 2, 2, 16};
  return {s.tile_keys(), 1, 4, 2, 16};
}

// The longest ring of at most `most` buffers within the bytes; 0: none.
int32_t BuffersWithin(const AttentionShape& s, const AttentionTile& tile, int64_t bytes, int32_t most) {
  for (int32_t n = most; n >= 2; --n) {
    if (SharedOf(s, tile, n).bytes <= bytes) return n;
  }
  return 0;
}

// Two blocks of a wide tile on a multiprocessor, three of a narrow one, when that leaves a ring worth the name.
int32_t BuffersFor(const AttentionShape& s, const AttentionTile& tile, int64_t shared_bytes) {
  const int64_t all = shared_bytes + 1024;   // a multiprocessor has 1 KiB more than a block may take, and takes 1 KiB of each block
  const int32_t blocks = tile.mt == 1 ? 3 : 2;
  for (int32_t n = blocks; n > 1; --n) {
    if (const int32_t buffers = BuffersWithin(s, tile, all / n - 1024, kMostBuffers); buffers >= 3) return buffers;
  }
  return BuffersWithin(s, tile, shared_bytes, kMostBuffers);
}

int32_t Together(const AttentionShape& s, const AttentionTile& tile, int32_t buffers, int64_t shared_bytes) {
  const int64_t fit = (shared_bytes + 1024) / (SharedOf(s, tile, buffers).bytes + 1024);
  return static_cast<int32_t>(std::clamp<int64_t>(fit, 1, tile.mt == 1 ? 3 : 2));
}

template <class T>
int64_t BytesOf(int64_t count) { return count * static_cast<int64_t>(sizeof(T)); }

}  // namespace

AttentionLists ListsOf(const AttentionPlan& plan) {
  AttentionLists at;
  at.combine = sizeof(AttentionCounts);
  at.narrow = at.combine + BytesOf<CombineItem>(plan.combine_slots);
  at.wide = at.narrow + BytesOf<AttentionItem>(static_cast<int64_t>(plan.narrow.items.size()));
  at.bytes = at.wide + BytesOf<AttentionItem>(static_cast<int64_t>(plan.wide.items.size()));
  return at;
}

void WriteLists(const AttentionPlan& plan, std::byte* to) {
  const AttentionLists at = ListsOf(plan);
  const AttentionCounts counts{static_cast<int32_t>(plan.narrow.items.size()), static_cast<int32_t>(plan.wide.items.size()),
                               static_cast<int32_t>(plan.combine.size()), 0};
  std::memcpy(to, &counts, sizeof(counts));
  const auto put = [&](int64_t begin, const auto& list) {
    if (!list.empty()) std::memcpy(to + begin, list.data(), list.size() * sizeof(list[0]));
  };
  put(at.combine, plan.combine);
  put(at.narrow, plan.narrow.items);
  put(at.wide, plan.wide.items);
}

int32_t AttentionShape::tile_keys() const {
  const int32_t dim = Widest(*this);
  return dim <= 128 ? 64 : dim <= 256 ? 32 : 16;
}
int32_t AttentionShape::partition_keys() const { return Widest(*this) <= 128 ? 512 : 256; }

AttentionShared SharedOf(const AttentionShape& s, const AttentionTile& tile, int32_t buffers) {
  const bool coded = KvIsQuantized(s.type);
  const int64_t width = coded ? 1 : 2, rows = tile.rows();
  AttentionShared at;
  const auto place = [&](int64_t bytes) {
    const int64_t begin = at.bytes;
    at.bytes += (bytes + 15) / 16 * 16;
    return begin;
  };
  // Every row of 16-byte pieces has one piece more: eight rows at the same piece then lie in different banks.
  at.query = place(kAttentionTerms * rows * (Pitch(s.dim_k) * 2 + 16));
  const int64_t dim = std::max(Pitch(s.dim_k), Pitch(s.dim_v));
  at.buffer_bytes = tile.tile_keys * (dim * width + 16) + (coded ? (tile.tile_keys * (dim / kKvBlock) * 2 + 15) / 16 * 16 : 0);
  at.ring = place(buffers * at.buffer_bytes);
  at.weights = place(tile.wn > 1 ? kAttentionTerms * rows * (tile.tile_keys * 2 + 16) : 0);
  at.tops = place(tile.wn > 1 ? tile.wn * rows * 4 : 0);
  at.sums = place(tile.wn * rows * 8);
  at.page_of = place(2 * s.partition_keys() * 4);
  at.slot_of = place(2 * s.partition_keys() * 4);
  return at;
}

bool AttentionFits(const AttentionShape& s, const AttentionDevice& device) { return BuffersWithin(s, NarrowTile(s), device.shared_bytes, 2) == 2; }

AttentionPlan PlanAttention(const AttentionShape& s, std::span<const SequenceSpan> sequences, const AttentionDevice& device, size_t padding) {
  HF_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && Widest(s) <= kMostHeadDim && padding <= sequences.size());
  AttentionPlan plan;
  plan.shape = s;
  plan.narrow.tile = NarrowTile(s);
  plan.narrow.buffers = BuffersFor(s, plan.narrow.tile, device.shared_bytes);
  HF_CHECKF(plan.narrow.buffers >= 2, "attention over {} KV with head dimensions {} and {} needs {} bytes of shared memory, the device has {}",
            KvDTypeName(s.type), s.dim_k, s.dim_v, SharedOf(s, plan.narrow.tile, 2).bytes, device.shared_bytes);
  plan.wide.tile = WideTile(s);
  plan.wide.buffers = BuffersFor(s, plan.wide.tile, device.shared_bytes);
  if (plan.wide.buffers < 2) {
    plan.wide.tile = plan.narrow.tile;
    plan.wide.buffers = plan.narrow.buffers;
  }
  plan.narrow.together = Together(s, plan.narrow.tile, plan.narrow.buffers, device.shared_bytes);
  plan.wide.together = Together(s, plan.wide.tile, plan.wide.buffers, device.shared_bytes);
  const int64_t group = s.group(), keys = s.partition_keys();
  const auto packed = [&](const SequenceSpan& span) { return span.rows * group; };
  const auto is_narrow = [&](const SequenceSpan& span) { return packed(span) <= kNarrowRows || span.rows == 1; };
  int64_t wide_blocks = 0;
  for (const SequenceSpan& span : sequences) {
    if (!is_narrow(span)) wide_blocks += (packed(span) + plan.wide.tile.rows() - 1) / plan.wide.tile.rows() * s.kv_heads;
  }
  const bool few = wide_blocks * 2 <= device.multiprocessors;   // prefill alone would leave most of the device idle
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceSpan& span = sequences[i];
    const bool narrow = is_narrow(span), pad = i + padding >= sequences.size();
    AttentionLaunch& launch = narrow ? plan.narrow : plan.wide;
    for (int64_t row = 0; row < packed(span); row += launch.tile.rows()) {
      AttentionItem item;
      item.sequence = static_cast<int32_t>(i);
      item.first_row = static_cast<int32_t>(row);
      item.rows = static_cast<int32_t>(std::min<int64_t>(launch.tile.rows(), packed(span) - row));
      const int64_t first_token = span.start + row / group, last_token = span.start + (row + item.rows - 1) / group;
      const int64_t first_key = s.window > 0 ? std::max<int64_t>(0, first_token - s.window + 1) : 0;
      item.partition = static_cast<int32_t>(first_key / keys);
      item.partitions = pad ? 0 : static_cast<int32_t>(last_token / keys - item.partition + 1);
      const int64_t record_bytes = int64_t{item.rows} * item.partitions * s.kv_heads * s.dim_v * 4;
      const bool split = item.partitions > 1 && (narrow || (few && plan.records * s.kv_heads * s.dim_v * 4 + record_bytes <= kMostRecordBytes));
      if (!split) {
        launch.items.push_back(item);
        continue;
      }
      for (int32_t r = 0; r < item.rows; r += kCombineRows) {
        plan.combine.push_back({item.sequence, item.first_row + r, std::min(kCombineRows, item.rows - r), item.partitions,
                                static_cast<int32_t>(plan.records) + r, item.rows});
      }
      for (int32_t p = 0; p < item.partitions; ++p) {
        AttentionItem part = item;
        part.partition += p;
        part.partitions = 1;
        part.record = static_cast<int32_t>(plan.records);
        plan.records += item.rows;
        launch.items.push_back(part);
      }
    }
  }
  const bool single = std::all_of(sequences.begin(), sequences.end(), [](const SequenceSpan& span) { return span.rows == 1; });
  const int64_t slots = static_cast<int64_t>(sequences.size()) * ((group + kCombineRows - 1) / kCombineRows);
  plan.combine_slots = single ? slots : static_cast<int64_t>(plan.combine.size());
  HF_CHECK(static_cast<int64_t>(plan.combine.size()) <= plan.combine_slots);
  // Narrow blocks go from item to item, wide ones have one each (a narrow tile in a wide launch: also).
  const int64_t room = int64_t{device.multiprocessors} * plan.narrow.together, narrow_work = static_cast<int64_t>(plan.narrow.items.size()) * s.kv_heads;
  plan.narrow.blocks = single ? room : std::min(room, narrow_work);
  plan.wide.blocks = static_cast<int64_t>(plan.wide.items.size()) * s.kv_heads;
  // The longest first: what begins last is short.
  for (AttentionLaunch* launch : {&plan.narrow, &plan.wide}) {
    std::stable_sort(launch->items.begin(), launch->items.end(), [](const AttentionItem& a, const AttentionItem& b) { return a.partitions > b.partitions; });
  }
  return plan;
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

// A step's batch on the device.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/ops_cuda.h"
#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

// One piece, at one address, sent by one copy: tokens, positions, the rows' sequences, spans, where the tables of each group begin, the tables.
// All but the tables' lengths follows from the number of rows when every row is a sequence's only one, so that a graph finds everything again.
void CudaOps::BeginStep(const Batch& batch) {
  errors_.Check(cudaSetDevice(device_), "choosing the device");
  batch_ = batch;
  normed_ = {};
  for (auto& r : rope_) r->current = false;
  const int64_t rows = static_cast<int64_t>(std::max(batch.positions.size(), batch.tokens.size())), groups = static_cast<int64_t>(batch.groups.size());
  spans_.assign(batch.sequences.begin(), batch.sequences.end());
  int64_t next = 0;
  for (const SequenceSpan& span : spans_) {
    HF_CHECKF(span.first_row >= next && span.first_row + int64_t{span.rows} <= rows, "a sequence has rows {} to {} of {}", span.first_row,
              span.first_row + span.rows, rows);
    next = span.first_row + int64_t{span.rows};
  }
  if (!spans_.empty()) {
    for (; next < rows; ++next) spans_.push_back({static_cast<int32_t>(next), 1, 0});
  }
  const size_t count = batch.sequences.size();
  padding_ = spans_.size() - count;
  single_rows_ = !spans_.empty() && std::all_of(spans_.begin(), spans_.end(), [](const SequenceSpan& s) { return s.rows == 1; });

  int64_t bytes = 0;
  const auto place = [&](int64_t n) {
    const int64_t at = bytes;
    bytes += (n + 15) / 16 * 16;
    return at;
  };
  const auto blocks_of = [&](const SequenceSpan& s) { return (int64_t{s.start} + s.rows + batch.page_size - 1) / batch.page_size; };
  int64_t blocks = 0;
  for (const SequenceSpan& s : batch.sequences) blocks += blocks_of(s);
  const int64_t spans_each = static_cast<int64_t>(spans_.size());
  const int64_t tokens = place(static_cast<int64_t>(batch.tokens.size_bytes())), positions = place(static_cast<int64_t>(batch.positions.size_bytes()));
  const int64_t row_sequence = place(rows * 4), spans = place(spans_each * static_cast<int64_t>(sizeof(SequenceSpan)));
  const int64_t first = place(groups * spans_each * 4), pages = place(groups * blocks * 4);
  on_device_ = DeviceBatch();
  tables_.assign(batch.groups.size(), DeviceTables());
  std::byte* host = step_.Begin(bytes);
  if (host == nullptr) return;
  const auto put = [&](int64_t at, const void* from, size_t n) {
    if (n > 0) std::memcpy(host + at, from, n);
  };
  put(tokens, batch.tokens.data(), batch.tokens.size_bytes());
  put(positions, batch.positions.data(), batch.positions.size_bytes());
  put(spans, spans_.data(), spans_.size() * sizeof(SequenceSpan));
  int32_t* row_of = reinterpret_cast<int32_t*>(host + row_sequence);
  std::fill(row_of, row_of + rows, -1);
  int32_t* first_of = reinterpret_cast<int32_t*>(host + first);
  std::fill(first_of, first_of + groups * spans_each, 0);
  int64_t at = 0;
  for (size_t s = 0; s < count; ++s) {
    const SequenceSpan& span = batch.sequences[s];
    std::fill(row_of + span.first_row, row_of + span.first_row + span.rows, static_cast<int32_t>(s));
    for (size_t g = 0; g < batch.groups.size(); ++g) {
      const BlockTables& group = batch.groups[g];
      const int32_t* table = group.tables[s];
      const int64_t seen = group.window > 0 ? std::max<int64_t>(0, int64_t{span.start} - group.window + 1) : 0;
      for (int64_t b = seen / batch.page_size; b < blocks_of(span); ++b) {
        HF_CHECKF(table[b] >= 0, "group {}, sequence {}: no page for position {}", g, s, b * batch.page_size);
      }
      first_of[static_cast<int64_t>(g) * spans_each + static_cast<int64_t>(s)] = static_cast<int32_t>(at);
      put(pages + at * 4, table, static_cast<size_t>(blocks_of(span)) * 4);
      at += blocks_of(span);
    }
  }
  step_.Send(bytes);
  const std::byte* device = step_.device();
  on_device_.tokens = reinterpret_cast<const uint32_t*>(device + tokens);
  on_device_.positions = reinterpret_cast<const int32_t*>(device + positions);
  on_device_.row_sequence = reinterpret_cast<const int32_t*>(device + row_sequence);
  on_device_.sequences = reinterpret_cast<const SequenceSpan*>(device + spans);
  on_device_.rows = rows;
  on_device_.sequence_count = static_cast<int32_t>(count);
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    tables_[g] = {reinterpret_cast<const int32_t*>(device + pages), reinterpret_cast<const int32_t*>(device + first) + static_cast<int64_t>(g) * spans_each,
                  batch.groups[g].window};
  }
  draws_.BeginStep(batch.awaited, reinterpret_cast<uint32_t*>(step_.device() + tokens));
  PrepareAttention();
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

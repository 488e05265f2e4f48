#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "kernels/cpu/ops_cpu.h"
#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

// Keys whose softmax state is kept apart and merged in order: the unit in which one long sequence is shared between threads.
constexpr int64_t kPartition = 1024;
static_assert(kPartition % kKeyBlock == 0);

bool SameRotation(const RopeParams& a, const RopeParams& b) {
  return a.dims == b.dims && a.base == b.base && a.scale == b.scale && a.freq_factors.data() == b.freq_factors.data() &&
         a.freq_factors.size() == b.freq_factors.size() && a.yarn_factor == b.yarn_factor && a.yarn_original_context == b.yarn_original_context &&
         a.yarn_beta_fast == b.yarn_beta_fast && a.yarn_beta_slow == b.yarn_beta_slow && a.attention_factor == b.attention_factor;
}

std::vector<double> Frequencies(const RopeParams& p) {
  const int64_t half = p.dims / 2;
  std::vector<double> f(static_cast<size_t>(half));
  const auto dimension = [&](double rotations) {
    return p.dims * std::log(p.yarn_original_context / (2 * std::numbers::pi * rotations)) / (2 * std::log(static_cast<double>(p.base)));
  };
  double low = 0, high = 0;
  if (p.yarn_factor != 1.f) {
    low = std::max(0.0, std::floor(dimension(p.yarn_beta_fast)));
    high = std::min(p.dims - 1.0, std::ceil(dimension(p.yarn_beta_slow)));
  }
  for (int64_t i = 0; i < half; ++i) {
    double v = std::pow(static_cast<double>(p.base), -2.0 * static_cast<double>(i) / p.dims) * p.scale;
    if (!p.freq_factors.empty()) v /= p.freq_factors[static_cast<size_t>(i)];
    if (p.yarn_factor != 1.f) {
      const double interpolated = std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
      v = v / p.yarn_factor * interpolated + v * (1 - interpolated);
    }
    f[static_cast<size_t>(i)] = v;
  }
  return f;
}

}  // namespace

const CpuOps::RopeTable& CpuOps::TableFor(const RopeParams& p) {
  auto it = std::find_if(rope_.begin(), rope_.end(), [&](const RopeTable& t) { return SameRotation(t.params, p); });
  if (it == rope_.end()) it = rope_.insert(rope_.end(), RopeTable{p, Frequencies(p), {}, {}, false});
  if (it->current) return *it;
  const int64_t rows = static_cast<int64_t>(batch_.positions.size()), half = p.dims / 2;
  it->cosine.resize(static_cast<size_t>(rows * half));
  it->sine.resize(static_cast<size_t>(rows * half));
  ForEach(rows, rows * half * 40, [&](int64_t t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = batch_.positions[static_cast<size_t>(t)] * it->frequencies[static_cast<size_t>(i)];
      it->cosine[static_cast<size_t>(t * half + i)] = static_cast<float>(std::cos(angle) * p.attention_factor);
      it->sine[static_cast<size_t>(t * half + i)] = static_cast<float>(std::sin(angle) * p.attention_factor);
    }
  });
  it->current = true;
  return *it;
}

void CpuOps::Rope(Mat x, int32_t heads, const RopeParams& p) {
  HF_CHECK(heads > 0 && x.cols % heads == 0 && x.rows == static_cast<int64_t>(batch_.positions.size()));
  const int64_t head_dim = x.cols / heads, half = p.dims / 2;
  HF_CHECKF(p.dims % 2 == 0 && p.dims <= head_dim, "rotating {} of {} dimensions", p.dims, head_dim);
  HF_CHECK(p.freq_factors.empty() || static_cast<int64_t>(p.freq_factors.size()) == half);
  const RopeTable& table = TableFor(p);
  const auto rotate = p.kind == RopeKind::kNeox ? kernels_.rope_halves : kernels_.rope_pairs;
  ForEach(x.rows, x.rows * heads * p.dims / 4, [&](int64_t t) {
    rotate(x.row(t), heads, head_dim, half, table.cosine.data() + t * half, table.sine.data() + t * half);
  });
}

int64_t CpuOps::KvPageBytes(KvDType type, int32_t page_size, int32_t kv_heads, int32_t head_dim_k, int32_t head_dim_v) const {
  return KvPageLayout(type, page_size, kv_heads, head_dim_k, head_dim_v).page_bytes;
}

void CpuOps::StoreKv(const KvLayer& layer, ConstMat k, ConstMat v) {
  const int64_t dim_k = layer.head_dim_k, dim_v = layer.head_dim_v, page_size = layer.page_size;
  const KvPageLayout at(layer.dtype, layer.page_size, layer.kv_heads, layer.head_dim_k, layer.head_dim_v);
  HF_CHECK(k.cols == layer.kv_heads * dim_k && v.cols == layer.kv_heads * dim_v && k.rows == v.rows);
  const BlockTables& group = batch_.groups[static_cast<size_t>(layer.group)];
  const bool scaled = KvIsQuantized(layer.dtype);
  const int64_t k_stride = at.tiled ? kKeyTile : 1;  // elements from one dimension of a key to the next

  const auto codes_of = [&](const float* x, int64_t dim, uint16_t* codes) {
    if (layer.dtype == KvDType::kF16) return kernels_.to_f16(x, codes, dim);
    for (int64_t d = 0; d < dim; ++d) codes[d] = F32ToBf16(x[d]);
  };
  const auto store = [&](std::byte* head, int64_t slot, const float* key, const float* value) {
    const int64_t tile = slot / kKeyTile, lane = slot % kKeyTile;
    const int64_t k_first = at.tiled ? tile * dim_k * kKeyTile + lane : slot * dim_k;
    if (!scaled) {
      uint16_t codes[1024];
      HF_CHECKF(dim_k <= 1024, "head of {} dimensions", dim_k);
      codes_of(key, dim_k, codes);
      uint16_t* to = reinterpret_cast<uint16_t*>(head) + k_first;
      for (int64_t d = 0; d < dim_k; ++d) to[d * k_stride] = codes[d];
      codes_of(value, dim_v, reinterpret_cast<uint16_t*>(head + at.v_codes) + slot * ValuePitch(dim_v));
      return;
    }
    uint8_t* to = reinterpret_cast<uint8_t*>(head) + k_first;
    uint16_t* scales = reinterpret_cast<uint16_t*>(head + at.k_scales) + (at.tiled ? tile * (dim_k / kKvBlock) * kKeyTile + lane : slot * (dim_k / kKvBlock));
    for (int64_t b = 0; b < dim_k / kKvBlock; ++b) {
      uint8_t codes[kKvBlock];
      scales[b * k_stride] = EncodeKvBlock(layer.dtype, key + b * kKvBlock, codes);
      for (int64_t i = 0; i < kKvBlock; ++i) to[(b * kKvBlock + i) * k_stride] = codes[i];
    }
    uint8_t* v_to = reinterpret_cast<uint8_t*>(head + at.v_codes) + slot * ValuePitch(dim_v);
    uint16_t* v_scales = reinterpret_cast<uint16_t*>(head + at.v_scales) + slot * (dim_v / kKvBlock);
    for (int64_t b = 0; b < dim_v / kKvBlock; ++b) v_scales[b] = EncodeKvBlock(layer.dtype, value + b * kKvBlock, v_to + b * kKvBlock);
  };
  for (size_t s = 0; s < batch_.sequences.size(); ++s) {
    const SequenceSpan& span = batch_.sequences[s];
    ForEach(span.rows, span.rows * (k.cols + v.cols) * 2, [&](int64_t i) {
      const int64_t position = span.start + i;
      const int32_t page = group.tables[s][position / page_size];
      HF_CHECKF(page >= 0, "sequence {}: no page for position {}", s, position);
      std::byte* base = layer.base + page * layer.page_stride;
      for (int32_t h = 0; h < layer.kv_heads; ++h) {
        store(base + h * at.head_bytes, position % page_size, k.row(span.first_row + i) + h * dim_k, v.row(span.first_row + i) + h * dim_v);
      }
    });
  }
}

void CpuOps::Attention(const KvLayer& layer, ConstMat q, const AttentionParams& p, Mat out) {
  const KvPageLayout at(layer.dtype, layer.page_size, layer.kv_heads, layer.head_dim_k, layer.head_dim_v);
  HF_CHECK(p.heads > 0 && p.heads % layer.kv_heads == 0 && q.cols == int64_t{p.heads} * layer.head_dim_k &&
           out.cols == int64_t{p.heads} * layer.head_dim_v && q.rows == out.rows);
  HF_CHECK(p.sinks.empty() || static_cast<int64_t>(p.sinks.size()) == p.heads);
  const BlockTables& group = batch_.groups[static_cast<size_t>(layer.group)];
  const int32_t share = p.heads / layer.kv_heads;             // heads that read one kv head
  const int32_t heads_each = std::min(share, kMaxQueryRows);  // of them in one task
  // Tokens of one task: as many as fit, fewer while threads would go without.
  const auto tasks_of = [&](int32_t tokens) {
    int64_t n = 0;
    for (const SequenceSpan& span : batch_.sequences) n += (span.rows + tokens - 1) / tokens;
    return n * layer.kv_heads * ((share + heads_each - 1) / heads_each);
  };
  int32_t tokens_each = kMaxQueryRows / heads_each;
  while (tokens_each * heads_each > 24 && tokens_each > 1 && tasks_of(tokens_each) < 4 * pool_.threads()) tokens_each /= 2;

  struct Task {
    int32_t sequence, kv_head, head, heads, row, rows;  // row: first token within the sequence
    int64_t begin, end;                                 // keys
  };
  std::vector<Task> tasks;
  int64_t work = 0;
  for (size_t s = 0; s < batch_.sequences.size(); ++s) {
    const SequenceSpan& span = batch_.sequences[s];
    for (int32_t r = (span.rows - 1) / tokens_each * tokens_each; r >= 0; r -= tokens_each) {  // the longest first
      const int32_t rows = std::min(tokens_each, span.rows - r);
      const int64_t last = span.start + r + rows - 1;
      const int64_t first = group.window > 0 ? std::max<int64_t>(0, span.start + r - group.window + 1) : 0;
      for (int32_t h = 0; h < layer.kv_heads; ++h) {
        for (int32_t g = 0; g < share; g += heads_each) {
          tasks.push_back({static_cast<int32_t>(s), h, h * share + g, std::min(heads_each, share - g), r, rows, first, last + 1});
          work += (last + 1 - first) * rows * heads_each * (layer.head_dim_k + layer.head_dim_v) / 32;
        }
      }
    }
  }

  const int64_t pitch = ValuePitch(layer.head_dim_v);
  const int64_t state_floats = kMaxQueryRows * (pitch + 2);
  const auto rows_of = [&](const Task& t, QueryRow* rows) {
    const SequenceSpan& span = batch_.sequences[static_cast<size_t>(t.sequence)];
    int n = 0;
    for (int32_t i = 0; i < t.rows; ++i) {
      const int64_t last = span.start + t.row + i;
      const int64_t first = group.window > 0 ? std::max<int64_t>(0, last - group.window + 1) : 0;
      const float* x = q.row(span.first_row + t.row + i) + int64_t{t.head} * layer.head_dim_k;
      for (int32_t h = 0; h < t.heads; ++h) rows[n++] = {x + int64_t{h} * layer.head_dim_k, first, last};
    }
    return n;
  };
  const auto attend = [&](const Task& t, const QueryRow* rows, int count, int64_t partition, float* state, std::byte* scratch) {
    AttendArgs a;
    const int64_t head = t.kv_head * at.head_bytes;
    a.base = layer.base;
    a.page_stride = layer.page_stride;
    a.table = group.tables[static_cast<size_t>(t.sequence)];
    a.page_size = layer.page_size;
    a.dim_k = layer.head_dim_k;
    a.dim_v = layer.head_dim_v;
    a.k_codes = head;
    a.k_scales = head + at.k_scales;
    a.v_codes = head + at.v_codes;
    a.v_scales = head + at.v_scales;
    a.scale = p.scale;
    a.softcap = p.softcap;
    a.rows = rows;
    a.row_count = count;
    a.begin = partition * kPartition;
    a.end = (partition + 1) * kPartition;
    a.m = state;
    a.l = state + kMaxQueryRows;
    a.o = state + 2 * kMaxQueryRows;
    a.scratch = scratch;
    kernels_.attend[static_cast<int>(layer.dtype)](a);
  };
  const auto merge = [&](float* state, const float* later, int count) {
    kernels_.attend_merge(state, state + kMaxQueryRows, state + 2 * kMaxQueryRows, later, later + kMaxQueryRows, later + 2 * kMaxQueryRows, count,
                          layer.head_dim_v);
  };
  const auto finish = [&](const Task& t, const float* state) {
    const SequenceSpan& span = batch_.sequences[static_cast<size_t>(t.sequence)];
    for (int32_t i = 0, n = 0; i < t.rows; ++i) {
      for (int32_t h = 0; h < t.heads; ++h, ++n) {
        kernels_.attend_finish(state[n], state[kMaxQueryRows + n], state + 2 * kMaxQueryRows + n * pitch,
                               p.sinks.empty() ? nullptr : p.sinks.data() + t.head + h,
                               out.row(span.first_row + t.row + i) + int64_t{t.head + h} * layer.head_dim_v, layer.head_dim_v);
      }
    }
  };
  const int64_t scratch_bytes = (AttendScratchBytes(layer.head_dim_k, layer.head_dim_v) + 63) / 64 * 64;
  const auto first_partition = [](const Task& t) { return t.begin / kPartition; };
  const auto partitions = [&](const Task& t) { return (t.end - 1) / kPartition - first_partition(t) + 1; };

  const int threads = pool_.threads();
  if (threads == 1 || work < kWorthSharing || static_cast<int64_t>(tasks.size()) >= 4 * threads) {
    const auto whole = [&](int thread, const Task& t) {
      float* state = of_thread_[static_cast<size_t>(thread)].Of<float>(2 * state_floats + scratch_bytes / 4);
      std::byte* scratch = reinterpret_cast<std::byte*>(state + 2 * state_floats);
      QueryRow rows[kMaxQueryRows];
      const int count = rows_of(t, rows);
      for (int64_t i = 0; i < partitions(t); ++i) {
        attend(t, rows, count, first_partition(t) + i, i == 0 ? state : state + state_floats, scratch);
        if (i > 0) merge(state, state + state_floats, count);
      }
      finish(t, state);
    };
    if (threads == 1 || work < kWorthSharing) {
      for (const Task& t : tasks) whole(0, t);
    } else {
      next_.store(0, std::memory_order_relaxed);
      pool_.Run([&](int thread) {
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < static_cast<int64_t>(tasks.size());) {
          whole(thread, tasks[static_cast<size_t>(i)]);
        }
      });
    }
    return;
  }
  // Few tasks: threads share the partitions of each, and the same merges follow in the same order.
  std::vector<std::pair<int32_t, int64_t>> parts;  // task, partition
  for (size_t i = 0; i < tasks.size(); ++i) {
    for (int64_t j = 0; j < partitions(tasks[i]); ++j) parts.emplace_back(static_cast<int32_t>(i), first_partition(tasks[i]) + j);
  }
  float* states = state_.Of<float>(static_cast<int64_t>(parts.size()) * state_floats);
  next_.store(0, std::memory_order_relaxed);
  pool_.Run([&](int thread) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < static_cast<int64_t>(parts.size());) {
      const Task& t = tasks[static_cast<size_t>(parts[static_cast<size_t>(i)].first)];
      QueryRow rows[kMaxQueryRows];
      const int count = rows_of(t, rows);
      attend(t, rows, count, parts[static_cast<size_t>(i)].second, states + i * state_floats, of_thread_[static_cast<size_t>(thread)].Get(scratch_bytes));
    }
  });
  int64_t part = 0;
  for (const Task& t : tasks) {
    float* state = states + part * state_floats;
    for (int64_t j = 1; j < partitions(t); ++j) merge(state, state + j * state_floats, t.rows * t.heads);
    finish(t, state);
    part += partitions(t);
  }
}

}  // namespace holdfast::kernels

#pragma once
// A paged cache of one layer, filled and read by a backend's steps.
#include <map>

#include "kernels/kv_block.h"
#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {

struct Config {
  KvDType type = KvDType::kF16;
  int32_t page_size = 16, heads = 6, kv_heads = 2, dim_k = 64, dim_v = 64, window = 0;
  float softcap = 0.f;
  bool sinks = false;

  std::string Name() const {
    return fmt::format("{}, pages of {}, {} heads on {}, {} + {} dims, window {}, softcap {}, sinks {}", KvDTypeName(type), page_size, heads,
                       kv_heads, dim_k, dim_v, window, softcap, sinks);
  }
};

// Sequences of given lengths with their queries, keys and values, [token][heads * dim].
struct Data {
  std::vector<std::vector<float>> q, k, v;
  std::vector<float> sinks;
  Data(const Config& c, const std::vector<int32_t>& lengths, uint32_t seed) {
    Random random(seed);
    for (const int32_t n : lengths) {
      q.push_back(random.Normals(int64_t{n} * c.heads * c.dim_k));
      k.push_back(random.Normals(int64_t{n} * c.kv_heads * c.dim_k));
      v.push_back(random.Normals(int64_t{n} * c.kv_heads * c.dim_v));
    }
    sinks = random.Normals(c.heads);
  }
};

// A cache of one layer whose pages are handed out in a scattered order. A share of a step: sequence and number of its next tokens.
class Cache {
 public:
  using Step = std::vector<std::pair<size_t, int32_t>>;

  Cache(Ops& ops, const Config& c, const Data& data) : ops_(ops), c_(c), data_(data), done_(data.q.size(), 0) {
    int32_t pages = 0;
    for (const auto& q : data.q) pages += (Tokens(q) + c.page_size - 1) / c.page_size;
    layer_.page_stride = ops.KvPageBytes(c.type, c.page_size, c.kv_heads, c.dim_k, c.dim_v);
    memory_ = ops.Allocate(layer_.page_stride * pages);
    const std::vector<std::byte> nan(static_cast<size_t>(memory_.bytes()), std::byte{0xff});  // in every format: what was not written must not count
    ops.CopyFromHost(memory_.data(), nan.data(), memory_.bytes());
    layer_.base = memory_.data();
    layer_.page_size = c.page_size;
    layer_.kv_heads = c.kv_heads;
    layer_.head_dim_k = c.dim_k;
    layer_.head_dim_v = c.dim_v;
    layer_.dtype = c.type;
    std::vector<int32_t> free(static_cast<size_t>(pages));
    for (int32_t i = 0; i < pages; ++i) free[static_cast<size_t>(i)] = i;
    std::shuffle(free.begin(), free.end(), std::mt19937(3));
    for (const auto& q : data.q) {
      tables_.emplace_back();
      out.emplace_back(q.size() / static_cast<size_t>(c.dim_k) * static_cast<size_t>(c.dim_v));
      for (int32_t t = 0; t < Tokens(q); t += c.page_size) {
        tables_.back().push_back(free.back());
        free.pop_back();
      }
    }
  }

  void Run(const Step& step) {
    std::vector<float> q, k, v;
    std::vector<SequenceSpan> spans;
    std::vector<const int32_t*> pointers;
    std::vector<std::vector<int32_t>> tables;  // as the ledger gives them: pages left of the window are gone
    std::vector<int32_t> positions;
    for (const auto& [s, n] : step) {
      const int32_t start = done_[s];
      spans.push_back({static_cast<int32_t>(positions.size()), n, start});
      for (int32_t i = 0; i < n; ++i) positions.push_back(start + i);
      Append(q, data_.q[s], start, n, c_.heads * c_.dim_k);
      Append(k, data_.k[s], start, n, c_.kv_heads * c_.dim_k);
      Append(v, data_.v[s], start, n, c_.kv_heads * c_.dim_v);
      tables.push_back(tables_[s]);
      if (c_.window > 0) {
        for (int32_t b = 0; (b + 1) * c_.page_size <= start - c_.window + 1; ++b) tables.back()[static_cast<size_t>(b)] = -1;
      }
      done_[s] += n;
    }
    for (const auto& t : tables) pointers.push_back(t.data());
    const BlockTables group{pointers, c_.window};
    Batch batch;
    batch.positions = positions;
    batch.sequences = spans;
    batch.groups = {&group, 1};
    batch.page_size = c_.page_size;
    const Held<float> sinks(ops_, data_.sinks);
    AttentionParams params;
    params.heads = c_.heads;
    params.scale = 0.3f;
    params.softcap = c_.softcap;
    if (c_.sinks) params.sinks = sinks.vec();
    const Held<float> q_held(ops_, q, c_.heads * c_.dim_k), k_held(ops_, k, c_.kv_heads * c_.dim_k), v_held(ops_, v, c_.kv_heads * c_.dim_v);
    const Held<float> out_held(ops_, std::vector<float>(positions.size() * static_cast<size_t>(c_.heads * c_.dim_v)), c_.heads * c_.dim_v);
    ops_.BeginStep(batch);
    ops_.StoreKv(layer_, k_held.mat(), v_held.mat());
    ops_.Attention(layer_, q_held.mat(), params, out_held.mat());
    const std::vector<float> o = out_held.Get();
    for (size_t i = 0; i < step.size(); ++i) {
      const size_t width = static_cast<size_t>(c_.heads * c_.dim_v);
      std::copy_n(o.begin() + static_cast<int64_t>(spans[i].first_row * width), spans[i].rows * width,
                  out[step[i].first].begin() + static_cast<int64_t>(spans[i].start * width));
    }
  }

  std::vector<std::vector<float>> out;  // of each sequence, [token][heads * dim_v]

 private:
  int32_t Tokens(const std::vector<float>& q) const { return static_cast<int32_t>(q.size()) / (c_.heads * c_.dim_k); }
  static void Append(std::vector<float>& to, const std::vector<float>& from, int32_t start, int32_t n, int32_t width) {
    to.insert(to.end(), from.begin() + int64_t{start} * width, from.begin() + int64_t{start + n} * width);
  }

  Ops& ops_;
  Config c_;
  const Data& data_;
  KvLayer layer_;
  Buffer memory_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> done_;
};

// Squared error over squared magnitude that a backend may have against the reference, which has the same codes in its cache. CUDA rounds
// codes times scale to f16; the CPU multiplies bf16 as such.
inline double Tolerance(const Backend& b, KvDType type) {
  if (b.name.starts_with("cuda")) return KvIsQuantized(type) ? 1e-6 : type == KvDType::kBF16 ? 1e-9 : 1e-11;
  return type == KvDType::kBF16 ? 2e-5 : 1e-11;
}

}  // namespace holdfast::kernels::test

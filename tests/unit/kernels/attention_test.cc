#include <catch2/catch.hpp>
#include <map>

#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {
namespace {

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

std::vector<Config> Configs() {
  std::vector<Config> all;
  for (const KvDType type : {KvDType::kF16, KvDType::kBF16, KvDType::kQ8_0, KvDType::kFp8E4M3}) {
    for (const int32_t page_size : {1, 8, 16, 32}) all.push_back({type, page_size});
    all.push_back({type, 16, 8, 1, 32, 96, 40, 0.f, true});
    all.push_back({type, 1, 4, 4, 128, 32, 17, 5.f, false});
    all.push_back({type, 32, 30, 1, 32, 32, 0, 3.f, true});  // more heads on a key than a task takes
  }
  all.push_back({KvDType::kF16, 16, 3, 3, 40, 24});
  all.push_back({KvDType::kBF16, 16, 3, 1, 20, 9, 5});
  all.push_back({KvDType::kF16, 12, 2, 1, 7, 5});
  return all;
}

// Three sequences: prompts in chunks of different sizes, then decodes together.
void Mixed(Cache& cache) {
  cache.Run({{0, 70}, {1, 5}});
  cache.Run({{1, 1}, {0, 1}, {2, 33}});
  cache.Run({{0, 25}, {2, 1}, {1, 1}});
  cache.Run({{0, 1}, {1, 1}, {2, 1}});
}

TEST_CASE("attention over pages agrees with the reference in every KV type and page size") {
  const std::vector<int32_t> lengths = {97, 8, 35};
  const auto reference = MakeReferenceOps();
  const auto backends = Backends();
  for (const Config& c : Configs()) {
    const Data data(c, lengths, 11);
    Cache want(*reference, c, data);
    Mixed(want);
    for (const Backend& b : backends) {
      INFO(b.name << ": " << c.Name());
      CHECK(b.ops->KvPageBytes(c.type, c.page_size, c.kv_heads, c.dim_k, c.dim_v) % 64 == 0);
      Cache got(*b.ops, c, data);
      Mixed(got);
      for (size_t s = 0; s < lengths.size(); ++s) {
        INFO("sequence " << s);
        CHECK(Nmse(got.out[s], want.out[s]) < (c.type == KvDType::kBF16 ? 2e-5 : 1e-11));
      }
    }
  }
}

TEST_CASE("an attention row has the same bits however the prompt was cut and whatever shares the step") {
  const std::vector<int32_t> lengths = {150, 40};
  const auto kinds = Twins();
  for (Config c : Configs()) {
    const Data data(c, lengths, 12);
    for (const auto& twins : kinds) {
      std::vector<float> whole;
      for (const Backend& b : twins) {
        const auto& ops = b.ops;
        INFO(b.name << ": " << c.Name());
        if (b.emulated && c.heads > 8) continue;
        Cache all(*ops, c, data);
        all.Run({{0, 150}});
        if (whole.empty()) whole = all.out[0];
        CHECK(SameBits(all.out[0], whole));
        for (const int32_t chunk : {1, 3, 16, 64}) {
          if (b.emulated && chunk != 16) continue;
          Cache cut(*ops, c, data);
          for (int32_t t = 0; t < 150; t += chunk) {
            const int32_t n = std::min(chunk, 150 - t);
            t / chunk < 30 ? cut.Run({{1, 1}, {0, n}}) : cut.Run({{0, n}});
          }
          INFO("chunks of " << chunk);
          CHECK(SameBits(cut.out[0], whole));
        }
      }
    }
  }
}

TEST_CASE("a long context is shared between threads without changing a bit") {
  for (const KvDType type : {KvDType::kF16, KvDType::kQ8_0}) {
    Config c;
    c.type = type;
    c.heads = 2;
    c.kv_heads = 1;
    c.dim_k = c.dim_v = 32;
    for (const int32_t window : {0, 1100}) {
      c.window = window;
      c.sinks = window > 0;
      const Data data(c, {2100}, 13);
      const auto run = [&](Ops& ops) {
        Cache cache(ops, c, data);
        cache.Run({{0, 2000}});
        for (int i = 0; i < 4; ++i) cache.Run({{0, 1}});
        cache.Run({{0, 96}});
        return cache.out[0];
      };
      const auto whole = [&](Ops& ops) {
        Cache cache(ops, c, data);
        cache.Run({{0, 2100}});
        return cache.out[0];
      };
      const auto reference = MakeReferenceOps();
      const auto want = whole(*reference);
      for (const std::string_view isa : AvailableIsas()) {
        const auto one = Cpu(isa, 1), two = Cpu(isa, 2);
        INFO(isa << ": " << c.Name());
        const auto got = run(*one);
        CHECK(Nmse(got, want) < 1e-11);
        CHECK(SameBits(got, run(*two)));
        CHECK(SameBits(got, whole(*one)));
        CHECK(SameBits(got, whole(*two)));
      }
    }
  }
}

TEST_CASE("rotations agree with the reference") {
  const auto reference = MakeReferenceOps();
  const auto backends = FastBackends();
  Random random(21);
  std::vector<float> factors(32);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = i < 16 ? 1.f + 0.1f * static_cast<float>(i) : 1e30f;
  std::vector<int32_t> positions = {0, 1, 2, 77, 4095, 100000, 5};
  Batch batch;
  batch.positions = positions;
  for (const RopeKind kind : {RopeKind::kNeox, RopeKind::kInterleaved}) {
    for (const int variant : {0, 1, 2, 3, 4}) {
      RopeParams p;
      p.kind = kind;
      p.dims = variant == 4 ? 20 : 64;
      p.base = variant == 1 ? 1e6f : 150000.f;
      if (variant == 1) p.freq_factors = factors;
      if (variant == 2) p.scale = 0.125f;
      if (variant == 3) {
        p.yarn_factor = 32.f;
        p.yarn_original_context = 4096.f;
        p.attention_factor = 1.3465736f;
      }
      const auto x = random.Normals(static_cast<int64_t>(positions.size()) * 3 * 64);
      auto want = x;
      reference->BeginStep(batch);
      reference->Rope(View(want, 192), 3, p);
      for (const Backend& b : backends) {
        INFO(b.name << ", kind " << static_cast<int>(kind) << ", variant " << variant);
        const Held<float> factors_held(*b.ops, factors);
        RopeParams there = p;
        if (variant == 1) there.freq_factors = factors_held.vec();
        for (int again = 0; again < 2; ++again) {  // the second time from the step's table
          const Held<float> got(*b.ops, x, 192);
          if (again == 0) b.ops->BeginStep(batch);
          b.ops->Rope(got.mat(), 3, there);
          CHECK(Nmse(got.Get(), want) < 1e-12);
        }
      }
    }
  }
}

TEST_CASE("a copied page reads like the original") {
  for (const Backend& b : Backends()) {
    const int64_t bytes = b.ops->KvPageBytes(KvDType::kQ8_0, 16, 2, 64, 64);
    std::vector<std::byte> page(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < bytes; ++i) page[static_cast<size_t>(i)] = static_cast<std::byte>(i * 7);
    const Held<std::byte> from(*b.ops, page), to(*b.ops, std::vector<std::byte>(page.size()));
    b.ops->CopyPage(to.data(), from.data(), bytes);
    CHECK(to.Get() == page);
  }
}

}  // namespace
}  // namespace holdfast::kernels::test

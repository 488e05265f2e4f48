// What is particular to attention on CUDA: tiles, partitions and windows at their borders, split and direct blocks, fragments, the stored bytes.
#include <catch2/catch.hpp>
#include <set>

#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_block.h"
#include "tests/unit/kernels/attention_rig.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

// d = a b of 16x16 by 16x8 f16 (or bf16), a out of shared memory by ldmatrix, b by the transposing one; both arrive by asynchronous copies.
template <bool kBf16, bool kWait>
__global__ void ProductKernel(const uint16_t* a, const uint16_t* b, float* d) {
  const int lane = static_cast<int>(threadIdx.x);
  constexpr int kPitch = 24;
  for (int i = lane; i < 32; i += kWarp) CopyAsyncOrZero16(SharedArray<uint4>((i / 2 * kPitch + i % 2 * 8) * 2), a + i / 2 * 16 + i % 2 * 8, true);
  CopyAsyncCommit();
  for (int i = lane; i < 32; i += kWarp) {   // 16 rows of 8, and zeros beside them
    CopyAsyncOrZero16(SharedArray<uint4>(768 + (i / 2 * kPitch + i % 2 * 8) * 2), b + i / 2 * 8, i % 2 == 0);
  }
  CopyAsyncCommit();
  kWait ? CopyAsyncWait<0>() : CopyAsyncWait<1>();
  __syncwarp();
  unsigned x[4], y[4];
  LoadMatrix4(x, SharedArray<uint16_t>(0) + lane % 16 * kPitch + lane / 16 * 8);
  LoadMatrix4Transposed(y, SharedArray<uint16_t>(768) + lane % 16 * kPitch + lane / 16 * 8);
  float sum[4] = {};
  Mma<kBf16>(sum, x, y[0], y[1]);
  Mma<kBf16>(sum, x, y[2], y[3]);   // the zeros: adds nothing
  for (int e = 0; e < 4; ++e) d[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = sum[e];
  CopyAsyncWait<0>();
}

template <bool kBf16, bool kWait>
std::vector<float> Product(Ops& ops, const std::vector<float>& a, const std::vector<float>& b) {
  const auto round = [](const std::vector<float>& x) {
    std::vector<uint16_t> bits;
    for (const float v : x) bits.push_back(kBf16 ? F32ToBf16(v) : F32ToF16(v));
    return bits;
  };
  const test::Held<uint16_t> x(ops, round(a)), y(ops, round(b));
  const test::Held<float> d(ops, std::vector<float>(128));
  ops.Sync();
  Launch(ProductKernel<kBf16, kWait>, 1, kWarp, 1536, nullptr, x.data(), y.data(), d.data());
  cudaDeviceSynchronize();
  return d.Get();
}

TEST_CASE("tensor core fragments multiply, and a copy that is not waited for is a race") {
  simt::Configure({test::SimtSeed()});
  auto ops = cuda_emulated::MakeOps({});
  REQUIRE(ops.ok());
  test::Random random(5);
  std::vector<float> a(256), b(128), want(128);   // small integers: exact in any order
  for (float& v : a) v = static_cast<float>(random.Below(9)) - 4.f;
  for (float& v : b) v = static_cast<float>(random.Below(9)) - 4.f;
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      for (size_t k = 0; k < 16; ++k) want[i * 8 + j] += a[i * 16 + k] * b[k * 8 + j];
    }
  }
  CHECK(Product<false, true>(**ops, a, b) == want);
  CHECK(Product<true, true>(**ops, a, b) == want);
  simt::CatchReports reports;   // of a backend that is of no use afterwards
  Product<false, false>(**ops, a, b);
  const auto told = reports.Take();
  cudaGetLastError();           // the next backend begins anew
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("a race: it writes 16 bytes") != told[0].npos);
}

// Empty when every row of every sequence has each of its partitions once, and once only, in a direct item or in split ones with records of
// their own that are combined in order; else what is wrong.
std::string WrongWith(const AttentionPlan& plan, const std::vector<SequenceSpan>& spans) {
  const AttentionShape& s = plan.shape;
  const int64_t group = s.group(), keys = s.partition_keys();
  std::map<std::pair<int32_t, int32_t>, std::map<int32_t, int32_t>> rows;   // (sequence, packed row) -> partition -> record, -1: direct
  std::set<int32_t> used;
  for (const AttentionLaunch* launch : {&plan.narrow, &plan.wide}) {
    for (const AttentionItem& item : launch->items) {
      if (item.rows < 1 || item.rows > launch->tile.rows() || (item.record >= 0 && item.partitions != 1)) return "an item's size";
      for (int32_t r = 0; r < item.rows; ++r) {
        for (int32_t p = 0; p < item.partitions; ++p) {
          const int32_t record = item.record < 0 ? -1 : item.record + r;
          if (!rows[{item.sequence, item.first_row + r}].emplace(item.partition + p, record).second) return "a partition of a row comes twice";
          if (record >= 0 && (record >= plan.records || !used.insert(record).second)) return "a record is used twice, or beyond their number";
        }
      }
    }
  }
  std::set<std::pair<int32_t, int32_t>> combined;
  for (const CombineItem& item : plan.combine) {
    if (item.rows < 1 || item.rows > kCombineRows) return "the rows of a combination";
    for (int32_t r = 0; r < item.rows; ++r) {
      if (!combined.emplace(item.sequence, item.first_row + r).second) return "a row is combined twice";
      int32_t at = 0;
      for (const auto& [partition, record] : rows[{item.sequence, item.first_row + r}]) {
        if (record != item.record + at++ * item.step + r) return "a combination has other records than its row";
      }
      if (at != item.partitions) return "a combination has not as many records as its row";
    }
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    for (int64_t row = 0; row < spans[i].rows * group; ++row) {
      const int64_t last = spans[i].start + row / group, first = s.window > 0 ? std::max<int64_t>(0, last - s.window + 1) : 0;
      const std::pair key{static_cast<int32_t>(i), static_cast<int32_t>(row)};
      const bool split = combined.contains(key);
      for (int64_t p = first / keys; p <= last / keys; ++p) {
        const auto it = rows[key].find(static_cast<int32_t>(p));
        if (it == rows[key].end()) return "a row misses a partition";
        if ((it->second >= 0) != split) return "a row's records are not combined";
      }
    }
  }
  return "";
}

TEST_CASE("a plan covers each row's partitions once") {
  const AttentionDevice big{132, 227 << 10}, small{4, 99 << 10};
  const std::vector<SequenceSpan> spans = {{0, 1, 0}, {1, 1, 511}, {2, 1, 512}, {3, 7, 5000}, {10, 130, 450}, {140, 40, 2000}, {180, 1, 100000}};
  for (const AttentionDevice& device : {big, small}) {
    for (const int32_t window : {0, 1, 512, 1000}) {
      for (const auto& [heads, kv_heads, dim] : {std::tuple{8, 2, 128}, {4, 4, 64}, {30, 1, 256}, {8, 1, 512}}) {
        AttentionShape shape{KvDType::kF16, heads, kv_heads, dim, dim, window};
        const AttentionPlan plan = PlanAttention(shape, spans, device);
        CHECK(WrongWith(plan, spans) == "");
        for (const AttentionLaunch* launch : {&plan.narrow, &plan.wide}) {
          CHECK(launch->buffers >= 2);
          CHECK(SharedOf(shape, launch->tile, launch->buffers).bytes <= device.shared_bytes);
        }
      }
    }
  }
  // A short chunk far into a context is split where the device is large, and not where it is small.
  const std::vector<SequenceSpan> chunk = {{0, 64, 8000}};
  const AttentionShape shape{KvDType::kF16, 8, 2, 128, 128, 0};
  CHECK(PlanAttention(shape, chunk, big).combine.size() == 64);
  CHECK(PlanAttention(shape, chunk, small).combine.empty());
  CHECK(PlanAttention(shape, std::vector<SequenceSpan>{{0, 1, 400}}, big).combine.empty());   // one partition needs no combining
  for (const KvDType type : {KvDType::kF16, KvDType::kBF16, KvDType::kQ8_0, KvDType::kFp8E4M3}) {
    for (const int32_t dim : {64, 128, 256, 512}) {
      CHECK(AttentionFits({type, 8, 2, dim, dim, 0}, big));
      CHECK(AttentionFits({type, 8, 2, dim, dim, 0}, small));
    }
  }
}

TEST_CASE("8-bit pages hold the codes and scales of kv_block.h") {
  simt::Configure({test::SimtSeed()});
  auto made = cuda_emulated::MakeOps({});
  REQUIRE(made.ok());
  Ops& ops = **made;
  for (const KvDType type : {KvDType::kQ8_0, KvDType::kFp8E4M3}) {
    const int32_t page_size = 4, heads = 2, dim_k = 64, dim_v = 96, rows = 7;
    const KvPageLayout at = LayoutOfPage(type, page_size, heads, dim_k, dim_v);
    test::Random random(8);
    auto k = random.Normals(rows * heads * dim_k, 3.f), v = random.Normals(rows * heads * dim_v, 1e-3f);
    std::fill_n(k.begin(), 32, 0.f);
    k[40] = NAN;
    v[33] = INFINITY;
    v[70] = 1e38f;
    const test::Held<std::byte> pages(ops, std::vector<std::byte>(static_cast<size_t>(at.bytes * 3), std::byte{0xff}));
    const test::Held<float> k_held(ops, k, heads * dim_k), v_held(ops, v, heads * dim_v);
    const int32_t table[] = {2, 0};
    const int32_t* tables[] = {table};
    const BlockTables group{tables, 0};
    const SequenceSpan span{0, rows, 0};
    std::vector<int32_t> positions(rows);
    Batch batch;
    batch.positions = positions;
    batch.sequences = {&span, 1};
    batch.groups = {&group, 1};
    batch.page_size = page_size;
    KvLayer layer{pages.data(), at.bytes, page_size, heads, dim_k, dim_v, type, 0};
    ops.BeginStep(batch);
    ops.StoreKv(layer, k_held.mat(), v_held.mat());
    const auto got = pages.Get();
    int wrong = 0;
    for (int32_t t = 0; t < rows; ++t) {
      for (const bool is_v : {false, true}) {
        const KvPlane& plane = is_v ? at.v : at.k;
        const std::byte* page = got.data() + table[t / page_size] * at.bytes;
        for (int32_t h = 0; h < heads; ++h) {
          for (int32_t b = 0; b < plane.dim / kKvBlock; ++b) {
            uint8_t codes[kKvBlock];
            const float* x = (is_v ? v : k).data() + (int64_t{t} * heads + h) * plane.dim + b * kKvBlock;
            const uint16_t scale = EncodeKvBlock(type, x, codes);
            const int64_t slot = plane.Slot(h, t % page_size);
            uint16_t stored;
            std::memcpy(&stored, page + plane.scales + (slot * (plane.dim / kKvBlock) + b) * 2, 2);
            const bool both_nan = std::isnan(F16ToF32(scale)) && std::isnan(F16ToF32(stored));
            if (stored != scale && !both_nan) ++wrong;
            if (std::memcmp(page + plane.codes + slot * plane.pitch + b * kKvBlock, codes, kKvBlock) != 0) ++wrong;
          }
        }
      }
    }
    INFO(KvDTypeName(type));
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

namespace holdfast::kernels::test {
namespace {

constexpr KvDType kTypes[] = {KvDType::kF16, KvDType::kBF16, KvDType::kQ8_0, KvDType::kFp8E4M3};

TEST_CASE("attention on CUDA takes every head dimension, KV type and page size") {
  const auto reference = MakeReferenceOps();
  const auto backends = CudaBackends();
  const std::pair<int32_t, int32_t> dims[] = {{64, 64}, {128, 128}, {256, 256}, {512, 512}, {192, 128}, {96, 160}, {32, 320}};
  std::map<std::string, double> worst;
  int turn = 0;
  for (const KvDType type : kTypes) {
    for (const auto& [dim_k, dim_v] : dims) {
      Config c;
      c.type = type;
      c.page_size = std::array{16, 1, 32}[static_cast<size_t>(turn++ % 3)];
      c.heads = 5;
      c.kv_heads = 1;
      c.dim_k = dim_k;
      c.dim_v = dim_v;
      const Data data(c, {19, 4}, 21);
      const auto run = [&](Ops& ops) {
        Cache cache(ops, c, data);
        cache.Run({{0, 16}, {1, 3}});   // 80 packed rows and 15
        cache.Run({{1, 1}, {0, 3}});
        return cache.out;
      };
      const auto want = run(*reference);
      for (const Backend& b : backends) {
        INFO(b.name << ": " << c.Name());
        const auto got = run(*b.ops);
        for (size_t s = 0; s < want.size(); ++s) {
          const double error = Nmse(got[s], want[s]);
          CHECK(error < Tolerance(b, type));
          double& most = worst[std::string(KvDTypeName(type))];
          most = std::max(most, error);
        }
      }
    }
  }
  for (const auto& [type, error] : worst) printf("attention, %s KV: nmse of at most %.1e against the reference\n", type.c_str(), error);
}

// Rows over several partitions (of 512 keys, 256 from head dimension 129 on): as a whole, in chunks, token by token at the borders, beside
// another sequence; each must give the same bits.
TEST_CASE("rows over several partitions have the same bits from blocks that split them and blocks that do not") {
  struct Case {
    KvDType type;
    int32_t dim, window, length;
    bool sinks;
  };
  const Case cases[] = {{KvDType::kF16, 32, 0, 560, true},     {KvDType::kQ8_0, 32, 0, 530, false},   {KvDType::kF16, 64, 63, 130, true},
                        {KvDType::kF16, 32, 513, 560, false},  {KvDType::kBF16, 32, 300, 535, true},  {KvDType::kFp8E4M3, 160, 65, 300, false},
                        {KvDType::kF16, 160, 0, 530, false},   {KvDType::kQ8_0, 288, 0, 270, true}};
  const auto reference = MakeReferenceOps();
  for (const Backend& b : CudaBackends()) {
    for (const Case& kind : cases) {
      Config c;
      c.type = kind.type;
      c.heads = kind.dim < 100 ? 2 : 1;
      c.kv_heads = 1;
      c.dim_k = c.dim_v = kind.dim;
      c.window = kind.window;
      c.sinks = kind.sinks;
      INFO(b.name << ": " << c.Name());
      const int32_t n = kind.length;
      const Data data(c, {n, 30}, 23);
      const auto run = [&](Ops& ops, auto&& steps) {
        Cache cache(ops, c, data);
        steps(cache);
        return cache.out[0];
      };
      const auto whole = run(*b.ops, [&](Cache& cache) { cache.Run({{0, n}}); });
      const auto want = run(*reference, [&](Cache& cache) { cache.Run({{0, n}}); });
      CHECK(Nmse(whole, want) < Tolerance(b, c.type));
      const auto cut = run(*b.ops, [&](Cache& cache) {
        cache.Run({{1, 20}, {0, n - 50}});      // then a chunk of few blocks, single tokens, some more
        cache.Run({{0, 20}, {1, 1}});
        for (int i = 0; i < 3; ++i) cache.Run({{1, 1}, {0, 1}});
        cache.Run({{0, 27}});
      });
      CHECK(SameBits(cut, whole));
    }
  }
}

TEST_CASE("windows whose borders are those of tiles, pages and partitions") {
  const auto reference = MakeReferenceOps();
  const auto backends = CudaBackends();
  for (const int32_t window : {1, 16, 63, 64, 65, 128}) {
    Config c;
    c.heads = c.kv_heads = 1;
    c.dim_k = c.dim_v = 32;
    c.window = window;
    c.sinks = window % 2 == 1;
    const Data data(c, {200, 3}, 24);
    const auto run = [&](Ops& ops, const std::vector<int32_t>& chunks) {
      Cache cache(ops, c, data);
      for (const int32_t n : chunks) cache.Run({{0, n}});
      return cache.out[0];
    };
    const auto want = run(*reference, {200});
    for (const Backend& b : backends) {
      INFO(b.name << ": " << c.Name());
      const auto whole = run(*b.ops, {200});
      CHECK(Nmse(whole, want) < Tolerance(b, c.type));
      CHECK(SameBits(run(*b.ops, {63, 1, 1, 62, 1, 1, 71}), whole));
      CHECK(SameBits(run(*b.ops, {64, 64, 64, 8}), whole));
    }
  }
}

// Scores far apart, and large values: the weights' reference point moves by more than f16 or f32 has exponents.
TEST_CASE("scores of any size, and rows that are not finite, stay in their row") {
  const auto reference = MakeReferenceOps();
  for (const Backend& b : CudaBackends()) {
    for (const KvDType type : kTypes) {
      Config c;
      c.type = type;
      c.heads = 2;
      c.kv_heads = 1;
      c.dim_k = c.dim_v = 32;
      INFO(b.name << ": " << c.Name());
      Data data(c, {90, 20}, 25);
      for (size_t t = 0; t < 90; ++t) {
        for (size_t i = 0; i < 32; ++i) data.k[0][t * 32 + i] *= t == 10 ? 300.f : t == 70 ? 1000.f : 1.f;
      }
      const auto run = [&](Ops& ops) {
        Cache cache(ops, c, data);
        cache.Run({{0, 80}, {1, 15}});
        cache.Run({{1, 5}, {0, 10}});
        return cache.out;
      };
      const auto want = run(*reference);
      auto got = run(*b.ops);
      // A weight's error is its score's: 2^-12 of it where queries are f16.
      CHECK(Nmse(got[0], want[0]) < 1e-2);
      CHECK(Nmse(got[1], want[1]) < Tolerance(b, type));
      data.q[1][3] = NAN;
      got = run(*b.ops);
      CHECK(std::isnan(got[1][0]));
      CHECK(std::all_of(got[1].begin() + 64, got[1].end(), [](float x) { return std::isfinite(x); }));
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels::test

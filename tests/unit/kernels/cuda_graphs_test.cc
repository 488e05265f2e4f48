// Steps that come again are graphs, and nobody can tell: bits with graphs and padding are those without, whatever happens between two steps.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <optional>

#include "kernels/cuda/attention_plan.h"
#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {
namespace {

constexpr int64_t kDim = 64, kHeads = 2, kHeadDim = 32, kVocab = 40;
constexpr int32_t kPageSize = 16;

// Two layers of attention, one full and one windowed, over pages that are reserved; greedy drawing is the host's.
class Decoder {
 public:
  explicit Decoder(bool graphs, KvDType kv = KvDType::kF16) : kv_(kv) {
    CudaOptions options;
    options.graphs = graphs;
    auto made = cuda_emulated::MakeOps(options);
    REQUIRE(made.ok());
    ops = *std::move(made);
    Random random(11);
    const auto rows = [&](DType type, int64_t out, int64_t in) { return FileRows(type, out, in, random); };
    table_ = std::make_unique<PackedWeight>(*ops, DType::kF32, kVocab, kDim, rows(DType::kF32, kVocab, kDim), WeightUse::kEmbedding);
    for (int i = 0; i < 2; ++i) {
      Layer l;
      for (auto* w : {&l.q, &l.k, &l.v, &l.o}) {
        const int64_t out = w == &l.q || w == &l.o ? kDim : kHeadDim;
        *w = std::make_unique<PackedWeight>(*ops, DType::kQ8_0, out, kDim, rows(DType::kQ8_0, out, kDim));
      }
      auto pool = ops->Reserve(int64_t{4} << 20);
      REQUIRE(pool.ok());
      l.pool = *std::move(pool);
      REQUIRE(l.pool->Back(0, l.pool->bytes(), true).ok());
      l.kv.base = l.pool->base();
      l.kv.page_stride = ops->KvPageBytes(kv_, kPageSize, 1, kHeadDim, kHeadDim);
      l.kv.page_size = kPageSize;
      l.kv.kv_heads = 1;
      l.kv.head_dim_k = l.kv.head_dim_v = kHeadDim;
      l.kv.dtype = kv_;
      l.kv.group = i;
      layers_.push_back(std::move(l));
    }
    Room(64);
  }

  // Activations for so many rows, anew.
  void Room(int64_t rows) {
    x_ = std::make_unique<Held<float>>(*ops, std::vector<float>(static_cast<size_t>(rows * kDim * 6)), kDim);
    room_ = rows;
  }
  int New() {
    tokens_.emplace_back();
    pages_.emplace_back();
    return static_cast<int>(tokens_.size()) - 1;
  }
  // A step: so many tokens of each of the sequences. Gives the last hidden rows, [rows of the sequences][kDim].
  std::vector<float> Step(const std::vector<std::pair<int, int32_t>>& shares, uint64_t shape = 7) {
    std::vector<uint32_t> tokens;
    std::vector<int32_t> positions;
    std::vector<SequenceSpan> spans;
    std::vector<std::vector<const int32_t*>> tables(2);
    bool single = true;
    for (const auto& [s, n] : shares) {
      const int32_t start = static_cast<int32_t>(tokens_[static_cast<size_t>(s)].size());
      spans.push_back({static_cast<int32_t>(tokens.size()), n, start});
      single = single && n == 1;
      for (int32_t i = 0; i < n; ++i) {
        tokens.push_back(static_cast<uint32_t>((s * 7 + (start + i) * 3 + 1) % kVocab));
        positions.push_back(start + i);
        tokens_[static_cast<size_t>(s)].push_back(tokens.back());
      }
      auto& pages = pages_[static_cast<size_t>(s)];
      while (pages.size() * kPageSize < tokens_[static_cast<size_t>(s)].size()) pages.push_back(next_page_++);
    }
    for (const auto& [s, n] : shares) {
      for (auto& t : tables) t.push_back(pages_[static_cast<size_t>(s)].data());
    }
    const size_t real = tokens.size();
    if (single) {
      tokens.resize(static_cast<size_t>(ops->PaddedRows(static_cast<int64_t>(real))));
      positions.resize(tokens.size());
    }
    const int64_t rows = static_cast<int64_t>(tokens.size());
    if (rows > room_) Room(rows);
    const BlockTables groups[] = {{tables[0], 0}, {tables[1], 40}};
    Batch batch;
    batch.tokens = tokens;
    batch.positions = positions;
    batch.sequences = spans;
    batch.groups = groups;
    batch.page_size = kPageSize;
    ops->BeginStep(batch);
    const auto part = [&](int64_t i, int64_t cols = kDim) { return Mat(x_->data() + i * room_ * kDim, rows, cols); };
    const Mat x = part(0), h = part(1), q = part(2), k = part(3, kHeadDim), v = part(4, kHeadDim), attn = part(5);
    const auto calls = [&] {
      ++called;
      ops->Embed(table_->weight, 1.f, x);
      for (const Layer& l : layers_) {
        ops->RmsNorm(x, {}, 1e-5f, h);
        const Product qkv[] = {{l.q->weight, q, {}, false}, {l.k->weight, k, {}, false}, {l.v->weight, v, {}, false}};
        ops->MatMul(h, qkv);
        RopeParams rope;
        rope.dims = kHeadDim;
        ops->Rope(q, kHeads, rope);
        ops->Rope(k, 1, rope);
        ops->StoreKv(l.kv, k, v);
        AttentionParams params;
        params.heads = kHeads;
        params.scale = 0.2f;
        ops->Attention(l.kv, q, params, attn);
        const Product o{l.o->weight, x, {}, true};
        ops->MatMul(attn, {&o, 1});
      }
    };
    single ? ops->Repeatable(shape, calls) : calls();
    const auto fetch = [&](const Mat& m, int64_t first, int64_t n) {
      std::vector<float> out(static_cast<size_t>(n * kDim));
      ops->CopyToHost(reinterpret_cast<std::byte*>(out.data()), reinterpret_cast<const std::byte*>(m.row(first)), n * kDim * 4);
      ops->Sync();
      return out;
    };
    const auto out = fetch(x, 0, static_cast<int64_t>(real));
    padding = fetch(attn, static_cast<int64_t>(real), rows - static_cast<int64_t>(real));
    REQUIRE(ops->Health().ok());
    return out;
  }
  // Every page of the sequence goes elsewhere.
  void MovePages(int s) {
    for (int32_t& page : pages_[static_cast<size_t>(s)]) {
      const int32_t to = next_page_++;
      for (const Layer& l : layers_) ops->CopyPage(l.kv.base + to * l.kv.page_stride, l.kv.base + page * l.kv.page_stride, l.kv.page_stride);
      page = to;
    }
  }
  // Memory behind the last page in use is given back, and taken again.
  void ResizePools() {
    for (const Layer& l : layers_) {
      l.pool->Release(next_page_ * l.kv.page_stride, l.pool->bytes());
      REQUIRE(l.pool->Back(0, l.pool->bytes(), true).ok());
    }
  }

  std::unique_ptr<Ops> ops;
  int called = 0;                  // how often the calls of a step were made
  std::vector<float> padding;      // the attention's rows of the last step that belong to no sequence

 private:
  struct Layer {
    std::unique_ptr<PackedWeight> q, k, v, o;
    std::unique_ptr<Reservation> pool;
    KvLayer kv;
  };
  KvDType kv_;
  std::unique_ptr<PackedWeight> table_;
  std::vector<Layer> layers_;
  std::unique_ptr<Held<float>> x_;
  int64_t room_ = 0;
  int32_t next_page_ = 0;
  std::vector<std::vector<uint32_t>> tokens_;
  std::vector<std::vector<int32_t>> pages_;
};

// The same steps with and without graphs; the bits must be the same.
struct Both {
  explicit Both(KvDType kv = KvDType::kF16) : with(true, kv), without(false, kv) {}
  int New() {
    without.New();
    return with.New();
  }
  void Step(const std::vector<std::pair<int, int32_t>>& shares, uint64_t shape = 7) {
    const auto want = without.Step(shares, shape), got = with.Step(shares, shape);
    same = same && SameBits(got, want);
    CHECK(without.padding.empty());
    for (const float v : with.padding) same = same && v == 0.f;
  }
  void Do(const std::function<void(Decoder&)>& f) {
    f(with);
    f(without);
  }
  Decoder with, without;
  bool same = true;
};

uint64_t Graphs() { return simt::TheCounts().graph_launches; }

TEST_CASE("rows are padded to few sizes, and not where there are no graphs") {
  const Decoder with(true), without(false);
  const std::map<int64_t, int64_t> wanted = {{1, 1}, {2, 2}, {3, 4}, {5, 8}, {8, 8}, {9, 16}, {16, 16}, {17, 24}, {25, 32}, {33, 48}, {49, 64}, {65, 96}, {100, 128}, {129, 192}};
  for (const auto& [rows, padded] : wanted) {
    CHECK(with.ops->PaddedRows(rows) == padded);
    CHECK(without.ops->PaddedRows(rows) == rows);
  }
}

TEST_CASE("decode steps of mixed sizes have the same bits with graphs and without, over partitions, windows, moves and resizes") {
  simt::Configure({SimtSeed()});
  for (const KvDType kv : {KvDType::kF16, KvDType::kQ8_0}) {
    Both b(kv);
    for (int i = 0; i < 6; ++i) b.New();
    b.Step({{0, 509}, {1, 3}, {2, 38}, {3, 1}});   // at the border of a partition; at that of the window
    b.Step({{4, 20}, {5, 15}});
    const uint64_t before = Graphs();
    for (int i = 0; i < 8; ++i) {
      b.Step({{0, 1}, {1, 1}, {2, 1}});                       // padded to 4; sequence 0 passes from one partition to two
      if (i == 5) b.Do([](Decoder& d) { d.MovePages(0); });
      if (i == 6) b.Do([](Decoder& d) { d.ResizePools(); });
      b.Step({{3, 1}});
      b.Step({{5, 1}, {4, 1}, {3, 1}, {2, 1}, {1, 1}});       // padded to 8
      CHECK(b.same);
    }
    // Each of the shapes is called once, recorded once and then launched alone; that of 4 rows comes in two variants (with something to combine).
    CHECK(Graphs() - before >= 3 * 8 - 2 * 4);
    CHECK(b.with.called < b.without.called);
    CHECK(b.without.called == 2 + 3 * 8);
  }
}

TEST_CASE("a step that is launched as a graph launches nothing else, and copies what changed") {
  Decoder d(true);
  const int a = d.New(), c = d.New();
  d.Step({{a, 5}, {c, 9}});
  const auto step = [&] { d.Step({{a, 1}, {c, 1}}); };
  const simt::Counts start = simt::TheCounts();
  step();
  const simt::Counts called = simt::TheCounts();
  step();
  const simt::Counts recorded = simt::TheCounts();
  step();
  const simt::Counts again = simt::TheCounts();
  CHECK(called.graph_launches == start.graph_launches);
  CHECK(recorded.graph_launches == called.graph_launches + 1);
  CHECK(again.graph_launches == recorded.graph_launches + 1);
  CHECK(called.launches - start.launches == recorded.launches - called.launches);
  CHECK(again.launches == recorded.launches);
  CHECK(d.called == 3);
  // The batch, the lists of two kinds of layers; two downloads are the test's.
  CHECK(again.copies - recorded.copies == 1 + 2 + 1);
  fmt::print("  a step of two layers: {} launches as calls, {} as a graph\n", called.launches - start.launches, again.launches - recorded.launches);
}

TEST_CASE("whatever moves memory drops the graphs, which come again") {
  Both b;
  for (int i = 0; i < 5; ++i) b.New();
  const std::vector<std::pair<int, int32_t>> decode = {{0, 1}, {1, 1}, {2, 1}};
  b.Step({{0, 4}, {1, 4}, {2, 4}});
  const auto settle = [&] {
    for (int i = 0; i < 3; ++i) b.Step(decode);
    const int called = b.with.called;
    const uint64_t graphs = Graphs();
    b.Step(decode);
    CHECK(b.with.called == called);
    CHECK(Graphs() == graphs + 1);
  };
  settle();
  // A long step grows the scratch memory and, here, the activations.
  b.Step({{3, 300}});
  settle();
  // Records of attention that did not fit before.
  b.Step({{0, 1100}});
  b.Step({{1, 2000}});
  settle();
  // Somebody allocates: what a graph used may be gone.
  b.Do([](Decoder& d) { d.Room(64); });
  settle();
  CHECK(b.same);
}

TEST_CASE("a graph that cannot be made costs no step, and is given up") {
  simt::FakeDevice& device = simt::TheFakeDevice();
  device.instantiate_error = cudaErrorMemoryAllocation;
  Both b;
  b.New();
  b.New();
  const uint64_t before = Graphs();
  b.Step({{0, 4}, {1, 6}});
  for (int i = 0; i < 3; ++i) b.Step({{0, 1}, {1, 1}});
  CHECK(b.with.ops->PaddedRows(3) == 4);
  b.Step({{0, 1}, {1, 1}});
  CHECK(b.with.ops->PaddedRows(3) == 3);   // three times in vain
  device = {};
  for (int i = 0; i < 3; ++i) b.Step({{0, 1}, {1, 1}});
  CHECK(b.same);
  CHECK(Graphs() == before);
}

TEST_CASE("calls that a graph cannot hold make it none, and happen") {
  Decoder d(true);
  const int a = d.New();
  d.Step({{a, 3}});
  d.Step({{a, 1}});
  const Held<float> x(*d.ops, {1.f, 2.f, 3.f, 4.f}, 4), y(*d.ops, std::vector<float>(4), 4);
  const int32_t table[] = {0};
  const int32_t* tables[] = {table};
  const BlockTables groups[] = {{tables, 0}};
  const SequenceSpan span{0, 1, 0};
  const int32_t position = 0;
  Batch batch;
  batch.positions = {&position, 1};
  batch.sequences = {&span, 1};
  batch.groups = groups;
  batch.page_size = kPageSize;
  for (int i = 0; i < 3; ++i) {
    d.ops->BeginStep(batch);
    d.ops->Repeatable(1, [&] {
      const int32_t row = 0;
      d.ops->GatherRows(x.mat(), {&row, 1}, y.mat());   // sends its rows
      d.ops->Scale(y.mat(), static_cast<float>(i + 2));
    });
    CHECK(y.Get()[3] == 4.f * static_cast<float>(i + 2));
  }
  CHECK(d.ops->Health().ok());
}

TEST_CASE("a launch that failed before a graph is recorded is told, and no fault of the graph") {
  Decoder d(true);
  const Held<float> x(*d.ops, {1.f, 2.f}, 2), y(*d.ops, {1.f, 2.f}, 2);
  const int32_t page = 0, position = 0;
  const int32_t* tables[] = {&page};
  const BlockTables groups[] = {{tables, 0}};
  const SequenceSpan span{0, 1, 0};
  Batch batch;
  batch.positions = {&position, 1};
  batch.sequences = {&span, 1};
  batch.groups = groups;
  batch.page_size = kPageSize;
  for (const bool fails : {false, true}) {
    d.ops->BeginStep(batch);
    if (fails) simt::TheFakeDevice().launch_error = cudaErrorNoKernelImageForDevice;
    d.ops->Scale(x.mat(), 1.f);
    simt::TheFakeDevice().launch_error = cudaSuccess;
    d.ops->Repeatable(1, [&] { d.ops->Scale(y.mat(), 2.f); });
    d.ops->Mark();
  }
  d.ops->Sync();
  INFO(d.ops->Health());
  CHECK(absl::IsAborted(d.ops->Health()));
}

TEST_CASE("more shapes than are kept: the oldest goes") {
  Decoder d(true);
  const int a = d.New();
  d.Step({{a, 3}});
  for (uint64_t shape = 1; shape <= 60; ++shape) {
    d.Step({{a, 1}}, shape);
    d.Step({{a, 1}}, shape);
  }
  int called = d.called;
  d.Step({{a, 1}}, 60);
  CHECK(d.called == called);
  d.Step({{a, 1}}, 1);
  CHECK(d.called == called + 1);
}

TEST_CASE("of a step of single rows, grids and places follow from the number of rows") {
  namespace cuda = cuda_emulated;
  const cuda::AttentionDevice device{132, 227 << 10};
  for (const auto& [heads, kv_heads] : {std::pair{32, 8}, {5, 1}, {40, 1}}) {
    const cuda::AttentionShape shape{KvDType::kF16, heads, kv_heads, 128, 128, 0};
    std::optional<cuda::AttentionPlan> first;
    for (const int32_t start : {0, 600, 90000}) {
      const std::vector<SequenceSpan> spans = {{0, 1, start}, {1, 1, 5}, {2, 1, 0}, {3, 1, 0}};
      const cuda::AttentionPlan plan = cuda::PlanAttention(shape, spans, device, 2);
      if (!first.has_value()) first = plan;
      CHECK(plan.narrow.blocks == first->narrow.blocks);
      CHECK(plan.narrow.blocks == 132 * 3);
      CHECK(plan.combine_slots == first->combine_slots);
      CHECK(cuda::ListsOf(plan).combine == cuda::ListsOf(*first).combine);
      CHECK(cuda::ListsOf(plan).narrow == cuda::ListsOf(*first).narrow);
      CHECK(plan.wide.items.empty());
      int padding = 0;
      for (const auto& item : plan.narrow.items) padding += item.partitions == 0 ? item.rows : 0;
      CHECK(padding == 2 * shape.group());
      for (const auto& item : plan.combine) CHECK(item.sequence == 0);
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels::test

// Rates of the CPU kernels beside the ceilings of this machine, measured in the same process on random data, best of N. Nothing here
// asserts a time; every product and attention is checked against a second computation before it is timed.
//
//   kernels_bench [--isa NAME] [--threads N] [--rounds N] [--only SUBSTRING]
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/quant_blocks.h"
#include "tests/bench/kernels_ceilings.h"

namespace holdfast::bench {
namespace {

using namespace kernels;  // NOLINT: a program, not a header

struct Settings {
  std::string isa = "auto", only;
  int threads = 0, rounds = 7;
};

struct Ceilings {
  double read_gbs = 0, int8_gops = 0, bf16_gflops = 0, f32_gflops = 0;
};

// With one thread the thread's own CPU time, which other processes do not lengthen; with more, the clock on the wall.
clockid_t clock_used = CLOCK_MONOTONIC;
double Seconds() {
  timespec t;
  clock_gettime(clock_used, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Best of `rounds`, each long enough (half a millisecond) to be timed.
template <class F>
double Best(int rounds, F&& f) {
  f();
  int inner = 1;
  for (double t = 0; t < 5e-4 && inner < (1 << 20); inner *= 2) {
    const double begin = Seconds();
    for (int i = 0; i < inner; ++i) f();
    t = Seconds() - begin;
  }
  double best = 1e30;
  for (int r = 0; r < rounds; ++r) {
    const double begin = Seconds();
    for (int i = 0; i < inner; ++i) f();
    best = std::min(best, (Seconds() - begin) / inner);
  }
  return best;
}

std::vector<float> Normals(int64_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(engine);
  return v;
}

Ceilings Measure(const Settings& s, int threads) {
  ThreadPool pool(threads);
  Ceilings c;
  const int64_t bytes = int64_t{256} << 20;
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  for (size_t i = 0; i < data.size(); i += 512) data[i] = static_cast<std::byte>(i);
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  c.read_gbs = static_cast<double>(bytes) / 1e9 / Best(s.rounds, [&] {
    pool.Run([&](int t) { sums[static_cast<size_t>(t)] = ReadStreams(data.data() + bytes / threads * t, bytes / threads); });
  });
  const auto rate = [&](int64_t (*ops)()) {
    const int64_t each = ops();
    if (each == 0) return 0.0;
    return static_cast<double>(each) * threads / 1e9 / Best(s.rounds, [&] { pool.Run([&](int) { ops(); }); });
  };
  c.int8_gops = rate(Int8DotOps);
  c.bf16_gflops = rate(Bf16DotOps);
  c.f32_gflops = rate(FloatFmaOps);
  return c;
}

// Several equal matrices, so that a pass over all of them does not fit a cache when `bytes` is large.
struct Matrices {
  Matrices(Ops& ops, DType t, int64_t o, int64_t i, int64_t bytes) : type(t), out(o), in(i) {
    const int64_t row_bytes = RowBytes(type, in);
    file.resize(static_cast<size_t>(out * row_bytes));
    for (int64_t r = 0; r < out; ++r) QuantizeRow(type, Normals(in, static_cast<uint32_t>(r)).data(), file.data() + r * row_bytes, in);
    const WeightLayout layout = ops.LayoutOf(type, out, in, WeightUse::kMatMul);
    for (int64_t used = 0; used == 0 || used < bytes; used += layout.bytes) {
      buffers.push_back(ops.Allocate(layout.bytes));
      ops.Pack(type, out, in, layout, file.data(), buffers.back().data());
      weights.push_back({buffers.back().data(), type, layout.layout, out, in, 1, layout.bytes});
    }
    packed_bytes = layout.bytes;
  }
  DType type;
  int64_t out, in, packed_bytes = 0;
  std::vector<std::byte> file;
  std::vector<Buffer> buffers;
  std::vector<Weight> weights;
};

// Relative error of row 0 against the dequantised weights in double.
double Check(Ops& ops, const Matrices& m, const std::vector<float>& x, int64_t rows) {
  std::vector<float> y(static_cast<size_t>(rows * m.out)), w(static_cast<size_t>(m.in));
  const Product p{m.weights[0], Mat(y.data(), rows, m.out), {}, false};
  ops.MatMul(ConstMat(x.data(), rows, m.in), {&p, 1});
  double error = 0, size = 0;
  for (int64_t o = 0; o < m.out; ++o) {
    DequantizeRow(m.type, m.file.data() + o * RowBytes(m.type, m.in), w.data(), m.in);
    double sum = 0;
    for (int64_t i = 0; i < m.in; ++i) sum += static_cast<double>(w[static_cast<size_t>(i)]) * x[static_cast<size_t>(i)];
    error += (sum - y[static_cast<size_t>(o)]) * (sum - y[static_cast<size_t>(o)]);
    size += sum * sum;
  }
  return std::sqrt(error / size);
}

void Products(Ops& ops, const Settings& s, const Ceilings& c) {
  fmt::print("\n{:<22}{:>6}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}\n", "product", "rows", "us", "GOPS", "of int8", "of f32", "GB/s", "of read");
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kIQ4_NL, DType::kQ5_0, DType::kF16,
                           DType::kBF16, DType::kF32}) {
    if (!s.only.empty() && InfoOf(type).name.find(s.only) == std::string_view::npos) continue;
    for (const bool from_memory : {false, true}) {
      const Matrices m(ops, type, 1536, 1024, from_memory ? int64_t{192} << 20 : 0);
      const std::vector<int64_t> sizes = from_memory ? std::vector<int64_t>{1, 4} : std::vector<int64_t>{1, 2, 3, 4, 5, 6, 8, 16, 64, 512};
      for (const int64_t rows : sizes) {
        const auto x = Normals(rows * m.in, 5);
        std::vector<float> y(static_cast<size_t>(rows * m.out));
        const double error = Check(ops, m, x, rows);
        const double seconds = Best(s.rounds, [&] {
          for (const Weight& w : m.weights) {
            const Product p{w, Mat(y.data(), rows, m.out), {}, false};
            ops.MatMul(ConstMat(x.data(), rows, m.in), {&p, 1});
          }
        }) / static_cast<double>(m.weights.size());
        const double gops = 2e-9 * static_cast<double>(rows * m.out * m.in) / seconds;
        const double gbs = 1e-9 * static_cast<double>(m.packed_bytes) / seconds;
        fmt::print("{:<22}{:>6}{:>10.1f}{:>9.0f}{:>9.2f}{:>9.2f}{:>9.1f}{:>9.2f}   relative error {:.1e}\n",
                   fmt::format("{} {}", InfoOf(type).name, from_memory ? "from memory" : "cached"), rows, seconds * 1e6, gops,
                   c.int8_gops > 0 ? gops / c.int8_gops : 0, c.f32_gflops > 0 ? gops / c.f32_gflops : 0, gbs, gbs / c.read_gbs, error);
      }
    }
  }
}

struct HeadShape {
  int32_t heads, kv_heads, dim;
};

void Attentions(Ops& ops, const Settings& s, const Ceilings& c) {
  fmt::print("\n{:<34}{:>8}{:>6}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}\n", "attention", "context", "rows", "us", "GFLOP/s", "of bf16", "of f32", "GB/s", "of read");
  for (const KvDType type : {KvDType::kF16, KvDType::kBF16, KvDType::kQ8_0, KvDType::kFp8E4M3}) {
    if (!s.only.empty() && std::string_view("attention").find(s.only) == std::string_view::npos) continue;
    for (const HeadShape& h : {HeadShape{9, 3, 64}, HeadShape{16, 8, 256}, HeadShape{16, 2, 512}}) {
      const int32_t page_size = 16, context = 4096, pages = context / page_size;
      KvLayer layer;
      layer.page_stride = ops.KvPageBytes(type, page_size, h.kv_heads, h.dim, h.dim);
      Buffer memory = ops.Allocate(layer.page_stride * pages);
      layer.base = memory.data();
      layer.page_size = page_size;
      layer.kv_heads = h.kv_heads;
      layer.head_dim_k = layer.head_dim_v = h.dim;
      layer.dtype = type;
      std::vector<int32_t> table(static_cast<size_t>(pages));
      for (int32_t i = 0; i < pages; ++i) table[static_cast<size_t>(i)] = i;
      std::shuffle(table.begin(), table.end(), std::mt19937(1));
      const int32_t* tables[] = {table.data()};
      const BlockTables group{tables, 0};
      const auto step = [&](int32_t start, int32_t rows, auto&& f) {
        std::vector<int32_t> positions(static_cast<size_t>(rows));
        for (int32_t i = 0; i < rows; ++i) positions[static_cast<size_t>(i)] = start + i;
        const SequenceSpan span{0, rows, start};
        Batch batch;
        batch.positions = positions;
        batch.sequences = {&span, 1};
        batch.groups = {&group, 1};
        batch.page_size = page_size;
        ops.BeginStep(batch);
        f();
      };
      const auto k = Normals(int64_t{context} * h.kv_heads * h.dim, 1), v = Normals(int64_t{context} * h.kv_heads * h.dim, 2);
      step(0, context, [&] { ops.StoreKv(layer, ConstMat(k.data(), context, h.kv_heads * h.dim), ConstMat(v.data(), context, h.kv_heads * h.dim)); });
      for (const int32_t rows : {1, 256}) {
        const auto q = Normals(int64_t{rows} * h.heads * h.dim, 3);
        std::vector<float> out(q.size());
        AttentionParams params;
        params.heads = h.heads;
        params.scale = 1.f / std::sqrt(static_cast<float>(h.dim));
        double seconds = 0;
        step(context - rows, rows, [&] {
          seconds = Best(s.rounds, [&] { ops.Attention(layer, ConstMat(q.data(), rows, h.heads * h.dim), params, Mat(out.data(), rows, h.heads * h.dim)); });
        });
        double error = 0, size = 0;  // the last row's first head, in double
        std::vector<double> weight(static_cast<size_t>(context));
        double total = 0;
        const float* query = q.data() + int64_t{rows - 1} * h.heads * h.dim;
        for (int64_t t = 0; t < context; ++t) {
          double dot = 0;
          for (int64_t i = 0; i < h.dim; ++i) dot += static_cast<double>(query[i]) * k[static_cast<size_t>(t * h.kv_heads * h.dim + i)];
          total += weight[static_cast<size_t>(t)] = std::exp(dot * params.scale);
        }
        for (int64_t i = 0; i < h.dim; ++i) {
          double want = 0;
          for (int64_t t = 0; t < context; ++t) want += weight[static_cast<size_t>(t)] / total * v[static_cast<size_t>(t * h.kv_heads * h.dim + i)];
          const double got = out[static_cast<size_t>(int64_t{rows - 1} * h.heads * h.dim + i)];
          error += (got - want) * (got - want);
          size += want * want;
        }
        const double flops = 4.0 * h.heads * h.dim * rows * (context - rows / 2.0);
        const double gbs = 1e-9 * static_cast<double>(layer.page_stride) * pages / seconds;
        fmt::print("{:<34}{:>8}{:>6}{:>10.1f}{:>9.0f}{:>9.2f}{:>9.2f}{:>9.1f}{:>9.2f}   relative error {:.1e}\n",
                   fmt::format("{}, {} heads on {} of {}", KvDTypeName(type), h.heads, h.kv_heads, h.dim), context, rows, seconds * 1e6,
                   1e-9 * flops / seconds, c.bf16_gflops > 0 ? 1e-9 * flops / seconds / c.bf16_gflops : 0,
                   c.f32_gflops > 0 ? 1e-9 * flops / seconds / c.f32_gflops : 0, gbs, gbs / c.read_gbs, std::sqrt(error / size));
      }
    }
  }
}

// What is left of several threads when other programs want the cores, too: two threads that spin, and runs of a decode step's grain.
void Crowded(int threads) {
  constexpr int kRuns = 2000;
  constexpr auto kWork = std::chrono::microseconds(80);  // of one thread; shared out
  const auto burn = [](std::chrono::nanoseconds time) {
    // Work, not time: counted in a loop whose rate was measured alone.
    static const double per_ns = [] {
      const auto begin = std::chrono::steady_clock::now();
      volatile uint64_t x = 0;
      for (int i = 0; i < 20'000'000; ++i) x = x + 1;
      return 20e6 / static_cast<double>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
    }();
    volatile uint64_t x = 0;
    for (auto n = static_cast<int64_t>(static_cast<double>(time.count()) * per_ns); n > 0; --n) x = x + 1;
  };
  burn(kWork);
  const auto mean = [&](int n) {
    ThreadPool pool(n);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRuns; ++i) pool.Run([&](int) { burn(kWork / n); });
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kRuns;
  };
  const double quiet[] = {mean(1), mean(threads)};
  std::atomic<bool> stop{false};
  std::vector<std::thread> hogs;
  for (int i = 0; i < 2; ++i) {
    hogs.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) burn(kWork);
    });
  }
  const double crowded[] = {mean(1), mean(threads)};
  stop = true;
  for (std::thread& t : hogs) t.join();
  fmt::print("80 us of work: 1 thread {:.1f} us, {} threads {:.1f} us; beside two spinning threads {:.1f} and {:.1f} us\n", quiet[0], threads, quiet[1],
             crowded[0], crowded[1]);
}

void Others(Ops& ops, const Settings& s, int threads) {
  if (!s.only.empty() && std::string_view("others").find(s.only) == std::string_view::npos) return;
  ThreadPool pool(threads);
  fmt::print("\nbarrier of {} threads: {:.2f} us\n", threads, 1e6 * Best(s.rounds, [&] { pool.Run([](int) {}); }));
  Crowded(threads);
  for (const int64_t rows : {1, 512}) {
    auto x = Normals(rows * 576, 1);
    const auto y = Normals(rows * 1536, 2);
    std::vector<float> z(y.size());
    const Mat m(x.data(), rows, 576);
    fmt::print("{:>4} rows: rms norm of 576 {:.2f} us, gated silu of 1536 {:.2f} us\n", rows, 1e6 * Best(s.rounds, [&] { ops.RmsNorm(m, {}, 1e-5f, m); }),
               1e6 * Best(s.rounds, [&] { ops.Gated(ConstMat(y.data(), rows, 1536), ConstMat(y.data(), rows, 1536), Activation::kSilu, Mat(z.data(), rows, 1536)); }));
  }
}

int Main(int argc, char** argv) {
  Settings s;
  CLI::App app("CPU kernel rates beside this machine's ceilings");
  app.add_option("--isa", s.isa, "instruction set, at most (auto)");
  app.add_option("--threads", s.threads, "threads (0: every core the process may use)");
  app.add_option("--rounds", s.rounds, "best of this many")->check(CLI::Range(1, 1000));
  app.add_option("--only", s.only, "only products whose type contains this, or 'attention', or 'others'");
  CLI11_PARSE(app, argc, argv);
  CpuOptions options;
  options.isa = s.isa;
  options.threads = s.threads;
  const auto ops = MakeCpuOps(options);
  if (ops == nullptr) {
    fmt::print(stderr, "no instruction set called '{}'\n", s.isa);
    return 64;
  }
  const int threads = s.threads <= 0 ? UsableCores() : std::min(s.threads, UsableCores());
  if (threads == 1) clock_used = CLOCK_THREAD_CPUTIME_ID;
  const Ceilings c = Measure(s, threads);
  fmt::print("{} ({} time); ceilings: read {:.1f} GB/s, int8 dot {:.0f} GOPS, bf16 dot {:.0f} GFLOP/s, f32 FMA {:.0f} GFLOP/s\n", ops->Describe(), threads == 1 ? "CPU" : "wall",
             c.read_gbs,
             c.int8_gops, c.bf16_gflops, c.f32_gflops);
  Products(*ops, s, c);
  Attentions(*ops, s, c);
  Others(*ops, s, threads);
  return 0;
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }

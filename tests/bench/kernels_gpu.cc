// Rates of the CUDA kernels beside what the device can do at best, measured in the same process, by the device's clock, on random data; median of
// N. The calls are those that the server makes (kernels::Ops). Every product and attention is checked against a second computation in double
// before it is timed; one that is wrong has no rate, and the program then exits 1.
//
//   kernels_gpu [--device N] [--rounds N] [--only WORD,...] [--smoke]
//
// Prints Markdown. --smoke: the same calls with tiny shapes on the emulated device, which has no clock: no figures. --probe: says what device there
// is, or exits 69 with the reason. --list: the shapes as lines of JSON, for gpu_torch.py.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/quant_blocks.h"
#include "proto/base/random.h"
#include "proto/base/status_wire.h"
#include "tests/bench/gpu_rig.h"
#include "tests/bench/gpu_shapes.h"

namespace holdfast::bench {
namespace {

using namespace kernels;  // NOLINT: a program, not a header

struct Settings {
  int device = 0, rounds = 7;
  std::string only;
  bool smoke = false;
};

constexpr double kAimRead = 0.85, kAimGemm = 0.6, kAimPrefill = 0.5, kAimExperts = 0.5;

struct Ceilings {
  std::optional<double> copy_bytes, flops;   // a second
};

class Bench {
 public:
  Bench(GpuRig& rig, const Settings& s) : rig_(rig), ops_(rig.ops()), s_(s) {}

  bool Wants(std::string_view section) const {
    return s_.only.empty() || ("," + s_.only + ",").find(fmt::format(",{},", section)) != std::string::npos;
  }
  int failures() const { return failures_; }

  void Ceiling();
  void Products(bool prefill);
  void Experts();
  void DecodeAttention();
  void PrefillAttention();

 private:
  // Median seconds of one of `count` calls call(0), call(1), ...; each was made once before.
  std::optional<double> Time(int count, const std::function<void(int)>& call) {
    std::vector<double> times;
    for (int i = 0; i < std::min(count, 3); ++i) call(i);
    for (int r = 0; r < (s_.smoke ? 1 : s_.rounds); ++r) {
      const auto took = rig_.Seconds([&] {
        for (int i = 0; i < count; ++i) call(i);
      });
      if (took) times.push_back(*took / count);
    }
    if (times.empty()) return std::nullopt;
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  void Table(std::string_view title, std::string_view columns) const {
    fmt::print("\n{}\n\n| {} |\n|", title, columns);
    for (const char c : fmt::format("|{}", columns)) {
      if (c == '|') fmt::print(" --- |");
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
  // What every row ends with: time, rate, share and aim; "-" for what was not measured. unit: of `work` a second, e.g. 1e9.
  void Row(const std::string& what, double error, double tolerance, std::optional<double> seconds, double work, double unit, std::optional<double> ceiling,
           double aim) {
    std::string rest = "- | - | -";
    if (!(error <= tolerance)) {
      ++failures_;
      rest = fmt::format("WRONG: relative error {:.1e} | - | -", error);
    } else if (seconds) {
      const double rate = work / *seconds;
      rest = fmt::format("{:.1f} | {:.0f} | {}", *seconds * 1e6, rate / unit, ceiling ? fmt::format("{:.2f}", rate / *ceiling) : "-");
    }
    fmt::print("| {} | {} | {} |\n", what, rest, aim > 0 ? fmt::format("{:.2f}", aim) : "-");
    std::fflush(stdout);
  }
  int64_t FreeBytes() const { return s_.smoke ? int64_t{64} << 20 : ops_.FreeMemory(); }
  Buffer Upload(const void* data, int64_t bytes) {
    Buffer b = ops_.Allocate(bytes);
    ops_.CopyFromHost(b.data(), static_cast<const std::byte*>(data), bytes);
    ops_.Sync();
    return b;
  }
  std::vector<float> Download(const Buffer& b, int64_t first, int64_t count) {
    std::vector<float> v(static_cast<size_t>(count));
    ops_.CopyToHost(reinterpret_cast<std::byte*>(v.data()), b.data() + first * 4, count * 4);
    ops_.Sync();
    return v;
  }
  void CheckHealth(const char* doing) {
    ops_.Sync();
    if (const absl::Status s = ops_.Health(); !s.ok()) {
      fmt::print(stderr, "kernels_gpu: {}: {}\n", doing, std::string(MessageOf(s)));
      std::exit(1);
    }
  }
  void Attention(const AttentionCase& c, KvDType type);

  GpuRig& rig_;
  Ops& ops_;
  const Settings& s_;
  Ceilings ceilings_;
  int failures_ = 0;
};

// Normal enough, and quick: four bytes of a hash, summed.
std::vector<float> Noise(int64_t n, uint64_t seed) {
  std::vector<float> v(static_cast<size_t>(n));
  uint64_t state = Mix64(seed);
  for (float& x : v) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t bits = state >> 24;
    x = (static_cast<float>(bits & 255) + static_cast<float>(bits >> 8 & 255) + static_cast<float>(bits >> 16 & 255) + static_cast<float>(bits >> 24 & 255) - 510.f) / 148.f;
  }
  return v;
}

void Bench::Ceiling() {
  const int64_t bytes = s_.smoke ? int64_t{1} << 16 : std::min(int64_t{1} << 30, FreeBytes() / 4 / 64 * 64);
  std::optional<double> mma, library;
  std::string called, why;
  {
    const Buffer from = ops_.Allocate(bytes), to = ops_.Allocate(bytes);
    CheckHealth("taking memory for the copy");
    if (const auto t = Time(4, [&](int) { ops_.CopyPage(to.data(), from.data(), bytes); })) ceilings_.copy_bytes = 2.0 * static_cast<double>(bytes) / *t;
  }
  {
    const int blocks = s_.smoke ? 2 : 4 * rig_.multiprocessors(), rounds = s_.smoke ? 3 : 4096;
    const int64_t threads = int64_t{blocks} * kMmaThreads;
    const Buffer sums = ops_.Allocate(threads * 4);
    double flops = 0;
    if (const auto t = Time(4, [&](int) { flops = rig_.EnqueueMma(blocks, rounds, sums.as<float>()); })) mma = flops / *t;
    const auto got = Download(sums, 0, threads);
    if (!std::all_of(got.begin(), got.end(), [&](float v) { return v == 8.f * 16.f * static_cast<float>(rounds); })) {
      fmt::print(stderr, "kernels_gpu: the tensor cores' sums are wrong\n");
      ++failures_;
      mma = std::nullopt;
    }
  }
  if (const auto flops = rig_.LibraryFlops(&called); flops.ok()) library = *flops;
  else why = std::string(MessageOf(flops.status()));
  ceilings_.flops = library ? library : mma;
  const auto number = [](std::optional<double> v, double unit) { return v ? fmt::format("{:.0f}", *v / unit) : std::string("-"); };
  Table("What the device does at best", "ceiling | measured by | rate");
  fmt::print("| copy (bytes read and written) | a copy of {} KiB inside the device | {} GB/s |\n", bytes >> 10, number(ceilings_.copy_bytes, 1e9));
  fmt::print("| bf16 multiplies, mma.sync | operands in registers, every warp | {} TFLOP/s |\n", number(mma, 1e12));
  fmt::print("| bf16 product | {} | {} TFLOP/s |\n", library ? called : why, number(library, 1e12));
  fmt::print("\nShares below are of this copy, and of the {}.\n", library ? "library's product" : "multiplies out of registers");
}

// Equal weights in as many places as are needed for a pass over them to come from memory, not from a cache.
struct Weights {
  std::vector<std::byte> rows;      // distinct rows in the file's format; row r is rows[r % distinct]
  int64_t distinct = 0, row_bytes = 0;
  WeightLayout layout;
  std::vector<Buffer> buffers;
  std::vector<Weight> weights;
};

Weights MakeWeights(Ops& ops, DType type, int64_t out, int64_t in, int64_t experts, int64_t total_bytes, int most) {
  Weights w;
  w.distinct = std::min<int64_t>(out * experts, 61);
  w.row_bytes = RowBytes(type, in);
  w.rows.resize(static_cast<size_t>(w.distinct * w.row_bytes));
  for (int64_t r = 0; r < w.distinct; ++r) QuantizeRow(type, Noise(in, static_cast<uint64_t>(r) + 1).data(), w.rows.data() + r * w.row_bytes, in);
  w.layout = ops.LayoutOf(type, out, in, WeightUse::kMatMul);
  const int64_t stride = (w.layout.bytes + 63) / 64 * 64;
  std::vector<std::byte> file(static_cast<size_t>(out * w.row_bytes)), packed(static_cast<size_t>(stride));
  for (int64_t r = 0; r < out; ++r) std::memcpy(file.data() + r * w.row_bytes, w.rows.data() + r % w.distinct * w.row_bytes, static_cast<size_t>(w.row_bytes));
  ops.Pack(type, out, in, w.layout, file.data(), packed.data());
  const int64_t count = std::clamp<int64_t>(total_bytes / (stride * experts), 1, most);
  for (int64_t i = 0; i < count; ++i) {
    w.buffers.push_back(ops.Allocate(stride * experts));
    if (w.buffers.back().data() == nullptr) break;
    for (int64_t e = 0; e < experts; ++e) {
      std::byte* to = w.buffers.back().data() + e * stride;
      if (i == 0 && e == 0) ops.CopyFromHost(to, packed.data(), stride);
      else ops.CopyPage(to, w.buffers[0].data(), stride);
    }
    w.weights.push_back({w.buffers.back().data(), type, w.layout.layout, out, in, experts, stride});
  }
  ops.Sync();
  return w;
}

// Relative error of y (some outputs of one row) against the dequantised weights in double.
double ProductError(DType type, const Weights& w, int64_t in, const float* x, const std::vector<float>& y) {
  std::vector<float> row(static_cast<size_t>(in));
  double error = 0, size = 0;
  for (size_t o = 0; o < y.size(); ++o) {
    DequantizeRow(type, w.rows.data() + static_cast<int64_t>(o) % w.distinct * w.row_bytes, row.data(), in);
    double sum = 0;
    for (int64_t i = 0; i < in; ++i) sum += static_cast<double>(row[static_cast<size_t>(i)]) * x[i];
    error += (sum - y[o]) * (sum - y[o]);
    size += sum * sum;
  }
  return size > 0 ? std::sqrt(error / size) : 1;
}

void Bench::Products(bool prefill) {
  Table(prefill ? "Products of many rows (prefill): activations quantised in the same call" : "Products of few rows (decode): activations quantised in the same call",
        fmt::format("weights | model | out x in | rows | us | {} | of {} | aim", prefill ? "TFLOP/s" : "GB/s", prefill ? "peak" : "copy"));
  std::vector<std::pair<DType, const char*>> smoked;
  for (ProductCase c : ProductCases(prefill)) {
    if (s_.smoke) {   // all of a type and model are one small shape
      if (std::find(smoked.begin(), smoked.end(), std::pair(c.type, c.model)) != smoked.end()) continue;
      smoked.emplace_back(c.type, c.model);
      c = Smaller(c);
    }
    const int64_t bytes = PackedBytesOf(ops_, c.type, c.out, c.in);
    const int most = prefill ? 4 : kMostLaunches / 2;
    const Weights w = MakeWeights(ops_, c.type, c.out, c.in, 1, s_.smoke ? 2 * bytes : std::min<int64_t>(int64_t{256} << 20, FreeBytes() / 2), s_.smoke ? 2 : most);
    for (int64_t rows : prefill ? std::vector<int64_t>{512, 2048} : std::vector<int64_t>{1, 4, 16, 64}) {
      if (s_.smoke && (rows == 2048 || rows == 64)) continue;
      if (s_.smoke) rows = prefill ? 70 : std::min<int64_t>(rows, 9);
      const auto x = Noise(rows * c.in, 7);
      const Buffer x_held = Upload(x.data(), rows * c.in * 4), y = ops_.Allocate(rows * c.out * 4);
      CheckHealth("taking memory for a product");
      const auto call = [&](int i) {
        const Product p{w.weights[static_cast<size_t>(i) % w.weights.size()], Mat(y.as<float>(), rows, c.out), {}, false};
        ops_.MatMul(ConstMat(x_held.as<float>(), rows, c.in), {&p, 1});
      };
      call(0);
      const int64_t row = rows - 1, some = std::min<int64_t>(c.out, 512);
      const double error = ProductError(c.type, w, c.in, x.data() + row * c.in, Download(y, row * c.out, some));
      const auto t = Time(std::max<int>(static_cast<int>(w.weights.size()), s_.smoke ? 1 : 8), call);
      CheckHealth("a product");
      const std::string what = fmt::format("{} | {} | {} x {} | {}", InfoOf(c.type).name, c.model, c.out, c.in, rows);
      // Whether codes are int8 or floats as they are: rounding activations costs half a percent.
      const double tolerance = InfoOf(c.type).block_elements > 1 ? 0.03 : 1e-4;
      if (prefill) Row(what, error, tolerance, t, 2.0 * static_cast<double>(rows * c.out * c.in), 1e12, ceilings_.flops, kAimGemm);
      else Row(what, error, tolerance, t, static_cast<double>(bytes), 1e9, ceilings_.copy_bytes, kAimRead);
    }
  }
}

void Bench::Experts() {
  ExpertsCase c = TheExperts();
  if (s_.smoke) c = {c.model, 4, 2, 64, 64};
  Table("Experts, from routing to the sum", "weights | model | experts | rows | us | GB/s | of copy | TFLOP/s | of peak | aim");
  const int64_t expert_bytes = PackedBytesOf(ops_, DType::kQ4_0, c.width, c.dim) * 2 + PackedBytesOf(ops_, DType::kQ4_0, c.dim, c.width);
  const Weights up = MakeWeights(ops_, DType::kQ4_0, c.width, c.dim, c.experts, 0, 1), gate = MakeWeights(ops_, DType::kQ4_0, c.width, c.dim, c.experts, 0, 1),
                down = MakeWeights(ops_, DType::kQ4_0, c.dim, c.width, c.experts, 0, 1);
  for (int64_t rows : {1, 16, 64, 2048}) {
    if (s_.smoke && rows > 16) continue;
    if (s_.smoke) rows = std::min<int64_t>(rows, 12);
    // Which experts: spread, and different in each of the calls.
    constexpr int kSets = 16;
    std::vector<int32_t> ids(static_cast<size_t>(kSets * rows * c.used));
    std::vector<float> weights(ids.size(), 1.f / static_cast<float>(c.used));
    std::vector<double> touched(kSets);
    for (int set = 0; set < kSets; ++set) {
      std::vector<bool> hit(static_cast<size_t>(c.experts));
      for (int64_t t = 0; t < rows; ++t) {
        const uint64_t first = Mix64(static_cast<uint64_t>(set * rows + t));
        for (int32_t j = 0; j < c.used; ++j) {
          const auto e = static_cast<int32_t>((first + static_cast<uint64_t>(j) * (static_cast<uint64_t>(c.experts) / static_cast<uint64_t>(c.used))) % static_cast<uint64_t>(c.experts));
          ids[static_cast<size_t>((set * rows + t) * c.used + j)] = e;
          hit[static_cast<size_t>(e)] = true;
        }
      }
      touched[static_cast<size_t>(set)] = static_cast<double>(std::count(hit.begin(), hit.end(), true));
    }
    const auto x = Noise(rows * c.dim, 3);
    const Buffer ids_held = Upload(ids.data(), static_cast<int64_t>(ids.size()) * 4), weights_held = Upload(weights.data(), static_cast<int64_t>(weights.size()) * 4);
    const Buffer x_held = Upload(x.data(), rows * c.dim * 4), y = ops_.Allocate(rows * c.dim * 4);
    CheckHealth("taking memory for the experts");
    MoeParams p;
    p.gate = gate.weights[0];
    p.up = up.weights[0];
    p.down = down.weights[0];
    p.activation = Activation::kGeluTanh;
    const auto call = [&](int i) {
      const int64_t at = i % kSets * rows * c.used;
      ops_.MoeFfn(ConstMat(x_held.as<float>(), rows, c.dim), {ids_held.as<int32_t>() + at, weights_held.as<float>() + at, c.used}, p, Mat(y.as<float>(), rows, c.dim));
    };
    call(0);
    // Every expert is the same matrix and the weights sum to 1: the first output of the last row is a feed-forward network's.
    const float* last = x.data() + (rows - 1) * c.dim;
    std::vector<double> inner(static_cast<size_t>(c.width));
    std::vector<float> row(static_cast<size_t>(std::max(c.dim, c.width)));
    for (int64_t f = 0; f < c.width; ++f) {
      DequantizeRow(DType::kQ4_0, gate.rows.data() + f % gate.distinct * gate.row_bytes, row.data(), c.dim);
      double sum = 0;
      for (int64_t i = 0; i < c.dim; ++i) sum += static_cast<double>(row[static_cast<size_t>(i)]) * last[i];
      inner[static_cast<size_t>(f)] = 0.5 * sum * (1 + std::tanh(0.7978845608 * (sum + 0.044715 * sum * sum * sum))) * sum;   // gate and up are alike
    }
    double error = 0, size = 0;
    const int64_t some = std::min<int64_t>(c.dim, 128);
    const auto got = Download(y, (rows - 1) * c.dim, some);
    for (int64_t o = 0; o < some; ++o) {
      DequantizeRow(DType::kQ4_0, down.rows.data() + o % down.distinct * down.row_bytes, row.data(), c.width);
      double sum = 0;
      for (int64_t i = 0; i < c.width; ++i) sum += row[static_cast<size_t>(i)] * inner[static_cast<size_t>(i)];
      error += (sum - got[static_cast<size_t>(o)]) * (sum - got[static_cast<size_t>(o)]);
      size += sum * sum;
    }
    const auto t = Time(s_.smoke ? 2 : kSets, call);
    CheckHealth("experts");
    const double read = std::accumulate(touched.begin(), touched.end(), 0.0) / kSets * static_cast<double>(expert_bytes);
    const double flops = 6.0 * static_cast<double>(rows * c.used * c.dim * c.width);
    std::string rest = "- | - | - | - | -";
    if (!(std::sqrt(error / size) < 0.05)) {
      ++failures_;
      rest = fmt::format("WRONG: relative error {:.1e} | - | - | - | -", std::sqrt(error / size));
    } else if (t) {
      rest = fmt::format("{:.1f} | {:.0f} | {} | {:.0f} | {}", *t * 1e6, read / *t / 1e9, ceilings_.copy_bytes ? fmt::format("{:.2f}", read / *t / *ceilings_.copy_bytes) : "-",
                         flops / *t / 1e12, ceilings_.flops ? fmt::format("{:.2f}", flops / *t / *ceilings_.flops) : "-");
    }
    fmt::print("| q4_0 | {} | {} of {}, {} wide | {} | {} | {} |\n", c.model, c.used, c.experts, c.width, rows, rest,
               rows >= 512 ? fmt::format("{:.2f} of peak", kAimExperts) : fmt::format("{:.2f} of copy", kAimRead));
    std::fflush(stdout);
  }
}

void Bench::Attention(const AttentionCase& c, KvDType type) {
  const int32_t page_size = 16, context = c.start + c.rows, blocks = (context + page_size - 1) / page_size;
  const int64_t first_key = c.window > 0 ? std::max(0, c.start - c.window + 1) : 0, first_block = first_key / page_size, held = blocks - first_block;
  KvLayer layer;
  layer.page_stride = ops_.KvPageBytes(type, page_size, c.kv_heads, c.dim, c.dim);
  const Buffer memory = ops_.Allocate(layer.page_stride * held * c.requests);
  CheckHealth("taking memory for KV pages");
  layer.base = memory.data();
  layer.page_size = page_size;
  layer.kv_heads = c.kv_heads;
  layer.head_dim_k = layer.head_dim_v = c.dim;
  layer.dtype = type;
  std::vector<int32_t> pages(static_cast<size_t>(held * c.requests));
  std::iota(pages.begin(), pages.end(), 0);
  for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[Mix64(i) % i]);
  std::vector<std::vector<int32_t>> tables(static_cast<size_t>(c.requests), std::vector<int32_t>(static_cast<size_t>(blocks), -1));
  for (int32_t s = 0; s < c.requests; ++s) {
    for (int64_t b = 0; b < held; ++b) tables[static_cast<size_t>(s)][static_cast<size_t>(first_block + b)] = pages[static_cast<size_t>(s * held + b)];
  }
  std::vector<const int32_t*> pointers;
  for (const auto& t : tables) pointers.push_back(t.data());
  std::vector<int32_t> positions;
  std::vector<SequenceSpan> spans;
  BlockTables group;
  const auto begin = [&](std::span<const int32_t* const> of, int32_t start, int32_t rows, int32_t window) {
    positions.clear();
    spans.clear();
    for (size_t s = 0; s < of.size(); ++s) {
      spans.push_back({static_cast<int32_t>(s) * rows, rows, start});
      for (int32_t i = 0; i < rows; ++i) positions.push_back(start + i);
    }
    group = {of, window};
    Batch batch;
    batch.positions = positions;
    batch.sequences = spans;
    batch.groups = {&group, 1};
    batch.page_size = page_size;
    ops_.BeginStep(batch);
  };
  // The same keys and values for every request, written in chunks.
  const int64_t width = int64_t{c.kv_heads} * c.dim, kept = context - first_block * page_size;
  const auto k = Noise(kept * width, 1), v = Noise(kept * width, 2);
  {
    const Buffer k_held = Upload(k.data(), kept * width * 4), v_held = Upload(v.data(), kept * width * 4);
    CheckHealth("taking memory for keys");
    for (int32_t s = 0; s < c.requests; ++s) {
      // A window that reaches as far left as pages are held.
      begin({&pointers[static_cast<size_t>(s)], 1}, static_cast<int32_t>(first_block * page_size), static_cast<int32_t>(kept), 1);
      ops_.StoreKv(layer, ConstMat(k_held.as<float>(), kept, width), ConstMat(v_held.as<float>(), kept, width));
    }
    CheckHealth("writing keys");
  }
  const int64_t rows = int64_t{c.requests} * c.rows, q_width = int64_t{c.heads} * c.dim;
  const auto q = Noise(rows * q_width, 3);
  const Buffer q_held = Upload(q.data(), rows * q_width * 4), out = ops_.Allocate(rows * q_width * 4);
  AttentionParams params;
  params.heads = c.heads;
  params.scale = 1.f / std::sqrt(static_cast<float>(c.dim));
  begin(pointers, c.start, c.rows, c.window);
  const auto call = [&](int) { ops_.Attention(layer, ConstMat(q_held.as<float>(), rows, q_width), params, Mat(out.as<float>(), rows, q_width)); };
  call(0);
  // The last row's first head, in double.
  const float* query = q.data() + (rows - 1) * q_width;
  const int64_t from = std::max<int64_t>(c.window > 0 ? context - c.window : 0, 0) - first_block * page_size;
  std::vector<double> weight(static_cast<size_t>(kept));
  double total = 0, error = 0, size = 0;
  for (int64_t t = from; t < kept; ++t) {
    double dot = 0;
    for (int64_t i = 0; i < c.dim; ++i) dot += static_cast<double>(query[i]) * k[static_cast<size_t>(t * width + i)];
    total += weight[static_cast<size_t>(t)] = std::exp(dot * params.scale);
  }
  const auto got = Download(out, (rows - 1) * q_width, c.dim);
  for (int64_t i = 0; i < c.dim; ++i) {
    double want = 0;
    for (int64_t t = from; t < kept; ++t) want += weight[static_cast<size_t>(t)] / total * v[static_cast<size_t>(t * width + i)];
    error += (got[static_cast<size_t>(i)] - want) * (got[static_cast<size_t>(i)] - want);
    size += want * want;
  }
  const auto t = Time(s_.smoke ? 1 : 20, call);
  CheckHealth("attention");
  double pairs = 0;   // of query and key, a head
  for (int32_t i = 0; i < c.rows; ++i) pairs += c.window > 0 ? std::min(c.window, c.start + i + 1) : c.start + i + 1;
  const std::string what = fmt::format("{} | {} | {} on {} of {} | {} | {} | {}", KvDTypeName(type), c.model, c.heads, c.kv_heads, c.dim,
                                       c.window > 0 ? std::to_string(c.window) : "all", context, c.rows == 1 ? c.requests : c.rows);
  const double tolerance = type == KvDType::kFp8E4M3 ? 0.2 : 0.05;
  if (c.rows == 1) {
    const double read = std::min<double>(context, c.window > 0 ? c.window : context) / page_size * static_cast<double>(layer.page_stride) * c.requests;
    Row(what, std::sqrt(error / size), tolerance, t, read, 1e9, ceilings_.copy_bytes, kAimRead);
  } else {
    Row(what, std::sqrt(error / size), tolerance, t, 4.0 * c.heads * c.dim * pairs * c.requests, 1e12, ceilings_.flops, kAimPrefill);
  }
}

void Bench::DecodeAttention() {
  Table("Attention of one token a request (decode)", "cache | model | heads | window | context | requests | us | GB/s | of copy | aim");
  for (const KvDType type : {KvDType::kF16, KvDType::kQ8_0, KvDType::kFp8E4M3}) {
    for (const AttentionCase& c : AttentionCases(false)) Attention(s_.smoke ? Smaller(c) : c, type);
  }
}

void Bench::PrefillAttention() {
  Table("Attention of many tokens of one request (prefill)", "cache | model | heads | window | context | tokens | us | TFLOP/s | of peak | aim");
  for (const KvDType type : {KvDType::kF16, KvDType::kQ8_0}) {
    for (const AttentionCase& c : AttentionCases(true)) Attention(s_.smoke ? Smaller(c) : c, type);
  }
}

int Main(int argc, char** argv) {
  Settings s;
  bool probe = false, list = false;
  CLI::App app("CUDA kernel rates beside this device's ceilings");
  app.add_option("--device", s.device, "as the driver counts")->check(CLI::Range(0, 1023));
  app.add_option("--rounds", s.rounds, "median of this many")->check(CLI::Range(1, 1000));
  app.add_option("--only", s.only, "some of gemv,gemm,experts,decode,prefill, with commas (the ceilings are always measured)");
  app.add_flag("--smoke", s.smoke, "tiny shapes on the emulated device: right or wrong, no figures");
  app.add_flag("--probe", probe, "what device there is, or why it cannot be used");
  app.add_flag("--list", list, "the shapes, a line of JSON each");
  CLI11_PARSE(app, argc, argv);
  if (list) {
    ListShapes();
    return 0;
  }
  for (size_t at = 0; !s.only.empty() && at <= s.only.size();) {
    const size_t end = std::min(s.only.find(',', at), s.only.size());
    const std::string word = s.only.substr(at, end - at);
    if (word != "gemv" && word != "gemm" && word != "experts" && word != "decode" && word != "prefill") {
      fmt::print(stderr, "kernels_gpu: --only {}: no such section; there are gemv, gemm, experts, decode, prefill\n", word);
      return 64;
    }
    at = end + 1;
  }
  auto rig = s.smoke ? MakeEmulatedRig() : MakeGpuRig(s.device);
  if (!rig.ok()) {
    fmt::print(stderr, "kernels_gpu: {}\n", std::string(MessageOf(rig.status())));
    return 69;
  }
  fmt::print("{} ({})\n", (*rig)->ops().Describe(), (*rig)->Versions());
  if (probe) return 0;
  Bench bench(**rig, s);
  bench.Ceiling();
  if (bench.Wants("gemv")) bench.Products(false);
  if (bench.Wants("gemm")) bench.Products(true);
  if (bench.Wants("experts")) bench.Experts();
  if (bench.Wants("decode")) bench.DecodeAttention();
  if (bench.Wants("prefill")) bench.PrefillAttention();
  if (bench.failures() > 0) fmt::print("\n{} results are WRONG.\n", bench.failures());
  return bench.failures() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }

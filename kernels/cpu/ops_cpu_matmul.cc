#include <algorithm>
#include <cstring>

#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/pack_weights.h"
#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kChunkGroups = 4;      // groups a thread takes at once when the rows of x are many
constexpr int64_t kManyRows = 16;        // from here threads take chunks in turn; below, each keeps its own part of the weights
constexpr int64_t kSmallProducts = 1 << 18;  // multiplications that are done before another thread would have woken

void CheckWeight(const Weight& w, int64_t in) {
  HF_CHECKF(w.in == in, "a weight of {} columns against rows of {}", w.in, in);
  HF_CHECKF(w.layout == PackedLayoutOf(w.dtype), "{} weight [{}][{}] has layout {}: it was not packed for products", InfoOf(w.dtype).name, w.out,
            w.in, w.layout);
}

}  // namespace

bool CpuOps::TakesFloat(const Weight& w) { return w.dtype == DType::kF32 || w.dtype == DType::kF16 || w.dtype == DType::kBF16; }

int64_t CpuOps::PanelRowBytes(bool is_float, int64_t in) const { return is_float ? in * 4 : in / 32 * kPanelBlockBytes; }

void CpuOps::MakePanel(bool is_float, const RowSource& x, int64_t rows, int64_t in, std::byte* panel) {
  const Tiling tiling(rows, kernels_.max_tile);
  const auto make = is_float ? kernels_.interleave : kernels_.quantize;
  ForEach(tiling.count, rows * in / 2, [&](int64_t i) { make(x, tiling, i, i + 1, in, panel); });
}

GemmArgs CpuOps::ArgsFor(const Weight& w, int64_t expert, const std::byte* panel, int64_t rows) const {
  GemmArgs a;
  a.w = w.data + expert * w.expert_stride;
  a.group_bytes = PackedGroupBytes(w.dtype, w.in);
  a.out = w.out;
  a.in = w.in;
  a.panel = panel;
  a.rows = rows;
  a.table = CodeTable(w.dtype);
  a.zero = CodeZero(w.dtype);
  return a;
}

void CpuOps::RunGemm(const Weight& w, GemmArgs args, int64_t g0, int64_t g1) const {
  thread_local Scratch scratch;  // the pool's threads live as long as the backend
  args.scratch = scratch.Get(kernels_.scratch_bytes(args.in));
  kernels_.gemm[w.layout](args, g0, g1);
}

void CpuOps::MatMul(ConstMat x, std::span<const Product> products) {
  bool any[2] = {false, false};
  int64_t multiplications = 0, cost = 0;
  for (const Product& p : products) {
    CheckWeight(p.w, x.cols);
    HF_CHECKF(p.w.out == p.y.cols && p.y.rows == x.rows, "W [{}][{}], x [{}][{}], y [{}][{}]", p.w.out, p.w.in, x.rows, x.cols, p.y.rows,
              p.y.cols);
    HF_CHECK(p.bias.empty() || static_cast<int64_t>(p.bias.size()) == p.w.out);
    any[TakesFloat(p.w)] = true;
    multiplications += x.rows * p.w.out * p.w.in;
    cost += PackedGroups(p.w.out) * PackedGroupBytes(p.w.dtype, p.w.in);
  }
  if (x.rows == 0 || products.empty()) return;
  std::byte* panels[2] = {nullptr, nullptr};
  for (int is_float = 0; is_float < 2; ++is_float) {
    if (!any[is_float]) continue;
    panels[is_float] = (is_float ? float_panel_ : quant_panel_).Get(x.rows * PanelRowBytes(is_float, x.cols));
    MakePanel(is_float, {x.data, x.stride, nullptr}, x.rows, x.cols, panels[is_float]);
  }
  const auto args_of = [&](const Product& p) {
    GemmArgs a = ArgsFor(p.w, 0, panels[TakesFloat(p.w)], x.rows);
    a.y = p.y.data;
    a.stride = p.y.stride;
    a.bias = p.bias.empty() ? nullptr : p.bias.data();
    a.accumulate = p.accumulate;
    return a;
  };
  if (multiplications < kSmallProducts || pool_.threads() == 1) {
    for (const Product& p : products) RunGemm(p.w, args_of(p), 0, PackedGroups(p.w.out));
  } else if (x.rows >= kManyRows) {
    int64_t chunks = 0;
    for (const Product& p : products) chunks += (PackedGroups(p.w.out) + kChunkGroups - 1) / kChunkGroups;
    ForEach(chunks, kWorthSharing, [&](int64_t i) {
      for (const Product& p : products) {
        const int64_t groups = PackedGroups(p.w.out), mine = (groups + kChunkGroups - 1) / kChunkGroups;
        if (i < mine) return RunGemm(p.w, args_of(p), i * kChunkGroups, std::min(groups, (i + 1) * kChunkGroups));
        i -= mine;
      }
    });
  } else {
    pool_.Run([&](int thread) {  // contiguous shares of the weights' bytes, the same for every call on a matrix
      const int64_t from = cost * thread / pool_.threads(), to = cost * (thread + 1) / pool_.threads();
      int64_t base = 0;
      for (const Product& p : products) {
        const int64_t bytes = PackedGroupBytes(p.w.dtype, p.w.in), groups = PackedGroups(p.w.out);
        const auto boundary = [&](int64_t at) { return std::clamp<int64_t>((at - base + bytes - 1) / bytes, 0, groups); };
        const int64_t g0 = from <= base ? 0 : boundary(from), g1 = to <= base ? 0 : boundary(to);
        if (g0 < g1) RunGemm(p.w, args_of(p), g0, g1);
        base += bytes * groups;
      }
    });
  }
}

void CpuOps::GatedMatMul(ConstMat x, const Weight& gate, const Weight& up, Activation activation, Mat out) {
  CheckWeight(gate, x.cols);
  CheckWeight(up, x.cols);
  HF_CHECKF(gate.out == out.cols && up.out == out.cols && out.rows == x.rows, "gate [{}], up [{}], x [{}], out [{}][{}]", gate.out, up.out, x.rows,
            out.rows, out.cols);
  if (x.rows == 0) return;
  std::byte* panels[2] = {nullptr, nullptr};
  for (int is_float = 0; is_float < 2; ++is_float) {
    if (TakesFloat(gate) != static_cast<bool>(is_float) && TakesFloat(up) != static_cast<bool>(is_float)) continue;
    panels[is_float] = (is_float ? float_panel_ : quant_panel_).Get(x.rows * PanelRowBytes(is_float, x.cols));
    MakePanel(is_float, {x.data, x.stride, nullptr}, x.rows, x.cols, panels[is_float]);
  }
  // The chunk's up values stay in this thread's cache between the two products and the activation.
  const int64_t groups = PackedGroups(out.cols);
  const auto run = [&](int thread, int64_t g0, int64_t g1) {
    const int64_t first = g0 * kGroupRows, columns = std::min(out.cols, g1 * kGroupRows) - first;
    float* above = of_thread_[static_cast<size_t>(thread)].Of<float>(x.rows * columns);
    GemmArgs a = ArgsFor(gate, 0, panels[TakesFloat(gate)], x.rows);
    a.y = out.data;
    a.stride = out.stride;
    RunGemm(gate, a, g0, g1);
    a = ArgsFor(up, 0, panels[TakesFloat(up)], x.rows);
    a.y = above - first;  // column `first` of the product is column 0 of the chunk
    a.stride = columns;
    RunGemm(up, a, g0, g1);
    for (int64_t t = 0; t < x.rows; ++t) {
      float* y = out.row(t) + first;
      kernels_.gated[static_cast<int>(activation)](y, above + t * columns, y, columns);
    }
  };
  const int threads = pool_.threads();
  if (threads == 1 || 2 * x.rows * out.cols * x.cols < kSmallProducts) {
    const int64_t step = x.rows >= kManyRows ? kChunkGroups : groups;
    for (int64_t g = 0; g < groups; g += step) run(0, g, std::min(groups, g + step));
  } else if (x.rows >= kManyRows) {
    next_.store(0, std::memory_order_relaxed);
    pool_.Run([&](int thread) {
      for (int64_t g; (g = next_.fetch_add(kChunkGroups, std::memory_order_relaxed)) < groups;) run(thread, g, std::min(groups, g + kChunkGroups));
    });
  } else {
    pool_.Run([&](int thread) {
      const int64_t g0 = groups * thread / threads, g1 = groups * (thread + 1) / threads;
      if (g0 < g1) run(thread, g0, g1);
    });
  }
}

}  // namespace holdfast::kernels

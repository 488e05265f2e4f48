#include "kernels/cpu/ops_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/pack_weights.h"
#include "kernels/quant_blocks.h"
#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

template <class A, class B>
void CheckSameShape(const A& a, const B& b) {
  HF_CHECKF(a.rows == b.rows && a.cols == b.cols, "[{}][{}] against [{}][{}]", a.rows, a.cols, b.rows, b.cols);
}

const float* OrNull(Vec v) { return v.empty() ? nullptr : v.data(); }

}  // namespace

std::byte* Scratch::Get(int64_t bytes) {
  if (bytes > buffer_.bytes()) {
    buffer_.Reset();
    const size_t size = (static_cast<size_t>(bytes) + static_cast<size_t>(bytes) / 4 + 4095) / 4096 * 4096;
    auto* p = static_cast<std::byte*>(std::aligned_alloc(64, size));
    HF_CHECKF(p != nullptr, "no memory for {} bytes of scratch", size);
    buffer_ = Buffer(p, static_cast<int64_t>(size), [](std::byte* q, int64_t) { std::free(q); });
  }
  return buffer_.data();
}

template <class F>
void CpuOps::ForElements(int64_t rows, int64_t cols, int64_t per_element, F&& f) {
  constexpr int64_t kPiece = 8192;
  const int64_t work = rows * cols * per_element / 16;
  if (work < kWorthSharing || pool_.threads() == 1) {
    for (int64_t t = 0; t < rows; ++t) f(t, int64_t{0}, cols);
    return;
  }
  const int64_t pieces = (cols + kPiece - 1) / kPiece;
  const int64_t rows_each = std::max<int64_t>(1, kPiece / cols);
  const int64_t row_blocks = (rows + rows_each - 1) / rows_each;
  ForEach(row_blocks * pieces, work, [&](int64_t i) {
    const int64_t first = i % pieces * kPiece, last = std::min(cols, first + kPiece);
    for (int64_t t = i / pieces * rows_each; t < std::min(rows, (i / pieces + 1) * rows_each); ++t) f(t, first, last);
  });
}

std::string CpuOps::Describe() const {
  return fmt::format("cpu {}, {} thread{}", kernels_.name, pool_.threads(), pool_.threads() == 1 ? "" : "s");
}

Buffer CpuOps::Allocate(int64_t bytes) {
  const size_t size = std::max<size_t>((static_cast<size_t>(bytes) + 63) / 64 * 64, 64);
  auto* p = static_cast<std::byte*>(std::aligned_alloc(64, size));
  HF_CHECKF(p != nullptr, "no memory for {} bytes", bytes);
  return Buffer(p, bytes, [](std::byte* q, int64_t) { std::free(q); });
}

void CpuOps::CopyToHost(std::byte* dst, const std::byte* src, int64_t bytes) { std::memcpy(dst, src, static_cast<size_t>(bytes)); }

WeightLayout CpuOps::LayoutOf(DType type, int64_t out, int64_t in, WeightUse use) const {
  if (use == WeightUse::kEmbedding) return {kPackNone, out * RowBytes(type, in), 64};
  return {PackedLayoutOf(type), PackedGroups(out) * PackedGroupBytes(type, in), 64};
}

void CpuOps::Pack(DType type, int64_t out, int64_t in, const WeightLayout& layout, const std::byte* src, std::byte* dst) const {
  if (layout.layout == kPackNone) {
    std::memcpy(dst, src, static_cast<size_t>(layout.bytes));
  } else {
    PackWeights(type, out, in, src, dst);
  }
}

void CpuOps::BeginStep(const Batch& batch) {
  batch_ = batch;
  for (RopeTable& t : rope_) t.current = false;
}

void CpuOps::Embed(const Weight& table, float scale, Mat out) {
  for (const uint32_t id : batch_.tokens) HF_CHECKF(id < table.out, "token {} of {}", id, table.out);
  EmbedPart(table, 0, scale, out);
}

void CpuOps::EmbedPart(const Weight& table, int64_t first_id, float scale, Mat out) {
  HF_CHECK(out.rows == static_cast<int64_t>(batch_.tokens.size()) && out.cols == table.in);
  ForElements(out.rows, out.cols, 32, [&](int64_t t, int64_t first, int64_t last) {
    if (first != 0) return;  // a row is read as a whole
    const int64_t id = int64_t{batch_.tokens[static_cast<size_t>(t)]} - first_id;
    if (id < 0 || id >= table.out) {
      std::fill_n(out.row(t), out.cols, 0.f);
      return;
    }
    if (table.layout == kPackNone) {
      DequantizeRow(table.dtype, table.data + id * RowBytes(table.dtype, table.in), out.row(t), table.in);
    } else {
      UnpackRow(table.dtype, table.in, table.data, id, out.row(t));
    }
    static_cast<void>(last);
    kernels_.scale(out.row(t), scale, out.cols);
  });
}

void CpuOps::RmsNorm(ConstMat x, Vec weight, float eps, Mat out) {
  CheckSameShape(x, out);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  const int64_t each = std::max<int64_t>(1, 8192 / std::max<int64_t>(x.cols, 1));
  ForEach((x.rows + each - 1) / each, x.rows * x.cols / 4, [&](int64_t i) {
    for (int64_t t = i * each; t < std::min(x.rows, (i + 1) * each); ++t) {
      kernels_.rms_norm(x.row(t), OrNull(weight), eps, out.row(t), x.cols);
    }
  });
}

void CpuOps::AddRmsNorm(Mat x, ConstMat y, Vec weight, float eps) {
  CheckSameShape(x, y);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  const int64_t each = std::max<int64_t>(1, 8192 / std::max<int64_t>(x.cols, 1));
  ForEach((x.rows + each - 1) / each, x.rows * x.cols / 4, [&](int64_t i) {
    for (int64_t t = i * each; t < std::min(x.rows, (i + 1) * each); ++t) {
      kernels_.add_rms_norm(x.row(t), y.row(t), OrNull(weight), eps, x.cols);
    }
  });
}

void CpuOps::Gated(ConstMat gate, ConstMat up, Activation activation, Mat out) {
  CheckSameShape(gate, up);
  CheckSameShape(gate, out);
  ForElements(out.rows, out.cols, 16, [&](int64_t t, int64_t a, int64_t b) {
    kernels_.gated[static_cast<int>(activation)](gate.row(t) + a, up.row(t) + a, out.row(t) + a, b - a);
  });
}

void CpuOps::Add(Mat x, ConstMat y) {
  CheckSameShape(x, y);
  ForElements(x.rows, x.cols, 4, [&](int64_t t, int64_t a, int64_t b) { kernels_.add(x.row(t) + a, y.row(t) + a, b - a); });
}

void CpuOps::Scale(Mat x, float factor) {
  ForElements(x.rows, x.cols, 4, [&](int64_t t, int64_t a, int64_t b) { kernels_.scale(x.row(t) + a, factor, b - a); });
}

void CpuOps::ScaleColumns(Mat x, Vec factors) {
  HF_CHECK(static_cast<int64_t>(factors.size()) == x.cols);
  ForElements(x.rows, x.cols, 4, [&](int64_t t, int64_t a, int64_t b) { kernels_.multiply(x.row(t) + a, factors.data() + a, b - a); });
}

void CpuOps::Multiply(Mat x, ConstMat y) {
  CheckSameShape(x, y);
  ForElements(x.rows, x.cols, 4, [&](int64_t t, int64_t a, int64_t b) { kernels_.multiply(x.row(t) + a, y.row(t) + a, b - a); });
}

void CpuOps::ActivateInPlace(Mat x, Activation activation) {
  HF_CHECK(activation != Activation::kSwigluOai);  // it has two inputs
  ForElements(x.rows, x.cols, 16,
              [&](int64_t t, int64_t a, int64_t b) { kernels_.activate[static_cast<int>(activation)](x.row(t) + a, b - a); });
}

void CpuOps::Softcap(Mat x, float cap) {
  ForElements(x.rows, x.cols, 16, [&](int64_t t, int64_t a, int64_t b) { kernels_.softcap(x.row(t) + a, cap, b - a); });
}

void CpuOps::GatherRows(ConstMat x, std::span<const int32_t> rows, Mat out) {
  HF_CHECK(out.rows == static_cast<int64_t>(rows.size()) && out.cols == x.cols);
  for (int64_t i = 0; i < out.rows; ++i) {
    const int32_t r = rows[static_cast<size_t>(i)];
    HF_CHECKF(r >= 0 && r < x.rows, "row {} of {}", r, x.rows);
    std::memmove(out.row(i), x.row(r), static_cast<size_t>(x.cols) * sizeof(float));
  }
}

void CpuOps::CopyPage(std::byte* dst, const std::byte* src, int64_t bytes) { std::memcpy(dst, src, static_cast<size_t>(bytes)); }

std::unique_ptr<Ops> MakeCpuOps(const CpuOptions& options) {
  const KernelTable* kernels = KernelsFor(options.isa);
  if (kernels == nullptr) return nullptr;
  const int cores = UsableCores();
  return std::make_unique<CpuOps>(*kernels, options.threads <= 0 ? cores : std::min(options.threads, cores));
}

}  // namespace holdfast::kernels

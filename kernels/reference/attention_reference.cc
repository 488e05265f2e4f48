#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/kv_block.h"
#include "kernels/reference/ops_reference.h"
#include "proto/base/check.h"

namespace holdfast::kernels {
namespace {

// Where one kind (K or V) of a layer's page keeps its codes and scales.
struct Plane {
  KvDType type;
  int64_t page_size;
  int64_t dim;
  int64_t codes;   // offset in the page
  int64_t scales;

  int64_t Index(int64_t head, int64_t slot, int64_t i) const { return (head * page_size + slot) * dim + i; }

  void Write(std::byte* page, int64_t head, int64_t slot, const float* x) const {
    if (!KvIsQuantized(type)) {
      uint16_t* at = reinterpret_cast<uint16_t*>(page + codes) + Index(head, slot, 0);
      for (int64_t i = 0; i < dim; ++i) at[i] = type == KvDType::kF16 ? F32ToF16(x[i]) : F32ToBf16(x[i]);
      return;
    }
    for (int64_t i = 0; i < dim; i += kKvBlock) {
      reinterpret_cast<uint16_t*>(page + scales)[Index(head, slot, i) / kKvBlock] =
          EncodeKvBlock(type, x + i, reinterpret_cast<uint8_t*>(page + codes) + Index(head, slot, i));
    }
  }

  double Read(const std::byte* page, int64_t head, int64_t slot, int64_t i) const {
    const int64_t at = Index(head, slot, i);
    if (KvIsQuantized(type)) {
      return DecodeKv(type, reinterpret_cast<const uint8_t*>(page + codes)[at],
                      reinterpret_cast<const uint16_t*>(page + scales)[at / kKvBlock]);
    }
    const uint16_t h = reinterpret_cast<const uint16_t*>(page + codes)[at];
    return type == KvDType::kF16 ? F16ToF32(h) : Bf16ToF32(h);
  }
};

struct PageShape {
  Plane k, v;
  int64_t bytes;
};

PageShape ShapeOf(KvDType type, int64_t page_size, int64_t kv_heads, int64_t dim_k, int64_t dim_v) {
  const int64_t width = KvIsQuantized(type) ? 1 : 2;
  HF_CHECKF(width == 2 || (dim_k % kKvBlock == 0 && dim_v % kKvBlock == 0), "{} KV needs head dimensions that are multiples of {}: {}, {}",
            KvDTypeName(type), kKvBlock, dim_k, dim_v);
  const int64_t slots = page_size * kv_heads;
  int64_t at = slots * (dim_k + dim_v) * width;
  at = (at + 1) / 2 * 2;
  PageShape s{{type, page_size, dim_k, 0, at}, {type, page_size, dim_v, slots * dim_k * width, at + slots * dim_k / kKvBlock * 2}, at};
  if (width == 1) s.bytes += slots * (dim_k + dim_v) / kKvBlock * 2;
  s.bytes = (s.bytes + 63) / 64 * 64;
  return s;
}

int32_t PageOf(const BlockTables& group, size_t sequence, int64_t position, int64_t page_size) {
  const int32_t page = group.tables[sequence][position / page_size];
  HF_CHECKF(page >= 0, "sequence {}: no page for position {}", sequence, position);
  return page;
}

}  // namespace

int64_t ReferenceOps::KvPageBytes(KvDType type, int32_t page_size, int32_t kv_heads, int32_t head_dim_k, int32_t head_dim_v) const {
  return ShapeOf(type, page_size, kv_heads, head_dim_k, head_dim_v).bytes;
}

void ReferenceOps::CopyPage(std::byte* dst, const std::byte* src, int64_t bytes) { std::memcpy(dst, src, static_cast<size_t>(bytes)); }

void ReferenceOps::Rope(Mat x, int32_t heads, const RopeParams& p) {
  HF_CHECK(heads > 0 && x.cols % heads == 0 && x.rows == static_cast<int64_t>(batch_->positions.size()));
  const int64_t head_dim = x.cols / heads, n = p.dims, half = n / 2;
  HF_CHECKF(n % 2 == 0 && n <= head_dim, "rotating {} of {} dimensions", n, head_dim);
  HF_CHECK(p.freq_factors.empty() || static_cast<int64_t>(p.freq_factors.size()) == half);
  const double base = p.base;
  const auto corrected = [&](double rotations) {
    return static_cast<double>(n) * std::log(p.yarn_original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  const bool yarn = p.yarn_factor != 1.f;
  const double low = yarn ? std::max(0.0, std::floor(corrected(p.yarn_beta_fast))) : 0;
  const double high = yarn ? std::min(static_cast<double>(n - 1), std::ceil(corrected(p.yarn_beta_slow))) : 0;
  for (int64_t t = 0; t < x.rows; ++t) {
    const double position = static_cast<double>(batch_->positions[static_cast<size_t>(t)]) * p.scale;
    for (int64_t i = 0; i < half; ++i) {
      double angle = position * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(n));
      if (!p.freq_factors.empty()) angle /= p.freq_factors[static_cast<size_t>(i)];
      if (yarn) {
        const double keep = 1 - std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
        angle = angle / p.yarn_factor * (1 - keep) + angle * keep;
      }
      const double c = std::cos(angle) * p.attention_factor, s = std::sin(angle) * p.attention_factor;
      for (int32_t h = 0; h < heads; ++h) {
        float* v = x.row(t) + h * head_dim;
        float& a = p.kind == RopeKind::kNeox ? v[i] : v[2 * i];
        float& b = p.kind == RopeKind::kNeox ? v[i + half] : v[2 * i + 1];
        const double first = a, second = b;
        a = static_cast<float>(first * c - second * s);
        b = static_cast<float>(first * s + second * c);
      }
    }
  }
}

void ReferenceOps::StoreKv(const KvLayer& layer, ConstMat k, ConstMat v) {
  const PageShape shape = ShapeOf(layer.dtype, layer.page_size, layer.kv_heads, layer.head_dim_k, layer.head_dim_v);
  HF_CHECK(k.cols == layer.kv_heads * layer.head_dim_k && v.cols == layer.kv_heads * layer.head_dim_v && k.rows == v.rows);
  const BlockTables& group = batch_->groups[static_cast<size_t>(layer.group)];
  for (size_t s = 0; s < batch_->sequences.size(); ++s) {
    const SequenceSpan& span = batch_->sequences[s];
    for (int32_t i = 0; i < span.rows; ++i) {
      const int64_t position = span.start + i;
      std::byte* page = layer.base + PageOf(group, s, position, layer.page_size) * layer.page_stride;
      for (int32_t h = 0; h < layer.kv_heads; ++h) {
        shape.k.Write(page, h, position % layer.page_size, k.row(span.first_row + i) + h * layer.head_dim_k);
        shape.v.Write(page, h, position % layer.page_size, v.row(span.first_row + i) + h * layer.head_dim_v);
      }
    }
  }
}

void ReferenceOps::Attention(const KvLayer& layer, ConstMat q, const AttentionParams& p, Mat out) {
  const PageShape shape = ShapeOf(layer.dtype, layer.page_size, layer.kv_heads, layer.head_dim_k, layer.head_dim_v);
  HF_CHECK(p.heads > 0 && p.heads % layer.kv_heads == 0 && q.cols == p.heads * layer.head_dim_k && out.cols == p.heads * layer.head_dim_v);
  HF_CHECK(p.sinks.empty() || static_cast<int64_t>(p.sinks.size()) == p.heads);
  const BlockTables& group = batch_->groups[static_cast<size_t>(layer.group)];
  std::vector<double> scores, sum(static_cast<size_t>(layer.head_dim_v));
  for (size_t s = 0; s < batch_->sequences.size(); ++s) {
    const SequenceSpan& span = batch_->sequences[s];
    for (int32_t i = 0; i < span.rows; ++i) {
      const int64_t last = span.start + i;
      const int64_t first = group.window > 0 ? std::max<int64_t>(0, last - group.window + 1) : 0;
      for (int32_t h = 0; h < p.heads; ++h) {
        const int32_t kv = h / (p.heads / layer.kv_heads);
        const float* query = q.row(span.first_row + i) + h * layer.head_dim_k;
        scores.clear();
        double top = p.sinks.empty() ? -INFINITY : p.sinks[static_cast<size_t>(h)];
        for (int64_t key = first; key <= last; ++key) {
          const std::byte* page = layer.base + PageOf(group, s, key, layer.page_size) * layer.page_stride;
          double dot = 0;
          for (int32_t c = 0; c < layer.head_dim_k; ++c) dot += query[c] * shape.k.Read(page, kv, key % layer.page_size, c);
          dot *= p.scale;
          if (p.softcap > 0) dot = p.softcap * std::tanh(dot / p.softcap);
          scores.push_back(dot);
          top = std::max(top, dot);
        }
        double total = p.sinks.empty() ? 0.0 : std::exp(p.sinks[static_cast<size_t>(h)] - top);
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int64_t key = first; key <= last; ++key) {
          const std::byte* page = layer.base + PageOf(group, s, key, layer.page_size) * layer.page_stride;
          const double weight = std::exp(scores[static_cast<size_t>(key - first)] - top);
          total += weight;
          for (int32_t c = 0; c < layer.head_dim_v; ++c) sum[static_cast<size_t>(c)] += weight * shape.v.Read(page, kv, key % layer.page_size, c);
        }
        float* o = out.row(span.first_row + i) + h * layer.head_dim_v;
        for (int32_t c = 0; c < layer.head_dim_v; ++c) o[c] = static_cast<float>(sum[static_cast<size_t>(c)] / total);
      }
    }
  }
}

}  // namespace holdfast::kernels

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/pack_weights.h"
#include "proto/base/check.h"

namespace holdfast::kernels {

// The step's (token, choice) pairs sorted by expert, tokens ascending within one.
struct CpuOps::MoeSegments {
  struct Segment {
    int64_t expert, begin, end;   // pairs
  };
  std::vector<Segment> segments;
  std::vector<int32_t> token;     // [pairs] row of x
  std::vector<int64_t> place;     // [t * k + j] where the pair went
};

void CpuOps::Route(ConstMat logits, RouterNorm norm, Routing out) {
  HF_CHECKF(out.k > 0 && out.k <= logits.cols, "top {} of {} experts", out.k, logits.cols);
  const int64_t experts = logits.cols;
  ForEach(logits.rows, logits.rows * experts * out.k / 2, [&](int64_t t) {
    const float* l = logits.row(t);
    int32_t* ids = out.ids + t * out.k;
    float* weights = out.weights + t * out.k;
    // Insertion into a sorted list of k: an equal logit goes behind, so ties fall to the lowest id.
    int32_t held = 0;
    for (int64_t e = 0; e < experts; ++e) {
      int32_t at = held < out.k ? held : out.k;
      while (at > 0 && l[e] > l[ids[at - 1]]) --at;
      if (at >= out.k) continue;
      held = std::min(held + 1, out.k);
      for (int32_t i = held - 1; i > at; --i) ids[i] = ids[i - 1];
      ids[at] = static_cast<int32_t>(e);
    }
    const double top = l[ids[0]];
    double sum = 0;
    if (norm == RouterNorm::kSoftmaxAll) {
      for (int64_t e = 0; e < experts; ++e) sum += std::exp(l[e] - top);
    } else {
      for (int32_t j = 0; j < out.k; ++j) sum += std::exp(l[ids[j]] - top);
    }
    for (int32_t j = 0; j < out.k; ++j) weights[j] = static_cast<float>(std::exp(l[ids[j]] - top) / sum);
  });
}

void CpuOps::MoeFfn(ConstMat x, const Routing& routing, const MoeParams& p, Mat out) {
  HF_CHECKF(x.rows == out.rows && x.cols == out.cols, "[{}][{}] against [{}][{}]", x.rows, x.cols, out.rows, out.cols);
  const int64_t f = p.down.in, d = p.down.out, experts = p.down.experts, k = routing.k, pairs = x.rows * k;
  const bool fused = static_cast<bool>(p.gate_up);
  HF_CHECK(d == x.cols && (fused ? p.gate_up.out == 2 * f && p.gate_up.in == d && p.gate_up.experts == experts
                                 : p.gate.out == f && p.up.out == f && p.gate.in == d && p.up.in == d));
  HF_CHECK(p.gate_bias.empty() || static_cast<int64_t>(p.gate_bias.size()) == experts * f);
  HF_CHECK(p.down_bias.empty() || static_cast<int64_t>(p.down_bias.size()) == experts * d);
  if (x.rows == 0) return;

  MoeSegments s;
  std::vector<int64_t> start(static_cast<size_t>(experts) + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) {
    HF_CHECKF(routing.ids[i] >= 0 && routing.ids[i] < experts, "expert {} of {}", routing.ids[i], experts);
    ++start[static_cast<size_t>(routing.ids[i]) + 1];
  }
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    if (start[e + 1] > 0) s.segments.push_back({static_cast<int64_t>(e), start[e], start[e] + start[e + 1]});
    start[e + 1] += start[e];
  }
  s.token.resize(static_cast<size_t>(pairs));
  s.place.resize(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t at = start[static_cast<size_t>(routing.ids[i])]++;
    s.place[static_cast<size_t>(i)] = at;
    s.token[static_cast<size_t>(at)] = static_cast<int32_t>(i / k);
  }

  // Tiles of all segments, and pieces of all products, as flat lists that threads take in turn.
  struct Tile {
    const MoeSegments::Segment* segment;
    int64_t index;
  };
  std::vector<Tile> tiles;
  for (const auto& seg : s.segments) {
    const Tiling tiling(seg.end - seg.begin, kernels_.max_tile);
    for (int64_t i = 0; i < tiling.count; ++i) tiles.push_back({&seg, i});
  }
  struct Piece {
    const MoeSegments::Segment* segment;
    const Weight* w;
    int64_t g0, g1, column;
    const float* bias;
  };
  const auto pieces_of = [&](std::vector<Piece>& list, const Weight& w, int64_t column, Vec bias) {
    constexpr int64_t kGroups = 16;
    for (const auto& seg : s.segments) {
      for (int64_t g = 0; g < PackedGroups(w.out); g += kGroups) {
        list.push_back({&seg, &w, g, std::min(PackedGroups(w.out), g + kGroups), column, bias.empty() ? nullptr : bias.data() + seg.expert * w.out});
      }
    }
  };
  const auto run = [&](const std::vector<Piece>& list, std::byte* const (&panels)[2], float* y, int64_t stride) {
    ForEach(static_cast<int64_t>(list.size()), pairs * f * d / 200, [&](int64_t i) {
      const Piece& piece = list[static_cast<size_t>(i)];
      const bool is_float = TakesFloat(*piece.w);
      GemmArgs a = ArgsFor(*piece.w, piece.segment->expert, panels[is_float] + piece.segment->begin * PanelRowBytes(is_float, piece.w->in),
                           piece.segment->end - piece.segment->begin);
      a.y = y + piece.segment->begin * stride + piece.column;
      a.stride = stride;
      a.bias = piece.bias;
      RunGemm(*piece.w, a, piece.g0, piece.g1);
    });
  };
  const auto panel_of = [&](bool is_float, const RowSource& rows, int64_t in, const Tile& tile, std::byte* panel) {
    const auto make = is_float ? kernels_.interleave : kernels_.quantize;
    const Tiling tiling(tile.segment->end - tile.segment->begin, kernels_.max_tile);
    make(rows, tiling, tile.index, tile.index + 1, in, panel + tile.segment->begin * PanelRowBytes(is_float, in));
  };

  std::vector<Piece> above, below;
  if (fused) {
    pieces_of(above, p.gate_up, 0, {});
  } else {
    pieces_of(above, p.gate, 0, p.gate_bias);
    pieces_of(above, p.up, f, p.up_bias);
  }
  pieces_of(below, p.down, 0, p.down_bias);
  for (const Piece& piece : above) HF_CHECK(piece.w->layout == PackedLayoutOf(piece.w->dtype));
  HF_CHECK(p.down.layout == PackedLayoutOf(p.down.dtype));

  const Weight& first = fused ? p.gate_up : p.gate;
  const Weight& second = fused ? p.gate_up : p.up;
  std::byte* panels[2] = {nullptr, nullptr};
  const int64_t widest = std::max(d, f);
  for (const bool is_float : {false, true}) {
    const bool in_front = TakesFloat(first) == is_float || TakesFloat(second) == is_float;
    if (!in_front && TakesFloat(p.down) != is_float) continue;
    panels[is_float] = (is_float ? float_panel_ : quant_panel_).Get(pairs * PanelRowBytes(is_float, widest));
    if (!in_front) continue;
    ForEach(static_cast<int64_t>(tiles.size()), pairs * d / 2, [&](int64_t i) {
      const Tile& tile = tiles[static_cast<size_t>(i)];
      panel_of(is_float, {x.data, x.stride, s.token.data() + tile.segment->begin}, d, tile, panels[is_float]);
    });
  }
  float* gu = wide_.Of<float>(pairs * 2 * f);
  run(above, panels, gu, 2 * f);

  const bool down_float = TakesFloat(p.down);
  ForEach(static_cast<int64_t>(tiles.size()), pairs * f, [&](int64_t i) {
    const Tile& tile = tiles[static_cast<size_t>(i)];
    const auto& seg = *tile.segment;
    const Tiling tiling(seg.end - seg.begin, kernels_.max_tile);
    for (int64_t r = seg.begin + tiling.Begin(tile.index), end = r + tiling.Size(tile.index); r < end; ++r) {
      float* gate = gu + r * 2 * f;
      if (fused && !p.gate_bias.empty()) kernels_.add(gate, p.gate_bias.data() + seg.expert * f, f);
      if (fused && !p.up_bias.empty()) kernels_.add(gate + f, p.up_bias.data() + seg.expert * f, f);
      kernels_.gated[static_cast<int>(p.activation)](gate, gate + f, gate, f);
    }
    panel_of(down_float, {gu + seg.begin * 2 * f, 2 * f, nullptr}, f, tile, panels[down_float]);
  });
  float* y = moe_out_.Of<float>(pairs * d);
  run(below, panels, y, d);

  ForEach(x.rows, pairs * d / 8, [&](int64_t t) {
    std::fill(out.row(t), out.row(t) + d, 0.f);
    for (int64_t j = 0; j < k; ++j) {
      const int32_t e = routing.ids[t * k + j];
      const float w = routing.weights[t * k + j] * (p.down_scale.empty() ? 1.f : p.down_scale[static_cast<size_t>(e)]);
      kernels_.add_scaled(out.row(t), y + s.place[static_cast<size_t>(t * k + j)] * d, w, d);
    }
  });
}

}  // namespace holdfast::kernels

#include <catch2/catch.hpp>

#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {
namespace {

struct Config {
  DType gate, up, down;
  bool fused;
  int64_t d, f;
  bool biases;
  Activation activation;
};

struct Data {
  static constexpr int64_t kExperts = 6;
  std::vector<std::byte> gate_up, gate, up, down;
  std::vector<float> gate_bias, up_bias, down_bias, down_scale;
  explicit Data(const Config& c) {
    Random random(31);
    gate = FileRows(c.gate, kExperts * c.f, c.d, random);
    up = FileRows(c.up, kExperts * c.f, c.d, random);
    down = FileRows(c.down, kExperts * c.d, c.f, random);
    for (int64_t e = 0; e < kExperts && c.gate == c.up; ++e) {
      const int64_t bytes = c.f * RowBytes(c.gate, c.d);
      gate_up.insert(gate_up.end(), gate.begin() + e * bytes, gate.begin() + (e + 1) * bytes);
      gate_up.insert(gate_up.end(), up.begin() + e * bytes, up.begin() + (e + 1) * bytes);
    }
    gate_bias = random.Normals(kExperts * c.f);
    up_bias = random.Normals(kExperts * c.f);
    down_bias = random.Normals(kExperts * c.d);
    down_scale = random.Normals(kExperts);
  }
};

std::vector<float> Run(Ops& ops, const Config& c, const Data& data, const std::vector<float>& x, std::vector<int32_t> ids, std::vector<float> weights,
                       int32_t k) {
  MoeParams p;
  std::vector<PackedWeight> w;
  w.reserve(3);
  if (c.fused) {
    p.gate_up = w.emplace_back(ops, c.gate, 2 * c.f, c.d, data.gate_up, WeightUse::kMatMul, Data::kExperts).weight;
  } else {
    p.gate = w.emplace_back(ops, c.gate, c.f, c.d, data.gate, WeightUse::kMatMul, Data::kExperts).weight;
    p.up = w.emplace_back(ops, c.up, c.f, c.d, data.up, WeightUse::kMatMul, Data::kExperts).weight;
  }
  p.down = w.emplace_back(ops, c.down, c.d, c.f, data.down, WeightUse::kMatMul, Data::kExperts).weight;
  p.activation = c.activation;
  const Held<float> gate_bias(ops, data.gate_bias), up_bias(ops, data.up_bias), down_bias(ops, data.down_bias), down_scale(ops, data.down_scale);
  if (c.biases) {
    p.gate_bias = gate_bias.vec();
    p.up_bias = up_bias.vec();
    p.down_bias = down_bias.vec();
    p.down_scale = down_scale.vec();
  }
  const Held<float> held(ops, x, c.d), out(ops, std::vector<float>(x.size()), c.d), weights_held(ops, weights);
  const Held<int32_t> ids_held(ops, ids);
  ops.MoeFfn(held.mat(), Routing{ids_held.data(), weights_held.data(), k}, p, out.mat());
  return out.Get();
}

const std::vector<Config>& Configs() {
  static const std::vector<Config> all = {
      {DType::kF32, DType::kF32, DType::kF32, false, 40, 24, true, Activation::kSwigluOai},
      {DType::kF32, DType::kF32, DType::kF32, true, 48, 20, true, Activation::kSilu},
      {DType::kQ4_0, DType::kQ4_0, DType::kQ8_0, true, 96, 64, false, Activation::kGeluTanh},
      {DType::kQ4_K, DType::kQ4_0, DType::kF16, false, 256, 48, true, Activation::kSilu},
      {DType::kMXFP4, DType::kMXFP4, DType::kMXFP4, false, 64, 96, true, Activation::kSwigluOai},
      {DType::kF16, DType::kQ6_K, DType::kQ5_1, false, 256, 32, false, Activation::kSilu},
  };
  return all;
}

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  Chosen(int64_t rows, int32_t k, Random& random) {
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<int32_t> order = {0, 1, 2, 3, 4, 5};
      for (int32_t j = 0; j < k; ++j) std::swap(order[static_cast<size_t>(j)], order[static_cast<size_t>(j) + random.Below(static_cast<uint32_t>(6 - j))]);
      for (int32_t j = 0; j < k; ++j) {
        ids.push_back(order[static_cast<size_t>(j)]);
        weights.push_back(0.5f + random.Normal(0.1f));
      }
    }
  }
};

TEST_CASE("mixture of experts agrees with the reference") {
  const auto reference = MakeReferenceOps();
  const auto backends = Backends();
  for (const Config& c : Configs()) {
    const Data data(c);
    for (const int64_t rows : {1, 2, 29, 150}) {
      Random random(static_cast<uint32_t>(rows));
      const Chosen chosen(rows, 3, random);
      const auto x = random.Normals(rows * c.d, 0.3f);
      const auto want = Run(*reference, c, data, x, chosen.ids, chosen.weights, 3);
      for (const Backend& b : backends) {
        INFO(b.name << ", " << InfoOf(c.gate).name << " " << InfoOf(c.up).name << " " << InfoOf(c.down).name << ", rows " << rows);
        const auto got = Run(*b.ops, c, data, x, chosen.ids, chosen.weights, 3);
        const bool exact = !b.int8_activations || (!InBlocks(c.gate) && !InBlocks(c.up) && !InBlocks(c.down));
        CHECK(Nmse(got, want) < (exact ? 1e-11 : 2e-3));
      }
    }
  }
}

TEST_CASE("a token's experts give the same bits alone and in any batch") {
  const int64_t rows = 19;
  const auto kinds = Twins();
  for (const Config& c : Configs()) {
    const Data data(c);
    Random random(8);
    const Chosen chosen(rows, 2, random);
    const auto x = random.Normals(rows * c.d);
    for (const auto& twins : kinds) {
      std::vector<float> whole;
      for (const Backend& b : twins) {
        const auto& ops = b.ops;
        INFO(b.name << ", " << InfoOf(c.gate).name);
        const auto all = Run(*ops, c, data, x, chosen.ids, chosen.weights, 2);
        if (whole.empty()) whole = all;
        CHECK(SameBits(all, whole));
        for (const int64_t step : {1, 4, 7}) {
          std::vector<float> pieces;
          for (int64_t t = 0; t < rows; t += step) {
            const int64_t end = std::min(rows, t + step);
            const auto y = Run(*ops, c, data, {x.begin() + t * c.d, x.begin() + end * c.d}, {chosen.ids.begin() + 2 * t, chosen.ids.begin() + 2 * end},
                               {chosen.weights.begin() + 2 * t, chosen.weights.begin() + 2 * end}, 2);
            pieces.insert(pieces.end(), y.begin(), y.end());
          }
          CHECK(SameBits(pieces, whole));
        }
      }
    }
  }
}

TEST_CASE("few, some and many tokens give the same bits of their experts") {
  const int64_t rows = 150;
  for (const Backend& b : CudaBackends()) {
    for (const Config& c : Configs()) {
      const Data data(c);
      Random random(9);
      const Chosen chosen(rows, 3, random);
      const auto x = random.Normals(rows * c.d);
      INFO(b.name << ", " << InfoOf(c.gate).name);
      const auto whole = Run(*b.ops, c, data, x, chosen.ids, chosen.weights, 3);
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{149, 1}, {7, 5}, {40, 6}, {20, 40}}) {
        INFO("rows " << first << " to " << first + count);
        const int64_t end = first + count;
        const auto part = Run(*b.ops, c, data, {x.begin() + first * c.d, x.begin() + end * c.d}, {chosen.ids.begin() + 3 * first, chosen.ids.begin() + 3 * end},
                              {chosen.weights.begin() + 3 * first, chosen.weights.begin() + 3 * end}, 3);
        CHECK(SameBits(part, {whole.begin() + first * c.d, whole.begin() + end * c.d}));
      }
    }
  }
}

TEST_CASE("routing picks the highest logits, the lowest id where they tie") {
  Random random(4);
  const int64_t experts = 32, rows = 20;
  auto logits = random.Normals(rows * experts);
  for (int64_t e = 0; e < experts; ++e) {
    logits[static_cast<size_t>(e)] = 1.f;                                 // row 0: all equal
    logits[static_cast<size_t>(experts + e)] = e % 3 == 1 ? 2.f : -1.f;   // row 1: ties among the best
    logits[static_cast<size_t>(2 * experts + e)] = -static_cast<float>(e % 5);
  }
  const auto reference = MakeReferenceOps();
  const auto backends = FastBackends();
  for (const RouterNorm norm : {RouterNorm::kSoftmaxTopK, RouterNorm::kSoftmaxAll}) {
    for (const int32_t k : {1, 4, 32}) {
      std::vector<int32_t> want_ids(static_cast<size_t>(rows * k));
      std::vector<float> want_weights(want_ids.size());
      reference->Route(View(logits, experts), norm, {want_ids.data(), want_weights.data(), k});
      for (int32_t j = 0; j < k; ++j) CHECK(want_ids[static_cast<size_t>(j)] == j);
      for (int32_t j = 0; j < std::min(k, 10); ++j) CHECK(want_ids[static_cast<size_t>(k + j)] == 3 * j + 1);
      for (const Backend& b : backends) {
        INFO(b.name << ", k " << k);
        const Held<float> held(*b.ops, logits, experts), weights(*b.ops, std::vector<float>(want_weights.size()));
        const Held<int32_t> ids(*b.ops, std::vector<int32_t>(want_ids.size()));
        b.ops->Route(held.mat(), norm, {ids.data(), weights.data(), k});
        CHECK(ids.Get() == want_ids);
        CHECK(Nmse(weights.Get(), want_weights) < 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels::test

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
  if (c.biases) {
    p.gate_bias = data.gate_bias;
    p.up_bias = data.up_bias;
    p.down_bias = data.down_bias;
    p.down_scale = data.down_scale;
  }
  std::vector<float> out(x.size());
  ops.MoeFfn(View(x, c.d), Routing{ids.data(), weights.data(), k}, p, View(out, c.d));
  ops.Sync();
  return out;
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
    for (const int64_t rows : {1, 2, 29}) {
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
  for (const Config& c : Configs()) {
    const Data data(c);
    Random random(8);
    const Chosen chosen(rows, 2, random);
    const auto x = random.Normals(rows * c.d);
    for (const std::string_view isa : AvailableIsas()) {
      std::vector<float> whole;
      for (const int threads : {1, 2}) {
        const auto ops = Cpu(isa, threads);
        INFO(ops->Describe() << ", " << InfoOf(c.gate).name);
        const auto all = Run(*ops, c, data, x, chosen.ids, chosen.weights, 2);
        if (threads == 1) whole = all;
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
  for (const RouterNorm norm : {RouterNorm::kSoftmaxTopK, RouterNorm::kSoftmaxAll}) {
    for (const int32_t k : {1, 4, 32}) {
      std::vector<int32_t> want_ids(static_cast<size_t>(rows * k)), ids(want_ids.size());
      std::vector<float> want_weights(want_ids.size()), weights(want_ids.size());
      reference->Route(View(logits, experts), norm, {want_ids.data(), want_weights.data(), k});
      for (int32_t j = 0; j < k; ++j) CHECK(want_ids[static_cast<size_t>(j)] == j);
      for (int32_t j = 0; j < std::min(k, 10); ++j) CHECK(want_ids[static_cast<size_t>(k + j)] == 3 * j + 1);
      for (const Backend& b : CpuBackends()) {
        INFO(b.name << ", k " << k);
        b.ops->Route(View(logits, experts), norm, {ids.data(), weights.data(), k});
        b.ops->Sync();
        CHECK(ids == want_ids);
        CHECK(Nmse(weights, want_weights) < 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels::test

#include <catch2/catch.hpp>

#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {
namespace {

struct Shape {
  int64_t out, in, rows;
};

std::vector<Shape> Shapes(DType type) {
  const int64_t unit = InfoOf(type).block_elements == 256 ? 256 : 32;
  std::vector<Shape> shapes;
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13, 19}) shapes.push_back({16 * (rows % 5) + 1 + rows % 16, unit * (1 + rows % 3), rows});
  shapes.push_back({160, unit * 4, 1});
  shapes.push_back({160, unit * 4, 17});
  if (!InBlocks(type)) {
    shapes.push_back({33, 1, 2});
    shapes.push_back({70, 77, 9});
  }
  return shapes;
}

std::vector<float> Multiply(Ops& ops, DType type, int64_t out, int64_t in, const std::vector<std::byte>& file, const std::vector<float>& x) {
  PackedWeight w(ops, type, out, in, file);
  const Held<float> held(ops, x, in), y(ops, std::vector<float>(static_cast<size_t>(out * (static_cast<int64_t>(x.size()) / in))), out);
  const Product p{w.weight, y.mat(), {}, false};
  ops.MatMul(held.mat(), {&p, 1});
  return y.Get();
}

TEST_CASE("a product of every weight type agrees with the reference, whatever the shape") {
  const auto reference = MakeReferenceOps();
  const auto backends = Backends();
  for (const DType type : AllTypes()) {
    for (const Shape& s : Shapes(type)) {
      Random random(static_cast<uint32_t>(s.out * 1000 + s.in + s.rows));
      const auto file = FileRows(type, s.out, s.in, random);
      const auto x = random.Normals(s.rows * s.in);
      const auto exact = Multiply(*reference, type, s.out, s.in, file, x);
      const auto rounded = InBlocks(type) ? Multiply(*reference, type, s.out, s.in, file, Int8Rounded(x, s.in)) : exact;
      for (const Backend& b : backends) {
        INFO(b.name << ", " << InfoOf(type).name << " [" << s.out << "][" << s.in << "] x " << s.rows);
        const auto y = Multiply(*b.ops, type, s.out, s.in, file, x);
        if (b.int8_activations && InBlocks(type)) {
          CHECK(Nmse(y, rounded) < 1e-11);
          CHECK(Nmse(y, exact) < 5e-4);
        } else {
          CHECK(Nmse(y, exact) < 1e-12);
        }
      }
    }
  }
}

TEST_CASE("products of one call share x, add a bias and accumulate, and write nothing else") {
  const auto reference = MakeReferenceOps();
  const int64_t in = 256, rows = 5, outs[3] = {40, 16, 33};
  const DType types[3] = {DType::kQ4_0, DType::kF32, DType::kQ6_K};
  Random random(7);
  const auto x = random.Normals(rows * in);
  std::vector<std::vector<std::byte>> files;
  for (int i = 0; i < 3; ++i) files.push_back(FileRows(types[i], outs[i], in, random));
  const auto bias = random.Normals(40);
  const auto before = random.Normals(rows * 48);
  const auto run = [&](Ops& ops, const std::vector<float>& input, std::vector<float>* ys) {
    std::vector<PackedWeight> weights;
    std::vector<Product> products;
    const Held<float> x_held(ops, input, in), bias_held(ops, bias);
    std::vector<Held<float>> y_held;
    for (size_t i = 0; i < 3; ++i) weights.emplace_back(ops, types[i], outs[i], in, files[i]);
    for (size_t i = 0; i < 3; ++i) {
      y_held.emplace_back(ops, before, 48);  // rows of 48 floats, of which the product owns the first outs[i]
      Product p{weights[i].weight, y_held[i].mat().Columns(0, outs[i]), {}, i == 2};
      if (i == 0) p.bias = bias_held.vec();
      products.push_back(p);
    }
    ops.MatMul(x_held.mat(), products);
    for (size_t i = 0; i < 3; ++i) ys[i] = y_held[i].Get();
  };
  std::vector<float> exact[3], rounded[3], got[3];
  run(*reference, x, exact);
  run(*reference, Int8Rounded(x, in), rounded);
  for (const Backend& b : Backends()) {
    INFO(b.name);
    run(*b.ops, x, got);
    for (int i = 0; i < 3; ++i) {
      INFO("product " << i);
      CHECK(Nmse(got[i], b.int8_activations && i != 1 ? rounded[i] : exact[i]) < 1e-11);
      bool untouched = true;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t c = outs[i]; c < 48; ++c) {
          untouched = untouched && got[i][static_cast<size_t>(t * 48 + c)] == before[static_cast<size_t>(t * 48 + c)];
        }
      }
      CHECK(untouched);
    }
  }
}

TEST_CASE("a row's product has the same bits alone, in any batch, and at any thread count") {
  const auto kinds = Twins();
  for (const DType type : AllTypes()) {
    const int64_t in = InfoOf(type).block_elements == 256 ? 512 : 288, out = 150, rows = 23;
    Random random(static_cast<uint32_t>(type) + 1);
    const auto file = FileRows(type, out, in, random);
    const auto x = random.Normals(rows * in);
    for (const auto& twins : kinds) {
      std::vector<float> whole;
      for (const Backend& b : twins) {
        const auto& ops = b.ops;
        INFO(b.name << ", " << InfoOf(type).name);
        const auto all = Multiply(*ops, type, out, in, file, x);
        if (whole.empty()) whole = all;
        CHECK(SameBits(all, whole));
        for (const int64_t step : {1, 2, 3, 4, 5, 7, 16}) {
          if (b.emulated && step != 1 && step != 5) continue;
          std::vector<float> pieces;
          for (int64_t t = 0; t < rows; t += step) {
            const std::vector<float> part(x.begin() + t * in, x.begin() + std::min(t + step, rows) * in);
            const auto y = Multiply(*ops, type, out, in, file, part);
            pieces.insert(pieces.end(), y.begin(), y.end());
          }
          INFO("steps of " << step);
          CHECK(SameBits(pieces, whole));
        }
      }
    }
  }
}

// A backend may have a kernel for one row, one for some and one for many, each with tiles of its own.
TEST_CASE("few, some and many rows give the same bits, right to the border of every tile") {
  const auto reference = MakeReferenceOps();
  for (const Backend& b : CudaBackends()) {
    for (const DType type : AllTypes()) {
      const int64_t in = InfoOf(type).block_elements == 256 ? 768 : 608, out = 150, rows = 129;
      Random random(static_cast<uint32_t>(type) + 21);
      const auto file = FileRows(type, out, in, random);
      const auto x = random.Normals(rows * in);
      INFO(b.name << ", " << InfoOf(type).name);
      const auto whole = Multiply(*b.ops, type, out, in, file, x);
      const auto want = Multiply(*reference, type, out, in, file, InBlocks(type) ? Int8Rounded(x, in) : x);
      CHECK(Nmse(whole, want) < 1e-11);
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{128, 1}, {0, 2}, {50, 7}, {3, 8}, {64, 9}, {100, 17}, {31, 33}}) {
        INFO("rows " << first << " to " << first + count);
        const auto part = Multiply(*b.ops, type, out, in, file, {x.begin() + first * in, x.begin() + (first + count) * in});
        CHECK(SameBits(part, {whole.begin() + first * out, whole.begin() + (first + count) * out}));
      }
    }
  }
}

TEST_CASE("packed layouts of different backends have different numbers") {
  const auto cpu = Cpu("scalar", 1);
  for (const Backend& b : CudaBackends()) {
    for (const DType type : AllTypes()) {
      const auto theirs = b.ops->LayoutOf(type, 256, 256, WeightUse::kMatMul), ours = cpu->LayoutOf(type, 256, 256, WeightUse::kMatMul);
      INFO(b.name << ", " << InfoOf(type).name);
      CHECK((theirs.layout == 0 || theirs.layout != ours.layout));
    }
  }
}

TEST_CASE("AMX tiles give the bits of the VNNI tiles") {
  const auto isas = AvailableIsas();
  if (std::find(isas.begin(), isas.end(), "avx512amx") == isas.end()) {
    WARN("SKIP: this machine has no AMX");
    return;
  }
  const auto vnni = Cpu("avx512vnni", 1), amx = Cpu("avx512amx", 2);
  for (const DType type : AllTypes()) {
    const int64_t in = 768, out = 70;
    Random random(static_cast<uint32_t>(type) + 9);
    const auto file = FileRows(type, out, in, random);
    for (const int64_t rows : {7, 8, 9, 16, 17, 31, 45, 200}) {
      INFO(InfoOf(type).name << ", rows " << rows);
      const auto x = random.Normals(rows * in);
      CHECK(SameBits(Multiply(*vnni, type, out, in, file, x), Multiply(*amx, type, out, in, file, x)));
    }
  }
}

TEST_CASE("gate and up fuse with their activation") {
  const auto reference = MakeReferenceOps();
  const auto backends = Backends();
  const int64_t in = 512, out = 130;
  for (const auto& types : {std::pair{DType::kQ4_0, DType::kQ4_0}, {DType::kQ8_0, DType::kF16}, {DType::kF32, DType::kF32}}) {
    const DType gate_type = types.first, up_type = types.second;
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kSwigluOai}) {
      for (const int64_t rows : {1, 6, 40, 70}) {
        if (rows == 70 && activation != Activation::kSilu) continue;
        Random random(static_cast<uint32_t>(rows));
        const auto gate = FileRows(gate_type, out, in, random), up = FileRows(up_type, out, in, random);
        const auto x = random.Normals(rows * in, 0.2f);
        const auto run = [&](Ops& ops, const std::vector<float>& input) {
          PackedWeight wg(ops, gate_type, out, in, gate), wu(ops, up_type, out, in, up);
          const Held<float> x_held(ops, input, in), y(ops, std::vector<float>(static_cast<size_t>(rows * out)), out);
          ops.GatedMatMul(x_held.mat(), wg.weight, wu.weight, activation, y.mat());
          return y.Get();
        };
        const auto exact = run(*reference, x);
        const auto rounded = run(*reference, Int8Rounded(x, in));
        for (const Backend& b : backends) {
          INFO(b.name << ", " << InfoOf(gate_type).name << " and " << InfoOf(up_type).name << ", activation " << static_cast<int>(activation)
                      << ", rows " << rows);
          const auto y = run(*b.ops, x);
          if (!b.int8_activations || !InBlocks(gate_type)) {
            CHECK(Nmse(y, exact) < 1e-11);
          } else {
            if (InBlocks(up_type)) CHECK(Nmse(y, rounded) < 1e-11);
            CHECK(Nmse(y, exact) < 1e-3);
          }
        }
      }
    }
  }
}

TEST_CASE("rows are looked up exactly, from a table of its own or from the packed product weight") {
  const int64_t vocabulary = 50, in = 512;
  const auto backends = Backends();
  for (const DType type : AllTypes()) {
    Random random(static_cast<uint32_t>(type) + 3);
    const auto file = FileRows(type, vocabulary, in, random);
    const std::vector<uint32_t> tokens = {0, 49, 7, 7, 16, 15, 33};
    std::vector<float> want(tokens.size() * static_cast<size_t>(in));
    for (size_t t = 0; t < tokens.size(); ++t) {
      float* row = want.data() + t * static_cast<size_t>(in);
      DequantizeRow(type, file.data() + tokens[t] * RowBytes(type, in), row, in);
      for (int64_t i = 0; i < in; ++i) row[i] *= 22.5f;
    }
    for (const Backend& b : backends) {
      for (const WeightUse use : {WeightUse::kEmbedding, WeightUse::kBoth}) {
        INFO(b.name << ", " << InfoOf(type).name << ", use " << static_cast<int>(use));
        PackedWeight table(*b.ops, type, vocabulary, in, file, use);
        Batch batch;
        batch.tokens = tokens;
        const Held<float> got(*b.ops, std::vector<float>(want.size()), in);
        b.ops->BeginStep(batch);
        b.ops->Embed(table.weight, 22.5f, got.mat());
        CHECK(got.Get() == want);
        // The same table as rows 1000 to 1049 of a vocabulary: what it does not hold is zero.
        std::vector<uint32_t> others = tokens;
        for (uint32_t& id : others) id += 1000;
        others[1] = 1050;
        others[3] = 999;
        others[4] = 16;
        auto part = want;
        for (const size_t t : {1u, 3u, 4u}) std::fill_n(part.begin() + static_cast<int64_t>(t) * in, in, 0.f);
        batch.tokens = others;
        b.ops->BeginStep(batch);
        b.ops->EmbedPart(table.weight, 1000, 22.5f, got.mat());
        CHECK(got.Get() == part);
      }
    }
  }
}

TEST_CASE("a value that is not finite spoils its own row and no other") {
  const int64_t in = 256, out = 40, rows = 7;
  const auto backends = FastBackends();
  for (const DType type : AllTypes()) {
    Random random(5);
    const auto file = FileRows(type, out, in, random);
    const auto x = random.Normals(rows * in);
    for (const Backend& b : backends) {
      INFO(b.name << ", " << InfoOf(type).name);
      const auto clean = Multiply(*b.ops, type, out, in, file, x);
      for (const float bad : {NAN, INFINITY}) {
        auto broken = x;
        broken[static_cast<size_t>(3 * in + 100)] = bad;
        const auto y = Multiply(*b.ops, type, out, in, file, broken);
        bool others_same = true, all_bad = true;
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t o = 0; o < out; ++o) {
            const size_t i = static_cast<size_t>(t * out + o);
            if (t != 3) others_same = others_same && y[i] == clean[i];
            if (t == 3) all_bad = all_bad && !std::isfinite(y[i]);
          }
        }
        CHECK(others_same);
        CHECK(all_bad);
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels::test

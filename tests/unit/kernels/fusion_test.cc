// What a backend does in one pass has the bits of one step after the other, and is not used when it is no longer true.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <functional>

#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {
namespace {

// Rows of h that a product read, as bits: of int8 weights and of floats.
struct Products {
  Products(Ops& ops, int64_t in, Random& random)
      : in_(in), int8_(ops, DType::kQ8_0, kOut, in, FileRows(DType::kQ8_0, kOut, in, random)), nibbles_(ops, DType::kQ4_0, kOut, in, FileRows(DType::kQ4_0, kOut, in, random)),
        floats_(ops, DType::kF32, kOut, in, FileRows(DType::kF32, kOut, in, random)), square_(ops, DType::kF32, in, in, FileRows(DType::kF32, in, in, random)) {}
  std::vector<float> Of(Ops& ops, ConstMat h) const {
    std::vector<float> all;
    const Held<float> a(ops, std::vector<float>(static_cast<size_t>(h.rows * kOut)), kOut), b(ops, a.Get(), kOut), c(ops, a.Get(), kOut);
    const Product products[] = {{floats_.weight, a.mat(), {}, false}, {int8_.weight, b.mat(), {}, false}};
    ops.MatMul(h, products);
    ops.GatedMatMul(h, nibbles_.weight, nibbles_.weight, Activation::kSilu, c.mat());
    for (const auto* y : {&a, &b, &c}) {
      for (const float v : y->Get()) all.push_back(v);
    }
    return all;
  }
  const Weight& square() const { return square_.weight; }
  static constexpr int64_t kOut = 33;

 private:
  int64_t in_;
  PackedWeight int8_, nibbles_, floats_, square_;
};

TEST_CASE("a norm made for products gives them the bits that a norm and the products give") {
  for (const Backend& b : FastBackends()) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32}, {3, 96}, {1, 576}, {9, 992}, {2, 1024}, {3, 1056}, {1, 2816}}) {
      INFO(b.name << " [" << rows << "][" << cols << "]");
      Random random(static_cast<uint32_t>(cols));
      const Products products(*b.ops, cols, random);
      auto values = random.Normals(rows * (cols + 7), 2.f);
      if (rows > 2) values[static_cast<size_t>(2 * (cols + 7) + 5)] = std::nanf("");
      const Held<float> x(*b.ops, values, cols + 7), weight(*b.ops, random.Normals(cols)), h(*b.ops, values, cols + 7), other(*b.ops, values, cols + 7);
      for (const Vec w : {Vec(), weight.vec()}) {
        b.ops->BeginStep({});
        b.ops->RmsNorm(x.mat().Columns(0, cols), w, 1e-6f, h.mat().Columns(0, cols));
        const auto want = products.Of(*b.ops, h.mat().Columns(0, cols)), rows_wanted = h.Get();
        b.ops->NormForProducts(x.mat().Columns(0, cols), w, 1e-6f, other.mat().Columns(0, cols));
        CHECK(SameBits(products.Of(*b.ops, other.mat().Columns(0, cols)), want));
        CHECK(SameBits(other.Get(), rows_wanted));
      }
      CHECK(b.ops->Health().ok());
    }
  }
}

TEST_CASE("what was made of normed rows is not used once they were written, or for others") {
  const int64_t rows = 4, cols = 64;
  using Write = std::function<void(Ops&, Mat h, ConstMat y, Vec columns, const Weight& square)>;
  const std::vector<std::pair<const char*, Write>> writes = {
      {"nothing", [](Ops&, Mat, ConstMat, Vec, const Weight&) {}},
      {"scale", [](Ops& o, Mat h, ConstMat, Vec, const Weight&) { o.Scale(h, 3.f); }},
      {"scale of a row", [](Ops& o, Mat h, ConstMat, Vec, const Weight&) { o.Scale(h.Rows(2, 1), 3.f); }},
      {"add", [](Ops& o, Mat h, ConstMat y, Vec, const Weight&) { o.Add(h, y); }},
      {"multiply", [](Ops& o, Mat h, ConstMat y, Vec, const Weight&) { o.Multiply(h, y); }},
      {"scale columns", [](Ops& o, Mat h, ConstMat, Vec c, const Weight&) { o.ScaleColumns(h, c); }},
      {"softcap", [](Ops& o, Mat h, ConstMat, Vec, const Weight&) { o.Softcap(h, 0.5f); }},
      {"activation", [](Ops& o, Mat h, ConstMat, Vec, const Weight&) { o.ActivateInPlace(h, Activation::kSilu); }},
      {"gated", [](Ops& o, Mat h, ConstMat y, Vec, const Weight&) { o.Gated(y, y, Activation::kSilu, h); }},
      {"norm", [](Ops& o, Mat h, ConstMat y, Vec, const Weight&) { o.RmsNorm(y, {}, 1e-6f, h); }},
      {"add norm", [](Ops& o, Mat h, ConstMat y, Vec, const Weight&) { o.AddRmsNorm(h, y, {}, 1e-6f); }},
      {"rope", [](Ops& o, Mat h, ConstMat, Vec, const Weight&) {
         RopeParams p;
         p.dims = 32;
         o.Rope(h, 2, p);
       }},
      {"gather", [](Ops& o, Mat h, ConstMat y, Vec, const Weight&) { o.GatherRows(y, std::vector<int32_t>{3, 1, 0, 2}, h); }},
      {"product", [](Ops& o, Mat h, ConstMat y, Vec, const Weight& w) {
         const Product p{w, h, {}, false};
         o.MatMul(y, {&p, 1});
       }},
      {"gated product", [](Ops& o, Mat h, ConstMat y, Vec, const Weight& w) { o.GatedMatMul(y, w, w, Activation::kSilu, h); }},
      {"copy", [](Ops& o, Mat h, ConstMat, Vec, const Weight&) {
         const std::vector<float> seven(static_cast<size_t>(h.rows * h.cols), 7.f);
         o.CopyFromHost(reinterpret_cast<std::byte*>(h.data), reinterpret_cast<const std::byte*>(seven.data()), h.rows * h.cols * 4);
       }},
      {"another norm for products", [](Ops& o, Mat h, ConstMat y, Vec c, const Weight&) { o.NormForProducts(y, c, 1e-6f, h); }},
  };
  for (const Backend& b : FastBackends()) {
    Random random(3);
    const Products products(*b.ops, cols, random);
    const Held<float> x(*b.ops, random.Normals(rows * cols), cols), y(*b.ops, random.Normals(rows * cols), cols), columns(*b.ops, random.Normals(cols)),
        h(*b.ops, random.Normals(rows * cols), cols);
    const std::vector<int32_t> positions = {5, 6, 7, 8};
    Batch batch;
    batch.positions = positions;
    for (const auto& [name, write] : writes) {
      INFO(b.name << ", " << name);
      b.ops->BeginStep(batch);
      b.ops->RmsNorm(x.mat(), columns.vec(), 1e-6f, h.mat());
      write(*b.ops, h.mat(), y.mat(), columns.vec(), products.square());
      const auto want = products.Of(*b.ops, h.mat());
      b.ops->NormForProducts(x.mat(), columns.vec(), 1e-6f, h.mat());
      write(*b.ops, h.mat(), y.mat(), columns.vec(), products.square());
      CHECK(SameBits(products.Of(*b.ops, h.mat()), want));
      // Other rows in between have their own.
      b.ops->NormForProducts(x.mat(), columns.vec(), 1e-6f, h.mat());
      const auto others = products.Of(*b.ops, y.mat());
      write(*b.ops, h.mat(), y.mat(), columns.vec(), products.square());
      CHECK(SameBits(products.Of(*b.ops, h.mat()), want));
      CHECK(SameBits(products.Of(*b.ops, y.mat()), others));
      // Some of the rows are not the same x.
      b.ops->NormForProducts(x.mat(), columns.vec(), 1e-6f, h.mat());
      const auto part = products.Of(*b.ops, h.mat().Rows(1, 2));
      b.ops->RmsNorm(x.mat(), columns.vec(), 1e-6f, h.mat());
      CHECK(SameBits(products.Of(*b.ops, h.mat().Rows(1, 2)), part));
    }
    CHECK(b.ops->Health().ok());
  }
}

TEST_CASE("products of one type in one call have the bits of calls of their own") {
  const int64_t in = 256, outs[4] = {70, 16, 33, 5};
  for (const Backend& b : FastBackends()) {
    for (const DType type : AllTypes()) {
      Random random(static_cast<uint32_t>(type) + 9);
      std::vector<PackedWeight> weights;
      for (const int64_t out : outs) weights.emplace_back(*b.ops, type, out, in, FileRows(type, out, in, random));
      const Held<float> bias(*b.ops, random.Normals(70));
      for (const int64_t rows : {1, 8, 9, 40, 70}) {
        if (b.emulated && rows > 9 && type != DType::kQ4_0 && type != DType::kF32) continue;
        INFO(b.name << ", " << InfoOf(type).name << ", " << rows << " rows");
        const Held<float> x(*b.ops, random.Normals(rows * in), in);
        const auto before = random.Normals(rows * 80);
        const auto run = [&](bool together) {
          std::vector<Held<float>> ys;
          std::vector<Product> products;
          for (int i = 0; i < 4; ++i) {
            ys.emplace_back(*b.ops, before, 80);
            products.push_back({weights[static_cast<size_t>(i)].weight, ys.back().mat().Columns(3, outs[i]), i == 0 ? bias.vec() : i == 2 ? bias.vec().first(33) : Vec(), i % 2 == 1});
          }
          if (together) b.ops->MatMul(x.mat(), products);
          for (const Product& p : products) {
            if (!together) b.ops->MatMul(x.mat(), {&p, 1});
          }
          std::vector<float> all;
          for (const auto& y : ys) {
            for (const float v : y.Get()) all.push_back(v);
          }
          return all;
        };
        CHECK(SameBits(run(true), run(false)));
      }
    }
  }
}

TEST_CASE("the emulated device is asked for as few kernels as there should be") {
  auto made = cuda_emulated::MakeOps({});
  REQUIRE(made.ok());
  Ops& ops = **made;
  const int64_t in = 64, rows = 2;
  Random random(1);
  std::vector<PackedWeight> weights;
  for (int i = 0; i < 3; ++i) weights.emplace_back(ops, DType::kQ4_0, 16, in, FileRows(DType::kQ4_0, 16, in, random));
  const Held<float> x(ops, random.Normals(rows * in), in), h(ops, random.Normals(rows * in), in);
  std::vector<Held<float>> ys;
  std::vector<Product> products;
  for (const PackedWeight& w : weights) {
    ys.emplace_back(ops, std::vector<float>(static_cast<size_t>(rows * 16)), 16);
    products.push_back({w.weight, ys.back().mat(), {}, false});
  }
  const auto launches = [&](auto&& f) {
    const uint64_t before = simt::TheCounts().launches;
    f();
    return simt::TheCounts().launches - before;
  };
  CHECK(launches([&] { ops.MatMul(x.mat(), products); }) == 2);   // activations, and one for the three
  CHECK(launches([&] {
          ops.NormForProducts(x.mat(), {}, 1e-6f, h.mat());
          ops.MatMul(h.mat(), products);
        }) == 2);
}

}  // namespace
}  // namespace holdfast::kernels::test

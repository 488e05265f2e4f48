#include <catch2/catch.hpp>
#include <functional>

#include "kernels/cpu/thread_pool.h"
#include "tests/unit/kernels/rig.h"

namespace holdfast::kernels::test {
namespace {

// Runs one operation on x (and y) by every backend and compares with the reference; also row by row against the whole, to the bit.
void Compare(const char* name, double tolerance, const std::function<void(Ops&, Mat x, ConstMat y, Vec columns)>& run) {
  const auto reference = MakeReferenceOps();
  static const auto backends = FastBackends();
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {5, 64}, {2, 576}, {70, 300}, {1, 40000}}) {
    Random random(static_cast<uint32_t>(cols));
    const auto x = random.Normals(rows * cols, 2.f), y = random.Normals(rows * cols), columns = random.Normals(cols);
    auto want = x;
    run(*reference, View(want, cols), View(y, cols), columns);
    for (const Backend& b : backends) {
      INFO(name << ", " << b.name << ", [" << rows << "][" << cols << "]");
      Held<float> held(*b.ops, x, cols);
      const Held<float> other(*b.ops, y, cols), factors(*b.ops, columns);
      run(*b.ops, held.mat(), other.mat(), factors.vec());
      const auto got = held.Get();
      CHECK(Nmse(got, want) < tolerance);
      held.Put(x);
      for (int64_t t = 0; t < rows; ++t) run(*b.ops, held.mat().Rows(t, 1), other.mat().Rows(t, 1), factors.vec());
      CHECK(SameBits(held.Get(), got));
      CHECK(b.ops->Health().ok());
    }
  }
}

TEST_CASE("norms, activations and elementwise operations agree with the reference") {
  Compare("rms norm", 1e-12, [](Ops& o, Mat x, ConstMat, Vec w) { o.RmsNorm(x, w, 1e-6f, x); });
  Compare("rms norm, no weight", 1e-12, [](Ops& o, Mat x, ConstMat, Vec) { o.RmsNorm(x, {}, 1e-5f, x); });
  Compare("add rms norm", 1e-12, [](Ops& o, Mat x, ConstMat y, Vec w) { o.AddRmsNorm(x, y, w, 1e-6f); });
  Compare("gated silu", 1e-12, [](Ops& o, Mat x, ConstMat y, Vec) { o.Gated(x, y, Activation::kSilu, x); });
  Compare("gated gelu", 1e-12, [](Ops& o, Mat x, ConstMat y, Vec) { o.Gated(x, y, Activation::kGeluTanh, x); });
  Compare("gated swiglu-oai", 1e-12, [](Ops& o, Mat x, ConstMat y, Vec) { o.Gated(x, y, Activation::kSwigluOai, x); });
  Compare("silu", 1e-12, [](Ops& o, Mat x, ConstMat, Vec) { o.ActivateInPlace(x, Activation::kSilu); });
  Compare("gelu", 1e-12, [](Ops& o, Mat x, ConstMat, Vec) { o.ActivateInPlace(x, Activation::kGeluTanh); });
  Compare("softcap", 1e-11, [](Ops& o, Mat x, ConstMat, Vec) { o.Softcap(x, 3.f); });
  Compare("add", 1e-14, [](Ops& o, Mat x, ConstMat y, Vec) { o.Add(x, y); });
  Compare("multiply", 1e-14, [](Ops& o, Mat x, ConstMat y, Vec) { o.Multiply(x, y); });
  Compare("scale", 1e-14, [](Ops& o, Mat x, ConstMat, Vec) { o.Scale(x, -0.37f); });
  Compare("scale columns", 1e-14, [](Ops& o, Mat x, ConstMat, Vec w) { o.ScaleColumns(x, w); });
}

TEST_CASE("activations keep their limits for large inputs") {
  for (const Backend& b : Backends()) {
    INFO(b.name);
    std::vector<float> x = {-1e30f, -1000.f, -90.f, 0.f, 90.f, 1000.f, 1e4f};
    const auto run = [&](const std::vector<float>& in, auto&& op) {
      const Held<float> held(*b.ops, in, static_cast<int64_t>(in.size()));
      op(held.mat());
      return held.Get();
    };
    auto y = run(x, [&](Mat m) { b.ops->ActivateInPlace(m, Activation::kSilu); });
    for (size_t i = 0; i < 3; ++i) CHECK(std::fabs(y[i]) < 1e-5f);
    for (size_t i = 3; i < 7; ++i) CHECK(y[i] == Approx(x[i]));
    y = run(x, [&](Mat m) { b.ops->ActivateInPlace(m, Activation::kGeluTanh); });
    for (size_t i = 1; i < 3; ++i) CHECK(std::fabs(y[i]) < 1e-5f);
    for (size_t i = 3; i < 7; ++i) CHECK(y[i] == Approx(x[i]));
    y = run(x, [&](Mat m) { b.ops->Softcap(m, 30.f); });
    for (size_t i = 0; i < 7; ++i) CHECK(y[i] == Approx(30.0 * std::tanh(static_cast<double>(x[i]) / 30.0)).margin(1e-5));
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const auto bad = run({1.f, NAN, 2.f}, [&](Mat m) { b.ops->ActivateInPlace(m, activation); });
      CHECK(std::isnan(bad[1]));
      CHECK(std::isfinite(bad[0]));
    }
  }
}

TEST_CASE("views of part of the columns leave the rest alone, and rows are gathered") {
  for (const Backend& b : Backends()) {
    INFO(b.name);
    std::vector<float> x(6 * 20, 1.f);
    const Held<float> held(*b.ops, x, 20);
    b.ops->Scale(held.mat().Columns(3, 11), 2.f);
    const auto scaled = held.Get();
    for (size_t i = 0; i < x.size(); ++i) CHECK(scaled[i] == (i % 20 >= 3 && i % 20 < 14 ? 2.f : 1.f));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    const Held<float> from(*b.ops, x, 20), to(*b.ops, std::vector<float>(3 * 20), 20);
    const std::vector<int32_t> rows = {5, 0, 2};
    b.ops->GatherRows(from.mat(), rows, to.mat());
    const auto out = to.Get();
    for (size_t i = 0; i < out.size(); ++i) CHECK(out[i] == static_cast<float>(rows[i / 20] * 20) + static_cast<float>(i % 20));
  }
}

TEST_CASE("the pool runs every part once a call, also after its threads parked, also with more threads than cores") {
  for (const int threads : {1, 2, 4, 16}) {
    ThreadPool pool(threads);
    std::vector<int64_t> calls(static_cast<size_t>(threads), 0);
    for (int round = 0; round < 2000; ++round) {
      pool.Run([&](int t) { ++calls[static_cast<size_t>(t)]; });
      if (round % 500 == 499) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (const int64_t n : calls) CHECK(n == 2000);
  }
}

TEST_CASE("an instruction set beyond the machine's is limited, a name that is none is refused") {
  CHECK(KernelsFor("scalar")->name == std::string("scalar"));
  CHECK(KernelsFor("auto")->name == AvailableIsas().back());
  CHECK(KernelsFor("avx1024") == nullptr);
  CpuOptions options;
  options.isa = "fastest";
  CHECK(MakeCpuOps(options) == nullptr);
  options.isa = "scalar";
  options.threads = 1;
  CHECK(MakeCpuOps(options)->Describe() == "cpu scalar, 1 thread");
  CHECK(UsableCores() >= 1);
}

}  // namespace
}  // namespace holdfast::kernels::test

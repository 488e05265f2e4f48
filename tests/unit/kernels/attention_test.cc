#include <catch2/catch.hpp>
#include <map>

#include "tests/unit/kernels/attention_rig.h"

namespace holdfast::kernels::test {
namespace {

std::vector<Config> Configs() {
  std::vector<Config> all;
  for (const KvDType type : {KvDType::kF16, KvDType::kBF16, KvDType::kQ8_0, KvDType::kFp8E4M3}) {
    for (const int32_t page_size : {1, 8, 16, 32}) all.push_back({type, page_size});
    all.push_back({type, 16, 8, 1, 32, 96, 40, 0.f, true});
    all.push_back({type, 1, 4, 4, 128, 32, 17, 5.f, false});
    all.push_back({type, 32, 30, 1, 32, 32, 0, 3.f, true});  // more heads on a key than a task takes
  }
  all.push_back({KvDType::kF16, 16, 3, 3, 40, 24});
  all.push_back({KvDType::kBF16, 16, 3, 1, 20, 9, 5});
  all.push_back({KvDType::kF16, 12, 2, 1, 7, 5});
  return all;
}

// Three sequences: prompts in chunks of different sizes, then decodes together.
void Mixed(Cache& cache) {
  cache.Run({{0, 70}, {1, 5}});
  cache.Run({{1, 1}, {0, 1}, {2, 33}});
  cache.Run({{0, 25}, {2, 1}, {1, 1}});
  cache.Run({{0, 1}, {1, 1}, {2, 1}});
}

TEST_CASE("attention over pages agrees with the reference in every KV type and page size") {
  const std::vector<int32_t> lengths = {97, 8, 35};
  const auto reference = MakeReferenceOps();
  const auto backends = Backends();
  for (const Config& c : Configs()) {
    const Data data(c, lengths, 11);
    Cache want(*reference, c, data);
    Mixed(want);
    for (const Backend& b : backends) {
      INFO(b.name << ": " << c.Name());
      CHECK(b.ops->KvPageBytes(c.type, c.page_size, c.kv_heads, c.dim_k, c.dim_v) % 64 == 0);
      Cache got(*b.ops, c, data);
      Mixed(got);
      for (size_t s = 0; s < lengths.size(); ++s) {
        INFO("sequence " << s);
        CHECK(Nmse(got.out[s], want.out[s]) < Tolerance(b, c.type));
      }
    }
  }
}

TEST_CASE("an attention row has the same bits however the prompt was cut and whatever shares the step") {
  const std::vector<int32_t> lengths = {150, 40};
  const auto kinds = Twins();
  for (Config c : Configs()) {
    const Data data(c, lengths, 12);
    for (const auto& twins : kinds) {
      std::vector<float> whole;
      for (const Backend& b : twins) {
        const auto& ops = b.ops;
        INFO(b.name << ": " << c.Name());
        if (b.emulated && c.heads > 8) continue;
        Cache all(*ops, c, data);
        all.Run({{0, 150}});
        if (whole.empty()) whole = all.out[0];
        CHECK(SameBits(all.out[0], whole));
        for (const int32_t chunk : {1, 3, 16, 64}) {
          if (b.emulated && chunk != 16) continue;
          Cache cut(*ops, c, data);
          for (int32_t t = 0; t < 150; t += chunk) {
            const int32_t n = std::min(chunk, 150 - t);
            t / chunk < 30 ? cut.Run({{1, 1}, {0, n}}) : cut.Run({{0, n}});
          }
          INFO("chunks of " << chunk);
          CHECK(SameBits(cut.out[0], whole));
        }
      }
    }
  }
}

TEST_CASE("a long context is shared between threads without changing a bit") {
  for (const KvDType type : {KvDType::kF16, KvDType::kQ8_0}) {
    Config c;
    c.type = type;
    c.heads = 2;
    c.kv_heads = 1;
    c.dim_k = c.dim_v = 32;
    for (const int32_t window : {0, 1100}) {
      c.window = window;
      c.sinks = window > 0;
      const Data data(c, {2100}, 13);
      const auto run = [&](Ops& ops) {
        Cache cache(ops, c, data);
        cache.Run({{0, 2000}});
        for (int i = 0; i < 4; ++i) cache.Run({{0, 1}});
        cache.Run({{0, 96}});
        return cache.out[0];
      };
      const auto whole = [&](Ops& ops) {
        Cache cache(ops, c, data);
        cache.Run({{0, 2100}});
        return cache.out[0];
      };
      const auto reference = MakeReferenceOps();
      const auto want = whole(*reference);
      for (const std::string_view isa : AvailableIsas()) {
        const auto one = Cpu(isa, 1), two = Cpu(isa, 2);
        INFO(isa << ": " << c.Name());
        const auto got = run(*one);
        CHECK(Nmse(got, want) < 1e-11);
        CHECK(SameBits(got, run(*two)));
        CHECK(SameBits(got, whole(*one)));
        CHECK(SameBits(got, whole(*two)));
      }
    }
  }
}

TEST_CASE("rotations agree with the reference") {
  const auto reference = MakeReferenceOps();
  const auto backends = FastBackends();
  Random random(21);
  std::vector<float> factors(32);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = i < 16 ? 1.f + 0.1f * static_cast<float>(i) : 1e30f;
  std::vector<int32_t> positions = {0, 1, 2, 77, 4095, 100000, 5};
  Batch batch;
  batch.positions = positions;
  for (const RopeKind kind : {RopeKind::kNeox, RopeKind::kInterleaved}) {
    for (const int variant : {0, 1, 2, 3, 4}) {
      RopeParams p;
      p.kind = kind;
      p.dims = variant == 4 ? 20 : 64;
      p.base = variant == 1 ? 1e6f : 150000.f;
      if (variant == 1) p.freq_factors = factors;
      if (variant == 2) p.scale = 0.125f;
      if (variant == 3) {
        p.yarn_factor = 32.f;
        p.yarn_original_context = 4096.f;
        p.attention_factor = 1.3465736f;
      }
      const auto x = random.Normals(static_cast<int64_t>(positions.size()) * 3 * 64);
      auto want = x;
      reference->BeginStep(batch);
      reference->Rope(View(want, 192), 3, p);
      for (const Backend& b : backends) {
        INFO(b.name << ", kind " << static_cast<int>(kind) << ", variant " << variant);
        const Held<float> factors_held(*b.ops, factors);
        RopeParams there = p;
        if (variant == 1) there.freq_factors = factors_held.vec();
        for (int again = 0; again < 2; ++again) {  // the second time from the step's table
          const Held<float> got(*b.ops, x, 192);
          if (again == 0) b.ops->BeginStep(batch);
          b.ops->Rope(got.mat(), 3, there);
          CHECK(Nmse(got.Get(), want) < 1e-12);
        }
      }
    }
  }
}

TEST_CASE("a copied page reads like the original") {
  for (const Backend& b : Backends()) {
    const int64_t bytes = b.ops->KvPageBytes(KvDType::kQ8_0, 16, 2, 64, 64);
    std::vector<std::byte> page(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < bytes; ++i) page[static_cast<size_t>(i)] = static_cast<std::byte>(i * 7);
    const Held<std::byte> from(*b.ops, page), to(*b.ops, std::vector<std::byte>(page.size()));
    b.ops->CopyPage(to.data(), from.data(), bytes);
    CHECK(to.Get() == page);
  }
}

}  // namespace
}  // namespace holdfast::kernels::test

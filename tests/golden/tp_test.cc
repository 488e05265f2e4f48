// Models divided among ranks, against the same model on one rank and against reference logits: the sum over ranks rounds in another order,
// nothing else differs.
#include <catch2/catch.hpp>

#include <cuda_runtime.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/device_collective.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/model_harness.h"
#include "tests/support/ranks.h"
#include "tests/support/simt/emulated_ops.h"
#include "worker/model/tools/make_model.h"
#include "worker/tp/device_group.h"

namespace holdfast::test {
namespace {

std::string Path(const std::string& file) { return std::string(HOLDFAST_SOURCE_DIR) + "/tests/golden/logits/" + file; }

std::vector<uint32_t> ReadIds(const std::string& name) {
  std::ifstream in(Path(name + ".ids"));
  return {std::istream_iterator<uint32_t>(in), std::istream_iterator<uint32_t>()};
}

std::vector<float> ReadLogits(const std::string& name) {
  std::ifstream in(Path(name + ".logits.f32"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::vector<float> out(bytes.size() / 4);
  memcpy(out.data(), bytes.data(), out.size() * 4);
  return out;
}

std::unique_ptr<kernels::Ops> MakeOps(const std::string& backend, uint32_t rank, uint32_t ranks) {
  if (backend == "reference") return kernels::MakeReferenceOps();
  if (backend.find("cuda emulated") == 0) {
    kernels::CudaOptions device;
    device.device = static_cast<int>(rank);
    device.devices = static_cast<int>(ranks);
    return kernels::cuda_emulated::MakeOps(device).value();
  }
  kernels::CpuOptions options;
  options.threads = 1;
  return kernels::MakeCpuOps(options);
}

// Rank 0's logits of `ids`, fed in steps of `chunk` (0 = at once), beside a second sequence when `company`. Empty when the model cannot be
// divided so; *why then has the reason.
std::vector<float> Logits(const model::GgufFile& file, const std::string& backend, uint32_t ranks, const std::vector<uint32_t>& ids, size_t chunk = 0,
                          bool company = false, std::string* why = nullptr) {
  std::vector<float> out;
  simt::TheFakeDevice().count = static_cast<int>(ranks);
  RunRanks(ranks, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& collective) {
    const auto ops = MakeOps(backend, rank, ranks);
    if (backend == "cuda emulated, joined") {
      tp::JoinOptions join;
      join.wanted = tp::Collectives::kNccl;
      join.load = [] { return &FakeNccl(); };
      const auto joined = tp::JoinDevices(ops.get(), &collective, &group, join);
      HF_CHECKF(joined.ok() && ops->ranks() != nullptr, "{}", std::string(joined.status().message()));
    }
    HarnessOptions options;
    options.ranks = &collective;
    auto h = ModelHarness::Open(file, ops.get(), options);
    if (!h.ok()) {
      if (rank == 0 && why != nullptr) *why = std::string(h.status().message());
      return;
    }
    const int s = (*h)->NewSequence(), other = (*h)->NewSequence();
    const size_t vocab = static_cast<size_t>((*h)->hparams().vocab);
    for (size_t at = 0; at < ids.size();) {
      const size_t n = chunk == 0 ? ids.size() : std::min(chunk, ids.size() - at);
      std::vector<ModelHarness::Feed> feeds{{s, {ids.begin() + static_cast<ptrdiff_t>(at), ids.begin() + static_cast<ptrdiff_t>(at + n)}}};
      if (company) feeds.push_back({other, {ids[at], ids[0], ids[1]}});
      const auto rows = (*h)->Step(feeds);
      if (rank == 0) out.insert(out.end(), rows.begin(), rows.begin() + static_cast<ptrdiff_t>(n * vocab));
      at += n;
    }
  });
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) { return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * 4) == 0; }

struct Fixture {
  const char* name;
  const char* ids;
  bool quantised;
};
constexpr Fixture kFixtures[] = {
    {"llama", "other", false},        {"llama3", "other", false},     {"qwen3", "other", false},       {"qwen3moe", "other", false},
    {"gemma3", "other", false},       {"gptoss", "other", false},     {"gemma4-dense", "gemma4", false}, {"gemma4-moe", "gemma4", false},
    {"gemma4-ple", "gemma4", false},  {"gemma4-q8", "gemma4", true},  {"gemma4-q4", "gemma4", true},
};

}  // namespace

TEST_CASE("two ranks compute what one computes, for every family", "[golden][tp]") {
  const std::string backend = GENERATE("reference", "auto", "cuda emulated");
  for (const Fixture& fixture : kFixtures) {
    // Of a device the collectives' copies are what is new.
    if (backend == "cuda emulated" && std::string(fixture.name) != "llama" && std::string(fixture.name) != "gemma4-q4") continue;
    const auto file = model::GgufFile::Open(Path(std::string(fixture.name) + ".gguf"));
    REQUIRE(file.ok());
    const auto ids = ReadIds(fixture.ids);
    std::string why;
    const auto one = Logits(**file, backend, 1, ids);
    const auto two = Logits(**file, backend, 2, ids, 0, false, &why);
    CAPTURE(fixture.name, backend, why);
    REQUIRE(two.size() == one.size());
    const size_t vocab = one.size() / ids.size();
    size_t same = 0;
    for (size_t at = 0; at < one.size(); at += vocab) same += Argmax({one.data() + at, vocab}) == Argmax({two.data() + at, vocab});
    const double nmse = Nmse(two, one);
    CAPTURE(nmse, same, ids.size());
    // With int8 activations a value on the edge of a rounding may fall the other way, and with experts a near-tie of a router.
    CHECK(nmse < (fixture.quantised && backend != "reference" ? 5e-3 : 1e-6));
    CHECK(same * 100 >= ids.size() * (fixture.quantised && backend != "reference" ? 95 : 100));
    if (!fixture.quantised) CHECK(Nmse(two, ReadLogits(fixture.name)) < 1e-6);
  }
}

TEST_CASE("the rows of two ranks are the same from run to run, however the prompt is cut and whatever shares the batch", "[golden][tp]") {
  for (const char* name : {"llama", "gemma4-moe", "gemma4-q4", "gptoss"}) {
    const auto file = model::GgufFile::Open(Path(std::string(name) + ".gguf"));
    REQUIRE(file.ok());
    const auto ids = ReadIds(name[0] == 'l' || std::string(name) == "gptoss" ? "other" : "gemma4");
    CAPTURE(name);
    const auto whole = Logits(**file, "auto", 2, ids);
    REQUIRE(!whole.empty());
    CHECK(SameBits(Logits(**file, "auto", 2, ids), whole));
    CHECK(SameBits(Logits(**file, "auto", 2, ids, 3), whole));
    CHECK(SameBits(Logits(**file, "auto", 2, ids, 5, true), whole));
  }
}

TEST_CASE("devices that sum by themselves give the bits of sums through the host", "[golden][tp]") {
  for (const char* name : {"llama", "gemma4-q4", "qwen3moe"}) {
    const auto file = model::GgufFile::Open(Path(std::string(name) + ".gguf"));
    REQUIRE(file.ok());
    auto ids = ReadIds(std::string(name) == "gemma4-q4" ? "gemma4" : "other");
    ids.resize(12);
    CAPTURE(name);
    const auto through_host = Logits(**file, "cuda emulated", 2, ids);
    REQUIRE(!through_host.empty());
    CHECK(SameBits(Logits(**file, "cuda emulated, joined", 2, ids), through_host));
    CHECK(SameBits(Logits(**file, "cuda emulated, joined", 2, ids, 5, true), through_host));
  }
}

TEST_CASE("parts need not be equal, and KV heads fewer than ranks are held more than once", "[golden][tp]") {
  // Four query heads, two KV heads: on three ranks nothing divides, on four two ranks hold each KV head.
  model::RandomModelOptions o;
  o.type = kernels::DType::kF32;
  o.biases = true;
  const auto file = model::GgufFile::FromBytes(model::RandomLlama(o).Finish(), "made.gguf");
  REQUIRE(file.ok());
  const auto ids = std::vector<uint32_t>{5, 9, 2, 77, 31, 8, 8, 120};
  const auto one = Logits(**file, "reference", 1, ids);
  std::string why;
  CHECK(Nmse(Logits(**file, "reference", 4, ids, 0, false, &why), one) < 1e-6);
  CHECK(Logits(**file, "reference", 3, ids, 0, false, &why).empty());
  CAPTURE(why);
  CHECK(why.find("--tp 3") != std::string::npos);
  CHECK(why.find("4 query heads and 2 key-value heads") != std::string::npos);
  CHECK(why.find("that work are 1, 2, 4") != std::string::npos);
  // Six query heads on three KV heads: two and one on two ranks.
  o.dim = 192;
  const auto odd = model::GgufFile::FromBytes(model::RandomLlama(o).Finish(), "odd.gguf");
  REQUIRE(odd.ok());
  CHECK(Nmse(Logits(**odd, "reference", 2, ids), Logits(**odd, "reference", 1, ids)) < 1e-6);
}

TEST_CASE("fused tensors and per-layer embeddings are cut where they must be", "[golden][tp]") {
  model::RandomModelOptions o;
  o.type = kernels::DType::kQ8_0;
  o.experts = true;
  o.per_layer = 32;
  const auto file = model::GgufFile::FromBytes(model::RandomGemma4(o).Finish(), "made.gguf");
  REQUIRE(file.ok());
  const auto ids = std::vector<uint32_t>{2, 9, 33, 77, 31, 8, 8, 120, 64, 65, 66, 90};
  std::string why;
  const auto one = Logits(**file, "reference", 1, ids), two = Logits(**file, "reference", 2, ids, 0, false, &why);
  CAPTURE(why);
  REQUIRE(two.size() == one.size());
  CHECK(Nmse(two, one) < 1e-6);
}

}  // namespace holdfast::test

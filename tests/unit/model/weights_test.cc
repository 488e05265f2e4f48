// The sealed weight arena: contents, progress, refusals, and handing it to a later generation.
#include "worker/model/weights.h"

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/unit/model/files.h"
#include "worker/model/hparams.h"
#include "worker/model/memory.h"
#include "worker/model/tools/make_model.h"

namespace holdfast::test {
namespace {

using model::GgufFile;
using model::Hparams;
using model::TensorPlan;
using model::WeightStore;

struct Opened {
  std::unique_ptr<GgufFile> file;
  Hparams hparams;
  TensorPlan plan;
};

Opened Open(const std::string& path) {
  auto file = GgufFile::Open(path);
  REQUIRE(file.ok());
  auto hparams = model::ReadHparams(**file);
  INFO(hparams.status());
  REQUIRE(hparams.ok());
  auto plan = TensorPlan::Make(**file, *hparams);
  INFO(plan.status());
  REQUIRE(plan.ok());
  return {*std::move(file), *std::move(hparams), *std::move(plan)};
}

std::string Message(const absl::Status& s) { return std::string(s.message()); }

}  // namespace

TEST_CASE("weights are packed, sealed, and attach to a later generation of the same model", "[weights]") {
  TempDir dir;
  const Opened m = Open(dir.Write("m.gguf", model::RandomLlama({}).Finish()));
  const auto ops = kernels::MakeReferenceOps();
  uint64_t last = 0, total = 0;
  model::WeightOptions options;
  options.threads = 3;
  options.progress = [&](const model::LoadProgress& p) {
    CHECK(p.done_bytes >= last);
    last = p.done_bytes;
    total = p.total_bytes;
    return true;
  };
  auto made = WeightStore::Create(*m.file, m.plan, *ops, options);
  INFO(made.status());
  REQUIRE(made.ok());
  CHECK(last == total);
  CHECK((*made)->bytes() == WeightStore::BytesNeeded(m.plan, *ops));
  const kernels::Weight w = (*made)->matrix("blk.0.attn_q.weight");
  REQUIRE(w);
  CHECK(w.out == 128);
  CHECK(w.dtype == kernels::DType::kQ8_0);
  CHECK((*made)->vector("output_norm.weight").size() == 128);
  CHECK(!(*made)->matrix("nothing"));
  CHECK((*made)->vector("nothing").empty());
  CHECK(reinterpret_cast<uintptr_t>(w.data) % 64 == 0);
  // Nobody can change or resize what others map.
  CHECK(ftruncate((*made)->fd(), 0) != 0);
  CHECK(pwrite((*made)->fd(), "x", 1, 5000) < 0);
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (*made)->fd(), 0) == MAP_FAILED);

  auto attached = WeightStore::Attach(UniqueFd(dup((*made)->fd())), *m.file, m.plan, *ops);
  INFO(attached.status());
  REQUIRE(attached.ok());
  const kernels::Weight v = (*attached)->matrix("blk.0.attn_q.weight");
  CHECK(memcmp(v.data, w.data, static_cast<size_t>(kernels::RowBytes(w.dtype, w.in) * w.out)) == 0);

  SECTION("another model's arena is refused") {
    model::RandomModelOptions other;
    other.seed = 2;
    const Opened n = Open(dir.Write("n.gguf", model::RandomLlama(other).Finish()));
    const auto refused = WeightStore::Attach(UniqueFd(dup((*made)->fd())), *n.file, n.plan, *ops);
    CHECK(refused.status().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(Message(refused.status()).find("another file") != std::string::npos);
    other.layers = 3;
    const Opened k = Open(dir.Write("k.gguf", model::RandomLlama(other).Finish()));
    CHECK(!WeightStore::Attach(UniqueFd(dup((*made)->fd())), *k.file, k.plan, *ops).ok());
  }
  SECTION("an unsealed or foreign descriptor is refused") {
    UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(fd.get(), static_cast<off_t>((*made)->bytes())) == 0);
    CHECK(Message(WeightStore::Attach(UniqueFd(dup(fd.get())), *m.file, m.plan, *ops).status()).find("not sealed") != std::string::npos);
    REQUIRE(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0);
    CHECK(Message(WeightStore::Attach(std::move(fd), *m.file, m.plan, *ops).status()).find("no header") != std::string::npos);
    CHECK(!WeightStore::Attach(UniqueFd(), *m.file, m.plan, *ops).ok());
  }
}

TEST_CASE("the arena of a packing backend attaches too, and other backends refuse it", "[weights]") {
  TempDir dir;
  const Opened m = Open(dir.Write("m.gguf", model::RandomGemma4({}).Finish()));
  const auto cpu = kernels::MakeCpuOps({1, "auto"});
  const auto reference = kernels::MakeReferenceOps();
  auto made = WeightStore::Create(*m.file, m.plan, *cpu, {});
  REQUIRE(made.ok());
  CHECK(WeightStore::Attach(UniqueFd(dup((*made)->fd())), *m.file, m.plan, *cpu).ok());
  if (WeightStore::BytesNeeded(m.plan, *cpu) != WeightStore::BytesNeeded(m.plan, *reference)) {
    CHECK(!WeightStore::Attach(UniqueFd(dup((*made)->fd())), *m.file, m.plan, *reference).ok());
  }
}

TEST_CASE("loading gives up cleanly: cancelled, truncated, damaged", "[weights]") {
  TempDir dir;
  const auto ops = kernels::MakeReferenceOps();
  const std::string bytes = model::RandomLlama({}).Finish();
  const std::string path = dir.Write("m.gguf", bytes);
  const Opened m = Open(path);
  model::WeightOptions options;
  options.progress = [](const model::LoadProgress&) { return false; };
  CHECK(WeightStore::Create(*m.file, m.plan, *ops, options).status().code() == absl::StatusCode::kCancelled);

  REQUIRE(truncate(path.c_str(), static_cast<off_t>(bytes.size() / 2)) == 0);
  const absl::Status cut = WeightStore::Create(*m.file, m.plan, *ops, {}).status();
  CAPTURE(Message(cut));
  CHECK(cut.code() == absl::StatusCode::kDataLoss);
  CHECK(Message(cut).find("truncated") != std::string::npos);

  std::string damaged = bytes;
  auto probe = GgufFile::FromBytes(bytes, "probe");
  REQUIRE(probe.ok());
  const auto* q = (*probe)->FindTensor("blk.2.ffn_up.weight");
  REQUIRE(q != nullptr);
  damaged[q->offset + 34 * 5] = '\x00';      // the scale of block 5 becomes +inf
  damaged[q->offset + 34 * 5 + 1] = '\x7c';
  const Opened d = Open(dir.Write("d.gguf", damaged));
  CHECK(WeightStore::Create(*d.file, d.plan, *ops, {}).ok());
  model::WeightOptions check;
  check.check_values = true;
  const absl::Status bad = WeightStore::Create(*d.file, d.plan, *ops, check).status();
  CAPTURE(Message(bad));
  CHECK(bad.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(bad).find("blk.2.ffn_up.weight") != std::string::npos);
  CHECK(Message(bad).find("block 5") != std::string::npos);
}

TEST_CASE("memory is checked before it is taken", "[weights]") {
  const model::MemoryRoom room = model::AvailableMemory();
  CHECK(room.bytes > 0);
  CHECK(!room.limited_by.empty());
  CHECK(model::RequireMemory(1, "a byte").ok());
  const absl::Status s = model::RequireMemory(uint64_t{1} << 60, "a whale");
  CHECK(s.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Message(s).find("a whale needs 1073741824.0 GiB, but ") == 0);
}

}  // namespace holdfast::test

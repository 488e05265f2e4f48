// What a worker does with a device's memory, on the emulated one: how pools are sized, what is said, and how a start is refused.
#include <catch2/catch.hpp>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <numeric>

#include "tests/support/simt/memory.h"
#include "tests/unit/model/files.h"
#include "tests/unit/worker/device_rig.h"
#include "worker/bench.h"
#include "worker/model/activation_bytes.h"
#include "worker/model/memory.h"
#include "worker/model/tools/make_model.h"
#include "worker/runtime.h"

namespace holdfast::worker {
namespace {

using test::TempDir;

std::string ModelIn(const TempDir& dir, model::GgufWriter writer) {
  std::string error;
  REQUIRE(writer.WriteFile(dir.path() + "/model.gguf", &error));
  return dir.path() + "/model.gguf";
}

WorkerConfig Config(const std::string& file) {
  WorkerConfig c;
  c.model = file;
  c.backend = "cuda";
  c.max_running = 4;
  c.prefill_chunk = 64;
  c.num_tokens = 512;
  c.max_seq_len = 256;
  return c;
}

std::string MemoryLine(const Runtime& runtime) {
  for (const std::string& note : runtime.cache_plan().notes) {
    if (note.rfind("memory: ", 0) == 0) return note;
  }
  return "no line";
}

// The device with so much left until the test ends.
struct Left {
  explicit Left(size_t bytes) : before(simt::DeviceBytes()) { simt::SetDeviceBytes(simt::DeviceBytesUsed() + bytes); }
  ~Left() { simt::SetDeviceBytes(before); }
  size_t before;
};

TEST_CASE("pools are sized from the device's free memory, and one line says how", "[runtime]") {
  const TempDir dir;
  const WorkerConfig config = Config(ModelIn(dir, model::RandomGemma4({})));
  CountedFindings findings;
  const Left left(size_t{1} << 30);
  auto built = Runtime::Build(config, {}, &findings, Emulated);
  INFO(built.status());
  REQUIRE(built.ok());
  Runtime& runtime = **built;
  CHECK(runtime.ops().Describe().find("cuda 0: emulated") == 0);
  const std::string line = MemoryLine(runtime);
  INFO(line);
  CHECK(line.find("memory: 1.0 GiB free on the device x --memory-ratio 0.85 = 870.4 MiB: weights ") == 0);
  CHECK(line.find(", activations ") != std::string::npos);
  CHECK(line.find(", KV pools ") != std::string::npos);
}

TEST_CASE("what a step takes of the device is not more than was kept free for it, nor out of all proportion", "[runtime]") {
  model::RandomModelOptions experts, per_layer;
  experts.experts = true;
  per_layer.per_layer = 32;
  std::vector<model::GgufWriter> writers;
  writers.push_back(model::RandomLlama({}));
  writers.push_back(model::RandomGemma4(experts));
  writers.push_back(model::RandomGemma4(per_layer));
  for (model::GgufWriter& writer : writers) {
    const TempDir dir;
    WorkerConfig config = Config(ModelIn(dir, std::move(writer)));
    config.max_running = 16;
    config.prefill_chunk = 256;
    config.num_tokens = 8192;
    config.max_seq_len = 1024;
    CountedFindings findings;
    const size_t before = simt::DeviceBytesUsed();
    auto built = Runtime::Build(config, {}, &findings, Emulated);
    INFO(built.status());
    REQUIRE(built.ok());
    Runtime& runtime = **built;
    uint64_t pools = 0;
    for (size_t g = 0; g < runtime.kv_plan().groups.size(); ++g) pools += uint64_t{runtime.cache_plan().shape.groups[g].pages} * static_cast<uint64_t>(runtime.kv_plan().groups[g].page_bytes);
    // A whole chunk, then as many decodes as there may be.
    std::vector<TokenId> tokens(256, 3);
    std::vector<int32_t> table(64);
    for (int32_t i = 0; i < 64; ++i) table[static_cast<size_t>(i)] = i;
    exec::SamplingTable sampling;
    sched::StepPlan plan;
    for (uint64_t i = 0; i < 17; ++i) {
      sched::StepEntry e;
      e.request = RequestId(i + 1);
      e.start = i == 0 ? 0 : 31;
      e.tokens = std::span(tokens).first(i == 0 ? 256 : 1);
      e.history = std::span(tokens).first(i == 0 ? 256 : 32);
      e.prompt_tokens = i == 0 ? 256 : 16;
      e.sample = i > 0;
      e.tables.assign(runtime.kv_plan().groups.size(), table.data());
      plan.total_tokens += static_cast<uint32_t>(e.tokens.size());
      sampling.Add(e.request, {});
      plan.entries.push_back(std::move(e));
    }
    const auto ran = runtime.executor().Run(plan, sampling);
    INFO(ran.status());
    REQUIRE(ran.ok());
    const uint64_t taken = simt::DeviceBytesUsed() - before - runtime.weight_bytes() - pools;
    const uint64_t kept = model::ActivationBytes(runtime.hparams(), 256 + 16, 64, 16, 8192), fixed = model::ActivationBytes({}, 0, 0, 0, 0);
    INFO("taken " << model::BytesText(taken) << ", kept free " << model::BytesText(kept));
    // The fixed part is for what the emulated device has not: but for uploads, the rest alone must do.
    CHECK(taken <= kept - fixed + (uint64_t{1} << 20));
    CHECK(kept - fixed <= 3 * taken);
  }
}

// Their logits are one tile, and part of the graph.
TEST_CASE("a hundred requests decode in as many launches as one", "[runtime]") {
  const TempDir dir;
  WorkerConfig config = Config(ModelIn(dir, model::RandomLlama({})));
  config.max_running = 100;
  config.num_tokens = 4096;
  config.max_seq_len = 32;
  CountedFindings findings;
  auto built = Runtime::Build(config, {}, &findings, Emulated);
  INFO(built.status());
  REQUIRE(built.ok());
  Runtime& runtime = **built;
  exec::SamplingTable sampling;
  for (uint64_t i = 0; i < 100; ++i) sampling.Add(RequestId(i), {});
  std::vector<int32_t> pages(100);
  std::iota(pages.begin(), pages.end(), 0);
  const std::vector<TokenId> tokens(2, 3);
  // Of the third step: the first one's calls are made, the second is recorded.
  const auto launches = [&](size_t requests) {
    sched::StepPlan plan;
    for (size_t i = 0; i < requests; ++i) {
      sched::StepEntry e;
      e.request = RequestId(i);
      e.start = 1;
      e.tokens = std::span(tokens).last(1);
      e.history = tokens;
      e.prompt_tokens = 1;
      e.sample = true;
      e.tables.assign(runtime.kv_plan().groups.size(), &pages[i]);
      plan.entries.push_back(std::move(e));
    }
    plan.total_tokens = static_cast<uint32_t>(requests);
    uint64_t of_step = 0;
    for (int step = 0; step < 3; ++step) {
      const uint64_t before = simt::TheCounts().launches;
      const auto ran = runtime.executor().Run(plan, sampling);
      INFO(ran.status());
      REQUIRE(ran.ok());
      CHECK((*ran)->result.sampled.size() == requests);
      of_step = simt::TheCounts().launches - before;
    }
    return of_step;
  };
  const uint64_t one = launches(1);
  CHECK(launches(100) == one);
}

TEST_CASE("a device that is too small refuses the start with the numbers, as the environment's fault", "[runtime]") {
  const TempDir dir;
  model::RandomModelOptions options;
  options.dim = 512;
  const WorkerConfig config = Config(ModelIn(dir, model::RandomLlama(options)));
  const auto refused = [&](size_t bytes, const WorkerConfig& c) {
    CountedFindings findings;
    const Left left(bytes);
    auto built = Runtime::Build(c, {}, &findings, Emulated);
    REQUIRE(!built.ok());
    return built.status();
  };
  const auto says = [](const absl::Status& s, int code, const char* words) {
    INFO(s);
    CHECK(ExitCodeOf(s) == code);
    CHECK(std::string(s.message()).find(words) != std::string::npos);
  };
  says(refused(4 << 20, config), 69, "the weights take ");
  says(refused(4 << 20, config), 69, "of the 4.0 MiB free on the device is 3.4 MiB");
  says(refused(64 << 20, config), 69, "a step's activations take ");
  // What the flags ask for cannot be waited for.
  WorkerConfig large = config;
  large.num_tokens = 1 << 20;
  large.max_seq_len = 256;
  says(refused(size_t{256} << 20, large), 64, "the KV pools need ");
}

// Somebody else took memory between the plan and the load.
TEST_CASE("memory that is gone when the weights come is told with the numbers", "[runtime]") {
  const TempDir dir;
  model::RandomModelOptions options;
  options.dim = 512;
  const WorkerConfig config = Config(ModelIn(dir, model::RandomLlama(options)));
  CountedFindings findings;
  const Left left(size_t{1} << 30);
  RuntimeEvents events;
  events.on_card = [&](const proto::ModelCard&) { simt::SetDeviceBytes(simt::DeviceBytesUsed() + (2 << 20)); };
  const auto built = Runtime::Build(config, events, &findings, Emulated);
  REQUIRE(!built.ok());
  INFO(built.status());
  CHECK(ExitCodeOf(built.status()) == 69);
  CHECK(std::string(built.status().message()).find("of the device's memory, of which 2.0 MiB are left") != std::string::npos);
}

TEST_CASE("bench says of a device what its copies do and what a step costs the host", "[runtime]") {
  const TempDir dir;
  const std::string file = ModelIn(dir, model::RandomLlama({}));
  const Left left(size_t{160} << 20);
  const std::string out = dir.path() + "/out";
  std::fflush(stdout);
  const int before = dup(1), to = open(out.c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(dup2(to, 1) == 1);
  const char* args[] = {"bench", "--model", file.c_str(), "--backend", "cuda", "--requests", "1,2", "--prompt", "8", "--generate", "6", "--repeat", "1",
                        "--num-tokens", "512", "--max-prefill-length", "64", "--json"};
  const int code = Bench(static_cast<int>(std::size(args)), args, Emulated);
  std::fflush(stdout);
  dup2(before, 1);
  close(before);
  close(to);
  std::ifstream in(out);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  INFO(text);
  CHECK(code == 0);
  CHECK(text.find("\"backend\":\"cuda 0: emulated") != std::string::npos);
  size_t rows = 0;
  for (size_t at = 0; (at = text.find("\"host_us_per_step\":", at)) != std::string::npos; ++rows) {
    at += 19;
    CHECK(std::stod(text.substr(at)) > 0);
  }
  CHECK(rows == 2);
  REQUIRE(text.find("\"read_gbs\":") != std::string::npos);
  CHECK(std::stod(text.substr(text.find("\"read_gbs\":") + 11)) > 0);
}

}  // namespace
}  // namespace holdfast::worker

#include "worker/config.h"

#include <catch2/catch.hpp>

#include <initializer_list>
#include <vector>

namespace holdfast::worker {
namespace {

absl::StatusOr<WorkerConfig> Parse(std::initializer_list<const char*> flags) {
  std::vector<const char*> argv{"holdfast-worker"};
  argv.insert(argv.end(), flags);
  return ParseWorkerConfig(static_cast<int>(argv.size()), argv.data(), nullptr);
}

TEST_CASE("defaults need only a model", "[config]") {
  const auto c = Parse({"--model", "m.gguf"});
  REQUIRE(c.ok());
  CHECK(c->model == "m.gguf");
  CHECK(c->page_size == 16);
  CHECK(c->prefix_cache);
  CHECK_FALSE(c->num_tokens.has_value());
}

TEST_CASE("the safe profile switches the prefix cache off and audits each step", "[config]") {
  const auto c = Parse({"--model", "m.gguf", "--safe"});
  REQUIRE(c.ok());
  CHECK_FALSE(c->prefix_cache);
  CHECK(c->audit_period == 1);
  CHECK_FALSE(c->cuda_graphs);
}

TEST_CASE("CUDA graphs are on unless the operator or the safe profile says otherwise", "[config]") {
  CHECK(Parse({"--model", "m.gguf"})->cuda_graphs);
  CHECK(Parse({"--model", "m.gguf", "--cuda-graphs", "auto"})->cuda_graphs);
  CHECK_FALSE(Parse({"--model", "m.gguf", "--cuda-graphs", "off"})->cuda_graphs);
}

TEST_CASE("steps overlap as the backend is, unless a flag says it, and never in the safe profile", "[config]") {
  CHECK_FALSE(Parse({"--model", "m.gguf"})->overlap.has_value());
  CHECK_FALSE(Parse({"--model", "m.gguf", "--overlap", "auto"})->overlap.has_value());
  CHECK(Parse({"--model", "m.gguf", "--overlap", "0"})->overlap == 0u);
  CHECK(Parse({"--model", "m.gguf", "--overlap", "1"})->overlap == 1u);
  CHECK(Parse({"--model", "m.gguf", "--overlap", "1", "--safe"})->overlap == 0u);
}

TEST_CASE("impossible flags are refused with words", "[config]") {
  struct Row {
    std::vector<const char*> flags;
    const char* says;
  };
  const std::vector<Row> rows = {
      {{}, "--model"},
      {{"--model", "m", "--page-size", "3"}, "page-size"},
      {{"--model", "m", "--max-running-requests", "0"}, "max-running-requests"},
      {{"--model", "m", "--num-tokens", "100"}, "112"},
      {{"--model", "m", "--memory-ratio", "1.5"}, "memory-ratio"},
      {{"--model", "m", "--memory-ratio", "nan"}, "memory-ratio"},
      {{"--model", "m", "--swa-full-tokens-ratio", "-NaN"}, "swa-full-tokens-ratio"},
      {{"--model", "m", "--tp", "2"}, "--group-fd"},
      {{"--model", "m", "--rank", "1"}, "ranks count from 0"},
      {{"--model", "m", "--log-level", "loud"}, "debug, info"},
      {{"--model", "m", "--cache-type", "tree"}, "cache-type"},
      {{"--model", "m", "--cuda-graphs", "some"}, "cuda-graphs"},
      {{"--model", "m", "--overlap", "2"}, "overlap"},
      {{"--model", "m", "--collectives", "gossip"}, "collectives"},
      {{"--model", "m", "--no-such-flag"}, "no-such-flag"},
  };
  for (const Row& row : rows) {
    std::vector<const char*> argv{"holdfast-worker"};
    argv.insert(argv.end(), row.flags.begin(), row.flags.end());
    const auto c = ParseWorkerConfig(static_cast<int>(argv.size()), argv.data(), nullptr);
    INFO(row.says);
    REQUIRE_FALSE(c.ok());
    CHECK(std::string(c.status().message()).find(row.says) != std::string::npos);
  }
}

}  // namespace
}  // namespace holdfast::worker

#include "worker/cache_plan.h"

#include <catch2/catch.hpp>

#include "worker/kv/capacity.h"
#include "worker/model/memory.h"

namespace holdfast::worker {
namespace {

CachePlanInput Small() {
  CachePlanInput in;
  in.groups = {{0, 16 * 1000}, {64, 16 * 4000}};
  in.page_size = 16;
  in.max_running = 4;
  in.prefill_chunk = 512;
  in.context_length = 4096;
  in.memory_bytes = uint64_t{8} << 30;
  in.weight_bytes = uint64_t{1} << 30;
  return in;
}

bool Mentions(const absl::Status& status, std::string_view text) { return std::string(status.message()).find(text) != std::string::npos; }

TEST_CASE("the pools hold max_running sequences when memory allows", "[cache_plan]") {
  const auto plan = PlanCache(Small());
  REQUIRE(plan.ok());
  CHECK(plan->max_seq_len == 4096);
  REQUIRE(plan->shape.groups.size() == 2);
  CHECK(plan->shape.groups[0].pages == 4 * 4096 / 16);
  CHECK(plan->shape.groups[1].pages >= kv::WindowNeed(64, 16, 4, 512, 0));
  CHECK(plan->shape.groups[0].reserve_pages >= plan->shape.groups[0].pages);
}

TEST_CASE("without a size the pools are at their floors at least, however short sequences are", "[cache_plan]") {
  for (const uint32_t page_size : {1u, 16u, 256u}) {
    for (const uint32_t running : {1u, 8u, 4096u}) {
      for (const uint32_t chunk : {1u, 512u}) {
        CachePlanInput in = Small();
        in.page_size = page_size;
        in.max_running = running;
        in.prefill_chunk = chunk;
        in.max_seq_len = 2;
        in.memory_bytes = uint64_t{1} << 50;
        const auto plan = PlanCache(in);
        CAPTURE(page_size, running, chunk);
        INFO(plan.status().ToString());
        CHECK(plan.ok());
      }
    }
  }
}

TEST_CASE("a smaller memory shrinks the full pool and says so", "[cache_plan]") {
  CachePlanInput in = Small();
  in.memory_bytes = (uint64_t{1} << 30) * 100 / 85 + (uint64_t{30} << 20);
  const auto plan = PlanCache(in);
  REQUIRE(plan.ok());
  uint64_t bytes = 0;
  for (size_t i = 0; i < 2; ++i) bytes += in.groups[i].page_bytes * plan->shape.groups[i].pages;
  CHECK(bytes + in.weight_bytes <= static_cast<uint64_t>(0.85 * static_cast<double>(in.memory_bytes)));
  CHECK(plan->shape.groups[0].pages < 1024);
  REQUIRE_FALSE(plan->notes.empty());
  CHECK(plan->notes[0].find("shrinks") != std::string::npos);
}

TEST_CASE("no room for the weights is the environment's fault, with the numbers", "[cache_plan]") {
  CachePlanInput in = Small();
  in.memory_bytes = uint64_t{1} << 30;
  const auto plan = PlanCache(in);
  REQUIRE(absl::IsResourceExhausted(plan.status()));
  CHECK(Mentions(plan.status(), "1.0 GiB"));
  CHECK(Mentions(plan.status(), "0.85"));
}

TEST_CASE("one line says where the memory goes, and a device's activations are kept free", "[cache_plan]") {
  CachePlanInput in = Small();
  in.memory_name = "free on the device";
  in.activation_bytes = uint64_t{512} << 20;
  in.memory_bytes = uint64_t{4} << 30;
  in.memory_ratio = 0.5;
  const auto sum = [](const CachePlan& plan) {
    std::string line = "no line";
    for (const std::string& note : plan.notes) {
      if (note.rfind("memory: ", 0) == 0) line = note;
    }
    return line;
  };
  const auto pools_of = [&](const CachePlan& plan) {
    return uint64_t{plan.shape.groups[0].pages} * in.groups[0].page_bytes + uint64_t{plan.shape.groups[1].pages} * in.groups[1].page_bytes;
  };
  const auto plan = PlanCache(in);
  REQUIRE(plan.ok());
  const uint64_t pools = pools_of(*plan);
  CHECK(sum(*plan) == "memory: 4.0 GiB free on the device x --memory-ratio 0.50 = 2.0 GiB: weights 1.0 GiB, activations 512.0 MiB, KV pools " +
                          model::BytesText(pools) + ", " + model::BytesText((uint64_t{512} << 20) - pools) + " of it not needed");
  // Less room: the pools give way, the activations do not.
  in.memory_bytes = (uint64_t{2} << 30) + 2 * pools + (uint64_t{8} << 20);
  in.activation_bytes = 0;
  CHECK(PlanCache(in)->shape.groups[0].pages == plan->shape.groups[0].pages);
  in.activation_bytes = uint64_t{512} << 20;
  const auto refused = PlanCache(in);
  REQUIRE(absl::IsResourceExhausted(refused.status()));
  INFO(refused.status());
  CHECK(Mentions(refused.status(), "a step's activations take 512.0 MiB"));
  CHECK(Mentions(refused.status(), "free on the device"));
  CHECK(Mentions(refused.status(), "1.0 GiB of which are weights"));
  in.memory_bytes = (uint64_t{3} << 30) + pools;
  const auto smaller = PlanCache(in);
  REQUIRE(smaller.ok());
  CHECK(pools_of(*smaller) <= pools / 2);
  CHECK(smaller->shape.groups[0].pages < plan->shape.groups[0].pages);
}

TEST_CASE("impossible flags name the nearest value that works", "[cache_plan]") {
  SECTION("max-seq-len beyond the context") {
    CachePlanInput in = Small();
    in.max_seq_len = 5000;
    const auto plan = PlanCache(in);
    REQUIRE(absl::IsInvalidArgument(plan.status()));
    CHECK(Mentions(plan.status(), "4096"));
  }
  SECTION("max-seq-len beyond the pool") {
    CachePlanInput in = Small();
    in.max_seq_len = 4096;
    in.num_tokens = 2048;
    const auto plan = PlanCache(in);
    REQUIRE(absl::IsInvalidArgument(plan.status()));
    CHECK(Mentions(plan.status(), "2048"));
  }
  SECTION("num-tokens below the reserve") {
    CachePlanInput in = Small();
    in.num_tokens = 2048;
    in.kv_reserve_tokens = 3001;
    const auto plan = PlanCache(in);
    REQUIRE(absl::IsInvalidArgument(plan.status()));
    CHECK(Mentions(plan.status(), "3008"));
  }
  SECTION("a window ratio below the floor: the ratio it names is accepted, and nothing below it is") {
    CachePlanInput in = Small();
    in.num_tokens = 8192;
    in.swa_ratio = 0.01;
    const auto refused = PlanCache(in);
    REQUIRE(absl::IsInvalidArgument(refused.status()));
    const std::string message(refused.status().message());
    const size_t at = message.find("--swa-full-tokens-ratio ");
    REQUIRE(at != std::string::npos);
    in.swa_ratio = std::stod(message.substr(at + 24));
    CHECK(PlanCache(in).ok());
    in.swa_ratio = *in.swa_ratio - 16.0 / 8192 - 0.0002;
    CHECK_FALSE(PlanCache(in).ok());
  }
}

TEST_CASE("without --max-seq-len a small pool limits the sequences instead of failing", "[cache_plan]") {
  CachePlanInput in = Small();
  in.num_tokens = 2048;
  const auto plan = PlanCache(in);
  REQUIRE(plan.ok());
  CHECK(plan->max_seq_len == 2048);
}

TEST_CASE("a capped chunk is a warning", "[cache_plan]") {
  CachePlanInput in = Small();
  in.num_tokens = 8192;
  const uint32_t floor_pages = static_cast<uint32_t>(kv::WindowNeed(64, 16, 4, 256, 0));
  in.swa_ratio = (floor_pages * 16.0 + 1) / 8192;
  const auto plan = PlanCache(in);
  REQUIRE(plan.ok());
  bool warned = false;
  for (const auto& note : plan->notes) warned = warned || note.rfind("warning: the chunk is capped", 0) == 0;
  CHECK(warned);
}

TEST_CASE("a model with windows only gets window pools", "[cache_plan]") {
  CachePlanInput in = Small();
  in.groups = {{64, 64000}};
  const auto plan = PlanCache(in);
  REQUIRE(plan.ok());
  CHECK(plan->shape.groups.size() == 1);
  CHECK(plan->max_seq_len == 4096);
}

}  // namespace
}  // namespace holdfast::worker

// T10: the start-up formula (worker/kv/README.md, Capacity), with numbers as values.
#include <catch2/catch.hpp>

#include "worker/kv/capacity.h"

using namespace holdfast::kv;

namespace {

CapacityQuestion Report(uint32_t chunk) { return {16, {0, 1024}, 4, chunk, 1, 131072}; }

}  // namespace

TEST_CASE("the report's setting: windows, full chunk and hard floor") {
  CHECK(4 * WindowPagesPerRow(1024, 16) == 264);
  CHECK(WindowNeed(1024, 16, 4, 8192, 1) == 1288);
  CHECK(WindowNeed(1024, 16, 4, 256, 1) == 296);
  const uint32_t usable[] = {8192, 9176 / 16};
  const CapacityAnswer answer = Evaluate(Report(8192), usable);
  CHECK(answer.ok);
  CHECK(answer.chunk == 2472);
  CHECK(answer.running == 4);
  CHECK(answer.groups[1].floor == 296);
  CHECK(answer.groups[1].recommended == 1288);
}

TEST_CASE("one page below the floor is refused with both numbers and what would work") {
  for (uint32_t page_size : {1u, 16u, 32u}) {
    for (uint32_t window : {1u, 2u, 15u, 16u, 17u, 512u, 1024u}) {
      for (uint32_t running : {1u, 4u, 300u}) {
        for (uint32_t depth : {0u, 1u}) {
          CapacityQuestion q{page_size, {0, window}, running, 2048, depth, 8192};
          const uint32_t plenty[] = {1u << 20, 1u << 20};
          const uint32_t floor = Evaluate(q, plenty).groups[1].floor;
          CAPTURE(page_size, window, running, depth, floor);
          const uint32_t at[] = {1u << 20, floor};
          CHECK(Evaluate(q, at).ok);
          CHECK(Evaluate(q, at).chunk >= SmallestChunk(running, 2048));
          const uint32_t below[] = {1u << 20, floor - 1};
          const CapacityAnswer no = Evaluate(q, below);
          CHECK(!no.ok);
          CHECK(no.running < running);
          CHECK(no.message.find(std::to_string(floor - 1) + " pages") != std::string::npos);
          CHECK(no.message.find(std::to_string(floor) + " pages") != std::string::npos);
          if (no.running > 0) {
            q.max_running = no.running;  // what the message says would work, works
            CHECK(Evaluate(q, below).ok);
          }
        }
      }
    }
  }
}

TEST_CASE("the cap of the chunk never lets a schedule exceed the pool") {
  for (uint32_t pages = 20; pages < 400; ++pages) {
    for (uint32_t page_size : {1u, 4u, 16u}) {
      const CapacityQuestion q{page_size, {24}, 3, 700, 1, 1000};
      const uint32_t usable[] = {pages};
      const CapacityAnswer a = Evaluate(q, usable);
      if (!a.ok) continue;
      CAPTURE(pages, page_size, a.chunk);
      CHECK(WindowNeed(24, page_size, 3, a.chunk, 1) <= pages);
      CHECK(3 * WindowPagesPerRow(24, page_size) + static_cast<uint64_t>(a.tokens_in_flight) / page_size <= pages);
    }
  }
}

TEST_CASE("quarantined pages first cost chunk, then running requests") {
  const CapacityQuestion q = Report(8192);
  uint32_t running = 4, chunk = 8192;
  for (uint32_t pages = 1300; pages > 0; --pages) {
    const uint32_t usable[] = {8192, pages};
    const StepLimits l = EvaluateStep(q, usable);
    CHECK(l.running <= running);
    if (l.running == running) CHECK(l.chunk <= chunk);
    if (l.running < running) CHECK(chunk <= 272);  // down to the smallest chunk before a request goes
    running = l.running;
    chunk = l.chunk;
  }
  CHECK(running == 0);
}

TEST_CASE("the full pool has a floor of its own") {
  const CapacityQuestion q{16, {0}, 8, 512, 0, 4096};
  const uint32_t little[] = {10};
  const CapacityAnswer a = Evaluate(q, little);
  CHECK(!a.ok);
  CHECK(a.groups[0].floor == 24);
  CHECK(a.groups[0].recommended == 256);
  CHECK(a.message.find("10 pages") != std::string::npos);
  CHECK(a.message.find("24 pages") != std::string::npos);
  // Fewer requests are an answer only where some number of them would do.
  const auto ends_with = [](const std::string& text, const std::string& end) { return text.size() >= end.size() && text.substr(text.size() - end.size()) == end; };
  CHECK(ends_with(a.message, "24 pages (384 tokens)"));
  const uint32_t some[] = {20};
  CHECK(ends_with(Evaluate(q, some).message, "24 pages (384 tokens), or at most 4 running requests"));
}

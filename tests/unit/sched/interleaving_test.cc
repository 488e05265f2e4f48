// T6: the least interleaving that broke an engine of this kind, both endings, at page sizes 1, 4 and 16.
#include <catch2/catch.hpp>

#include "tests/sim/interleaving.h"

using namespace holdfast;

TEST_CASE("two requests commit one prefix whose window was given up while a third reads it") {
  for (bool reader_first : {false, true}) {
    for (uint32_t page_size : {1u, 4u, 16u}) {
      sim::Interleaving i;
      i.page_size = page_size;
      i.window = page_size == 16 ? 24 : 8;
      i.shared = page_size == 16 ? 160 : 40;
      i.reader_ends_first = reader_first;
      uint64_t steps = 0;
      CAPTURE(page_size, reader_first);
      CHECK(sim::RunInterleaving(i, &steps) == "");
      CHECK(steps > 10);
    }
  }
}

TEST_CASE("the same at the window of the report") {
  for (bool reader_first : {false, true}) {
    uint64_t steps = 0;
    CHECK(sim::RunInterleaving({.window = 1024, .shared = 7696, .page_size = 16, .reader_ends_first = reader_first}, &steps) == "");
  }
}

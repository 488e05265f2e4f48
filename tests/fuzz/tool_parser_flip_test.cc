// The seeds of the tool parsers' fuzz target, whole and damaged, in every build: pieces cut out, doubled and moved.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "tests/fuzz/tool_parser_body.h"

namespace holdfast::tools::testing {
namespace {

TEST_CASE("tool parsers: damaged answers", "[tools]") {
  std::vector<std::string> seeds;
  const std::filesystem::path folder = std::filesystem::path(HOLDFAST_SOURCE_DIR) / "tests" / "fuzz" / "corpus" / "tool_parser";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    seeds.push_back(text.str());
  }
  REQUIRE(seeds.size() >= 9);
  std::sort(seeds.begin(), seeds.end());
  const ToolParserBody body;
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  size_t runs = 0;
  for (const std::string& seed : seeds) {
    for (int i = 0; i < 1500; ++i) {
      std::string s = seed;
      s[1] = static_cast<char>(random());
      s[2] = static_cast<char>(random());
      if (i % 4 == 1) s[0] = static_cast<char>(random());
      for (size_t n = i == 0 ? 0 : below(4); n > 0; --n) {
        const size_t at = 3 + below(s.size() - 3), length = below(12);
        const std::string part = s.substr(at, length);
        switch (below(4)) {
          case 0: s.erase(at, length); break;
          case 1: s.insert(3 + below(s.size() - 3), part); break;
          case 2: s[at] = static_cast<char>(random()); break;
          default: s.resize(at + 1); break;
        }
        if (s.size() < 5) s += seed;
      }
      body.Run(reinterpret_cast<const uint8_t*>(s.data()), s.size());
      ++runs;
    }
  }
  CHECK(runs == seeds.size() * 1500);
}

}  // namespace
}  // namespace holdfast::tools::testing

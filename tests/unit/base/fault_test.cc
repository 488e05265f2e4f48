// Fault points: the rules of HOLDFAST_FAULT, by number and by file. One case: rules are read once a process.
#include "proto/base/fault.h"

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

namespace holdfast {
namespace {

bool Init(const std::string& text, std::string* error) {
  ::setenv("HOLDFAST_FAULT", text.c_str(), 1);
  return InitFaults(error);
}

TEST_CASE("Rules act at their hit, or while their file is there, once a file") {
  CHECK_FALSE(FaultPoint("a"));  // nothing is armed
  std::string error;
  for (const char* bad : {"a", "a:", ":fail", "a:fail:0", "a:fail:x", "a:exit", "a:fail:@", "a:fail:2@", "a:fail:x@file", "a:never:1"}) {
    CAPTURE(bad);
    error.clear();
    CHECK_FALSE(Init(bad, &error));
    CHECK(error.find("point:action:nth") != std::string::npos);
  }
  char pattern[] = "/tmp/holdfast-fault-XXXXXX";
  REQUIRE(::mkdtemp(pattern) != nullptr);
  const std::string folder = pattern;
  const auto make = [&](const std::string& name) { std::ofstream(folder + "/" + name) << ""; };
  REQUIRE(Init("a:fail:2,b:fail:2+,c:fail:@" + folder + "/c,d:fail:3@" + folder + "/d,e:sleep=0:1+", &error));
  const auto pattern_of = [](const char* point) {
    std::string out;
    for (int i = 0; i < 5; ++i) out += FaultPoint(point) ? '1' : '0';
    return out;
  };
  CHECK(pattern_of("a") == "01000");
  CHECK(pattern_of("b") == "01111");
  CHECK(pattern_of("c") == "00000");  // no file yet
  make("c");
  CHECK(pattern_of("c") == "10000");  // acting removed it
  CHECK(::access((folder + "/c").c_str(), F_OK) != 0);
  make("c");
  CHECK(pattern_of("c") == "10000");
  make("d");
  CHECK(pattern_of("d") == "00100");
  CHECK(pattern_of("e") == "00000");
  CHECK(pattern_of("nobody asked for it") == "00000");
  ::rmdir(folder.c_str());
}

}  // namespace
}  // namespace holdfast

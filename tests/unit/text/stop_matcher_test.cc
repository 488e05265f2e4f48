#include "frontend/text/stop_matcher.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include <algorithm>

namespace holdfast::text {
namespace {

using Strings = std::vector<std::string>;

StopMatcher Make(Strings stops) {
  auto m = StopMatcher::Create(std::move(stops));
  REQUIRE(m.ok());
  return *std::move(m);
}

struct Outcome {
  Strings pieces;              // what each push released, the end last
  bool stopped = false;
  std::string Text() const {
    std::string out;
    for (const std::string& p : pieces) out += p;
    return out;
  }
};

Outcome Run(StopMatcher m, const Strings& pieces) {
  Outcome o;
  for (const std::string& piece : pieces) {
    o.stopped = m.Push(piece, &o.pieces.emplace_back());
    if (o.stopped) return o;
  }
  m.Finish(&o.pieces.emplace_back());
  return o;
}

// By definition: the stop string that ends first, of several ending there the longest.
std::pair<std::string, bool> Slowly(const std::string& text, const Strings& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST_CASE("B033 nothing of a stop string is released, in any cut into up to four pieces") {
  const std::string text = "ABCDEFGHIJ";
  for (size_t a = 0; a <= text.size(); ++a) {
    for (size_t b = a; b <= text.size(); ++b) {
      for (size_t c = b; c <= text.size(); ++c) {
        const Outcome o = Run(Make({"DEFGHIJ"}), {text.substr(0, a), text.substr(a, b - a), text.substr(b, c - b), text.substr(c)});
        CHECK(o.Text() == "ABC");
        CHECK(o.stopped);
      }
    }
  }
  CHECK(Run(Make({"DEFGHIJ"}), {"ABC", "DEF", "G", "HI", "J"}).pieces == Strings{"ABC", "", "", "", ""});
}

TEST_CASE("B034 what was held back is released at the end") {
  CHECK(Run(Make({"XYZ"}), {"a", "X"}).pieces == Strings{"a", "", "X"});
  CHECK(Run(Make({"XYZ"}), {"aXY"}).pieces == Strings{"a", "XY"});
  CHECK(Run(Make({"\n"}), {"why?\n"}).pieces == Strings{"why?"});
  CHECK(Run(Make({"XYZ"}), {"X", "Y", "a"}).pieces == Strings{"", "", "XYa", ""});
}

TEST_CASE("B036 B040 stop strings over tokens, at the start, as the whole text, with other letters") {
  CHECK(Run(Make({"beta gamma"}), {"alpha ", "be", "ta gam", "ma delta"}).Text() == "alpha ");
  CHECK(Run(Make({"Hello"}), {"Hello"}).Text().empty());
  CHECK(Run(Make({"Hello"}), {"Hello"}).stopped);
  CHECK(Run(Make({"\xC3\xA9"}), {"caf", "\xC3\xA9", "!"}).Text() == "caf");
  CHECK(Run(Make({"\xC3\xA9"}), {"\xC3\xA8", "x"}).pieces == Strings{"\xC3\xA8", "x", ""});
  CHECK(Run(Make({}), {"anything"}).pieces == Strings{"anything", ""});
  CHECK(Run(Make({"aab"}), {"aa", "ab"}).Text() == "a");
}

TEST_CASE("of several, the one that ends first stops, and of those the longest") {
  CHECK(Run(Make({"abcd", "bc"}), {"xabcd"}).Text() == "xa");
  StopMatcher m = Make({"c", "bc", "abc", "bc"});
  std::string out;
  CHECK(m.Push("xabcd", &out));
  CHECK(out == "x");
  CHECK(m.matched() == 2u);
  CHECK(m.held().empty());
  CHECK(m.Push("more", &out));
  m.Finish(&out);
  CHECK(out == "x");
}

TEST_CASE("any text, any stop strings, any cut: the same result as by definition") {
  CHECK(rc::check([] {
    const auto letters = [](size_t most) {
      return *rc::gen::resize(static_cast<int>(most), rc::gen::container<std::string>(rc::gen::elementOf(std::string("aab"))));
    };
    Strings stops;
    const int count = *rc::gen::inRange(0, 5);
    for (int i = 0; i < count; ++i) {
      const std::string stop = letters(8);
      if (!stop.empty()) stops.push_back(stop);
    }
    const std::string text = letters(60);
    Strings pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t n = std::min<size_t>(text.size() - at, *rc::gen::inRange<size_t>(1, 5));
      if (*rc::gen::inRange(0, 4) == 1) pieces.emplace_back();
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    const auto [expected, stopped] = Slowly(text, stops);
    StopMatcher live = Make(stops);
    std::string out, seen;
    for (size_t n = 0; n < pieces.size(); ++n) {
      const bool now = live.Push(pieces[n], &out);
      seen += pieces[n];
      // Held back: nothing but the start of some stop string.
      const std::string held(live.held());
      RC_ASSERT(held.empty() || std::any_of(stops.begin(), stops.end(), [&](const std::string& s) {
                  return held.size() < s.size() && s.compare(0, held.size(), held) == 0;
                }));
      if (!now) RC_ASSERT(out + held == seen);
      // The state follows from the text so far.
      StopMatcher replay = Make(stops);
      std::string again;
      RC_ASSERT(replay.Push(seen, &again) == now);
      RC_ASSERT(again == out);
      RC_ASSERT(replay.held() == live.held());
      if (now) break;
    }
    live.Finish(&out);
    RC_ASSERT(out == expected);
    RC_ASSERT(live.stopped() == stopped);
  }));
}

TEST_CASE("long stop strings keep memory and released text in bounds") {
  // Each letter of the text slides a partial match of a million letters by one.
  const std::string stop = std::string(1'000'000, 'a') + "b";
  StopMatcher m = Make({stop});
  std::string out;
  for (int i = 0; i < 1'200'000; ++i) m.Push("a", &out);
  CHECK(out.size() == 200'000);
  CHECK(m.held().size() == 1'000'000);
  CHECK(m.Push("b", &out));
  CHECK(out == std::string(200'000, 'a'));
}

TEST_CASE("empty and broken stop strings are refused") {
  CHECK(StopMatcher::Create({"a", ""}).status().message() == "stop string 1 is empty; leave it out or give it a character");
  CHECK_FALSE(StopMatcher::Create({"\xC3"}).ok());
}

}  // namespace
}  // namespace holdfast::text

// The per-choice pipeline on its own: what it shows is a function of the ids, however they are portioned.
#include "frontend/choice.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include "proto/engine.pb.h"
#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

using api::ChoiceDelta;
using api::ChoicePipeline;

std::shared_ptr<const api::ModelView> View() {
  static const auto view = *api::ModelView::Create(TestCard().SerializeAsString());
  return view;
}

proto::Token TokenOf(uint32_t id) {
  proto::Token token;
  token.set_id(id);
  token.set_logprob(-0.5f);
  return token;
}

struct Outcome {
  std::string text;
  std::string logprob_bytes;
  std::vector<std::string> deltas;
  std::vector<uint32_t> offsets;
  bool stopped = false;
};

Outcome RunIds(const std::vector<uint32_t>& ids, std::vector<std::string> stops) {
  ChoicePipeline::Options options;
  options.stop = std::move(stops);
  options.logprobs = true;
  ChoicePipeline pipeline(*View(), options);
  Outcome out;
  const auto take = [&](const ChoiceDelta& delta) {
    if (!delta.text.empty()) out.deltas.push_back(delta.text);
    out.text += delta.text;
    for (const api::TokenInfo& info : delta.logprobs) {
      out.logprob_bytes += info.bytes;
      out.offsets.push_back(info.text_offset);
    }
  };
  for (const uint32_t id : ids) {
    ChoiceDelta delta;
    out.stopped = pipeline.Push(TokenOf(id), &delta);
    take(delta);
    if (out.stopped) return out;
  }
  ChoiceDelta delta;
  pipeline.Finish(&delta);
  take(delta);
  return out;
}

TEST_CASE("a stop string is never shown, however the text is cut") {
  const std::string text = "ABCDEFGHIJKLM";
  const Outcome out = RunIds(ByteIds(text), {"DEFGHIJ"});
  CHECK(out.stopped);
  CHECK(out.text == "ABC");
  CHECK(out.logprob_bytes == "ABC");
}

TEST_CASE("text held back as a possible stop string is released at the end") {
  CHECK(RunIds(ByteIds("What X"), {"XYZ"}).text == "What X");
  CHECK(RunIds(ByteIds("What XY"), {"XYZ"}).text == "What XY");
  CHECK(RunIds(ByteIds("What XYZ"), {"XYZ"}).text == "What ");
}

TEST_CASE("a character split over tokens appears once its last byte has come") {
  const Outcome out = RunIds(ByteIds("a\xF0\x9F\x98\x80z"), {});
  CHECK(out.text == "a\xF0\x9F\x98\x80z");
  CHECK(std::find(out.deltas.begin(), out.deltas.end(), "\xF0\x9F\x98\x80") != out.deltas.end());
  CHECK(out.text.find("\xEF\xBF\xBD") == std::string::npos);
  CHECK(out.logprob_bytes == out.text);
  CHECK(out.offsets == std::vector<uint32_t>{0, 1, 1, 1, 1, 2});
}

TEST_CASE("an incomplete character at the end is one replacement character") {
  CHECK(RunIds(ByteIds("ok \xF0\x9F"), {}).text == "ok \xEF\xBF\xBD");
  CHECK(RunIds(ByteIds("\xC3 \xA9"), {}).text == "\xEF\xBF\xBD \xEF\xBF\xBD");
}

TEST_CASE("a stop string of a multibyte character is found over token borders") {
  CHECK(RunIds(ByteIds("caf\xC3\xA9 au lait"), {"\xC3\xA9"}).text == "caf");
}

TEST_CASE("the end token adds neither text nor an entry") {
  const Outcome out = RunIds(Answer("bye"), {});
  CHECK(out.text == "bye");
  CHECK(out.logprob_bytes == "bye");
}

TEST_CASE("entries join to the text, for any bytes and any stop string") {
  const bool held = rc::check([] {
    const std::string text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab\n\xC3\xA9 ")));
    const std::string stop = *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab "))));
    const Outcome out = RunIds(ByteIds(text), {stop});
    // The reference: decode the whole, then cut.
    std::string whole;
    for (const std::string& piece : RunIds(ByteIds(text), {}).deltas) whole += piece;
    const size_t at = whole.find(stop);
    RC_ASSERT(out.text == whole.substr(0, at));
    if (whole == text) RC_ASSERT(out.logprob_bytes == out.text);
  });
  CHECK(held);
}

}  // namespace
}  // namespace holdfast::testing

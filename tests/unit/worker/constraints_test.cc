// Constraints of live requests: the vocabulary's texts, refusals, sharing, and what the sampler makes of a mask.
#include "worker/constraints.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "frontend/grammar/builder.h"
#include "frontend/text/json_value.h"
#include "frontend/text/vocabulary.h"
#include "proto/engine.pb.h"
#include "tests/support/grammar_rig.h"
#include "tests/support/tiny_cards.h"
#include "worker/model/token_texts.h"

namespace holdfast::test {
namespace {

using exec::AllowedTokens;
using exec::Sampler;
using exec::SamplingParams;
using grammar::Builder;
using worker::Constraints;
using worker::ConstraintsOptions;

constexpr TokenId kStop = kFirstSpecial;

std::string Program(std::string_view schema) {
  Builder b;
  const auto root = b.Schema(*text::ParseJson(schema), {}, "s");
  REQUIRE(root.ok());
  return Compile(b, *root);
}

TEST_CASE("the worker's texts are the frontend's") {
  for (const proto::ModelCard& card : {testing::TinyBpeCard(), testing::TinySpmCard(), testing::TinyGemma4Card()}) {
    const auto vocabulary = text::Vocabulary::Create(card);
    REQUIRE(vocabulary.ok());
    const std::vector<std::string> texts = model::TokenTexts(card);
    REQUIRE(texts.size() == card.vocab_size());
    for (TokenId id = 0; id < vocabulary->size(); ++id) {
      const bool text = vocabulary->IsOrdinary(id) || vocabulary->type(id) == text::TokenType::kByte;
      INFO(card.vocabulary().model() << " " << id << " " << vocabulary->stored(id));
      CHECK(texts[id] == (text ? std::string(vocabulary->bytes(id)) : std::string()));
    }
  }
}

TEST_CASE("requests that cannot be constrained are refused in words") {
  Constraints constraints(ByteVocabulary());
  const std::vector<TokenId> stops{kStop};
  CHECK(constraints.Add(RequestId(1), "nonsense", {}, stops).code() == absl::StatusCode::kInvalidArgument);
  const std::string program = Program(R"({"type":"integer"})");
  const std::vector<TokenId> wrong = Tokens("1x");
  const absl::Status status = constraints.Add(RequestId(1), program, wrong, stops);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("token 1 (id 120)"));
  CHECK(constraints.live() == 0);
  CHECK_FALSE(constraints.Allowed(RequestId(1), {}, 0).ok());
}

TEST_CASE("engines are shared by program and dropped when nobody uses them") {
  ConstraintsOptions options;
  options.max_engine_bytes = 1;
  Constraints constraints(ByteVocabulary(), options);
  const std::string a = Program(R"({"type":"integer"})"), b = Program(R"({"type":"string"})");
  REQUIRE(constraints.Add(RequestId(1), a, {}, {}).ok());
  REQUIRE(constraints.Add(RequestId(2), a, {}, {}).ok());
  CHECK(constraints.engines() == 1);
  REQUIRE(constraints.Add(RequestId(3), b, {}, {}).ok());
  CHECK(constraints.engines() == 2);
  constraints.Remove(RequestId(1));
  constraints.Remove(RequestId(2));
  constraints.Remove(RequestId(2));
  REQUIRE(constraints.Add(RequestId(4), Program(R"({"type":"null"})"), {}, {}).ok());
  CHECK(constraints.engines() == 2);  // a went, b is in use
  CHECK(constraints.Allowed(RequestId(3), {}, 0).ok());
}

// Draws with made-up logits until a stop token or `most`.
std::vector<TokenId> Generate(Constraints& constraints, RequestId id, const std::vector<std::string>& vocabulary, SamplingParams params,
                              const std::vector<TokenId>& prompt, std::vector<TokenId> generated, size_t most) {
  Sampler sampler(static_cast<int64_t>(vocabulary.size()));
  std::vector<TokenId> history = prompt;
  history.insert(history.end(), generated.begin(), generated.end());
  while (history.size() < prompt.size() + most) {
    // A function of the position, as a model's logits are a function of the history.
    Dice dice(history.size() * 977);
    std::vector<float> logits(vocabulary.size());
    for (float& l : logits) l = static_cast<float>(dice.Below(1000)) / 200.f;
    const auto allowed = constraints.Allowed(id, history, static_cast<uint32_t>(prompt.size()));
    INFO(allowed.status().ToString());
    REQUIRE(allowed.ok());
    const exec::Sample s = sampler.Draw(logits, params, history, static_cast<uint32_t>(prompt.size()), &*allowed);
    INFO(s.why);
    REQUIRE_FALSE(s.failed);
    history.push_back(s.token);
    if (s.token == kStop) break;
  }
  return {history.begin() + static_cast<ptrdiff_t>(prompt.size()), history.end()};
}

TEST_CASE("any logits spell a valid answer, and a resumed request goes on with the same tokens") {
  Dice dice(3);
  const auto vocabulary = RandomVocabulary(dice, 400);
  const std::string program = Program(R"({"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string","maxLength":12},"b":{"type":"boolean"}},"required":["n","s","b"]})");
  const std::vector<TokenId> prompt{65, 66, 67}, stops{kStop};
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SamplingParams params;
    params.temperature = seed % 2 == 0 ? 0.f : 1.f;
    params.seed = seed;
    params.stop_tokens = stops;
    Constraints constraints(vocabulary);
    REQUIRE(constraints.Add(RequestId(seed), program, {}, stops).ok());
    const auto whole = Generate(constraints, RequestId(seed), vocabulary, params, prompt, {}, 200);
    REQUIRE(whole.back() == kStop);
    const std::string text = TextOf({whole.begin(), whole.end() - 1}, vocabulary);
    INFO(text);
    const auto value = text::ParseJson(text);
    REQUIRE(value.ok());
    CHECK(value->Find("n") != nullptr);
    // Another worker takes over at every position.
    for (size_t cut = 0; cut + 1 < whole.size(); ++cut) {
      Constraints other(vocabulary);
      const std::vector<TokenId> delivered(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(cut));
      REQUIRE(other.Add(RequestId(9), program, delivered, stops).ok());
      CHECK(Generate(other, RequestId(9), vocabulary, params, prompt, delivered, 200) == whole);
    }
  }
}

TEST_CASE("the mask comes first, stop tokens only at the end, log-probabilities stay the model's") {
  Sampler sampler(130);
  SamplingParams params;
  params.stop_tokens = {3, 100};
  params.logprobs = true;
  params.top_logprobs = 2;
  std::vector<float> logits(130, 0.f);
  logits[7] = 5.f;
  logits[3] = 4.f;
  logits[90] = 3.f;
  for (const bool dense : {false, true}) {
    std::vector<uint64_t> bits(3, 0);
    const std::vector<TokenId> few{3, 90, 91};
    for (const TokenId t : few) bits[t / 64] |= uint64_t{1} << (t % 64);
    AllowedTokens allowed;
    allowed.dense = dense;
    allowed.bits = bits;
    allowed.few = few;
    const std::vector<TokenId> refused{3};
    const auto draw = [&](const AllowedTokens* a) {
      std::vector<float> copy = logits;
      return sampler.Draw(copy, params, {}, 0, a);
    };
    CHECK(draw(nullptr).token == 7);
    CHECK(draw(&allowed).token == 3);      // named by the grammar
    allowed.refused = refused;             // it was only its text that fitted
    const exec::Sample s = draw(&allowed);
    CHECK(s.token == 90);
    REQUIRE(s.top.size() == 2);
    CHECK(s.top[0].token == 7);
    CHECK(s.logprob == Approx(s.top[0].logprob - 2.0).margin(1e-4));
    allowed.complete = true;
    CHECK(draw(&allowed).token == 3);
    // Only stop tokens are left: one of them is drawn.
    AllowedTokens end;
    end.complete = true;
    end.dense = dense;
    const std::vector<uint64_t> none(3, 0);
    end.bits = none;
    CHECK(draw(&end).token == 3);
    // And with what they leave, bias may leave nothing.
    params.suppress_tokens = {3, 100};
    const exec::Sample nothing = draw(&end);
    CHECK(nothing.failed);
    CHECK(nothing.refused);
    CHECK_THAT(std::string(nothing.why), Catch::Matchers::Contains("constraint"));
    params.suppress_tokens.clear();
  }
}

// What other requests of the same program left in the engine must not make one fail that could be run alone.
TEST_CASE("requests that share a program do not exhaust it for each other") {
  const std::string program = Program(R"({"type":"array","items":{"type":"string","maxLength":60},"maxItems":60})");
  ConstraintsOptions options;
  options.engine.configurations.max_frames = 2500;
  Constraints constraints(ByteVocabulary(), options);
  for (uint32_t i = 0; i < 40; ++i) {
    // i strings of one letter, then a long one: configurations that no other request meets.
    std::string text = "[";
    for (uint32_t k = 0; k < i; ++k) text += "\"a\", ";
    text += '"' + std::string(50, 'b');
    const std::vector<TokenId> history = Tokens(text);
    const RequestId live(2 * i + 1), resumed(2 * i + 2);
    CAPTURE(i);
    REQUIRE(constraints.Add(live, program, {}, {}).ok());
    for (size_t n = 0; n <= history.size(); ++n) REQUIRE(constraints.Allowed(live, std::span(history).first(n), 0).ok());
    REQUIRE(constraints.Add(resumed, program, history, {}).ok());
    constraints.Remove(live);
    constraints.Remove(resumed);
  }
  // One that does not fit alone is refused, however often it is asked for.
  std::string much = "[";
  for (uint32_t k = 0; k < 59; ++k) much += '"' + std::string(60, 'c') + "\", ";
  CHECK(constraints.Add(RequestId(1000), program, Tokens(much), {}).code() == absl::StatusCode::kResourceExhausted);
  CHECK(constraints.Add(RequestId(1001), program, {}, {}).ok());
}

TEST_CASE("a vocabulary that cannot spell the answer fails with words") {
  const std::vector<std::string> vocabulary = {"", "{", "", "", ""};
  Constraints constraints(vocabulary);
  REQUIRE(constraints.Add(RequestId(1), Program(R"({"type":"object","required":["a"]})"), {}, {}).ok());
  const std::vector<TokenId> history{1};
  const auto allowed = constraints.Allowed(RequestId(1), history, 0);
  REQUIRE_FALSE(allowed.ok());
  CHECK_THAT(std::string(allowed.status().message()), Catch::Matchers::Contains("no token of this model's vocabulary"));
}

}  // namespace
}  // namespace holdfast::test

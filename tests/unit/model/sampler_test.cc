// The sampler against a slow, obvious one; its order, its determinism, its refusals.
#include "worker/exec/sampler.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>
#include <rapidcheck/catch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/sampling_math.h"
#include "proto/base/random.h"

namespace holdfast::test {
namespace {

using exec::Sample;
using exec::Sampler;
using exec::SamplingParams;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(uint64_t seed, size_t n, float spread = 6.f) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = spread * static_cast<float>(SampleUniform(seed, 0, i) - 0.5) * 2.f;
  return out;
}

// Candidates in ascending id with exact probabilities, by the definitions in sampler.h.
std::vector<std::pair<TokenId, double>> SlowDistribution(std::vector<float> logits, const SamplingParams& p, const std::vector<TokenId>& history,
                                                         uint32_t prompt) {
  for (const TokenId t : p.suppress_tokens) logits[t] = -kInf;
  for (const auto& b : p.logit_bias) logits[b.token] += b.bias;
  std::map<TokenId, int> recent, generated;
  for (size_t i = history.size() > 64 ? history.size() - 64 : 0; i < history.size(); ++i) ++recent[history[i]];
  for (size_t i = prompt; i < history.size(); ++i) ++generated[history[i]];
  if (p.repetition_penalty > 0 && p.repetition_penalty != 1.f) {
    for (const auto& [t, n] : recent) logits[t] = logits[t] > 0 ? logits[t] / p.repetition_penalty : logits[t] * p.repetition_penalty;
  }
  for (const auto& [t, n] : generated) logits[t] -= p.frequency_penalty * static_cast<float>(n) + p.presence_penalty;
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  const double best = logits[order[0]];
  const auto prob = [&](TokenId t) { return std::exp((logits[t] - best) / p.temperature); };
  if (p.top_k > 0 && p.top_k < order.size()) order.resize(p.top_k);
  if (p.top_p > 0 && p.top_p < 1) {
    double total = 0, sum = 0;
    for (const TokenId t : order) total += prob(t);
    size_t keep = 0;
    while (keep < order.size() && sum < p.top_p * total) sum += prob(order[keep++]);
    order.resize(keep);
  }
  std::vector<std::pair<TokenId, double>> out;
  for (const TokenId t : order) {
    if (prob(t) >= p.min_p) out.push_back({t, prob(t)});
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("greedy takes the highest logit and the lowest id among equals", "[sampler]") {
  Sampler s(6);
  std::vector<float> logits = {0, 3, 1, 3, -kInf, 2};
  CHECK(s.Draw(logits, {}, {}, 0).token == 1);
  SamplingParams p;
  p.suppress_tokens = {1};
  logits = {0, 3, 1, 3, -kInf, 2};
  CHECK(s.Draw(logits, p, {}, 0).token == 3);
  p.logit_bias = {{2, 2.5f}, {99, 100.f}};  // ids beyond the vocabulary are ignored
  logits = {0, 3, 1, 3, -kInf, 2};
  CHECK(s.Draw(logits, p, {}, 0).token == 2);
  SamplingParams hot;
  hot.temperature = 1.f;
  hot.top_k = 1;
  logits = {0, 3, 1, 3, -kInf, 2};
  CHECK(s.Draw(logits, hot, {}, 0).token == 1);
}

TEST_CASE("a draw equals the slow sampler's for the same random number", "[sampler]") {
  rc::prop("fast == slow", [] {
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const size_t vocab = *rc::gen::inRange<size_t>(2, 9000);
    SamplingParams p;
    p.seed = seed;
    p.temperature = static_cast<float>(*rc::gen::inRange(1, 30)) / 10.f;
    p.top_k = *rc::gen::element(0u, 1u, 2u, 5u, 40u, 1000u);
    p.top_p = *rc::gen::element(0.f, 0.1f, 0.5f, 0.9f, 0.99f, 1.f);
    p.min_p = *rc::gen::element(0.f, 0.01f, 0.2f);
    p.repetition_penalty = *rc::gen::element(0.f, 1.f, 1.3f);
    p.frequency_penalty = *rc::gen::element(0.f, 0.7f, -0.5f);
    p.presence_penalty = *rc::gen::element(0.f, 0.9f);
    std::vector<TokenId> history(*rc::gen::inRange<size_t>(0, 200));
    for (size_t i = 0; i < history.size(); ++i) history[i] = static_cast<TokenId>(SampleUniform(seed, 1, i) * static_cast<double>(std::min<size_t>(vocab, 50)));
    const auto prompt = *rc::gen::inRange<uint32_t>(0, static_cast<uint32_t>(history.size()) + 1);
    const auto original = RandomLogits(seed, vocab);
    Sampler s(static_cast<int64_t>(vocab));
    auto logits = original;
    const Sample got = s.Draw(logits, p, history, prompt);
    RC_ASSERT(!got.failed);
    if (p.top_k == 1) return;  // greedy by definition: covered above
    const auto want = SlowDistribution(original, p, history, prompt);
    double total = 0, before = 0;
    for (const auto& [t, w] : want) total += w;
    const double u = SampleUniform(p.seed, p.choice, history.size() - prompt) * total;
    // Float against double: allow the neighbour only when u is within rounding of the boundary.
    bool found = false;
    for (const auto& [t, w] : want) {
      if (t == got.token) {
        found = true;
        RC_ASSERT(u >= before - 1e-4 * total);
        RC_ASSERT(u <= before + w + 1e-4 * total);
      }
      before += w;
    }
    RC_ASSERT(found);
  });
}

TEST_CASE("a token's weight is 2^40 for the best, never nothing above the least exponent, and falls with the logit up to rounding", "[sampler]") {
  using kernels::WeightOf;
  CHECK(WeightOf(kernels::RelativeProbability(3.5f, 3.5f, 1e6f)) == uint64_t{1} << 40);
  CHECK(WeightOf(kernels::RelativeProbability(kernels::kMinWeightExponent, 0.f, 1.f)) >= 1);
  CHECK(WeightOf(kernels::RelativeProbability(std::nextafter(kernels::kMinWeightExponent, -kInf), 0.f, 1.f)) == 0);
  CHECK(WeightOf(kernels::RelativeProbability(-kInf, 0.f, 1e6f)) == 0);
  for (float x = -27.7f; x < 0.f; x += 0.01f) {
    const double want = std::exp(static_cast<double>(x)) * 0x1p40;
    CHECK(std::fabs(static_cast<double>(WeightOf(kernels::RelativeProbability(x, 0.f, 1.f))) - want) <= 1 + want * 3e-7);
  }
  // Exact, where a double would round: 3 * (2^61 - 1) / 4 and one more for the part of a token.
  const uint64_t large = (uint64_t{1} << 61) - 1;
  CHECK(kernels::MassWanted(large, kernels::FractionOf(0.75)) == (large / 4) * 3 + 3);
  CHECK(kernels::MassWanted(uint64_t{8} << 40, kernels::FractionOf(0.5)) == uint64_t{4} << 40);
  CHECK(kernels::MassWanted(1, 0) == 1);
  CHECK(kernels::DrawTarget(large, kernels::FractionOf(1 - 0x1p-53)) < large);
}

// By the definitions, with everything sorted: no float is added up, so the token is the same, also among many equal logits.
TEST_CASE("a draw is exactly what the definitions say, with ties", "[sampler]") {
  rc::prop("fast == sorted", [] {
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const size_t vocab = *rc::gen::element<size_t>(2, 5, 300, 5000, 9000);
    SamplingParams p;
    p.seed = seed;
    p.temperature = *rc::gen::element(0.01f, 0.3f, 1.f, 2.f);
    p.top_k = *rc::gen::element(0u, 2u, 5u, 40u, 1000u, 100000u);
    p.top_p = *rc::gen::element(0.f, 1e-30f, 0.1f, 0.5f, 0.99f, 1.f);
    p.min_p = *rc::gen::element(0.f, 0.01f, 0.2f, 1.f);
    const float steps = *rc::gen::element(1.f, 8.f, 1e6f);   // 1: whole numbers, most of them equal to others
    auto logits = RandomLogits(seed, vocab, *rc::gen::element(1.f, 6.f, 60.f));
    for (float& l : logits) l = std::nearbyint(l * steps) / steps;
    const auto original = logits;
    Sampler s(static_cast<int64_t>(vocab));
    const Sample got = s.Draw(logits, p, {}, 0);
    RC_ASSERT(!got.failed);

    std::vector<TokenId> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return original[a] > original[b]; });
    const float inverse = kernels::InverseTemperature(p.temperature);
    const float best = original[order[0]];
    const auto relative = [&](TokenId t) { return kernels::RelativeProbability(original[t], best, inverse); };
    if (p.top_k > 0 && p.top_k < vocab) order.resize(p.top_k);
    const auto sum = [&](size_t n) {
      uint64_t all = 0;
      for (size_t i = 0; i < n; ++i) all += kernels::WeightOf(relative(order[i]));
      return all;
    };
    if (p.top_p > 0 && p.top_p < 1) {
      const uint64_t wanted = kernels::MassWanted(sum(order.size()), kernels::FractionOf(p.top_p));
      uint64_t have = 0;
      size_t keep = 0;
      while (have < wanted) have += kernels::WeightOf(relative(order[keep++]));
      order.resize(keep);
    }
    std::erase_if(order, [&](TokenId t) { return relative(t) < p.min_p; });
    std::sort(order.begin(), order.end());
    const uint64_t target = kernels::DrawTarget(sum(order.size()), kernels::FractionOf(SampleUniform(p.seed, 0, 0)));
    uint64_t have = 0;
    for (const TokenId t : order) {
      have += kernels::WeightOf(relative(t));
      if (have <= target) continue;
      RC_ASSERT(got.token == t);
      return;
    }
    RC_FAIL("the target lies beyond the total");
  });
}

TEST_CASE("a min_p above every probability leaves nothing", "[sampler]") {
  Sampler s(3);
  SamplingParams p;
  p.temperature = 1.f;
  p.min_p = 1.5f;
  for (const uint32_t k : {0u, 2u}) {
    p.top_k = k;
    std::vector<float> logits = {0, 1, 2};
    const Sample got = s.Draw(logits, p, {}, 0);
    CHECK(got.failed);
    CHECK(std::string(got.why) == "no token has a finite probability");
  }
}

TEST_CASE("frequencies follow the distribution", "[sampler]") {
  Sampler s(4);
  SamplingParams p;
  p.temperature = 0.5f;
  p.seed = 42;
  const std::vector<float> logits = {0.f, 0.5f, 1.f, -1.f};
  double z = 0;
  for (const float l : logits) z += std::exp(l / 0.5);
  std::vector<int> counts(4, 0);
  std::vector<TokenId> history;
  for (int i = 0; i < 20000; ++i) {
    auto copy = logits;
    ++counts[s.Draw(copy, p, history, 0).token];
    history.push_back(0);  // only its length matters here
  }
  for (int t = 0; t < 4; ++t) CHECK(counts[t] / 20000.0 == Approx(std::exp(logits[t] / 0.5) / z).margin(0.015));
}

TEST_CASE("a draw depends on seed, choice, position and history alone", "[sampler]") {
  Sampler a(5000), b(5000);
  SamplingParams p;
  p.temperature = 1.2f;
  p.seed = 7;
  p.top_p = 0.95f;
  p.frequency_penalty = 0.3f;
  const auto logits = RandomLogits(3, 5000, 1.f);
  std::vector<TokenId> history = {1, 2, 3};
  std::vector<TokenId> drawn;
  for (int i = 0; i < 30; ++i) {
    auto copy = logits;
    drawn.push_back(a.Draw(copy, p, history, 3).token);
    history.push_back(drawn.back());
  }
  // Another sampler, positions in another order, with other draws between.
  for (int i = 29; i >= 0; --i) {
    auto noise = RandomLogits(static_cast<uint64_t>(i), 5000);
    SamplingParams q;
    q.temperature = 1.f;
    q.repetition_penalty = 1.5f;
    b.Draw(noise, q, history, 0);
    auto copy = logits;
    CHECK(b.Draw(copy, p, std::span(history).first(3 + static_cast<size_t>(i)), 3).token == drawn[i]);
  }
  SamplingParams other = p;
  other.choice = 1;
  int differ = 0;
  for (int i = 0; i < 30; ++i) {
    auto copy = logits;
    differ += a.Draw(copy, other, std::span(history).first(3 + static_cast<size_t>(i)), 3).token != drawn[i];
  }
  CHECK(differ > 20);
}

TEST_CASE("logprobs are the model's own, whatever was asked for", "[sampler]") {
  Sampler s(300);
  const auto logits = RandomLogits(11, 300);
  double z = 0;
  for (const float l : logits) z += std::exp(static_cast<double>(l));
  for (const float temperature : {0.f, 1.7f}) {
    SamplingParams p;
    p.temperature = temperature;
    p.logprobs = true;
    p.top_logprobs = 5;
    p.seed = 5;
    p.logit_bias = {{17, 100.f}};  // forces 17 without touching what is reported
    p.presence_penalty = 1.f;
    auto copy = logits;
    const std::vector<TokenId> history = {17, 4};
    const Sample got = s.Draw(copy, p, history, 0);
    CHECK(got.token == 17);
    CHECK(got.logprob == Approx(logits[17] - std::log(z)).margin(1e-5));
    REQUIRE(got.top.size() == 5);
    auto sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    for (int i = 0; i < 5; ++i) {
      CHECK(got.top[i].logprob == Approx(sorted[i] - std::log(z)).margin(1e-5));
      CHECK(logits[got.top[i].token] == sorted[i]);
    }
  }
  const Sample scored = s.Score(logits, 3, 2);
  CHECK(scored.logprob == Approx(logits[3] - std::log(z)).margin(1e-5));
  CHECK(scored.top.size() == 2);
}

TEST_CASE("logits that are not finite fail that token and nothing else", "[sampler]") {
  Sampler s(4);
  SamplingParams p;
  p.temperature = 1.f;
  for (const float bad : {std::nanf(""), kInf}) {
    std::vector<float> logits = {0, 1, bad, 0};
    CHECK(s.Draw(logits, p, {}, 0).failed);
    logits = {0, 1, bad, 0};
    CHECK(s.Draw(logits, {}, {}, 0).failed);
    CHECK(s.Score(logits, 1, 0).failed);
  }
  std::vector<float> nothing(4, -kInf);
  CHECK(s.Draw(nothing, p, {}, 0).failed);
  std::vector<float> one = {-kInf, -kInf, 2, -kInf};
  CHECK(s.Draw(one, p, {}, 0).token == 2);
  p.suppress_tokens = {0, 1, 2, 3};
  std::vector<float> suppressed = {0, 1, 2, 3};
  const Sample none = s.Draw(suppressed, p, {}, 0);
  CHECK(none.failed);
  CHECK(std::string(none.why).find("suppression") != std::string::npos);
  p.suppress_tokens.clear();
  std::vector<float> fine = {0, 1, 2, 3};
  CHECK(!s.Draw(fine, p, {}, 0).failed);
}

TEST_CASE("extreme temperatures and spreads stay in range", "[sampler]") {
  Sampler s(1000);
  for (const float temperature : {1e-9f, 1e-3f, 100.f}) {
    for (const float spread : {1e-6f, 30.f, 3e4f}) {
      for (const float top_p : {1.f, 0.3f}) {
        SamplingParams p;
        p.temperature = temperature;
        p.top_p = top_p;
        for (uint64_t i = 0; i < 20; ++i) {
          p.seed = i;
          auto logits = RandomLogits(i, 1000, spread);
          const Sample got = s.Draw(logits, p, {}, 0);
          CHECK(!got.failed);
          CHECK(got.token < 1000);
        }
      }
    }
  }
}

}  // namespace holdfast::test

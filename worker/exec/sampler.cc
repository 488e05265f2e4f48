#include "worker/exec/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "proto/base/check.h"
#include "proto/base/random.h"

namespace holdfast::exec {
namespace {

constexpr size_t kRepetitionWindow = 64;
constexpr uint32_t kMaxTop = 20;
constexpr int64_t kBlock = 4096;       // sums are taken block by block, so a draw need not walk the whole vocabulary twice
constexpr float kMinTemperature = 1e-6f;
constexpr float kMinExponent = -87.f;  // below it exp() leaves the normal floats: such tokens have probability zero
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// exp(x) for x in [-87, 0]: 2^n * p(f), |relative error| < 2e-7. Written without branches so that loops over it vectorise; the same
// on every call site, so a token's probability never depends on its neighbours.
inline float FastExp(float x) {
  const float clamped = std::max(x, kMinExponent);
  const float t = clamped * 1.44269504088896341f;
  const float n = static_cast<float>(static_cast<int32_t>(t - 0.5f));  // t <= 0: truncation of t - 0.5 rounds to nearest
  const float f = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return x < kMinExponent ? 0.f : p * scale;
}

// Best first: higher value, then lower id.
bool Better(const std::pair<float, TokenId>& a, const std::pair<float, TokenId>& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

}  // namespace

struct Sampler::Peak {
  float max = kNegInf;
  TokenId argmax = 0;
  bool clean = true;     // no NaN, no +inf
};

Sampler::Sampler(int64_t vocab) : vocab_(vocab) {
  HF_CHECK(vocab > 0 && vocab < INT32_MAX);
  probs_.resize(vocab);
  counts_.assign(vocab, 0);
}

// False when nothing finite is there.
bool Sampler::Scan(std::span<const float> logits, Peak* peak) const {
  *peak = Peak();
  for (int64_t begin = 0; begin < vocab_; begin += kBlock) {
    const int64_t end = std::min(vocab_, begin + kBlock);
    float best = kNegInf;
    int bad = 0;
    for (int64_t i = begin; i < end; ++i) {
      const float v = logits[i];
      bad |= !(v < std::numeric_limits<float>::infinity());
      best = v > best ? v : best;
    }
    if (bad != 0) peak->clean = false;
    if (best > peak->max) {
      peak->max = best;
      for (int64_t i = begin; i < end; ++i) {
        if (logits[i] == best) {
          peak->argmax = static_cast<TokenId>(i);
          break;
        }
      }
    }
  }
  return peak->clean && peak->max > kNegInf;
}

void Sampler::FillLogprobs(std::span<const float> logits, const Peak& peak, TokenId token, uint32_t top, Sample* out) {
  double sum = 0;
  for (int64_t begin = 0; begin < vocab_; begin += kBlock) {
    const int64_t end = std::min(vocab_, begin + kBlock);
    float block[kBlock];
    for (int64_t i = begin; i < end; ++i) block[i - begin] = FastExp(logits[i] - peak.max);
    double s = 0;
    for (int64_t i = 0; i < end - begin; ++i) s += block[i];
    sum += s;
  }
  const double log_sum = std::log(sum) + peak.max;
  out->logprob = static_cast<float>(logits[token] - log_sum);
  top = std::min<uint32_t>(top, std::min<int64_t>(kMaxTop, vocab_));
  out->top.clear();
  if (top == 0) return;
  // A heap whose front is the worst of the best.
  candidates_.clear();
  for (int64_t i = 0; i < vocab_; ++i) {
    const std::pair<float, TokenId> c{logits[i], static_cast<TokenId>(i)};
    if (candidates_.size() < top) {
      candidates_.push_back(c);
      std::push_heap(candidates_.begin(), candidates_.end(), Better);
    } else if (Better(c, candidates_.front())) {
      std::pop_heap(candidates_.begin(), candidates_.end(), Better);
      candidates_.back() = c;
      std::push_heap(candidates_.begin(), candidates_.end(), Better);
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), Better);
  for (const auto& [logit, id] : candidates_) out->top.push_back({id, static_cast<float>(logit - log_sum)});
}

void Sampler::ApplyConstraint(std::span<float> logits, const SamplingParams& p, const AllowedTokens& allowed) {
  // What stays is put aside, or what goes is erased, whichever is less.
  candidates_.clear();
  const auto keep = [&](TokenId t) {
    if (t < vocab_) candidates_.push_back({logits[t], t});
  };
  if (allowed.complete) {
    for (const TokenId t : p.stop_tokens) keep(t);
  }
  if (!allowed.dense) {
    for (const TokenId t : allowed.few) keep(t);
    std::fill(logits.begin(), logits.end(), kNegInf);
  } else {
    HF_CHECKF(static_cast<int64_t>(allowed.bits.size()) * 64 >= vocab_, "{} words for {} tokens", allowed.bits.size(), vocab_);
    for (int64_t begin = 0; begin < vocab_; begin += 64) {
      const uint64_t word = allowed.bits[begin / 64];
      if (word == ~uint64_t{0}) continue;
      const int64_t n = std::min<int64_t>(64, vocab_ - begin);
      if (word == 0) {
        std::fill_n(logits.begin() + begin, n, kNegInf);
        continue;
      }
      for (uint64_t gone = ~word; gone != 0; gone &= gone - 1) {
        const int i = std::countr_zero(gone);
        if (i >= n) break;
        logits[begin + i] = kNegInf;
      }
    }
  }
  for (const auto& [logit, t] : candidates_) logits[t] = logit;
  if (allowed.complete) return;
  for (const TokenId t : allowed.refused) {
    if (t < vocab_) logits[t] = kNegInf;
  }
}

void Sampler::ApplyPenalties(std::span<float> logits, const SamplingParams& p, std::span<const TokenId> history, uint32_t prompt_tokens) {
  const auto count = [&](std::span<const TokenId> tokens) {
    touched_.clear();
    for (const TokenId t : tokens) {
      if (t < vocab_ && counts_[t]++ == 0) touched_.push_back(t);
    }
  };
  const float r = p.repetition_penalty;
  if (r > 0.f && r != 1.f) {
    count(history.subspan(history.size() - std::min(history.size(), kRepetitionWindow)));
    for (const TokenId t : touched_) {
      logits[t] = logits[t] > 0.f ? logits[t] / r : logits[t] * r;
      counts_[t] = 0;
    }
  }
  if (p.frequency_penalty != 0.f || p.presence_penalty != 0.f) {
    count(history.subspan(std::min<size_t>(prompt_tokens, history.size())));
    for (const TokenId t : touched_) {
      logits[t] -= p.frequency_penalty * static_cast<float>(counts_[t]) + p.presence_penalty;
      counts_[t] = 0;
    }
  }
}

Sample Sampler::Draw(std::span<float> logits, const SamplingParams& p, std::span<const TokenId> history, uint32_t prompt_tokens,
                     const AllowedTokens* allowed, uint32_t unseen) {
  HF_CHECKF(static_cast<int64_t>(logits.size()) == vocab_, "{} logits", logits.size());
  HF_CHECKF(history.size() >= prompt_tokens, "history of {} with a prompt of {}", history.size(), prompt_tokens);
  Sample out;
  Peak raw;
  if (!Scan(logits, &raw)) {
    out.failed = true;
    out.why = raw.clean ? "every logit is -inf" : "a logit is NaN or +inf";
    return out;
  }
  const bool penalised = (p.repetition_penalty > 0.f && p.repetition_penalty != 1.f) || p.frequency_penalty != 0.f || p.presence_penalty != 0.f;
  HF_CHECKF(unseen == 0 || !penalised, "penalties over a history of which {} tokens are not known", unseen);
  const bool edited = allowed != nullptr || penalised || !p.logit_bias.empty() || !p.suppress_tokens.empty();
  // The raw distribution is wanted after the choice is known, but before the edits: keep a copy then.
  std::span<const float> model = logits;
  if (edited) {
    if (p.logprobs) {
      std::copy(logits.begin(), logits.end(), probs_.begin());
      model = probs_;
    }
    if (allowed != nullptr) ApplyConstraint(logits, p, *allowed);
    for (const TokenId t : p.suppress_tokens) {
      if (t < vocab_) logits[t] = kNegInf;
    }
    for (const LogitBias& b : p.logit_bias) {
      if (b.token < vocab_) logits[b.token] += b.bias;
    }
    if (penalised) ApplyPenalties(logits, p, history, prompt_tokens);
  }
  Peak peak = raw;
  if (edited && !Scan(logits, &peak)) {
    out.failed = out.refused = true;
    out.why = !peak.clean             ? "a biased logit is not finite"
              : allowed != nullptr ? "bias and suppression leave no token of those that the constraint allows"
                                   : "bias and suppression leave no token";
    return out;
  }
  // Choose uses probs_ as scratch: with logprobs of an edited distribution, score first.
  out.token = peak.argmax;
  const bool greedy = !(p.temperature > 0.f) || p.top_k == 1;
  if (!greedy) {
    std::vector<float> kept;
    if (p.logprobs && edited) kept.assign(model.begin(), model.end());
    const double u = SampleUniform(p.seed, p.choice, history.size() + unseen - prompt_tokens);
    if (!Choose(logits, p, u, &out.token)) {
      out.failed = true;
      out.why = "no token has a finite probability";
      return out;
    }
    if (!kept.empty()) {
      FillLogprobs(kept, raw, out.token, p.top_logprobs, &out);
      return out;
    }
  }
  if (p.logprobs) FillLogprobs(model, raw, out.token, p.top_logprobs, &out);
  return out;
}

Sample Sampler::Score(std::span<const float> logits, TokenId token, uint32_t top) {
  HF_CHECK(static_cast<int64_t>(logits.size()) == vocab_ && token < vocab_);
  Sample out;
  out.token = token;
  Peak peak;
  if (!Scan(logits, &peak)) {
    out.failed = true;
    out.why = "the logits are not finite";
    return out;
  }
  FillLogprobs(logits, peak, token, top, &out);
  return out;
}

bool Sampler::Choose(std::span<const float> logits, const SamplingParams& p, double u, TokenId* token) {
  Peak peak;
  if (!Scan(logits, &peak)) return false;
  const float inverse = 1.f / std::max(p.temperature, kMinTemperature);
  // Unnormalised probabilities: the best token has 1.
  for (int64_t i = 0; i < vocab_; ++i) probs_[i] = FastExp((logits[i] - peak.max) * inverse);

  // top_k: zero everything worse than the k-th (probability, then id).
  const bool by_k = p.top_k > 0 && p.top_k < vocab_;
  if (by_k) {
    // By logit, not by probability: two that underflow to equal probabilities keep their order.
    candidates_.clear();
    candidates_.reserve(vocab_);
    float floor = kNegInf;
    for (int64_t i = 0; i < vocab_; ++i) {
      if (logits[i] < floor) continue;
      candidates_.push_back({logits[i], static_cast<TokenId>(i)});
      if (candidates_.size() >= 2 * size_t{p.top_k} + 1024) {  // prune now and then: what is left is a superset of the best k
        std::nth_element(candidates_.begin(), candidates_.begin() + (p.top_k - 1), candidates_.end(), Better);
        candidates_.resize(p.top_k);
        floor = candidates_[p.top_k - 1].first;
      }
    }
    if (candidates_.size() > p.top_k) {
      std::nth_element(candidates_.begin(), candidates_.begin() + (p.top_k - 1), candidates_.end(), Better);
      candidates_.resize(p.top_k);
    }
    for (auto& c : candidates_) c.first = probs_[c.second];
  }

  const bool by_p = p.top_p > 0.f && p.top_p < 1.f;
  if (by_p) {
    if (!by_k) {
      // Bucket by how far below the best (64 buckets a nat up to 87): only the bucket in which the mass is reached needs an order.
      constexpr int kBuckets = 87 * 64 + 1;
      std::vector<double> mass(kBuckets, 0.0);
      double total = 0;
      const auto bucket = [&](int64_t i) { return std::min<int>(kBuckets - 1, static_cast<int>((peak.max - logits[i]) * inverse * 64.f)); };
      for (int64_t i = 0; i < vocab_; ++i) {
        if (probs_[i] == 0.f) continue;
        mass[bucket(i)] += probs_[i];
      }
      for (const double m : mass) total += m;
      double want = p.top_p * total;
      int edge = 0;
      while (edge < kBuckets - 1 && mass[edge] < want) want -= mass[edge++];
      candidates_.clear();
      std::vector<std::pair<float, TokenId>> last;
      for (int64_t i = 0; i < vocab_; ++i) {
        if (probs_[i] == 0.f) continue;
        const int b = bucket(i);
        if (b < edge) candidates_.push_back({probs_[i], static_cast<TokenId>(i)});
        if (b == edge) last.push_back({probs_[i], static_cast<TokenId>(i)});
      }
      std::sort(last.begin(), last.end(), Better);
      double sum = 0;
      for (const auto& c : last) {
        candidates_.push_back(c);
        sum += c.first;
        if (sum >= want) break;
      }
    } else {
      std::sort(candidates_.begin(), candidates_.end(), Better);
      double total = 0, sum = 0;
      for (const auto& c : candidates_) total += c.first;
      size_t keep = 0;
      while (keep < candidates_.size()) {
        sum += candidates_[keep++].first;
        if (sum >= p.top_p * total) break;
      }
      candidates_.resize(keep);
    }
  }

  const float floor = p.min_p > 0.f ? p.min_p : 0.f;  // of the best's probability, which is 1 here
  if (by_k || by_p) {
    std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    double total = 0;
    for (auto& c : candidates_) {
      if (c.first < floor) c.first = 0.f;
      total += c.first;
    }
    double sum = 0;
    bool found = false;
    for (const auto& c : candidates_) {
      if (c.first == 0.f) continue;
      sum += c.first;
      *token = c.second;  // also the answer when rounding leaves sum below u * total
      found = true;
      if (sum > u * total) break;
    }
    return found;
  }
  // No filter but min_p: the vocabulary in id order.
  double total = 0;
  std::vector<double> blocks;
  for (int64_t begin = 0; begin < vocab_; begin += kBlock) {
    double s = 0;
    for (int64_t i = begin; i < std::min(vocab_, begin + kBlock); ++i) {
      if (probs_[i] < floor) probs_[i] = 0.f;
      s += probs_[i];
    }
    blocks.push_back(s);
    total += s;
  }
  const double target = u * total;
  double sum = 0;
  size_t b = 0;
  while (b + 1 < blocks.size() && sum + blocks[b] <= target) sum += blocks[b++];
  bool found = false;
  for (int64_t i = static_cast<int64_t>(b) * kBlock; i < vocab_; ++i) {
    if (probs_[i] == 0.f) continue;
    sum += probs_[i];
    *token = static_cast<TokenId>(i);
    found = true;
    if (sum > target) break;
  }
  if (found) return true;
  for (int64_t i = vocab_ - 1; i >= 0; --i) {  // rounding only: u close to 1 and the last blocks empty
    if (probs_[i] == 0.f) continue;
    *token = static_cast<TokenId>(i);
    return true;
  }
  return false;
}

}  // namespace holdfast::exec

// What a constraint costs in time of the processor: compiling, the first masks and the later ones, over a vocabulary of 128 Ki tokens.
//
// usage: constrain_bench [--quick]
#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "frontend/grammar/builder.h"
#include "frontend/text/json_value.h"
#include "proto/base/check.h"
#include "proto/engine.pb.h"
#include "worker/constrain/engine.h"
#include "worker/exec/sampler.h"

namespace holdfast::bench {
namespace {

// Of this thread alone: other work on the machine does not count.
struct Clock {
  static double now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
  }
};

double Us(double since) { return Clock::now() - since; }

struct Dice {
  uint64_t state = 1;
  uint32_t Below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state >> 33) % n);
  }
};

// Words of one to five syllables with and without a blank before them, as a byte-level vocabulary of a language model has them; all bytes;
// runs of blanks; and JSON's punctuation in the joins that such vocabularies know.
std::vector<std::string> Vocabulary(size_t size) {
  static const char* const kSyllables[] = {"a", "be", "con", "de", "er", "for", "ing", "in", "ion", "ly", "ment", "ne", "or", "per", "re", "s", "st", "ter", "th", "un"};
  static const char* const kJoins[] = {"\"", "\":", "\": ", "\":\"", "\": \"", "\",", "\", \"", "{\"", "\"}", "\"}}", "[\"", "\"]", "},", "}, {\"", "],", "[{", "{", "}", "[", "]", ":", ",",
                                       "\\n", "\\\"", "\",\"", "\"],\"", "true", "false", "null", "true,", "0.", "00", "10", "\n\n", "```"};
  std::vector<std::string> out;
  for (int b = 0; b < 256; ++b) out.emplace_back(1, static_cast<char>(b));
  for (const char* j : kJoins) out.emplace_back(j);
  for (size_t n = 2; n <= 64; ++n) out.emplace_back(n, ' ');
  for (int i = 0; i < 1000; ++i) out.push_back(fmt::format("{}", i));
  Dice dice;
  while (out.size() < size - 8) {
    std::string word = dice.Below(2) == 0 ? " " : "";
    for (uint32_t n = 1 + dice.Below(5); n > 0; --n) word += kSyllables[dice.Below(20)];
    if (dice.Below(40) == 0) word += kJoins[dice.Below(12)];
    if (dice.Below(30) == 0) word += "\xC3\xA9";
    if (dice.Below(4) == 0 && !word.empty() && word[0] != ' ') word[0] = static_cast<char>(word[0] - 32);
    out.push_back(word);
  }
  out.resize(size);  // the last have no text
  return out;
}

struct Workload {
  const char* name;
  std::string schema;
};

std::vector<Workload> Workloads() {
  std::string tools = R"({"anyOf":[)";
  for (int i = 0; i < 60; ++i) {
    tools += fmt::format("{}{{\"type\":\"object\",\"properties\":{{\"name\":{{\"const\":\"tool_{}\"}},\"arguments\":{{\"type\":\"object\",\"properties\":{{", i == 0 ? "" : ",", i);
    tools += R"("path":{"type":"string","maxLength":65536},"recursive":{"type":"boolean"},"limit":{"type":"integer","minimum":1,"maximum":1000},)"
             R"("tags":{"type":"array","items":{"type":"string"}}},"required":["path"]}},"required":["name","arguments"]})";
  }
  std::string values = R"({"enum":["v0")";
  for (int i = 1; i < 5000; ++i) values += fmt::format(",\"value_{}\"", i * 7919);
  return {
      {"any object", R"({"type":"object"})"},
      {"a person", R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","format":"email"},
                       "tags":{"type":"array","items":{"enum":["a","b","c"]}},"address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}},"required":["city"]}},
                       "required":["name","age"]})"},
      {"a tree", R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"number"},"children":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["v"]}}})"},
      {"a pattern", R"({"type":"string","pattern":"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$","maxLength":200})"},
      {"maxLength 2000", R"({"type":"object","properties":{"a":{"type":"string","maxLength":2000},"b":{"type":"array","maxItems":10000,"items":{"type":"string","maxLength":65536}}},"required":["a","b"]})"},
      {"an enum of 5000", values + "]}"},
      {"60 tools", tools + "]}"},
  };
}

double At(std::vector<double> v, double quantile) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(quantile * static_cast<double>(v.size())))];
}

int Main(bool quick) {
  const std::vector<std::string> vocabulary = Vocabulary(quick ? 16 << 10 : 128 << 10);
  auto begin = Clock::now();
  const auto trie = std::make_shared<const constrain::TokenTrie>(vocabulary);
  fmt::print("vocabulary: {} tokens, {} nodes, {:.1f} MB, built in {:.0f} ms\n", vocabulary.size(), trie->nodes(), static_cast<double>(trie->memory()) / 1e6, Us(begin) / 1e3);
  exec::Sampler sampler(static_cast<int64_t>(vocabulary.size()));
  const size_t walks = quick ? 2 : 20;
  for (const Workload& w : Workloads()) {
    begin = Clock::now();
    grammar::Builder builder;
    const auto schema = text::ParseJson(w.schema);
    HF_CHECKF(schema.ok(), "{}: {}", w.name, schema.status().ToString());
    const auto root = builder.Schema(*schema, {}, w.name);
    HF_CHECKF(root.ok(), "{}", root.status().ToString());
    const auto built = builder.Build(*root);
    HF_CHECKF(built.ok(), "{}", built.status().ToString());
    const double compile_ms = Us(begin) / 1e3;
    begin = Clock::now();
    auto program = constrain::Program::Decode(built->program(), static_cast<uint32_t>(vocabulary.size()));
    HF_CHECK(program.ok());
    const double decode_ms = Us(begin) / 1e3;
    const uint32_t states = program->states();
    constrain::Engine engine(*std::move(program), trie);
    std::vector<double> first, later, draw;
    Dice dice;
    for (size_t walk = 0; walk < walks; ++walk) {
      std::vector<TokenId> history;
      constrain::Position position;
      for (int step = 0; step < 200; ++step) {
        const uint64_t computed = engine.masks_computed();
        begin = Clock::now();
        HF_CHECK(engine.Advance(history, &position).ok());
        const auto mask = engine.MaskAt(position);
        const double us = Us(begin);
        HF_CHECK(mask.ok());
        (engine.masks_computed() > computed ? first : later).push_back(us);
        if ((*mask)->count == 0) break;
        // Some token of those allowed; letters rather than quotes, so that strings have a length.
        TokenId pick = 0;
        if ((*mask)->dense) {
          do {
            pick = dice.Below(static_cast<uint32_t>(vocabulary.size()));
          } while (!(*mask)->Allows(pick));
        } else {
          pick = (*mask)->few[dice.Below(static_cast<uint32_t>((*mask)->few.size()))];
        }
        if ((*mask)->dense && dice.Below(8) == 0 && (*mask)->Allows('"')) pick = '"';
        history.push_back(pick);
      }
    }
    fmt::print("{:<16} compile {:7.1f} ms, {:7} bytes, {:6} states, decode {:5.1f} ms | first masks {:5}: p50 {:7.1f} p99 {:8.1f} max {:8.1f} us | later {:5}: p50 {:5.2f} p99 {:5.2f} us | {:.1f} MB\n",
               w.name, compile_ms, built->program().size(), states, decode_ms, first.size(), At(first, 0.5), At(first, 0.99), At(first, 1.0), later.size(),
               At(later, 0.5), At(later, 0.99), static_cast<double>(engine.memory()) / 1e6);
  }
  // What the sampler pays to apply a mask of nearly everything and one of a few.
  std::vector<float> logits(vocabulary.size());
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 977) / 977.f;
  std::vector<uint64_t> bits((vocabulary.size() + 63) / 64, ~uint64_t{0});
  for (size_t i = 0; i < bits.size(); i += 3) bits[i] &= 0xF0F0F0F0F0F0F0F0u;
  const std::vector<TokenId> few{1, 5, 9, 1000};
  for (const char* kind : {"none", "dense", "few"}) {
    exec::AllowedTokens allowed;
    allowed.dense = std::strcmp(kind, "dense") == 0;
    allowed.bits = bits;
    allowed.few = few;
    std::vector<double> us;
    std::vector<float> scratch;
    for (int i = 0; i < (quick ? 20 : 400); ++i) {
      scratch = logits;
      begin = Clock::now();
      sampler.Draw(scratch, {}, few, 0, std::strcmp(kind, "none") == 0 ? nullptr : &allowed);
      us.push_back(Us(begin));
    }
    fmt::print("greedy draw, mask {:<6} p50 {:.1f} us\n", kind, At(us, 0.5));
  }
  return 0;
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc > 1 && std::strcmp(argv[1], "--quick") == 0); }

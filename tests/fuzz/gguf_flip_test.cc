// Byte flips of valid small models: only clean refusals or clean runs, within a bounded address space.
#include <catch2/catch.hpp>
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <iterator>

#include "proto/base/log.h"
#include "proto/base/random.h"
#include "tests/fuzz/gguf_body.h"
#include "worker/model/tools/make_model.h"

namespace holdfast::test {
namespace {

constexpr uint64_t kOdd[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000,
                             0xffffffffffffffff, 0xfffffffffffffff0, 31, 33, 64, 255, 513};

// On a busy machine the time budget may be over at once; this many are run all the same.
constexpr int kLeastRuns = 60;

// Caps the address space for the life of the object; sanitizers need terabytes, so there it does nothing.
class AddressSpaceCap {
 public:
  explicit AddressSpaceCap(rlim_t bytes) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    getrlimit(RLIMIT_AS, &before_);
    rlimit cap = before_;
    cap.rlim_cur = bytes;
    set_ = setrlimit(RLIMIT_AS, &cap) == 0;
#else
    (void)bytes;
#endif
  }
  ~AddressSpaceCap() {
    if (set_) setrlimit(RLIMIT_AS, &before_);
  }

 private:
  rlimit before_{};
  bool set_ = false;
};

void Flip(const std::string& valid, uint64_t seed, std::chrono::milliseconds budget, int runs, kernels::Ops* ops) {
  // The header, metadata and tensor table, where nearly all flips go: everything before the first tensor's data.
  auto file = model::GgufFile::FromBytes(valid, "seed.gguf");
  REQUIRE(file.ok());
  const size_t meta = (*file)->tensors()[0].offset;
  uint64_t state = Mix64(seed);
  const auto next = [&state](uint64_t below) {
    state = Mix64(state);
    return state % below;
  };
  int parsed = 0, planned = 0, stepped = 0, done = 0;
  const auto end = std::chrono::steady_clock::now() + budget;
  for (; done < kLeastRuns || (done < runs && std::chrono::steady_clock::now() < end); ++done) {
    std::string bytes = valid;
    const uint64_t edits = 1 + next(3);
    for (uint64_t e = 0; e < edits; ++e) {
      // Keys of hyper-parameters lie at the front, tensor infos at the end; the long token tables between get a third.
      const uint64_t where = next(3), span = std::min<uint64_t>(meta, 2048);
      const size_t at = where == 0 ? next(span) : where == 1 ? meta - 1 - next(span) : next(meta);
      switch (next(4)) {
        case 0: bytes[at] = static_cast<char>(next(256)); break;
        case 1: bytes[at] ^= static_cast<char>(1u << next(8)); break;
        case 2: {
          const uint64_t v = kOdd[next(std::size(kOdd))];
          memcpy(bytes.data() + at, &v, std::min<size_t>(next(2) == 0 ? 4 : 8, bytes.size() - at));
          break;
        }
        default: bytes.resize(next(8) == 0 ? next(bytes.size()) + 1 : bytes.size()); break;
      }
      if (bytes.size() <= meta) break;
    }
    const GgufOutcome out = RunGgufBytes(std::move(bytes), done % 8 == 0, ops);
    parsed += out.parsed;
    planned += out.plan;
    stepped += out.stepped;
  }
  std::cout << "seed " << seed << ": " << done << " files, " << parsed << " parsed, " << planned << " usable, " << stepped << " stepped\n";
  CHECK(parsed > 0);
  CHECK(parsed < done);
}

}  // namespace

TEST_CASE("flipped model files are refused or run, never more", "[fuzz]") {
  SetLogLevel(LogLevel::kOff);
  const auto ops = kernels::MakeReferenceOps();
  model::RandomModelOptions options;
  options.type = kernels::DType::kQ4_0;
  options.dim = 64;
  options.layers = 3;
  const AddressSpaceCap cap(rlim_t{1} << 30);
  const uint64_t fresh = EntropySeed();
  for (const uint64_t seed : {uint64_t{1}, fresh}) {
    Flip(model::RandomGemma4(options).Finish(), seed, std::chrono::milliseconds(1200), 50000, ops.get());
    options.experts = true;
    Flip(model::RandomGemma4(options).Finish(), seed, std::chrono::milliseconds(600), 50000, ops.get());
    options.experts = false;
    Flip(model::RandomLlama(options).Finish(), seed, std::chrono::milliseconds(1200), 50000, ops.get());
  }
  SetLogLevel(LogLevel::kInfo);
}

}  // namespace holdfast::test

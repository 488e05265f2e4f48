#include "kernels/cuda/draws.h"

#include <algorithm>
#include <cstring>

#include "kernels/sampling_math.h"
#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

int64_t AlignUp(int64_t v) { return (v + 15) / 16 * 16; }

template <class T>
int64_t BytesOf(std::span<const T> list) { return AlignUp(static_cast<int64_t>(list.size_bytes())); }

std::span<const uint64_t> MaskOf(const DrawSpec& spec, int64_t vocab) {
  if (spec.allowed.empty()) return {};
  HF_CHECKF(static_cast<int64_t>(spec.allowed.size()) * 64 >= vocab, "{} words for {} tokens", spec.allowed.size(), vocab);
  return spec.allowed.first(static_cast<size_t>((vocab + 63) / 64));
}

}  // namespace

Draws::Draws(Errors* errors, cudaStream_t stream, Downloads* downloads)
    : errors_(errors), stream_(stream), downloads_(downloads), uploads_(errors, stream, 256 << 10), memory_(errors) {}

void Draws::Reserve(int64_t rows, int64_t slots, int64_t vocab) {
  HF_CHECK(rows > 0 && slots > 0 && vocab > 0 && vocab < 1 << 23);
  const int64_t chunks = DrawChunks(vocab);
  int64_t bytes = 0;
  const auto place = [&](int64_t count, size_t each) {
    const int64_t at = bytes;
    bytes += (count * static_cast<int64_t>(each) + 255) / 256 * 256;
    return at;
  };
  const int64_t specs = place(rows, sizeof(DrawRow)), peaks = place(rows * chunks, sizeof(ChunkPeak)), counts = place(rows * kDrawBuckets, 4);
  const int64_t masses = place(rows * kDrawBuckets, 8), thresholds = place(rows, 8), chunk_masses = place(rows * chunks, 8);
  const int64_t drawn = place(slots, sizeof(Drawn));
  std::byte* p = static_cast<std::byte*>(memory_.Get(bytes));
  if (p == nullptr) return;
  rows_ = rows;
  slots_ = slots;
  vocab_ = vocab;
  at_ = {reinterpret_cast<DrawRow*>(p + specs),
         reinterpret_cast<ChunkPeak*>(p + peaks),
         reinterpret_cast<uint32_t*>(p + counts),
         reinterpret_cast<unsigned long long*>(p + masses),
         reinterpret_cast<unsigned long long*>(p + thresholds),
         reinterpret_cast<unsigned long long*>(p + chunk_masses),
         reinterpret_cast<Drawn*>(p + drawn)};
}

void Draws::BeginStep(std::span<const int32_t> awaited, uint32_t* tokens) {
  uploads_.NextHalf();
  const auto waits = [](int32_t slot) { return slot >= 0; };
  if (std::none_of(awaited.begin(), awaited.end(), waits)) return;
  for (const int32_t slot : awaited) HF_CHECKF(slot < slots_, "slot {} of {}", slot, slots_);
  const Uploads::Piece piece = uploads_.Take(static_cast<int64_t>(awaited.size_bytes()));
  if (piece.host == nullptr || tokens == nullptr) return;
  std::memcpy(piece.host, awaited.data(), awaited.size_bytes());
  uploads_.Send(piece);
  if (errors_->ok()) TakeDrawn(stream_, at_.drawn, reinterpret_cast<const int32_t*>(piece.device), static_cast<int64_t>(awaited.size()), tokens);
}

void Draws::Draw(Mat logits, std::span<const DrawSpec> specs, Drawn* out) {
  HF_CHECKF(logits.rows == static_cast<int64_t>(specs.size()) && logits.rows <= rows_ && logits.cols <= vocab_,
            "{} specs for {} rows of {} logits, where there is room for {} of {}", specs.size(), logits.rows, logits.cols, rows_, vocab_);
  int32_t first = INT32_MAX, last = -1;
  int64_t bytes = AlignUp(logits.rows * static_cast<int64_t>(sizeof(DrawRow)));
  for (const DrawSpec& s : specs) {
    if (s.slot < 0) continue;
    HF_CHECKF(s.slot < slots_, "slot {} of {}", s.slot, slots_);
    first = std::min(first, s.slot);
    last = std::max(last, s.slot);
    bytes += BytesOf(MaskOf(s, logits.cols)) + BytesOf(s.suppressed) + BytesOf(s.bias) + BytesOf(s.recent) + BytesOf(s.generated);
  }
  if (last < 0 || !errors_->ok()) return;
  const Uploads::Piece piece = uploads_.Take(bytes);
  if (piece.host == nullptr) return;
  DrawRow* rows = reinterpret_cast<DrawRow*>(piece.host);
  int64_t used = AlignUp(logits.rows * static_cast<int64_t>(sizeof(DrawRow)));
  const auto put = [&]<class T>(std::span<const T> list, const T** at, int32_t* count) {
    if (list.empty()) return;
    std::memcpy(piece.host + used, list.data(), list.size_bytes());
    *at = reinterpret_cast<const T*>(piece.device + used);
    if (count != nullptr) *count = static_cast<int32_t>(list.size());
    used += BytesOf(list);
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const DrawSpec& s = specs[i];
    DrawRow r;
    r.slot = s.slot;
    if (s.slot >= 0) {
      r.greedy = !(s.temperature > 0.f) || s.top_k == 1;
      r.inverse = InverseTemperature(s.temperature);
      r.min_p = s.min_p;
      r.top_k = s.top_k < logits.cols ? s.top_k : 0;
      r.by_mass = s.top_p > 0.f && s.top_p < 1.f;
      if (r.by_mass != 0) r.top_p = FractionOf(s.top_p);
      r.u = FractionOf(s.u);
      r.repetition_penalty = s.repetition_penalty;
      r.frequency_penalty = s.frequency_penalty;
      r.presence_penalty = s.presence_penalty;
      put(MaskOf(s, logits.cols), &r.allowed, nullptr);
      put(s.suppressed, &r.suppressed, &r.suppressed_count);
      put(s.bias, &r.bias, &r.bias_count);
      put(s.recent, &r.recent, &r.recent_count);
      put(s.generated, &r.generated, &r.generated_count);
    }
    rows[i] = r;
  }
  uploads_.Send(piece);
  errors_->Check(cudaMemcpyAsync(at_.rows, piece.device, static_cast<size_t>(logits.rows) * sizeof(DrawRow), cudaMemcpyDeviceToDevice, stream_),
                 "copying what is to be drawn");   // to where a graph would look for it
  DrawTokens(stream_, logits, at_);
  downloads_->Start(reinterpret_cast<std::byte*>(out + first), reinterpret_cast<const std::byte*>(at_.drawn + first),
                    (last - first + 1) * static_cast<int64_t>(sizeof(Drawn)));
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

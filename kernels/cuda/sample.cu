// Drawing tokens, a row of logits each. All sums are of integers (kernels/sampling_math.h), so blocks add in whatever order they come.
//   Edit       constraint, suppression, bias, penalties; the best token of each chunk; what is not finite
//   Histogram  top_k, top_p: how many tokens, and how much weight, lie in each bucket of distance to the best
//   Select     the least key that top_k and top_p keep: the bucket from the histogram, then the token among the bucket's
//   Weigh      the kept weight of each chunk
//   Pick       the chunk in which the running sum passes the target, then the token
// A kernel whose row has no use for it returns at once. The row's best is put together again from its chunks wherever it is needed.
#include "kernels/cuda/sample.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_atomic.cuh"
#include "kernels/sampling_math.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

using u64 = unsigned long long;   // as atomics and shuffles take it

constexpr int kThreads = 256;           // of a block that takes a chunk
constexpr int kSelectThreads = 512;
constexpr int kMostMembers = 4096;      // a bucket with more is searched in the logits, again and again
constexpr int kHistogramBlocks = 1024;  // rows share about so many: each clears and writes a histogram of its own
constexpr int kMostWarps = 32;

__device__ __forceinline__ int Thread() { return static_cast<int>(threadIdx.x); }

__device__ __forceinline__ float* RowOf(const Mat& m, int64_t row) { return m.data + row * m.stride; }

__device__ __forceinline__ float LogitOf(uint64_t key) {
  const unsigned ordered = static_cast<unsigned>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// Over the block, in every thread, by an operation of integers for which 0 changes nothing. scratch: kMostWarps elements.
template <class Op>
__device__ __forceinline__ u64 BlockReduce64(u64 v, Shared<u64> scratch, Op op) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) v = op(v, __shfl_xor_sync(kAllLanes, v, lanes));
  __syncthreads();
  if (Thread() % kWarp == 0) scratch[Thread() / kWarp] = v;
  __syncthreads();
  u64 all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) all = op(all, static_cast<u64>(scratch[w]));
  return all;
}
__device__ __forceinline__ u64 BlockSum64(u64 v, Shared<u64> scratch) {
  return BlockReduce64(v, scratch, [](u64 a, u64 b) { return a + b; });
}
__device__ __forceinline__ u64 BlockMax64(u64 v, Shared<u64> scratch) {
  return BlockReduce64(v, scratch, [](u64 a, u64 b) { return max(a, b); });
}
// The sum of the threads before this one.
__device__ __forceinline__ u64 BlockBefore64(u64 v, Shared<u64> scratch) {
  u64 through = v;
  for (int by = 1; by < kWarp; by *= 2) {
    const u64 other = __shfl_up_sync(kAllLanes, through, by);
    if (Thread() % kWarp >= by) through += other;
  }
  __syncthreads();
  if (Thread() % kWarp == kWarp - 1) scratch[Thread() / kWarp] = through;
  __syncthreads();
  u64 before = through - v;
  for (int w = 0; w < Thread() / kWarp; ++w) before += scratch[w];
  return before;
}

// A row's best: what its chunks know together.
__device__ __forceinline__ ChunkPeak RowPeak(const ChunkPeak* chunks, int64_t count, Shared<u64> scratch) {
  u64 key = 0;
  int bad = 0, any = 0, edited_bad = 0;
  for (int64_t c = Thread(); c < count; c += blockDim.x) {
    const ChunkPeak p = chunks[c];
    key = max(key, static_cast<u64>(p.key));
    bad |= (p.flags & kPeakNotFinite) != 0;
    any |= (p.flags & kPeakAny) != 0;
    edited_bad |= (p.flags & kPeakEditedNotFinite) != 0;
  }
  ChunkPeak all;
  all.key = BlockMax64(key, scratch);
  if (__syncthreads_or(bad)) all.flags |= kPeakNotFinite;
  if (__syncthreads_or(any)) all.flags |= kPeakAny;
  if (__syncthreads_or(edited_bad)) all.flags |= kPeakEditedNotFinite;
  return all;
}
__device__ __forceinline__ DrawStatus StatusOf(const ChunkPeak& p) {
  if ((p.flags & kPeakNotFinite) != 0) return DrawStatus::kNotFinite;
  if ((p.flags & kPeakAny) == 0) return DrawStatus::kNothing;
  if ((p.flags & kPeakEditedNotFinite) != 0) return DrawStatus::kEditedNotFinite;
  return p.key == 0 ? DrawStatus::kNothingLeft : DrawStatus::kDrawn;
}

__device__ __forceinline__ bool Draws(const DrawRow& r) { return r.slot >= 0 && r.greedy == 0; }
__device__ __forceinline__ bool Filters(const DrawRow& r) { return Draws(r) && (r.top_k > 0 || r.by_mass != 0); }

__device__ __forceinline__ int BucketOf(float logit, float best, float inverse) {
  return min(kDrawBuckets - 1, static_cast<int>(RoundedMul(Exponent(logit, best, inverse), -64.f)));
}

__global__ void __launch_bounds__(kThreads) EditKernel(Mat logits, DrawMemory m, int64_t chunks) {
  const int64_t row = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const DrawRow r = m.rows[row];
  if (r.slot < 0) return;
  float* l = RowOf(logits, row);
  const int64_t begin = chunk * kDrawChunk, end = min(logits.cols, begin + kDrawChunk);
  const auto mine = [&](TokenId t) { return t >= begin && t < end; };
  for (int64_t b = chunk * kThreads + Thread(); b < kDrawBuckets; b += chunks * kThreads) {
    m.counts[row * kDrawBuckets + b] = 0;
    m.masses[row * kDrawBuckets + b] = 0;
  }
  const float inf = __uint_as_float(0x7f800000u);
  bool bad = false, any = false, edited_bad = false;
  u64 key = 0;
  for (int64_t i = begin + Thread(); i < end; i += kThreads) {
    const float v = l[i];
    bad |= !(v < inf);
    any |= v > -inf;
    if (r.allowed != nullptr && (r.allowed[i / 64] >> (i % 64) & 1) == 0) l[i] = -inf;
  }
  if (r.suppressed_count > 0) {
    __syncthreads();
    for (int i = Thread(); i < r.suppressed_count; i += kThreads) {
      const TokenId t = r.suppressed[i];
      if (mine(t)) l[t] = -inf;
    }
  }
  if (r.bias_count > 0) {
    __syncthreads();
    for (int i = Thread(); i < r.bias_count; i += kThreads) {   // the first of equal ids adds them all
      const TokenId t = r.bias[i].token;
      if (!mine(t) || (i > 0 && r.bias[i - 1].token == t)) continue;
      float v = l[t];
      for (int j = i; j < r.bias_count && r.bias[j].token == t; ++j) v = RoundedAdd(v, r.bias[j].bias);
      l[t] = v;
    }
  }
  if (r.recent_count > 0) {
    __syncthreads();
    for (int i = Thread(); i < r.recent_count; i += kThreads) {
      const TokenId t = r.recent[i];
      if (mine(t)) l[t] = Repeated(l[t], r.repetition_penalty);
    }
  }
  if (r.generated_count > 0) {
    __syncthreads();
    for (int i = Thread(); i < r.generated_count; i += kThreads) {
      const TokenCount t = r.generated[i];
      if (mine(t.token)) l[t.token] = Penalised(l[t.token], r.frequency_penalty, r.presence_penalty, t.count);
    }
  }
  __syncthreads();
  for (int64_t i = begin + Thread(); i < end; i += kThreads) {
    const float v = l[i];
    edited_bad |= !(v < inf);
    if (v > -inf) key = max(key, static_cast<u64>(OrderKey(v, static_cast<uint32_t>(i))));
  }
  ChunkPeak p;
  p.key = BlockMax64(key, SharedArray<u64>(0));
  if (__syncthreads_or(bad)) p.flags |= kPeakNotFinite;
  if (__syncthreads_or(any)) p.flags |= kPeakAny;
  if (__syncthreads_or(edited_bad)) p.flags |= kPeakEditedNotFinite;
  if (Thread() == 0) m.peaks[row * chunks + chunk] = p;
}

// `share` blocks a row take its chunks in turn.
__global__ void __launch_bounds__(kThreads) HistogramKernel(Mat logits, DrawMemory m, int64_t chunks, int64_t share) {
  const int64_t row = blockIdx.x / share;
  const DrawRow r = m.rows[row];
  if (!Filters(r)) return;
  Shared<u64> mass = SharedArray<u64>(0), scratch = mass + kDrawBuckets;
  Shared<unsigned> count = SharedArray<unsigned>((kDrawBuckets + kMostWarps) * static_cast<int>(sizeof(u64)));
  const ChunkPeak peak = RowPeak(m.peaks + row * chunks, chunks, scratch);
  if (StatusOf(peak) != DrawStatus::kDrawn) return;
  for (int b = Thread(); b < kDrawBuckets; b += kThreads) {
    mass[b] = 0;
    count[b] = 0;
  }
  __syncthreads();
  const float* l = RowOf(logits, row);
  const float best = LogitOf(peak.key);
  for (int64_t chunk = blockIdx.x % share; chunk < chunks; chunk += share) {
    const int64_t begin = chunk * kDrawChunk, end = min(logits.cols, begin + kDrawChunk);
    for (int64_t i = begin + Thread(); i < end; i += kThreads) {
      const float p = RelativeProbability(l[i], best, r.inverse);
      if (p == 0.f) continue;
      const int b = BucketOf(l[i], best, r.inverse);
      SharedAtomicAdd(mass + b, static_cast<u64>(WeightOf(p)));
      SharedAtomicAdd(count + b, 1u);
    }
  }
  __syncthreads();
  for (int b = Thread(); b < kDrawBuckets; b += kThreads) {
    if (count[b] == 0) continue;
    atomicAdd(m.counts + row * kDrawBuckets + b, static_cast<unsigned>(count[b]));
    atomicAdd(m.masses + row * kDrawBuckets + b, static_cast<u64>(mass[b]));
  }
}

// What Select's block works with.
struct Search {
  const float* logits;
  int64_t vocab;
  float best, inverse;
  Shared<u64> scratch;     // 3 * kMostWarps
  Shared<u64> members;     // kMostMembers keys
  Shared<unsigned> found;  // how many
  Shared<u64> answer;      // 3
};

// The bucket in which the sum of `values` (a count or a weight each) reaches `needed` > 0; *before: the sum of those before it. -1: never.
template <class T>
__device__ int FindBucket(const Search& s, const T* values, u64 needed, u64* before) {
  constexpr int kEach = (kDrawBuckets + kSelectThreads - 1) / kSelectThreads;
  u64 mine = 0;
  const int first = Thread() * kEach, last = min(kDrawBuckets, first + kEach);
  for (int b = first; b < last; ++b) mine += values[b];
  u64 sum = BlockBefore64(mine, s.scratch);
  if (Thread() == 0) s.answer[0] = ~0ull;
  __syncthreads();
  if (sum < needed && needed <= sum + mine) {
    int b = first;
    while (sum + values[b] < needed) sum += values[b++];
    s.answer[0] = static_cast<u64>(b);
    s.answer[1] = sum;
  }
  __syncthreads();
  const u64 bucket = s.answer[0];
  *before = bucket == ~0ull ? 0 : static_cast<u64>(s.answer[1]);
  __syncthreads();   // before the next answer
  return bucket == ~0ull ? -1 : static_cast<int>(bucket);
}

// f(key) for this thread's share of the bucket's tokens: those gathered, or else those in the logits.
template <class F>
__device__ __forceinline__ void ForMembers(const Search& s, int bucket, int gathered, F f) {
  if (gathered >= 0) {
    for (int i = Thread(); i < gathered; i += kSelectThreads) f(static_cast<u64>(s.members[i]));
    return;
  }
  for (int64_t i = Thread(); i < s.vocab; i += kSelectThreads) {
    const float v = s.logits[i];
    if (Exponent(v, s.best, s.inverse) < kMinWeightExponent || BucketOf(v, s.best, s.inverse) != bucket) continue;
    f(static_cast<u64>(OrderKey(v, static_cast<uint32_t>(i))));
  }
}

// The greatest key such that the bucket's tokens from it on reach `needed`, in number or (by_mass) in weight; *mass: their weight. There is one.
// Each round halves the keys in question at the highest bit in which the least and the greatest of them differ.
__device__ u64 FindKey(const Search& s, int bucket, unsigned size, bool by_mass, u64 needed, u64* mass) {
  int gathered = -1;
  if (size <= kMostMembers) {
    if (Thread() == 0) *s.found = 0u;
    __syncthreads();
    ForMembers(s, bucket, -1, [&](u64 key) { s.members[static_cast<int>(SharedAtomicAdd(s.found, 1u))] = key; });
    __syncthreads();
    gathered = static_cast<int>(size);
  }
  const auto weight = [&](u64 key) { return static_cast<u64>(WeightOf(RelativeProbability(LogitOf(key), s.best, s.inverse))); };
  u64 low = ~0ull, high = 0;
  ForMembers(s, bucket, gathered, [&](u64 key) {
    low = min(low, key);
    high = max(high, key);
  });
  low = ~BlockMax64(~low, s.scratch);
  high = BlockMax64(high, s.scratch);
  while (low != high) {
    const int bit = 63 - __clzll(static_cast<long long>(low ^ high));
    const u64 middle = high >> bit << bit;
    u64 sum = 0, above = ~0ull, below = 0;   // of all from the middle on; the least of those in question from it on, the greatest below it
    ForMembers(s, bucket, gathered, [&](u64 key) {
      if (key >= middle) sum += by_mass ? weight(key) : 1;
      if (key >= middle && key <= high) above = min(above, key);
      if (key < middle && key >= low) below = max(below, key);
    });
    sum = BlockSum64(sum, s.scratch);
    above = ~BlockMax64(~above, s.scratch);
    below = BlockMax64(below, s.scratch);
    if (sum >= needed) {
      low = above;
    } else {
      high = below;
    }
  }
  u64 sum = 0;
  ForMembers(s, bucket, gathered, [&](u64 key) { sum += key >= low ? weight(key) : 0; });
  *mass = BlockSum64(sum, s.scratch);
  return low;
}

__global__ void __launch_bounds__(kSelectThreads) SelectKernel(Mat logits, DrawMemory m, int64_t chunks) {
  const int64_t row = blockIdx.x;
  const DrawRow r = m.rows[row];
  if (!Filters(r)) {
    if (Thread() == 0) m.thresholds[row] = 0;
    return;
  }
  Search s;
  s.scratch = SharedArray<u64>(0);
  s.answer = s.scratch + kMostWarps;
  s.members = s.answer + 2;
  s.found = SharedArray<unsigned>((kMostWarps + 2 + kMostMembers) * static_cast<int>(sizeof(u64)));
  const ChunkPeak peak = RowPeak(m.peaks + row * chunks, chunks, s.scratch);
  if (StatusOf(peak) != DrawStatus::kDrawn) return;
  s.logits = RowOf(logits, row);
  s.vocab = logits.cols;
  s.best = LogitOf(peak.key);
  s.inverse = r.inverse;
  const unsigned* counts = m.counts + row * kDrawBuckets;
  const u64* masses = m.masses + row * kDrawBuckets;
  u64 mine = 0;
  for (int b = Thread(); b < kDrawBuckets; b += kSelectThreads) mine += masses[b];
  u64 total = BlockSum64(mine, s.scratch), threshold = 0;
  if (r.top_k > 0) {
    u64 before = 0;
    const int bucket = FindBucket(s, counts, r.top_k, &before);
    if (bucket >= 0) {   // else fewer than top_k have any weight
      mine = 0;
      for (int b = Thread(); b < bucket; b += kSelectThreads) mine += masses[b];
      total = BlockSum64(mine, s.scratch);
      u64 edge = 0;
      threshold = FindKey(s, bucket, counts[bucket], false, r.top_k - before, &edge);
      total += edge;
    }
  }
  if (r.by_mass != 0) {
    // The prefix lies within what top_k keeps, for that has the mass: its threshold is the one.
    const u64 wanted = MassWanted(total, r.top_p);
    u64 before = 0, edge = 0;
    const int bucket = FindBucket(s, masses, wanted, &before);
    threshold = FindKey(s, bucket, counts[bucket], true, wanted - before, &edge);
  }
  if (Thread() == 0) m.thresholds[row] = threshold;
}

__device__ __forceinline__ u64 KeptWeight(float logit, int64_t id, float best, const DrawRow& r, u64 threshold) {
  const float p = RelativeProbability(logit, best, r.inverse);
  if (p == 0.f || (r.min_p > 0.f && p < r.min_p)) return 0;
  return OrderKey(logit, static_cast<uint32_t>(id)) >= threshold ? WeightOf(p) : 0;
}

__global__ void __launch_bounds__(kThreads) WeighKernel(Mat logits, DrawMemory m, int64_t chunks) {
  const int64_t row = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const DrawRow r = m.rows[row];
  if (!Draws(r)) return;
  Shared<u64> scratch = SharedArray<u64>(0);
  const ChunkPeak peak = RowPeak(m.peaks + row * chunks, chunks, scratch);
  if (StatusOf(peak) != DrawStatus::kDrawn) return;
  const float* l = RowOf(logits, row);
  const float best = LogitOf(peak.key);
  const u64 threshold = m.thresholds[row];
  const int64_t begin = chunk * kDrawChunk, end = min(logits.cols, begin + kDrawChunk);
  u64 sum = 0;
  for (int64_t i = begin + Thread(); i < end; i += kThreads) sum += KeptWeight(l[i], i, best, r, threshold);
  sum = BlockSum64(sum, scratch);
  if (Thread() == 0) m.chunk_masses[row * chunks + chunk] = sum;
}

__global__ void __launch_bounds__(kThreads) PickKernel(Mat logits, DrawMemory m, int64_t chunks) {
  const int64_t row = blockIdx.x;
  const DrawRow r = m.rows[row];
  if (r.slot < 0) return;
  Shared<u64> scratch = SharedArray<u64>(0), answer = scratch + kMostWarps;
  const ChunkPeak peak = RowPeak(m.peaks + row * chunks, chunks, scratch);
  Drawn out;
  out.status = StatusOf(peak);
  if (out.status == DrawStatus::kDrawn) out.token = IdOf(peak.key);
  if (out.status != DrawStatus::kDrawn || r.greedy != 0) {
    if (Thread() == 0) m.drawn[r.slot] = out;
    return;
  }
  const u64* masses = m.chunk_masses + row * chunks;
  const int64_t each = (chunks + kThreads - 1) / kThreads, from = min(chunks, Thread() * each), to = min(chunks, from + each);
  u64 mine = 0;
  for (int64_t c = from; c < to; ++c) mine += masses[c];
  const u64 total = BlockSum64(mine, scratch);
  if (total == 0) {
    if (Thread() == 0) {
      out.token = 0;
      out.status = DrawStatus::kNoProbability;
      m.drawn[r.slot] = out;
    }
    return;
  }
  const u64 target = DrawTarget(total, r.u);
  u64 sum = BlockBefore64(mine, scratch);
  if (sum <= target && target < sum + mine) {
    int64_t c = from;
    while (sum + masses[c] <= target) sum += masses[c++];
    answer[0] = static_cast<u64>(c);
    answer[1] = sum;
  }
  __syncthreads();
  const float* l = RowOf(logits, row);
  const float best = LogitOf(peak.key);
  const u64 threshold = m.thresholds[row];
  constexpr int kEach = kDrawChunk / kThreads;
  const int64_t begin = static_cast<int64_t>(answer[0]) * kDrawChunk + Thread() * kEach, end = min(logits.cols, begin + kEach);
  const u64 before = answer[1];
  mine = 0;
  for (int64_t i = begin; i < end; ++i) mine += KeptWeight(l[i], i, best, r, threshold);
  sum = before + BlockBefore64(mine, scratch);
  if (sum <= target && target < sum + mine) {
    int64_t i = begin;
    for (;; ++i) {
      sum += KeptWeight(l[i], i, best, r, threshold);
      if (sum > target) break;
    }
    out.token = static_cast<TokenId>(i);
    m.drawn[r.slot] = out;
  }
}

__global__ void __launch_bounds__(kThreads) TakeKernel(const Drawn* drawn, const int32_t* awaited, int64_t count, uint32_t* tokens) {
  for (int64_t t = GridThread(); t < count; t += GridThreads()) {
    if (awaited[t] >= 0) tokens[t] = drawn[awaited[t]].token;
  }
}

}  // namespace

void TakeDrawn(cudaStream_t stream, const Drawn* drawn, const int32_t* awaited, int64_t count, uint32_t* tokens) {
  if (count > 0) Launch(TakeKernel, Blocks(count, kThreads), kThreads, 0, stream, drawn, awaited, count, tokens);
}

void DrawTokens(cudaStream_t stream, Mat logits, const DrawMemory& m) {
  if (logits.rows == 0) return;
  const int64_t chunks = DrawChunks(logits.cols);
  const int64_t share = std::clamp<int64_t>(kHistogramBlocks / logits.rows, 1, chunks);
  const unsigned rows = Blocks(logits.rows, 1), all = Blocks(logits.rows * chunks, 1);
  constexpr size_t kScratch = kMostWarps * sizeof(u64);
  constexpr size_t kHistogram = kDrawBuckets * (sizeof(u64) + sizeof(unsigned)) + kScratch;
  constexpr size_t kSelect = kScratch + (2 + kMostMembers + 1) * sizeof(u64);
  Launch(EditKernel, all, kThreads, kScratch, stream, logits, m, chunks);
  Launch(HistogramKernel, Blocks(logits.rows * share, 1), kThreads, kHistogram, stream, logits, m, chunks, share);
  Launch(SelectKernel, rows, kSelectThreads, kSelect, stream, logits, m, chunks);
  Launch(WeighKernel, all, kThreads, kScratch, stream, logits, m, chunks);
  Launch(PickKernel, rows, kThreads, kScratch + 2 * sizeof(u64), stream, logits, m, chunks);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

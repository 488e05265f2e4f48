#include "kernels/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {
int64_t AlignUp(int64_t v, int64_t a) { return (v + a - 1) / a * a; }
}  // namespace

bool Errors::Check(cudaError_t e, const char* doing, int64_t bytes) {
  if (e == cudaSuccess) return true;
  Failure& kept = trying_ ? trial_ : failure_;
  if (kept.error == cudaSuccess) {
    kept = {e, doing, bytes, 0};
    if (size_t free = 0, total = 0; bytes > 0 && cudaMemGetInfo(&free, &total) == cudaSuccess) kept.left_bytes = static_cast<int64_t>(free);
  }
  cudaGetLastError();  // what is not sticky is told once
  return false;
}

Errors::Failure Errors::EndTrial() {
  trying_ = false;
  return std::exchange(trial_, {});
}

bool Errors::RefusesInTrial(const char* doing) {
  if (trying_) Check(cudaErrorStreamCaptureUnsupported, doing);
  return trying_;
}

void Errors::Watch(cudaStream_t stream, std::function<bool(Instant began)> go_on) {
  stream_ = stream;
  go_on_ = std::move(go_on);
}

// True when there is nothing left to wait for.
template <class Query>
bool Errors::Poll(Query query, const char* doing) {
  constexpr Duration kLookEvery = std::chrono::milliseconds(1), kBusy = std::chrono::milliseconds(20), kNap = std::chrono::microseconds(50);
  if (!go_on_) return false;
  Check(cudaGetLastError(), "launching a kernel");  // "not ready" would take its place
  const Instant began = Clock::Real().Now();
  for (Instant looked = began;;) {
    const cudaError_t e = query();
    if (cudaPeekAtLastError() == cudaErrorNotReady) cudaGetLastError();
    if (e != cudaErrorNotReady) {
      Check(e, doing);
      return true;
    }
    const Instant now = Clock::Real().Now();
    if (now - looked >= kLookEvery) {
      looked = now;
      if (!go_on_(began)) return false;
    }
    // As long as a step of decoding takes, a core is worth less than the time a sleep takes to end.
    now - began < kBusy ? std::this_thread::yield() : std::this_thread::sleep_for(kNap);
  }
}

void Errors::Await(cudaStream_t stream, const char* doing) {
  if (!Poll([&] { return cudaStreamQuery(stream); }, doing)) Check(cudaStreamSynchronize(stream), doing);
}

void Errors::Await(cudaEvent_t event, const char* doing) {
  if (!Poll([&] { return cudaEventQuery(event); }, doing)) Check(cudaEventSynchronize(event), doing);
}

void* DeviceScratch::Get(int64_t bytes) {
  if (bytes <= bytes_) return data_;
  if (errors_->RefusesInTrial("growing scratch memory")) return data_;
  errors_->Moved();
  if (data_ != nullptr) errors_->BeforeBlocking();
  cudaFree(data_);
  data_ = nullptr;
  bytes_ = 0;
  const int64_t size = AlignUp(bytes + bytes / 4, 256);
  if (!errors_->Check(cudaMalloc(&data_, static_cast<size_t>(size)), "allocating scratch memory", size)) return data_ = nullptr;
  bytes_ = size;
  return data_;
}

void StepBlock::Free() {
  if (device_ != nullptr) errors_->Moved(), errors_->BeforeBlocking();
  cudaFree(device_);
  for (int i = 0; i < 2; ++i) {
    cudaFreeHost(host_[i]);
    if (copied_[i] != nullptr) cudaEventDestroy(copied_[i]);
    host_[i] = nullptr;
    copied_[i] = nullptr;
    sent_[i] = false;
  }
  device_ = nullptr;
  bytes_ = 0;
}

std::byte* StepBlock::Begin(int64_t bytes) {
  if (errors_->RefusesInTrial("sending a step's lists")) return nullptr;
  if (bytes > bytes_) {
    Free();
    const int64_t size = AlignUp(bytes * 2, 4096);
    void* p = nullptr;
    if (!errors_->Check(cudaMalloc(&p, static_cast<size_t>(size)), "allocating memory for a step's lists", size)) return nullptr;
    device_ = static_cast<std::byte*>(p);
    for (int i = 0; i < 2; ++i) {
      if (!errors_->Check(cudaMallocHost(&p, static_cast<size_t>(size)), "allocating pinned memory")) return nullptr;
      host_[i] = static_cast<std::byte*>(p);
      if (!errors_->Check(cudaEventCreateWithFlags(&copied_[i], cudaEventDisableTiming), "making an event")) return nullptr;
    }
    bytes_ = size;
  }
  side_ = 1 - side_;
  if (sent_[side_]) errors_->Await(copied_[side_], "waiting for an upload");
  sent_[side_] = false;
  return host_[side_];
}

void StepBlock::Send(int64_t bytes) {
  if (bytes == 0) return;
  if (!errors_->Check(cudaMemcpyAsync(device_, host_[side_], static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_), "uploading")) return;
  sent_[side_] = errors_->Check(cudaEventRecord(copied_[side_], stream_), "marking an upload");
}

Uploads::~Uploads() {
  for (Half& h : halves_) Free(&h);
}

void Uploads::Free(Half* h) {
  if (h->done != nullptr) errors_->BeforeBlocking(), cudaEventSynchronize(h->done), cudaEventDestroy(h->done);
  cudaFreeHost(h->host);
  cudaFree(h->device);
  *h = Half();
}

void Uploads::NextHalf() {
  Half& old = halves_[active_];
  if (old.sent) errors_->Check(cudaEventRecord(old.done, stream_), "marking an upload");
  active_ = 1 - active_;
  Half& h = halves_[active_];
  if (h.sent) errors_->Await(h.done, "waiting for an upload");
  h.sent = false;
  h.used = 0;
}

Uploads::Piece Uploads::Take(int64_t bytes) {
  if (errors_->RefusesInTrial("uploading")) return {};
  const int64_t size = AlignUp(std::max<int64_t>(bytes, 1), 256);
  if (halves_[active_].used + size > halves_[active_].bytes) {
    if (halves_[active_].used > 0) NextHalf();
    Half& h = halves_[active_];
    if (size > h.bytes) {
      wanted_ = std::max(wanted_, AlignUp(size + size / 2, 4096));
      Free(&h);
      void *host = nullptr, *device = nullptr;
      if (!errors_->Check(cudaMallocHost(&host, static_cast<size_t>(wanted_)), "allocating pinned memory")) return {};
      if (!errors_->Check(cudaMalloc(&device, static_cast<size_t>(wanted_)), "allocating memory for uploads")) {
        cudaFreeHost(host);
        return {};
      }
      h.host = static_cast<std::byte*>(host);
      h.device = static_cast<std::byte*>(device);
      h.bytes = wanted_;
      errors_->Check(cudaEventCreateWithFlags(&h.done, cudaEventDisableTiming), "making an event");
    }
  }
  Half& h = halves_[active_];
  const Piece piece{h.host + h.used, h.device + h.used, bytes};
  h.used += size;
  return piece;
}

void Uploads::Send(const Piece& piece) {
  if (piece.host == nullptr || piece.bytes == 0) return;
  halves_[active_].sent = true;
  errors_->Check(cudaMemcpyAsync(piece.device, piece.host, static_cast<size_t>(piece.bytes), cudaMemcpyHostToDevice, stream_), "uploading");
}

Downloads::~Downloads() {
  for (Side& s : sides_) {
    if (s.done != nullptr) cudaEventDestroy(s.done);
    cudaFreeHost(s.pinned);
  }
}

void Downloads::Start(std::byte* dst, const std::byte* src, int64_t bytes) {
  if (bytes == 0 || errors_->RefusesInTrial("downloading")) return;
  Side& s = sides_[active_];
  s.asked += AlignUp(bytes, 64);
  wanted_ = std::max(wanted_, AlignUp(s.asked, 4096));
  if (s.pending.empty() && s.bytes < wanted_) {
    if (s.pinned != nullptr) errors_->BeforeBlocking();
    cudaFreeHost(s.pinned);
    s.pinned = nullptr;
    s.bytes = 0;
    void* p = nullptr;
    if (cudaMallocHost(&p, static_cast<size_t>(wanted_)) == cudaSuccess) {
      s.pinned = static_cast<std::byte*>(p);
      s.bytes = wanted_;
    } else {
      cudaGetLastError();   // no fault of the device's: what follows goes the slow way
    }
  }
  if (s.used + bytes > s.bytes) {   // straight to dst, which makes the call wait; next time there is room for all that was asked for
    errors_->BeforeBlocking();
    errors_->Check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_), "downloading");
    return;
  }
  errors_->Check(cudaMemcpyAsync(s.pinned + s.used, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_), "downloading");
  s.pending.push_back({dst, s.used, bytes});
  s.used += AlignUp(bytes, 64);
}

uint64_t Downloads::Mark() {
  Side& s = sides_[active_];
  if (s.done == nullptr) errors_->Check(cudaEventCreateWithFlags(&s.done, cudaEventDisableTiming), "making an event");
  errors_->Check(cudaEventRecord(s.done, stream_), "marking a step");
  s.mark = ++marks_;
  active_ = (active_ + 1) % 3;
  if (sides_[active_].mark != 0) Wait(sides_[active_].mark);
  return marks_;
}

void Downloads::Wait(uint64_t mark) {
  for (int i = 1; i <= 3; ++i) {   // the oldest first
    Side& s = sides_[(active_ + i) % 3];
    if (s.mark == 0 || s.mark > mark) continue;
    errors_->Await(s.done, "waiting for the device");
    Hand(&s);
  }
}

void Downloads::Hand(Side* s) {
  for (const Pending& p : s->pending) std::memcpy(p.dst, s->pinned + p.at, static_cast<size_t>(p.bytes));
  s->pending.clear();
  s->used = s->asked = 0;
  s->mark = 0;
}

void Downloads::Deliver() {
  for (int i = 1; i <= 3; ++i) Hand(&sides_[(active_ + i) % 3]);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

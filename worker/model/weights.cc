#include "worker/model/weights.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/convert.h"
#include "proto/base/check.h"
#include "proto/base/fault.h"
#include "proto/base/random.h"
#include "proto/base/status_wire.h"
#include "worker/model/memory.h"
#include "worker/model/value_check.h"

namespace holdfast::model {
namespace {

constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kMagic = 0x3130577466646c48ull;  // "HldftW01"
constexpr uint64_t kReadBytes = uint64_t{8} << 20;
// Sources larger than this are packed one at a time, so that scratch memory stays near one tensor, not one a thread.
constexpr uint64_t kLargeSource = uint64_t{128} << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

struct ArenaHeader {
  uint64_t magic;
  uint64_t layout_digest;
  uint64_t total_bytes;
  uint64_t modified;
  char fingerprint[64];
};

uint64_t AlignUp(uint64_t v, uint64_t a) { return (v + a - 1) / a * a; }

uint64_t HashText(uint64_t h, std::string_view s) {
  for (const char c : s) h = Mix64(h ^ static_cast<unsigned char>(c));
  return Mix64(h ^ s.size());
}

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return 1;
}

void VectorToF32(kernels::DType type, const std::byte* src, int64_t n, float* dst) {
  for (int64_t i = 0; i < n; ++i) {
    switch (type) {
      case kernels::DType::kF32: memcpy(dst + i, src + 4 * i, 4); break;
      default: {
        uint16_t v;
        memcpy(&v, src + 2 * i, 2);
        dst[i] = type == kernels::DType::kF16 ? kernels::F16ToF32(v) : kernels::Bf16ToF32(v);
      }
    }
  }
}

// Words for EFBIG: a memory file is a file to RLIMIT_FSIZE.
std::string FileLimit(int error) {
  rlimit limit{};
  if (error != EFBIG || getrlimit(RLIMIT_FSIZE, &limit) != 0) return "";
  return fmt::format(" (RLIMIT_FSIZE, ulimit -f, allows files of {})", BytesText(limit.rlim_cur));
}

}  // namespace

// One planned tensor's place in the arena.
struct WeightStore::Slot {
  const PlannedTensor* tensor = nullptr;
  kernels::WeightLayout layout;
  uint64_t offset = 0;
  uint64_t expert_stride = 0;
  uint64_t source_bytes = 0;   // of what is taken of one expert (a vector: of all)
  int64_t tasks = 1;
};

struct WeightStore::Layout {
  std::vector<Slot> slots;
  uint64_t total = 0;
  uint64_t source_total = 0;
  uint64_t largest_source = 0;  // that needs scratch
  uint64_t digest = 0;
};

WeightStore::Layout WeightStore::MakeLayout(const TensorPlan& plan, const kernels::Ops& ops) {
  Layout layout;
  uint64_t at = kHeaderBytes, digest = kMagic;
  for (const PlannedTensor& t : plan.tensors()) {
    Slot slot;
    slot.tensor = &t;
    uint64_t bytes = 0;
    if (t.is_vector) {
      const uint64_t element = kernels::InfoOf(t.source->type).block_bytes;
      slot.source_bytes = static_cast<uint64_t>(t.in) * t.experts * element;
      slot.layout.bytes = t.in * t.experts * 4;
      slot.expert_stride = bytes = slot.layout.bytes;
      layout.largest_source = std::max(layout.largest_source, slot.source_bytes);
    } else {
      const uint64_t row = kernels::RowBytes(t.source->type, t.in);
      slot.layout = ops.LayoutOf(t.source->type, t.out, t.in, t.use);
      HF_CHECKF(slot.layout.bytes > 0 && slot.layout.alignment > 0, "layout of {}", t.name);
      slot.source_bytes = row * t.out;
      slot.expert_stride = AlignUp(slot.layout.bytes, std::max<uint64_t>(64, slot.layout.alignment));
      bytes = slot.expert_stride * (t.experts - 1) + slot.layout.bytes;
      slot.tasks = t.experts;
      if (slot.layout.layout != 0) layout.largest_source = std::max(layout.largest_source, slot.source_bytes);
    }
    slot.offset = at = AlignUp(at, std::max<uint64_t>(64, slot.layout.alignment));
    at += bytes;
    // Progress counts what is read, whole rows also where only some columns are taken.
    layout.source_total += kernels::RowBytes(t.source->type, t.source_in) * static_cast<uint64_t>(t.out * t.experts);
    digest = HashText(digest, t.name);
    for (const uint64_t v : {uint64_t{static_cast<uint8_t>(t.source->type)}, uint64_t(t.in), uint64_t(t.out), uint64_t(t.experts),
                             uint64_t(t.first_row), uint64_t(t.second_row), uint64_t(t.first_column),
                             uint64_t{slot.layout.layout}, uint64_t(slot.layout.bytes), slot.offset}) {
      digest = Mix64(digest ^ v);
    }
    layout.slots.push_back(slot);
  }
  layout.total = AlignUp(at, kHeaderBytes);
  layout.digest = digest;
  return layout;
}

uint64_t WeightStore::BytesNeeded(const TensorPlan& plan, const kernels::Ops& ops) { return MakeLayout(plan, ops).total; }

// Fills the arena with several threads; the calling thread reports progress.
class WeightStore::Packer {
 public:
  Packer(const GgufFile& file, const Layout& layout, const kernels::Ops& ops, const WeightOptions& options, std::byte* arena)
      : file_(file), layout_(layout), ops_(ops), options_(options), arena_(arena) {
    for (const Slot& slot : layout.slots) {
      for (int64_t e = 0; e < slot.tasks; ++e) tasks_.push_back({&slot, e});
    }
  }

  absl::Status Run() {
    const int cores = options_.threads > 0 ? options_.threads : std::min(8, UsableCores());
    const int threads = static_cast<int>(std::clamp<size_t>(tasks_.size(), 1, cores));
    running_ = threads;
    std::vector<std::thread> pool;
    for (int i = 0; i < threads; ++i) pool.emplace_back([this] { Work(); });
    {
      std::unique_lock lock(mutex_);
      // At least once, also when the packers were done before this thread came here: the caller hears the end, and may still refuse it.
      for (bool over = false; !over;) {
        done_cv_.wait_for(lock, std::chrono::milliseconds(50), [this] { return running_ == 0; });
        over = running_ == 0;
        if (!options_.progress) continue;
        lock.unlock();
        if (!options_.progress({"repacking", done_.load(), layout_.source_total}) && !stop_.exchange(true)) cancelled_ = true;
        lock.lock();
      }
    }
    for (std::thread& t : pool) t.join();
    if (cancelled_) return absl::CancelledError("loading was given up");
    return error_;
  }

 private:
  struct Task {
    const Slot* slot;
    int64_t expert;
  };

  void Work() {
    std::vector<std::byte> scratch;
    while (!stop_.load()) {
      const size_t i = next_.fetch_add(1);
      if (i >= tasks_.size()) break;
      absl::Status status = Pack(tasks_[i], &scratch);
      if (status.ok()) continue;
      if (absl::IsCancelled(status)) break;  // it stopped because another part failed, or the caller wished it: no error of its own
      std::lock_guard lock(mutex_);
      if (i < error_at_) {  // the first in plan order, so that the message does not depend on timing
        error_at_ = i;
        error_ = std::move(status);
      }
      stop_ = true;
    }
    std::lock_guard lock(mutex_);
    if (--running_ == 0) done_cv_.notify_all();
  }

  // What the plan takes of one expert (of a vector: of all), packed row after row.
  absl::Status ReadPart(const PlannedTensor& t, int64_t expert, std::byte* dst) {
    const uint64_t source_row = kernels::RowBytes(t.source->type, t.source_in);
    if (t.is_vector) return ReadRows(t, 0, t.experts, source_row, dst);
    const uint64_t base = source_row * static_cast<uint64_t>(t.source_out) * static_cast<uint64_t>(expert);
    const int64_t rows = t.second_row < 0 ? t.out : t.out / 2;
    HF_RETURN_IF_ERROR(ReadRows(t, base + source_row * static_cast<uint64_t>(t.first_row), rows, source_row, dst));
    if (t.second_row < 0) return absl::OkStatus();
    return ReadRows(t, base + source_row * static_cast<uint64_t>(t.second_row), rows, source_row, dst + kernels::RowBytes(t.source->type, t.in) * rows);
  }

  // The plan's columns of `rows` rows from `offset` on. Cut rows are read whole, some at a time: the file is read from one end to the other.
  absl::Status ReadRows(const PlannedTensor& t, uint64_t offset, int64_t rows, uint64_t source_row, std::byte* dst) {
    if (t.whole_rows()) return ReadChecked(t, offset, source_row * static_cast<uint64_t>(rows), dst);
    const uint64_t row = kernels::RowBytes(t.source->type, t.in), first = kernels::RowBytes(t.source->type, t.first_column);
    const int64_t some = std::clamp<int64_t>(static_cast<int64_t>(kReadBytes / source_row), 1, rows);
    std::vector<std::byte> whole(source_row * static_cast<uint64_t>(some));
    for (int64_t r = 0; r < rows; r += some) {
      const int64_t n = std::min(some, rows - r);
      HF_RETURN_IF_ERROR(ReadChecked(t, offset + source_row * static_cast<uint64_t>(r), source_row * static_cast<uint64_t>(n), whole.data()));
      for (int64_t i = 0; i < n; ++i) {
        memcpy(dst + row * static_cast<uint64_t>(r + i), whole.data() + source_row * static_cast<uint64_t>(i) + first, row);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadChecked(const PlannedTensor& t, uint64_t offset, uint64_t bytes, std::byte* dst) {
    const uint64_t block = kernels::InfoOf(t.source->type).block_bytes, step = kReadBytes / block * block;
    for (uint64_t at = 0; at < bytes; at += step) {
      if (stop_.load()) return absl::CancelledError("stopped");
      const uint64_t n = std::min(step, bytes - at);
      HF_RETURN_IF_ERROR(file_.Read(*t.source, offset + at, n, dst + at));
      if (options_.check_values) {
        const int64_t bad = FirstBadBlock(t.source->type, dst + at, n);
        if (bad >= 0) {
          return absl::InvalidArgumentError(fmt::format("{}: tensor {}: block {} of {} holds a value that is not finite", file_.path(),
                                                        Quoted(t.source->name), (offset + at) / block + bad, kernels::InfoOf(t.source->type).name));
        }
      }
      done_ += n;
    }
    return absl::OkStatus();
  }

  absl::Status Pack(const Task& task, std::vector<std::byte>* scratch) {
    const Slot& slot = *task.slot;
    const PlannedTensor& t = *slot.tensor;
    if (FaultPoint("model.pack")) return absl::DataLossError(fmt::format("tensor {}: fault point model.pack", t.name));
    std::byte* dst = arena_ + slot.offset + slot.expert_stride * task.expert;
    if (!t.is_vector && slot.layout.layout == 0) {
      HF_CHECK(static_cast<uint64_t>(slot.layout.bytes) >= slot.source_bytes);
      return ReadPart(t, task.expert, dst);
    }
    std::unique_lock<std::mutex> large(large_mutex_, std::defer_lock);
    if (slot.source_bytes > kLargeSource) large.lock();
    scratch->resize(std::max<uint64_t>(scratch->size(), slot.source_bytes));
    HF_RETURN_IF_ERROR(ReadPart(t, task.expert, scratch->data()));
    if (t.is_vector) {
      VectorToF32(t.source->type, scratch->data(), t.in * t.experts, reinterpret_cast<float*>(dst));
    } else {
      ops_.Pack(t.source->type, t.out, t.in, slot.layout, scratch->data(), dst);
    }
    if (slot.source_bytes > kLargeSource) *scratch = {};
    return absl::OkStatus();
  }

  const GgufFile& file_;
  const Layout& layout_;
  const kernels::Ops& ops_;
  const WeightOptions& options_;
  std::byte* arena_;
  std::vector<Task> tasks_;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  bool cancelled_ = false;
  std::mutex mutex_, large_mutex_;
  std::condition_variable done_cv_;
  int running_ = 0;
  size_t error_at_ = SIZE_MAX;
  absl::Status error_;
};

absl::StatusOr<std::shared_ptr<const WeightStore>> WeightStore::Create(const GgufFile& file, const TensorPlan& plan, kernels::Ops& ops,
                                                                       const WeightOptions& options) {
  const Layout layout = MakeLayout(plan, ops);
  if (options.check_memory) {
    const uint64_t threads = options.threads > 0 ? options.threads : std::min(8, UsableCores());
    const uint64_t scratch = layout.largest_source + (threads - 1) * std::min(layout.largest_source, kLargeSource);
    HF_RETURN_IF_ERROR(RequireMemory(layout.total + scratch, fmt::format("{}: loading the weights", file.path())));
  }
  HF_ASSIGN_OR_RETURN(const std::string fingerprint, file.Fingerprint());
  std::shared_ptr<WeightStore> store(new WeightStore);
  store->fd_.Reset(memfd_create("holdfast-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!store->fd_) return absl::ResourceExhaustedError(fmt::format("cannot create a memory file for the weights: {}", strerror(errno)));
  if (ftruncate(store->fd_.get(), static_cast<off_t>(layout.total)) != 0) {
    return absl::ResourceExhaustedError(fmt::format("cannot size the weights to {}: {}{}", BytesText(layout.total), strerror(errno), FileLimit(errno)));
  }
  void* p = mmap(nullptr, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, store->fd_.get(), 0);
  if (p == MAP_FAILED) return absl::ResourceExhaustedError(fmt::format("cannot map {} for the weights: {}", BytesText(layout.total), strerror(errno)));
  madvise(p, layout.total, MADV_HUGEPAGE);  // advice only: shmem may not have it
  auto* arena = static_cast<std::byte*>(p);
  ArenaHeader header{kMagic, layout.digest, layout.total, file.modified(), {}};
  fingerprint.copy(header.fingerprint, sizeof(header.fingerprint) - 1);
  memcpy(arena, &header, sizeof(header));
  absl::Status status = Packer(file, layout, ops, options, arena).Run();
  if (status.ok()) status = file.Unchanged();
  munmap(p, layout.total);  // F_SEAL_WRITE needs that no writable mapping is left
  if (!status.ok()) return status;
  if (fcntl(store->fd_.get(), F_ADD_SEALS, kSeals) != 0) return absl::InternalError(fmt::format("cannot seal the weights: {}", strerror(errno)));
  HF_RETURN_IF_ERROR(store->MapSealed(layout, ops));
  return std::shared_ptr<const WeightStore>(std::move(store));
}

absl::StatusOr<std::shared_ptr<const WeightStore>> WeightStore::Attach(UniqueFd fd, const GgufFile& file, const TensorPlan& plan,
                                                                       kernels::Ops& ops) {
  const Layout layout = MakeLayout(plan, ops);
  const auto refuse = [](std::string why) { return absl::FailedPreconditionError("kept weights cannot be used: " + why); };
  struct stat st;
  if (!fd || fstat(fd.get(), &st) != 0) return refuse("no such descriptor");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return refuse("they are not sealed");
  if (static_cast<uint64_t>(st.st_size) != layout.total) {
    return refuse(fmt::format("they have {} bytes, this model and backend need {}", st.st_size, layout.total));
  }
  ArenaHeader header{};
  if (pread(fd.get(), &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header)) || header.magic != kMagic) return refuse("no header");
  HF_ASSIGN_OR_RETURN(const std::string fingerprint, file.Fingerprint());
  header.fingerprint[sizeof(header.fingerprint) - 1] = 0;
  if (header.layout_digest != layout.digest) return refuse("they were packed for another layout");
  if (fingerprint != header.fingerprint || header.modified != file.modified()) return refuse("they were packed from another file");
  std::shared_ptr<WeightStore> store(new WeightStore);
  store->fd_ = std::move(fd);
  HF_RETURN_IF_ERROR(store->MapSealed(layout, ops));
  return std::shared_ptr<const WeightStore>(std::move(store));
}

absl::Status WeightStore::MapSealed(const Layout& layout, kernels::Ops& ops) {
  void* p = mmap(nullptr, layout.total, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (p == MAP_FAILED) return absl::ResourceExhaustedError(fmt::format("cannot map {} of weights: {}", BytesText(layout.total), strerror(errno)));
  madvise(p, layout.total, MADV_HUGEPAGE);
  base_ = static_cast<const std::byte*>(p);
  bytes_ = layout.total;
  layout_digest_ = layout.digest;
  const std::byte* at = base_;
  if (!ops.HostMemory()) {
    const int64_t size = static_cast<int64_t>(layout.total);
    if (ops.FreeMemory() < size) {
      return absl::ResourceExhaustedError(fmt::format("the weights need {} of the device's memory, of which {} are left", BytesText(layout.total),
                                                      BytesText(static_cast<uint64_t>(ops.FreeMemory()))));
    }
    on_device_ = ops.Allocate(size);
    HF_RETURN_IF_ERROR(ops.Health());
    constexpr int64_t kPiece = int64_t{64} << 20;
    for (int64_t from = 0; from < size; from += kPiece) ops.CopyFromHost(on_device_.data() + from, base_ + from, std::min(kPiece, size - from));
    ops.Sync();
    HF_RETURN_IF_ERROR(ops.Health());
    at = on_device_.data();
  }
  for (const Slot& slot : layout.slots) {
    const PlannedTensor& t = *slot.tensor;
    if (t.is_vector) {
      vectors_.emplace(t.name, kernels::Vec(reinterpret_cast<const float*>(at + slot.offset), t.in * t.experts));
      continue;
    }
    kernels::Weight w;
    w.data = at + slot.offset;
    w.dtype = t.source->type;
    w.layout = slot.layout.layout;
    w.out = t.out;
    w.in = t.in;
    w.experts = t.experts;
    w.expert_stride = static_cast<int64_t>(slot.expert_stride);
    matrices_.emplace(t.name, w);
  }
  return absl::OkStatus();
}

WeightStore::~WeightStore() {
  if (base_ != nullptr) munmap(const_cast<std::byte*>(base_), bytes_);
}

kernels::Weight WeightStore::matrix(std::string_view name) const {
  const auto it = matrices_.find(absl::string_view(name.data(), name.size()));
  return it == matrices_.end() ? kernels::Weight() : it->second;
}

kernels::Vec WeightStore::vector(std::string_view name) const {
  const auto it = vectors_.find(absl::string_view(name.data(), name.size()));
  return it == vectors_.end() ? kernels::Vec() : it->second;
}

kernels::Vec WeightStore::host_vector(std::string_view name) const {
  const kernels::Vec v = vector(name);
  if (v.empty() || on_device_.data() == nullptr) return v;
  return {reinterpret_cast<const float*>(base_ + (reinterpret_cast<const std::byte*>(v.data()) - on_device_.data())), v.size()};
}

}  // namespace holdfast::model

#include "kernels/cuda/ops_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/probe.h"
#include "kernels/cuda/reservation_cuda.h"
#include "proto/base/check.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

template <class A, class B>
void CheckSameShape(const A& a, const B& b) {
  HF_CHECKF(a.rows == b.rows && a.cols == b.cols, "[{}][{}] against [{}][{}]", a.rows, a.cols, b.rows, b.cols);
}

const float* OrNull(Vec v) { return v.empty() ? nullptr : v.data(); }

std::string Words(cudaError_t e) { return fmt::format("{} ({})", cudaGetErrorString(e), cudaGetErrorName(e)); }

// Why a device that is there cannot be used.
absl::Status Unusable(int device, cudaError_t e) {
  const std::string text = fmt::format("CUDA device {}: {}", device, Words(e));
  if (e == cudaErrorDevicesUnavailable || e == cudaErrorMemoryAllocation) return absl::UnavailableError(text);
  return absl::AbortedError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> MakeOps(const CudaOptions& options) { return CudaOps::Make(options); }

absl::StatusOr<std::unique_ptr<Ops>> CudaOps::Make(const CudaOptions& options) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) cudaGetLastError();
  if (counted == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) return absl::NotFoundError("no NVIDIA driver");
    int wanted = 0;
    cudaRuntimeGetVersion(&wanted);
    return absl::FailedPreconditionError(
        fmt::format("the NVIDIA driver knows CUDA {}.{}, this build needs {}.{}", driver / 1000, driver % 1000 / 10, wanted / 1000, wanted % 1000 / 10));
  }
  if (counted == cudaErrorNoDevice || (counted == cudaSuccess && count == 0)) return absl::NotFoundError("no CUDA device");
  if (counted != cudaSuccess) return Unusable(options.device, counted);
  if (options.device < 0 || std::max(options.device + 1, options.devices) > count) {
    return absl::OutOfRangeError(fmt::format("{} CUDA devices, where {} are needed", count, std::max(options.device + 1, options.devices)));
  }
  cudaDeviceProp properties{};
  if (const cudaError_t e = cudaGetDeviceProperties(&properties, options.device); e != cudaSuccess) return Unusable(options.device, e);
  cudaStream_t stream = nullptr;
  cudaError_t e = cudaSetDevice(options.device);
  if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);  // makes the context: a device that is busy shows here
  if (e != cudaSuccess) return Unusable(options.device, e);
  if (e = ProbeDevice(); e != cudaSuccess) {
    cudaGetLastError();
    cudaStreamDestroy(stream);
    if (e != cudaErrorNoKernelImageForDevice) return Unusable(options.device, e);
    return absl::FailedPreconditionError(fmt::format("CUDA device {} ({}) has compute capability {}.{}; this build has code for {}", options.device,
                                                     properties.name, properties.major, properties.minor, HF_CUDA_ARCHITECTURES));
  }
  return std::unique_ptr<Ops>(new CudaOps(options.device, stream,
                                          fmt::format("cuda {}: {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", options.device,
                                                      properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                                                      static_cast<double>(properties.totalGlobalMem) / (1u << 30)),
                                          {properties.multiProcessorCount, static_cast<int64_t>(properties.sharedMemPerBlockOptin)}));
}

CudaOps::CudaOps(int device, cudaStream_t stream, std::string description, const AttentionDevice& attention_device)
    : device_(device), stream_(stream), description_(std::move(description)), step_uploads_(&errors_, stream, 256 << 10),
      uploads_(&errors_, stream, 64 << 10), downloads_(&errors_, stream), attention_device_(attention_device) {}

CudaOps::~CudaOps() { cudaStreamSynchronize(stream_); }

Buffer CudaOps::Allocate(int64_t bytes) {
  void* p = nullptr;
  errors_.Check(cudaSetDevice(device_), "choosing the device");
  if (!errors_.Check(cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "allocating memory", bytes)) return Buffer();
  return Buffer(static_cast<std::byte*>(p), bytes, [](std::byte* q, int64_t) { cudaFree(q); });
}

absl::StatusOr<std::unique_ptr<Reservation>> CudaOps::Reserve(int64_t bytes) {
  errors_.Check(cudaSetDevice(device_), "choosing the device");
  return ReserveDevice(device_, bytes);
}

int64_t CudaOps::FreeMemory() const {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
}

void CudaOps::Sync() {
  errors_.Check(cudaStreamSynchronize(stream_), "waiting for the device");
  errors_.Check(cudaGetLastError(), "launching a kernel");
  downloads_.Deliver();
}

absl::Status CudaOps::Health() const {
  if (errors_.ok()) return absl::OkStatus();
  std::string text = fmt::format("CUDA device {}, {}: {}", device_, errors_.doing(), Words(errors_.first()));
  if (errors_.wanted_bytes() > 0) {
    text += fmt::format("; {:.1f} MiB were asked for, {:.1f} MiB were left", static_cast<double>(errors_.wanted_bytes()) / (1 << 20),
                        static_cast<double>(errors_.left_bytes()) / (1 << 20));
  }
  if (errors_.first() == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::AbortedError(text);
}

void CudaOps::CopyToHost(std::byte* dst, const std::byte* src, int64_t bytes) { downloads_.Start(dst, src, bytes); }

void CudaOps::CopyFromHost(std::byte* dst, const std::byte* src, int64_t bytes) {
  if (bytes == 0) return;
  // From pageable memory the runtime takes the bytes before it returns.
  errors_.Check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_), "copying to the device");
}

void CudaOps::BeginStep(const Batch& batch) {
  errors_.Check(cudaSetDevice(device_), "choosing the device");
  batch_ = batch;
  for (auto& r : rope_) r->current = false;
  for (auto& p : attention_plans_) p->current = false;
  const int64_t rows = static_cast<int64_t>(std::max(batch.positions.size(), batch.tokens.size())), count = static_cast<int64_t>(batch.sequences.size());
  // One piece: tokens, positions, the rows' sequences, spans, and of each group where its tables begin and the tables.
  int64_t bytes = 0;
  const auto place = [&](int64_t n) {
    const int64_t at = bytes;
    bytes += (n + 15) / 16 * 16;
    return at;
  };
  const auto blocks_of = [&](const SequenceSpan& s) { return (int64_t{s.start} + s.rows + batch.page_size - 1) / batch.page_size; };
  int64_t blocks = 0;
  for (const SequenceSpan& s : batch.sequences) blocks += blocks_of(s);
  const int64_t tokens = place(static_cast<int64_t>(batch.tokens.size_bytes())), positions = place(static_cast<int64_t>(batch.positions.size_bytes()));
  const int64_t row_sequence = place(rows * 4), spans = place(static_cast<int64_t>(batch.sequences.size_bytes()));
  const int64_t first = place(count * 4);
  std::vector<int64_t> pages;
  for (size_t g = 0; g < batch.groups.size(); ++g) pages.push_back(place(blocks * 4));
  step_uploads_.NextHalf();
  const Uploads::Piece piece = step_uploads_.Take(bytes);
  on_device_ = DeviceBatch();
  tables_.assign(batch.groups.size(), DeviceTables());
  if (piece.host == nullptr) return;
  const auto put = [&](int64_t at, const void* from, size_t n) {
    if (n > 0) std::memcpy(piece.host + at, from, n);
  };
  put(tokens, batch.tokens.data(), batch.tokens.size_bytes());
  put(positions, batch.positions.data(), batch.positions.size_bytes());
  put(spans, batch.sequences.data(), batch.sequences.size_bytes());
  int32_t* row_of = reinterpret_cast<int32_t*>(piece.host + row_sequence);
  std::fill(row_of, row_of + rows, 0);
  int32_t* first_of = reinterpret_cast<int32_t*>(piece.host + first);
  int64_t at = 0;
  for (int64_t s = 0; s < count; ++s) {
    const SequenceSpan& span = batch.sequences[static_cast<size_t>(s)];
    HF_CHECKF(span.first_row >= 0 && span.first_row + int64_t{span.rows} <= rows, "sequence {} has rows {} to {} of {}", s, span.first_row,
              span.first_row + span.rows, rows);
    std::fill(row_of + span.first_row, row_of + span.first_row + span.rows, static_cast<int32_t>(s));
    first_of[s] = static_cast<int32_t>(at);
    for (size_t g = 0; g < batch.groups.size(); ++g) {
      const BlockTables& group = batch.groups[g];
      const int32_t* table = group.tables[static_cast<size_t>(s)];
      const int64_t seen = group.window > 0 ? std::max<int64_t>(0, int64_t{span.start} - group.window + 1) : 0;
      for (int64_t b = seen / batch.page_size; b < blocks_of(span); ++b) {
        HF_CHECKF(table[b] >= 0, "group {}, sequence {}: no page for position {}", g, s, b * batch.page_size);
      }
      put(pages[g] + at * 4, table, static_cast<size_t>(blocks_of(span)) * 4);
    }
    at += blocks_of(span);
  }
  step_uploads_.Send(piece);
  on_device_.tokens = reinterpret_cast<const uint32_t*>(piece.device + tokens);
  on_device_.positions = reinterpret_cast<const int32_t*>(piece.device + positions);
  on_device_.row_sequence = reinterpret_cast<const int32_t*>(piece.device + row_sequence);
  on_device_.sequences = reinterpret_cast<const SequenceSpan*>(piece.device + spans);
  on_device_.rows = rows;
  on_device_.sequence_count = static_cast<int32_t>(count);
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    tables_[g] = {reinterpret_cast<const int32_t*>(piece.device + pages[g]), reinterpret_cast<const int32_t*>(piece.device + first), batch.groups[g].window};
  }
}

void CudaOps::Embed(const Weight& table, float scale, Mat out) {
  HF_CHECK(out.rows == static_cast<int64_t>(batch_.tokens.size()) && out.cols == table.in);
  for (const uint32_t id : batch_.tokens) HF_CHECKF(id < table.out, "token {} of {}", id, table.out);
  if (!ok()) return;
  if (table.layout == kLayoutPacked) {
    EmbedPacked(stream_, table, on_device_.tokens, scale, out);
  } else {
    HF_CUDA_NAMESPACE::Embed(stream_, table, on_device_.tokens, scale, out);
  }
}

void CudaOps::RmsNorm(ConstMat x, Vec weight, float eps, Mat out) {
  CheckSameShape(x, out);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  if (ok()) HF_CUDA_NAMESPACE::RmsNorm(stream_, x, OrNull(weight), eps, out);
}

void CudaOps::AddRmsNorm(Mat x, ConstMat y, Vec weight, float eps) {
  CheckSameShape(x, y);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  if (ok()) HF_CUDA_NAMESPACE::AddRmsNorm(stream_, x, y, OrNull(weight), eps);
}

void CudaOps::Gated(ConstMat gate, ConstMat up, Activation activation, Mat out) {
  CheckSameShape(gate, up);
  CheckSameShape(gate, out);
  if (ok()) HF_CUDA_NAMESPACE::Gated(stream_, gate, up, activation, out);
}

void CudaOps::Add(Mat x, ConstMat y) {
  CheckSameShape(x, y);
  if (ok()) HF_CUDA_NAMESPACE::Add(stream_, x, y);
}

void CudaOps::Scale(Mat x, float factor) {
  if (ok()) HF_CUDA_NAMESPACE::Scale(stream_, x, factor);
}

void CudaOps::ScaleColumns(Mat x, Vec factors) {
  HF_CHECK(static_cast<int64_t>(factors.size()) == x.cols);
  if (ok()) HF_CUDA_NAMESPACE::ScaleColumns(stream_, x, factors.data());
}

void CudaOps::Multiply(Mat x, ConstMat y) {
  CheckSameShape(x, y);
  if (ok()) HF_CUDA_NAMESPACE::Multiply(stream_, x, y);
}

void CudaOps::ActivateInPlace(Mat x, Activation activation) {
  HF_CHECK(activation != Activation::kSwigluOai);  // it has two inputs
  if (ok()) HF_CUDA_NAMESPACE::Activate(stream_, x, activation);
}

void CudaOps::Softcap(Mat x, float cap) {
  if (ok()) HF_CUDA_NAMESPACE::Softcap(stream_, x, cap);
}

void CudaOps::GatherRows(ConstMat x, std::span<const int32_t> rows, Mat out) {
  HF_CHECK(out.rows == static_cast<int64_t>(rows.size()) && out.cols == x.cols);
  for (const int32_t r : rows) HF_CHECKF(r >= 0 && r < x.rows, "row {} of {}", r, x.rows);
  if (rows.empty()) return;
  const Uploads::Piece piece = uploads_.Take(static_cast<int64_t>(rows.size_bytes()));
  if (piece.host == nullptr) return;
  std::memcpy(piece.host, rows.data(), rows.size_bytes());
  uploads_.Send(piece);
  if (ok()) HF_CUDA_NAMESPACE::GatherRows(stream_, x, reinterpret_cast<const int32_t*>(piece.device), out);
}

const float* CudaOps::RopeTableFor(const RopeParams& p) {
  const auto same = [&](const RopeParams& o) {
    return o.dims == p.dims && o.base == p.base && o.scale == p.scale && o.freq_factors.data() == p.freq_factors.data() &&
           o.yarn_factor == p.yarn_factor && o.yarn_original_context == p.yarn_original_context && o.yarn_beta_fast == p.yarn_beta_fast &&
           o.yarn_beta_slow == p.yarn_beta_slow && o.attention_factor == p.attention_factor;
  };
  const auto it = std::find_if(rope_.begin(), rope_.end(), [&](const auto& r) { return same(r->params); });
  RopeCache& cache = it != rope_.end() ? **it : *rope_.emplace_back(std::make_unique<RopeCache>(&errors_));
  cache.params = p;
  float* table = cache.table.Of<float>(on_device_.rows * p.dims);
  if (cache.current || table == nullptr) return table;
  cache.current = true;
  RopeTableSpec spec;
  spec.base = p.base;
  spec.scale = p.scale;
  spec.dims = p.dims;
  spec.attention_factor = p.attention_factor;
  spec.freq_factors = OrNull(p.freq_factors);
  if (p.yarn_factor != 1.f) {
    const double n = p.dims;
    const auto corrected = [&](double rotations) {
      return n * std::log(p.yarn_original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(static_cast<double>(p.base)));
    };
    spec.yarn_factor = p.yarn_factor;
    spec.low = std::max(0.0, std::floor(corrected(p.yarn_beta_fast)));
    spec.high = std::min(n - 1, std::ceil(corrected(p.yarn_beta_slow)));
  }
  RopeTable(stream_, spec, on_device_.positions, on_device_.rows, table);
  return table;
}

void CudaOps::Rope(Mat x, int32_t heads, const RopeParams& p) {
  HF_CHECK(heads > 0 && x.cols % heads == 0 && x.rows == static_cast<int64_t>(batch_.positions.size()));
  HF_CHECKF(p.dims % 2 == 0 && p.dims <= x.cols / heads, "rotating {} of {} dimensions", p.dims, x.cols / heads);
  HF_CHECK(p.freq_factors.empty() || static_cast<int64_t>(p.freq_factors.size()) == p.dims / 2);
  if (!ok()) return;
  if (const float* table = RopeTableFor(p)) HF_CUDA_NAMESPACE::Rope(stream_, x, heads, p.kind, p.dims, table);
}

void CudaOps::CopyPage(std::byte* dst, const std::byte* src, int64_t bytes) {
  errors_.Check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_), "copying a page");
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

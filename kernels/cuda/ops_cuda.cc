#include "kernels/cuda/ops_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/cuda/collective.h"
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
                                          {properties.multiProcessorCount, static_cast<int64_t>(properties.sharedMemPerBlockOptin)}, options.graphs));
}

CudaOps::CudaOps(int device, cudaStream_t stream, std::string description, const AttentionDevice& attention_device, bool graphs)
    : device_(device), stream_(stream), description_(std::move(description)), step_(&errors_, stream), uploads_(&errors_, stream, 64 << 10),
      downloads_(&errors_, stream), attention_device_(attention_device), graphs_on_(graphs) {}

CudaOps::~CudaOps() {
  errors_.Await(stream_, "waiting for the device");
  DropGraphs();
  LeaveRanks();
}

absl::Status CudaOps::JoinRanks(const JoinSpec& spec) {
  HF_CHECK(collective_ == nullptr);
  errors_.Check(cudaSetDevice(device_), "choosing the device");
  auto joined = NcclCollective::Join(&errors_, stream_, spec);
  if (!joined.ok()) return joined.status();
  collective_ = *std::move(joined);
  return absl::OkStatus();
}

void CudaOps::LeaveRanks() { collective_.reset(); }

Buffer CudaOps::Allocate(int64_t bytes) {
  void* p = nullptr;
  if (errors_.RefusesInTrial("allocating memory")) return Buffer();
  errors_.Moved();   // what it replaces may be what a graph uses
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
  if (errors_.RefusesInTrial("waiting for the device")) return;
  errors_.Await(stream_, "waiting for the device");
  errors_.Check(cudaGetLastError(), "launching a kernel");
  downloads_.Deliver();
}

absl::Status CudaOps::Health() const {
  if (errors_.ok()) return collective_ == nullptr ? absl::OkStatus() : collective_->status();
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
  Wrote(dst, bytes);
  if (bytes == 0 || errors_.RefusesInTrial("copying to the device")) return;
  errors_.BeforeBlocking();  // from pageable memory the runtime takes the bytes before it returns
  errors_.Check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_), "copying to the device");
}

void CudaOps::Embed(const Weight& table, float scale, Mat out) {
  Wrote(out);
  HF_CHECK(out.rows == static_cast<int64_t>(batch_.tokens.size()) && out.cols == table.in);
  for (const uint32_t id : batch_.tokens) HF_CHECKF(id < table.out, "token {} of {}", id, table.out);
  if (ok()) EmbedTokens(table, on_device_.tokens, scale, out);
}

void CudaOps::EmbedPart(const Weight& table, int64_t first, float scale, Mat out) {
  Wrote(out);
  HF_CHECK(out.rows == static_cast<int64_t>(batch_.tokens.size()) && out.cols == table.in);
  uint32_t* part = part_tokens_.Of<uint32_t>(out.rows);
  if (!ok()) return;
  TokensOfPart(stream_, on_device_.tokens, first, table.out, part, out.rows);
  EmbedTokens(table, part, scale, out);
  ZeroOtherTokens(stream_, on_device_.tokens, first, table.out, out);
}

void CudaOps::EmbedTokens(const Weight& table, const uint32_t* tokens, float scale, Mat out) {
  if (table.layout == kLayoutPacked) {
    EmbedPacked(stream_, table, tokens, scale, out);
  } else {
    HF_CUDA_NAMESPACE::Embed(stream_, table, tokens, scale, out);
  }
}

void CudaOps::RmsNorm(ConstMat x, Vec weight, float eps, Mat out) {
  Wrote(out);
  CheckSameShape(x, out);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  if (ok()) HF_CUDA_NAMESPACE::RmsNorm(stream_, x, OrNull(weight), eps, out);
}

void CudaOps::Wrote(const void* first, int64_t bytes) {
  if (normed_.data == nullptr) return;
  const auto *at = static_cast<const std::byte*>(first), *normed = reinterpret_cast<const std::byte*>(normed_.data);
  const int64_t normed_bytes = ((normed_.rows - 1) * normed_.stride + normed_.cols) * int64_t{sizeof(float)};
  if (at < normed + normed_bytes && normed < at + bytes) normed_ = {};
}

void CudaOps::NormForProducts(ConstMat x, Vec weight, float eps, Mat out) {
  CheckSameShape(x, out);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  HF_CHECK(x.data != out.data);
  normed_ = {};
  if (!takes_int8_ || x.cols % 32 != 0 || x.rows == 0) return RmsNorm(x, weight, eps, out);
  void* memory = panels_[0].Get(PanelBytes(false, x.rows, x.cols));
  if (memory == nullptr || !ok()) return;
  NormPanel(stream_, x, OrNull(weight), eps, out, memory);
  normed_ = out;
}

void CudaOps::AddRmsNorm(Mat x, ConstMat y, Vec weight, float eps) {
  Wrote(x);
  CheckSameShape(x, y);
  HF_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == x.cols);
  if (ok()) HF_CUDA_NAMESPACE::AddRmsNorm(stream_, x, y, OrNull(weight), eps);
}

void CudaOps::Gated(ConstMat gate, ConstMat up, Activation activation, Mat out) {
  Wrote(out);
  CheckSameShape(gate, up);
  CheckSameShape(gate, out);
  if (ok()) HF_CUDA_NAMESPACE::Gated(stream_, gate, up, activation, out);
}

void CudaOps::Add(Mat x, ConstMat y) {
  Wrote(x);
  CheckSameShape(x, y);
  if (ok()) HF_CUDA_NAMESPACE::Add(stream_, x, y);
}

void CudaOps::Scale(Mat x, float factor) {
  Wrote(x);
  if (ok()) HF_CUDA_NAMESPACE::Scale(stream_, x, factor);
}

void CudaOps::ScaleColumns(Mat x, Vec factors) {
  Wrote(x);
  HF_CHECK(static_cast<int64_t>(factors.size()) == x.cols);
  if (ok()) HF_CUDA_NAMESPACE::ScaleColumns(stream_, x, factors.data());
}

void CudaOps::Multiply(Mat x, ConstMat y) {
  Wrote(x);
  CheckSameShape(x, y);
  if (ok()) HF_CUDA_NAMESPACE::Multiply(stream_, x, y);
}

void CudaOps::ActivateInPlace(Mat x, Activation activation) {
  Wrote(x);
  HF_CHECK(activation != Activation::kSwigluOai);  // it has two inputs
  if (ok()) HF_CUDA_NAMESPACE::Activate(stream_, x, activation);
}

void CudaOps::Softcap(Mat x, float cap) {
  Wrote(x);
  if (ok()) HF_CUDA_NAMESPACE::Softcap(stream_, x, cap);
}

void CudaOps::GatherRows(ConstMat x, std::span<const int32_t> rows, Mat out) {
  Wrote(out);
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
  Wrote(x);
  HF_CHECK(heads > 0 && x.cols % heads == 0 && x.rows == static_cast<int64_t>(batch_.positions.size()));
  HF_CHECKF(p.dims % 2 == 0 && p.dims <= x.cols / heads, "rotating {} of {} dimensions", p.dims, x.cols / heads);
  HF_CHECK(p.freq_factors.empty() || static_cast<int64_t>(p.freq_factors.size()) == p.dims / 2);
  if (!ok()) return;
  if (const float* table = RopeTableFor(p)) HF_CUDA_NAMESPACE::Rope(stream_, x, heads, p.kind, p.dims, table);
}

void CudaOps::Draw(Mat logits, std::span<const DrawSpec> specs, Drawn* out) { draws_.Draw(logits, specs, out); }

void CudaOps::Wait(uint64_t mark) {
  downloads_.Wait(mark);
  errors_.Check(cudaGetLastError(), "launching a kernel");
}

void CudaOps::CopyPage(std::byte* dst, const std::byte* src, int64_t bytes) {
  Wrote(dst, bytes);
  if (errors_.RefusesInTrial("copying a page")) return;
  errors_.Check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_), "copying a page");
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#include "kernels/cuda/kv_store.h"

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 128;

// A thread per value of f16 and bf16, per 32 values of the 8-bit types.
__global__ void __launch_bounds__(kThreads) StoreKernel(KvLayer layer, KvPlane plane, DeviceBatch batch, DeviceTables tables, ConstMat x) {
  const bool coded = KvIsQuantized(layer.dtype);
  const int64_t each = coded ? kKvBlock : 1, pieces = x.cols / each;
  for (int64_t i = GridThread(); i < x.rows * pieces; i += GridThreads()) {
    const int64_t t = i / pieces, column = i % pieces * each, head = column / plane.dim, at = column % plane.dim;
    const int32_t s = batch.row_sequence[t];
    const SequenceSpan span = batch.sequences[s];
    const int64_t position = span.start + (t - span.first_row);
    std::byte* page = layer.base + tables.pages[tables.first[s] + position / layer.page_size] * layer.page_stride;
    const int64_t index = plane.Index(head, position % layer.page_size, at);
    const float* from = x.data + t * x.stride + column;
    if (coded) {
      reinterpret_cast<uint16_t*>(page + plane.scales)[index / kKvBlock] =
          EncodeKvBlock(layer.dtype, from, reinterpret_cast<uint8_t*>(page + plane.codes) + index);
    } else {
      reinterpret_cast<uint16_t*>(page + plane.codes)[index] = layer.dtype == KvDType::kF16 ? FloatToHalf(*from) : FloatToBfloat(*from);
    }
  }
}

}  // namespace

void StoreKv(cudaStream_t stream, const KvLayer& layer, const KvPageLayout& page, const DeviceBatch& batch, const DeviceTables& tables, ConstMat k,
             ConstMat v) {
  if (k.rows == 0) return;
  Launch(StoreKernel, Blocks(k.rows * k.cols, kThreads), kThreads, 0, stream, layer, page.k, batch, tables, k);
  Launch(StoreKernel, Blocks(v.rows * v.cols, kThreads), kThreads, 0, stream, layer, page.v, batch, tables, v);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

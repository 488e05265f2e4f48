#include "kernels/cuda/attention_tile.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

void AttendBf16(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args) {
  LaunchTile<KvDType::kBF16>(stream, tile, blocks, args);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

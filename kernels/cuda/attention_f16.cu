#include "kernels/cuda/attention_tile.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

void AttendF16(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args) {
  LaunchTile<KvDType::kF16>(stream, tile, blocks, args);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

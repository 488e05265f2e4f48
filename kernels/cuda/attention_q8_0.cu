#include "kernels/cuda/attention_tile.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

void AttendQ8(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args) {
  LaunchTile<KvDType::kQ8_0>(stream, tile, blocks, args);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

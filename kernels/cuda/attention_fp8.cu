#include "kernels/cuda/attention_tile.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

void AttendFp8(cudaStream_t stream, const AttentionTile& tile, unsigned blocks, const AttentionArgs& args) {
  LaunchTile<KvDType::kFp8E4M3>(stream, tile, blocks, args);
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

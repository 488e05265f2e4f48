#include "kernels/cuda/matmul_kernels.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

HF_MATMULS(Nibble, DType::kQ4_0, DType::kQ4_1, DType::kIQ4_NL, DType::kMXFP4)

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

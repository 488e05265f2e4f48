#include "kernels/cuda/matmul_kernels.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

HF_MATMULS(Super, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K)

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

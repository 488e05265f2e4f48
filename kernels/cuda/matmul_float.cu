#include "kernels/cuda/matmul_kernels.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

HF_MATMULS(Float, DType::kF32, DType::kF16, DType::kBF16)

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

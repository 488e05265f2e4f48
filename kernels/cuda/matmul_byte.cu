#include "kernels/cuda/matmul_kernels.cuh"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

HF_MATMULS(Byte, DType::kQ8_0, DType::kQ5_0, DType::kQ5_1)

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

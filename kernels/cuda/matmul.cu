#include "kernels/cuda/matmul.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {

#define HF_FAMILY(family)                                              \
  void MatMul##family(cudaStream_t stream, const MatMulArgs& a);     \
  void Embed##family(cudaStream_t stream, const Weight& table, const uint32_t* tokens, float scale, Mat out)
HF_FAMILY(Float);
HF_FAMILY(Nibble);
HF_FAMILY(Byte);
HF_FAMILY(Super);
#undef HF_FAMILY

namespace {

// f(of the type's family): which file of matmul_*.cu has its kernels.
template <class F>
void ForFamily(DType type, F&& f) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: return f(MatMulFloat, EmbedFloat);
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kIQ4_NL:
    case DType::kMXFP4: return f(MatMulNibble, EmbedNibble);
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0: return f(MatMulByte, EmbedByte);
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K: return f(MatMulSuper, EmbedSuper);
  }
}

}  // namespace

void MatMul(cudaStream_t stream, const MatMulArgs& args) {
  if (args.y.rows == 0 || args.out == 0) return;
  ForFamily(args.dtype, [&](auto matmul, auto) { matmul(stream, args); });
}

void EmbedPacked(cudaStream_t stream, const Weight& table, const uint32_t* tokens, float scale, Mat out) {
  if (out.rows == 0) return;
  ForFamily(table.dtype, [&](auto, auto embed) { embed(stream, table, tokens, scale, out); });
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE

#pragma once
// The parts of a kernel table, one namespace an instruction set. A set that adds nothing to a part shares the part of the set below it.
#include "kernels/cpu/kernel_table.h"

namespace holdfast::kernels {

#define HF_DECLARE_PARTS(isa)               \
  namespace isa {                           \
  void FillGemm(KernelTable& table);        \
  void FillVector(KernelTable& table);      \
  void FillAttention(KernelTable& table);   \
  }

HF_DECLARE_PARTS(scalar)
HF_DECLARE_PARTS(avx2)
HF_DECLARE_PARTS(avx512)
HF_DECLARE_PARTS(avx512vnni)
HF_DECLARE_PARTS(avx512amx)
#undef HF_DECLARE_PARTS

}  // namespace holdfast::kernels

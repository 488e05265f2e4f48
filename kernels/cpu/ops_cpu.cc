#include "kernels/ops.h"

namespace holdfast::kernels {

std::unique_ptr<Ops> MakeCpuOps(const CpuOptions&) { return MakeReferenceOps(); }

}  // namespace holdfast::kernels
